"""Laws of nature: what must hold for every pair of distributions, whatever the numbers are."""

from __future__ import annotations

import numpy as np
import pytest
import reference
from conformance import VARIANTS
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from strategies import KINDS, dirichlet, dyadic, num_drafts, pairs, unit

import otmd
from otmd.optimum.bounds import k_sequential_floor
from otmd.probabilities import ORDERS

SLACK = 1e-12
Array = np.ndarray
Pair = tuple[Array, Array]

FAMILIES = {
    name: VARIANTS[name]
    for name in (
        "with-replacement",
        "without-replacement",
        "conditional-poisson",
        "greedy",
        "top-then",
        "top, then without replacement",
        "hub",
    )
}
# Greedy and Hub drafts, and those after a most likely token, depend on the ids where masses tie.
NAMELESS = ("with-replacement", "without-replacement", "conditional-poisson")
families = pytest.mark.parametrize("family", FAMILIES)


def law(family: str, q: Array, n: int) -> otmd.DraftLaw:
    """The law, or no example at all where it does not exist for (q, n)."""
    assume(n >= 2 or not family.startswith("top"))
    try:
        return FAMILIES[family](q, n)
    except ValueError:
        reject()


@families
@given(pair=pairs(), n=num_drafts(3))
def test_optimum_grows_with_the_drafts(family: str, pair: Pair, n: int) -> None:
    p, q = pair
    more = law(family, q, n + 1)
    fewer = law(family, q, n)
    rate = otmd.optimal_acceptance(p, more).rate
    if family == "greedy":
        # The last draft of n becomes a certain one of n + 1, so more drafts may indeed be worse.
        assert rate >= p[list(reference.likeliest(q.tolist(), n))].sum() - SLACK
    else:
        assert rate >= otmd.optimal_acceptance(p, fewer).rate - SLACK


@given(pair=pairs(), n=num_drafts())
def test_k_sequential_keeps_its_promise(pair: Pair, n: int) -> None:
    p, q = pair
    drafts = otmd.WithReplacement(q, n)
    best = otmd.optimal_acceptance(p, drafts).rate
    rate = otmd.acceptance_rate(otmd.KSequential(), p, drafts)
    assert k_sequential_floor(n) == pytest.approx(1 - (1 - 1 / n) ** n, abs=1e-15)
    assert 1 - np.exp(-1) == k_sequential_floor() <= k_sequential_floor(n)
    assert rate >= k_sequential_floor(n) * best - SLACK
    assert rate >= (1 - np.exp(-1)) * best - SLACK


@families
@given(data=st.data(), pair=pairs(), n=num_drafts())
def test_names_of_tokens_do_not_matter(
    family: str, data: st.DataObject, pair: Pair, n: int
) -> None:
    p, q = pair
    # The likeliest tokens are told apart by their ids where they tie.
    assume(family in NAMELESS or len(set(q.tolist())) == len(q))
    renamed = np.array(data.draw(st.permutations(range(len(p)))), dtype=int)
    drafts, other = law(family, q, n), law(family, q[renamed], n)
    rate = otmd.optimal_acceptance(p, drafts).rate
    assert otmd.optimal_acceptance(p[renamed], other).rate == pytest.approx(rate, abs=1e-10)
    subset = np.array(data.draw(st.lists(st.booleans(), min_size=len(p), max_size=len(p))))
    contained = drafts.containment(subset)
    assert other.containment(subset[renamed]) == pytest.approx(contained, abs=1e-10)
    for rule in (otmd.RecursiveRejection(), otmd.KSequential(), otmd.SpecHub(), otmd.TargetOnly()):
        if rule.supports(drafts):
            one = otmd.acceptance_rate(rule, p, drafts)
            two = otmd.acceptance_rate(rule, p[renamed], other)
            bounded = isinstance(rule, otmd.RecursiveRejection)
            assert two == pytest.approx(one, abs=1e-6 if bounded else SLACK)


