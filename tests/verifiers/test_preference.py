"""The preference rule: lossless for every law and order, and its rate exact."""

from fractions import Fraction

import numpy as np
import pytest
import reference
import strategies
from sweep_twin import order_of, swept, swept_masses

import otmd
from otmd.verifiers.preference import Preference


def table_of(law: otmd.DraftLaw) -> list[list[float]]:
    """The distribution of each slot."""
    slots = law.position_structure.random
    return np.repeat(slots.dense, slots.copies, axis=0).tolist()


def test_it_decides_as_its_twin() -> None:
    """Given the drafts, the rule has the output of its twin, which takes pair after pair in its order."""
    for instance in strategies.instances(40, seed=44):
        p, q, n = np.array(instance.p), np.array(instance.q), instance.num_drafts
        cases = [otmd.WithReplacement(q, n), otmd.Independent(instance.table)]
        if instance.draft_support >= n:
            cases.append(otmd.Stratified(q, n))
        for law in cases:
            twin = swept(p.tolist(), table_of(law), order_of(p, law))
            prepared = otmd.Preference().prepare(p, law)
            for tokens, drawn in list(zip(*law.enumerate(), strict=True))[::7]:
                outcomes = twin(tuple(tokens.tolist()))
                expected = np.array(reference.conditional(outcomes, len(p)), float)
                # Weighted by Q: for tuples that are hardly ever drawn, rounding decides.
                apart = drawn * np.abs(prepared.conditional_law(tokens) - expected).max()
                assert apart < 1e-12, instance


def test_exactly_lossless_in_fractions_and_not_without_thinning() -> None:
    """In fractions the output is p exactly, in any order of the pairs; without thinning it is not."""
    rng, wrong = np.random.default_rng(2), 0
    for _ in range(12):
        p, *table = (reference.exact([*rng.integers(0, 12, 4).tolist(), 1]) for _ in range(4))
        law = reference.independent(table)
        pairs = [(j, y) for j in range(3) for y in range(5) if table[j][y] > 0]
        order = [pairs[i] for i in rng.permutation(len(pairs))]
        rate, output = reference.judged(law, swept(p, table, order), 5)
        assert output == p
        assert rate <= reference.optimal_by_subsets(p, law)[0]
        _, faulty = reference.judged(law, swept(p, table, order, thinned=False), 5)
        wrong += max(abs(a - b) for a, b in zip(faulty, p, strict=True)) > Fraction(1, 100)
    assert wrong > 6


def test_the_certificate_says_where_the_rule_is_optimal() -> None:
    """The gap is 0 where the pairs that are accepted whole come before all that are thinned."""
    rng, optimal = np.random.default_rng(4), 0
    for _ in range(60):
        p, q = rng.dirichlet(np.ones(6), size=2)
        law = otmd.WithReplacement(q, 3)
        proof = otmd.Preference().certificate(p, law)
        assert proof.gap >= -1e-12
        assert proof.attained == pytest.approx(otmd.acceptance_rate(otmd.Preference(), p, law))
        sweep = otmd.Preference().prepare(p, law).choice
        short = {y for y in range(6) if sweep.left[y] > 0}
        tokens = [token for _, token in order_of(p, law)]
        last_short = max((i for i, y in enumerate(tokens) if y in short), default=-1)
        if last_short < min((i for i, y in enumerate(tokens) if y not in short), default=99):
            assert proof.gap < 1e-12
            optimal += 1
    assert 5 < optimal < 60


@pytest.mark.parametrize("n", [2, 8])
def test_cells_take_pairs_as_one_by_one(n: int) -> None:
    """Cells of a large vocabulary, with tokens of no mass, against the same order pair by pair."""
    rng = np.random.default_rng([7, n])
    for noise in (0.0, 0.3, 3.0):
        logits = 2.5 * rng.standard_normal(600)
        p, q = (
            otmd.probs_from_logits(x) for x in (logits, logits + noise * rng.standard_normal(logits.size))
        )
        q[::5] = 0.0
        for law in (otmd.WithReplacement(q / q.sum(), n), otmd.Stratified(q / q.sum(), n)):
            order = np.array(order_of(p, law))
            in_cells = Preference().prepare(p, law)
            one_by_one = swept_masses(p, law, list(map(tuple, order.tolist())))
            assert in_cells.rate == pytest.approx(sum(one_by_one.values()), abs=1e-12)
            accepted = np.bincount(order[:, 1], list(one_by_one.values()), p.size)
            np.testing.assert_allclose(in_cells.accepted, accepted, atol=1e-12)
            pairs = order[rng.integers(len(order), size=200)]
            _, _, taken = in_cells.choice.pairs(*pairs.T)
            expected = [one_by_one[slot, token] for slot, token in pairs.tolist()]
            np.testing.assert_allclose(taken, expected, atol=1e-12)
