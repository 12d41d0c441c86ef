"""Drafts without replacement where tuples cannot be enumerated, and where masses are subnormal."""

import itertools

import numpy as np
import pytest

import otmd
from otmd.kernel import every_kernel_compiled

KINDS = {
    "flat": np.full(1500, 1.0),
    "realistic": np.exp(2.5 * np.random.default_rng(0).standard_normal(1500)),
    "peaked": np.exp(6.0 * np.random.default_rng(1).standard_normal(1500)),
    "thirty orders": 10.0 ** -np.linspace(0, 30, 1500),
}


def _three_in(q: np.ndarray, outside: float) -> float:
    """g(H) for n = 3 and the tokens q of H, by the closed form of ∫ e^{−t} e_2(e^{q_i t} − 1) dt."""
    left = outside + q.sum() - q
    pairs = outside + (q.sum() - q[:, None] - q)
    pairs[np.diag_indices(q.size)] = 1.0
    # 1/(1−a−b) − 1/(1−a) − 1/(1−b) + 1 without its cancellation: ab (2−a−b) over the denominators.
    total = outside + q.sum()
    a, b = q[:, None], q
    terms = a * b * (2 * total - a - b) / (total * (total - a) * (total - b) * pairs)
    both = 0.5 * (terms.sum() - np.trace(terms))
    return 1.0 - outside * (1.0 / total + (q / (total * left)).sum() + both)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", [0.2, 0.9, 0.999])
def test_three_drafts_against_the_closed_form(kind: str, part: float) -> None:
    q = KINDS[kind] / KINDS[kind].sum()
    subset = np.random.default_rng(7).random(q.size) < part
    exact = _three_in(q[subset], q[~subset].sum())
    drafts = otmd.WithoutReplacement(q, num_drafts=3)
    assert drafts.containment(subset) == pytest.approx(exact, abs=1e-10)


@pytest.mark.parametrize(
    ("V", "inside", "num_drafts"),
    [
        *((1000, 700, n) for n in (2, 3, 4, 8, 16)),
        (20, 19, 8),
        (3000, 2999, 8),
        (5000, 4999, 100),
        (5000, 4999, 1000),
    ],
)
def test_even_drafts_are_a_hypergeometric_draw(V: int, inside: int, num_drafts: int) -> None:
    """The count of many arrivals passes n within a small part of its time, which the rule must resolve."""
    drafts = otmd.WithoutReplacement(np.full(V, 1 / V), num_drafts)
    exact = np.prod([(inside - i) / (V - i) for i in range(num_drafts)])
    assert drafts.containment(np.arange(V) < inside) == pytest.approx(exact, abs=1e-12)
    # That of a thousand drafts takes a minute.
    if num_drafts < 1000:
        np.testing.assert_allclose(drafts.inclusion_probs(), num_drafts / V, rtol=1e-11)


@pytest.mark.parametrize("tiny", [1e-300, 1e-310, 5e-324])
def test_subnormal_masses_are_shared_in_proportion(tiny: float) -> None:
    """Token 0 comes first; the others are then drawn with weights 1, 2 and 3."""
    q = np.array([1.0, tiny, 2 * tiny, 3 * tiny])
    two, three = (otmd.WithoutReplacement(q, n) for n in (2, 3))
    np.testing.assert_allclose(two.inclusion_probs(), [1, 1 / 6, 2 / 6, 3 / 6], rtol=1e-12)
    assert two.containment([True, True, True, False]) == pytest.approx(1 / 2, abs=1e-12)
    assert two.tuple_prob([0, 3]) == pytest.approx(1 / 2, abs=1e-12)
    pairs = {(a, b): a / 6 * b / (6 - a) for a, b in itertools.permutations([1, 2, 3], 2)}
    drafted = [1.0, *(sum(w for pair, w in pairs.items() if y in pair) for y in (1, 2, 3))]
    np.testing.assert_allclose(three.inclusion_probs(), drafted, rtol=1e-12)
    contained = [0, 0, 0, pairs[1, 2] + pairs[2, 1], 1]
    prefixes = three.position_structure.prefix_containment(np.arange(4))
    np.testing.assert_allclose(prefixes, contained, rtol=0, atol=1e-12)
    for law in (two, three, otmd.WithReplacement(q, 3), otmd.Greedy(q, 3)):
        for verifier in otmd.verifiers.verifiers_serving(law):
            output = verifier.output_distribution(np.full(4, 0.25), law)
            np.testing.assert_allclose(output, 0.25, rtol=0, atol=1e-12)


def test_an_infinite_product_of_unit_and_end_is_not_met() -> None:
    """A race with tokens without mass may end so late that its end times the unit would be infinite."""
    law = otmd.WithoutReplacement([0.0, 1.6e-238, 1.4e-319, 1.0], 3)
    with every_kernel_compiled():
        assert law.containment(np.ones(4, bool)) == 1.0
        assert law.containment(np.array([True, True, False, True])) == 0.0


def test_a_race_of_one_draft_after_a_deterministic_one() -> None:
    race = otmd.laws.Race(np.array([0.0, 0.4, 0.6]), 1)
    structure = otmd.laws.Structure.of(otmd.laws.Structure(np.array([0]), race, 3))
    assert structure.containment(np.array([True, True, False])) == 0.4