@given(pair=pairs())
def test_hub_has_the_optimum_of_two_greedy_drafts(pair: Pair) -> None:
    p, q = pair
    pairs_law, greedy = law("hub", q, 2), law("greedy", q, 2)
    best = otmd.optimal_acceptance(p, greedy).rate
    assert otmd.optimal_acceptance(p, pairs_law).rate == pytest.approx(best, abs=SLACK)
    assert otmd.acceptance_rate(otmd.SpecHub(), p, pairs_law) == pytest.approx(best, abs=SLACK)


@given(pair=pairs(), n=num_drafts())
def test_the_greedy_verifier_is_optimal_for_its_law(pair: Pair, n: int) -> None:
    p, q = pair
    drafts = law("greedy", q, n)
    rate = otmd.acceptance_rate(otmd.Preference(), p, drafts)
    assert rate == pytest.approx(otmd.optimal_acceptance(p, drafts).rate, abs=SLACK)


@given(pair=pairs(), n=num_drafts())
def test_one_draft_is_the_same_for_all(pair: Pair, n: int) -> None:
    p, q = pair
    overlap = np.minimum(p, q).sum()
    for family in (*NAMELESS, "greedy"):
        drafts = FAMILIES[family](q, 1)
        best = otmd.optimal_acceptance(p, drafts).rate
        assert best == pytest.approx(overlap, abs=SLACK)
        rate = otmd.acceptance_rate(otmd.Preference(), p, drafts)
        assert rate == pytest.approx(overlap, abs=SLACK)
    assert otmd.RatioCurve(p, q).hockey_stick(1.0) == pytest.approx(1 - overlap, abs=SLACK)


@given(pair=pairs(), n=num_drafts(), C=st.floats(0, 10))
def test_the_curve_holds_the_rates(pair: Pair, n: int, C: float) -> None:
    p, q = pair
    curve, drafts = otmd.RatioCurve(p, q), otmd.WithReplacement(q, n)
    W = reference.hockey_stick(p.tolist(), q.tolist(), C)
    assert curve.hockey_stick(C) == pytest.approx(W, abs=SLACK)
    by_curve = reference.rrs_by_curve(p.tolist(), q.tolist(), n)
    rate = otmd.acceptance_rate(otmd.RecursiveRejection(), p, drafts)
    assert rate == pytest.approx(by_curve, abs=SLACK)
    rho = reference.k_seq_rho(p.tolist(), q.tolist(), n)
    rate = otmd.acceptance_rate(otmd.KSequential(), p, drafts)
    assert rate == pytest.approx(1 - curve.hockey_stick(rho), abs=SLACK)
    # The maximum over 0 <= C <= n of the conjugate form bounds every prefix, and touches the best.
    best = otmd.optimal_acceptance(p, drafts).rate
    if n > 1 and n >= C:
        conjugate = W + C - (n - 1) * (C / n) ** (n / (n - 1))
        assert best <= 2 - conjugate + SLACK
    order = curve.order
    assert sorted(order.tolist()) == list(range(len(p)))
    np.testing.assert_allclose(curve.target_mass, np.append(0, p[order].cumsum()), atol=SLACK)
    np.testing.assert_allclose(curve.draft_mass, np.append(0, q[order].cumsum()), atol=SLACK)


@given(weights=st.lists(st.integers(0, 12), min_size=2, max_size=6).filter(any), data=st.data())
@settings(max_examples=50)
def test_the_cut_is_the_smallest_minimiser(weights: list[int], data: st.DataObject) -> None:
    """Multiples of 1/64 keep q(H)^n exact, so that ties between minimisers are true ties."""
    seed = sum(weights)
    rng = np.random.default_rng([seed, len(weights)])
    p, q = dyadic(rng, len(weights)), dyadic(rng, len(weights))
    n = data.draw(num_drafts())
    best = otmd.optimal_acceptance(p, otmd.WithReplacement(q, n))
    law_, every = reference.with_replacement(q.tolist(), n), reference.subsets(len(p))
    value, _ = reference.optimal_by_subsets(p.tolist(), law_)
    minimisers = [
        set(H)
        for H in every
        if 1 + sum(p[list(H)]) - reference.containment(law_, H) == pytest.approx(value, abs=1e-14)
    ]
    assert set(np.flatnonzero(best.subset).tolist()) == set.intersection(*minimisers)


