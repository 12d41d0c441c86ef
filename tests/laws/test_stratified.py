"""One draft from each stratum: the law against its twin, and the order in which it is cut."""

from fractions import Fraction

import numpy as np
import pytest
import reference

import otmd

Q = np.array([0.3, 0.25, 0.15, 0.1, 0.1, 0.06, 0.04])


def as_floats(values: list[Fraction]) -> np.ndarray:
    return np.array([float(value) for value in values])


@pytest.mark.filterwarnings("error")
def test_sharp_weights_and_shares_of_any_size_are_cut_as_exact_ones() -> None:
    """Powers that underflow beside the largest, and shares of subnormal and huge size."""
    rng, compared = np.random.default_rng(8), 0
    for _ in range(60):
        q = rng.dirichlet(np.full(int(rng.integers(3, 12)), rng.choice([0.05, 0.5, 2.0])))
        q[rng.random(q.size) < 0.2] = 0.0
        support = np.count_nonzero(q)
        if support < 2:
            continue
        n, sharpness = int(rng.integers(2, support + 1)), int(rng.choice([1, 2, 5, 50, 1000]))
        unit = rng.choice([1e-320, 1.0, 1e250])
        shares = unit * rng.choice([1.0, 3.0, 1e40], n) if rng.random() < 0.5 else None
        law = otmd.Stratified(q / q.sum(), n, float(sharpness), shares)
        exact = [Fraction(mass) for mass in law.draft_probs.tolist()]
        parts = None if shares is None else [Fraction(share) for share in shares.tolist()]
        number, inclusion = reference.strata(exact, n, sharpness, parts)
        drawn = law.draft_probs > 0
        assert law.strata[drawn].tolist() == np.array(number)[drawn].tolist(), (law, q)
        np.testing.assert_allclose(law.inclusion_probs(), as_floats(inclusion), rtol=1e-9, atol=1e-300)
        compared += 1
    assert compared > 40


def test_the_tail_of_a_sharp_law_keeps_its_order() -> None:
    q = np.exp(-np.arange(40.0))
    q /= q.sum()
    assert otmd.Stratified(q, 20, sharpness=50.0).strata.tolist() == [*range(19), *[19] * 21]
    inclusion = otmd.Stratified(q, 2, sharpness=50.0).inclusion_probs()
    np.testing.assert_allclose(np.log(inclusion[1:14]), -50.0 * np.arange(13), atol=1e-9)
    # Below the range of float64 a probability is zero.
    assert (np.diff(inclusion[1:]) <= 0).all()
    assert inclusion[-1] == 0
    flat = np.append(1.0 - 39e-10, np.full(39, 1e-10))
    assert np.bincount(otmd.Stratified(flat, 3, sharpness=50.0).strata).tolist() == [1, 20, 19]


def test_strata_are_numbered_from_the_head_and_heavy_tokens_stand_alone() -> None:
    assert otmd.Stratified(Q, 3).strata.tolist() == [0, 0, 1, 2, 2, 2, 2]
    assert otmd.Stratified([0.01, 0.9, 0.04, 0.05], 3).strata.tolist() == [2, 0, 2, 1]
    assert otmd.Stratified(Q, 2, shares=[1, 3]).strata.tolist() == [0, 1, 1, 1, 1, 1, 1]
    # The weights of a small exponent are all alike, so that strata hold as many tokens.
    assert otmd.Stratified(Q, 2, sharpness=0.01).strata.tolist() == [0, 0, 0, 0, 1, 1, 1]


def test_equal_probabilities_are_taken_by_id() -> None:
    assert otmd.Stratified(np.full(6, 1 / 6), 3).strata.tolist() == [0, 0, 1, 1, 2, 2]
    rng = np.random.default_rng(3)
    q = np.repeat([4.0, 3.0, 2.0, 1.0, 0.0], 600)[rng.permutation(3000)]
    law = otmd.Stratified(q / q.sum(), 4)
    order = np.lexsort((np.arange(q.size), -q))
    assert (np.diff(law.strata[order]) >= 0).all()


# ---------------------------------------------------------------- the optimum


def test_a_large_vocabulary_has_no_better_neighbour() -> None:
    """At V = 20,000, the cut gets no better by adding a token or by removing one."""
    rng = np.random.default_rng(5)
    p, q = rng.dirichlet(np.full(20_000, 0.05), size=2)
    law = otmd.Stratified(0.5 * p + 0.5 * q, 4)
    best = otmd.optimal_acceptance(p, law)
    strata = law.position_structure.slots
    inside = np.bincount(strata.number[best.subset], strata.token_probs[best.subset], 4)
    others = np.array([np.delete(inside, j).prod() for j in range(4)])[strata.number]
    gain = p - others * strata.token_probs
    assert (gain[best.subset] <= 1e-14).all()
    assert (gain[~best.subset] >= -1e-14).all()


def two_strata_optimum(target: np.ndarray, law: otmd.Stratified) -> float:
    """1 + the least p(H) − q_1(H) q_2(H) over all pairs of prefixes by p/q_j."""
    sums = []
    for j in range(2):
        p, q = target[law.strata == j], law.inclusion_probs()[law.strata == j]
        with np.errstate(over="ignore"):
            order = np.argsort(np.divide(p, q, out=np.full(q.size, np.inf), where=q > 0))
        sums.append([np.append(0.0, mass[order].cumsum()) for mass in (p, q)])
    (p, q), (other, own) = sums
    return 1.0 + float(np.min([a + other - b * own for a, b in zip(p, q, strict=True)]))


def test_tokens_that_are_all_but_never_drafted_do_not_hide_the_optimum() -> None:
    """The cut is best even if rounding loses q of most tokens beside that of the tokens before them."""
    for seed in range(12):
        rng = np.random.default_rng([11, seed])
        logits = rng.choice([5.0, 15.0, 40.0]) * rng.standard_normal(int(rng.integers(50, 1500)))
        noise = rng.choice([0.5, 3.0, 10.0]) * rng.standard_normal(logits.size)
        target, draft = map(otmd.probs_from_logits, (logits, logits + noise))
        law = otmd.Stratified(draft, 2)
        found = otmd.optimal_acceptance(target, law).rate
        assert found == pytest.approx(two_strata_optimum(target, law), abs=1e-12), seed


def test_a_ratio_beyond_the_largest_float_is_no_overflow() -> None:
    draft = np.append(np.ones(2999), 1e-312)
    target = np.append(np.full(2999, 1e-5), 1.0)
    law, target = otmd.Stratified(draft / draft.sum(), 2), target / target.sum()
    found = otmd.optimal_acceptance(target, law).rate
    assert found == pytest.approx(two_strata_optimum(target, law), abs=1e-12)
    assert otmd.lossy_frontier(target, law).rate_at(0.0) == pytest.approx(found, abs=1e-12)