@pytest.mark.parametrize("V", [4, 8, 30])
@pytest.mark.parametrize("n", [3, 4])
def test_bounds_shrink_with_the_tolerance(V: int, n: int) -> None:
    rng = np.random.default_rng([V, n])
    p, q = dirichlet(rng, V), dirichlet(rng, V)
    drafts, rule = otmd.WithoutReplacement(q, n), otmd.RecursiveRejection()
    before = (0.0, 1.0)
    for tol in (1e-1, 1e-2, 1e-4, 1e-6):
        low, high = otmd.acceptance_bounds(rule, p, drafts, tol=tol)
        assert 0 <= low <= high <= 1
        assert high - low <= tol
        # Both intervals hold the one rate, so they meet.
        assert low <= before[1] + SLACK
        assert high >= before[0] - SLACK
        assert high - low <= before[1] - before[0] + SLACK
        before = low, high


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"vocabulary of one"}))
def test_many_drafts_without_replacement_stay_accurate(kind: str) -> None:
    """Up to 16 drafts from 17 tokens, masses over thirty orders of magnitude among them."""
    rng = np.random.default_rng(list(KINDS).index(kind))
    V, draft = 17, KINDS[kind](rng, 17)[1]
    q = unit(draft)
    for n in {min(n, np.count_nonzero(q)) for n in (2, 5, 11, 16)}:
        drafts, chance = otmd.WithoutReplacement(draft, n), reference.drawn_set(q.tolist(), n)
        assert chance.sum() == pytest.approx(1, abs=SLACK)
        for size in (n, n + 1, V - 1):
            inside = rng.permutation(V) < size
            mask = int((inside * 2 ** np.arange(V)).sum())
            exact = chance[(np.arange(2**V) & ~mask) == 0].sum()
            assert drafts.containment(inside) == pytest.approx(exact, abs=1e-10)
        drafted = [chance[np.arange(2**V) >> token & 1 == 1].sum() for token in range(V)]
        np.testing.assert_allclose(drafts.inclusion_probs(), drafted, rtol=0, atol=1e-10)


# Logits that differ by less than the rounding of their distance to the largest are tied: none here.
@given(
    logits=st.lists(st.integers(-30_000, 30_000), min_size=1, max_size=8, unique=True).map(
        lambda thousandths: [k / 1000 for k in thousandths]
    ),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.one_of(st.none(), st.integers(1, 9)),
    top_p=st.one_of(st.none(), st.floats(0.05, 0.99)),
    min_p=st.one_of(st.none(), st.floats(0.0, 0.9)),
    order=st.one_of(st.sampled_from([*ORDERS]), st.permutations(ORDERS["transformers"])),
)
def test_logits_become_probabilities_as_by_hand(
    logits: list[float],
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    order: str | list[str],
) -> None:
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    probs = otmd.probs_from_logits(np.array(logits), **options, order=order)
    steps = ORDERS[order] if isinstance(order, str) else order
    # A sum that meets the threshold to the last bit may fall on either side of it.
    nudged = [
        reference.probs_from_logits(logits, temperature, top_k, p, m, steps)
        for p in ([top_p] if top_p is None else [top_p - 1e-12, top_p, top_p + 1e-12])
        for m in ([min_p] if min_p is None else [max(min_p - 1e-12, 0), min_p, min_p + 1e-12])
    ]
    assert any(np.allclose(probs, by_hand, rtol=0, atol=1e-12) for by_hand in nudged)
    by_object = otmd.Processing(**options, order=order)(np.array(logits))
    np.testing.assert_array_equal(by_object, probs)
