"""The preference rule: lossless for every law and order, and its rate exact."""

from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest
import reference
import strategies

import otmd
from otmd.laws import Slots
from otmd.verifiers.preference import Preference

Q = np.array([0.3, 0.25, 0.15, 0.1, 0.1, 0.06, 0.04])
P = np.array([0.1, 0.3, 0.05, 0.25, 0.1, 0.15, 0.05])


def laws_of(instance: strategies.Instance) -> Iterator[otmd.DraftLaw]:
    """Every law of an instance that the rule serves."""
    q, n, top = instance.draft_probs, instance.num_drafts, instance.top
    yield otmd.WithReplacement(q, n)
    yield otmd.Independent(instance.table)
    if instance.draft_support >= n:
        yield otmd.Stratified(q, n)
        yield otmd.Stratified(q, n, sharpness=2.0, shares=np.arange(n, 0, -1))
        yield otmd.Greedy(q, n)
        yield otmd.TopThen(q, n, top, rest=otmd.Stratified)
    if instance.applicable("top_then_with"):
        yield otmd.TopThen(q, n, top, rest=otmd.WithReplacement)
    if instance.draft_support >= 2:
        yield otmd.Hub(q)


def enumerated(rule: otmd.Verifier, target: np.ndarray, law: otmd.DraftLaw) -> float:
    prepared = rule.prepare(target, law)
    tuples, probs = law.enumerate()
    hits = [prepared.conditional_law(x)[np.unique(x)].sum() for x in tuples]
    return float(probs @ hits)


def test_an_order_that_is_no_function_is_named() -> None:
    with pytest.raises(TypeError, match="order: got list, expected a function"):
        otmd.Preference([2, 1, 0])


@pytest.mark.parametrize("ordered", [False, True], ids=["default order", "random orders"])
def test_lossless_with_its_exact_rate_on_hostile_instances(ordered: bool) -> None:
    rng = np.random.default_rng(1)
    for instance in strategies.instances(120, seed=41 + ordered):
        order = rng.permutation(instance.vocab_size)
        rule = (
            otmd.Preference(lambda p, slots, order=order: order) if ordered else otmd.Preference()
        )
        for law in laws_of(instance):
            assert rule.supports(law)
            output = rule.output_distribution(instance.target_probs, law)
            assert np.abs(output - instance.p).max() < 1e-12, (str(instance), law)
            rate = otmd.acceptance_rate(rule, instance.target_probs, law)
            assert abs(rate - enumerated(rule, instance.target_probs, law)) < 1e-12, instance
            best = otmd.optimal_acceptance(instance.target_probs, law).rate
            assert rate <= best + 1e-12, (str(instance), law)


def near_equal(rng: np.random.Generator, size: int) -> np.ndarray:
    """A uniform distribution, off by a few units in the last place."""
    masses = np.full(size, 1.0 / size)
    return masses * (1.0 + rng.integers(-4, 5, size) * 2.0**-53)


def test_near_equal_distributions_in_any_order() -> None:
    """The c of the last tokens is 1 but for rounding, where nothing is left of a slot."""
    p = np.array([0.24999999999999997, 0.2500000000000001, 0.2500000000000001, 0.24999999999999986])
    q = np.array(
        [0.25000000000000017, 0.25000000000000006, 0.24999999999999992, 0.2499999999999999]
    )
    cases = [(p, otmd.Stratified(q, 3), np.array([3, 2, 1, 0]))]
    for seed in range(150):
        rng = np.random.default_rng([17, seed])
        size, n = int(rng.integers(2, 7)), int(rng.integers(1, 4))
        rows = [near_equal(rng, size) for _ in range(n)]
        p, order = near_equal(rng, size), rng.permutation(size)
        cases.append((p, otmd.Independent(np.stack(rows)), order))
        cases.append((p, otmd.WithReplacement(rows[0], n), order))
        cases.append((p, otmd.Stratified(rows[0], min(n, size)), order))
    for p, law, order in cases:
        rule = otmd.Preference(lambda target, law, order=order: order)
        assert np.abs(rule.output_distribution(p, law) - p).max() < 1e-12, (p, law, order)
        rate = rule.acceptance_rate(p, law)
        assert abs(rate - enumerated(rule, p, law)) < 1e-12, (p, law, order)


def test_single_drafts_greedy_drafts_and_hubs_attain_the_optimum() -> None:
    """Maximal coupling, greedy coupling and SpecHub are the rule's special cases."""
    rule = otmd.Preference()
    for instance in strategies.instances(300, seed=43):
        p, q, n = instance.target_probs, instance.draft_probs, instance.num_drafts
        cases: list[tuple[otmd.Verifier, otmd.DraftLaw]] = [
            (otmd.Preference(), otmd.WithReplacement(q, 1)),
            (otmd.Preference(), otmd.Stratified(q, 1)),
        ]
        if instance.draft_support >= n:
            cases.append((otmd.Preference(), otmd.Greedy(q, n)))
        if instance.draft_support >= 2:
            cases.append((otmd.SpecHub(), otmd.Hub(q)))
        for known, law in cases:
            rate = otmd.acceptance_rate(rule, p, law)
            if known.supports(law):
                assert abs(rate - otmd.acceptance_rate(known, p, law)) < 1e-12, instance
            assert abs(rate - otmd.optimal_acceptance(p, law).rate) < 1e-12, instance


def test_it_decides_as_its_twin() -> None:
    """Given the drafts, the rule has its twin's output law, for strata and for one draft distribution."""
    for instance in strategies.instances(75, seed=44):
        p, q, n = instance.p, instance.q, instance.num_drafts
        cases: list[tuple[otmd.DraftLaw, list, bool]] = []
        # The twin breaks ties of p/q in its own way, so that only its rate would be the same.
        if len({round(a / b, 9) for a, b in zip(p, q, strict=True) if b}) == np.count_nonzero(q):
            cases.append((otmd.WithReplacement(q, n), [q] * n, False))
        if instance.draft_support >= n:
            law = otmd.Stratified(q, n)
            table = reference.slots_of_strata(law.strata.tolist(), law.inclusion_probs().tolist())
            cases.append((law, table, True))
        for law, table, by_strata in cases:
            twins = best_twins(p, table, by_strata)
            prepared = otmd.Preference().prepare(p, law)
            drawn_by_law = list(zip(*law.enumerate(), strict=True))[::7]
            got = [prepared.conditional_law(tokens) for tokens, _ in drawn_by_law]
            # Differences are weighted by Q: for tuples that are hardly ever drawn, rounding decides.
            apart = [
                max(
                    (drawn * np.abs(each - decided(twin, tokens, len(p)))).max()
                    for each, (tokens, drawn) in zip(got, drawn_by_law, strict=True)
                )
                for twin in twins
            ]
            assert min(apart) < 1e-12, instance


def best_twins(p: list, table: list, by_strata: bool) -> list:
    """The twin in its default order, or two twins if two orders are equally good."""
    law = reference.independent(table)
    rules = [
        reference.preference(p, table, o)
        for o in reference.default_preferences(p, table, by_strata)
    ]
    rates = [reference.judged(law, rule, len(p))[0] for rule in rules]
    return [rule for rule, rate in zip(rules, rates, strict=True) if rate > max(rates) - 1e-12]


def decided(twin: Callable, tokens: np.ndarray, size: int) -> np.ndarray:
    return np.array(reference.conditional(twin(tuple(tokens.tolist())), size), float)


def test_exactly_lossless_in_fractions_and_not_without_thinning() -> None:
    """The twin in fractions has the output law p exactly; without thinning it has not."""
    rng, wrong = np.random.default_rng(2), 0
    for _ in range(60):
        p, q = (reference.exact(rng.integers(1, 12, 6).tolist()) for _ in range(2))
        number, inclusion = reference.strata(q, 3)
        table = reference.slots_of_strata(number, inclusion)
        law = reference.independent(table)
        for order in (*reference.default_preferences(p, table, True), rng.permutation(6).tolist()):
            rate, output = reference.judged(law, reference.preference(p, table, order), 6)
            assert output == p
            assert rate <= reference.optimal_by_subsets(p, law)[0]
        _, faulty = reference.judged(law, reference.preference(p, table, order, thinned=False), 6)
        wrong += max(abs(a - b) for a, b in zip(faulty, p, strict=True)) > Fraction(1, 100)
    assert wrong > 40


def test_the_rate_is_that_of_the_twin_in_fractions() -> None:
    rng = np.random.default_rng(3)
    for _ in range(60):
        p, q = (reference.exact(rng.integers(1, 500, 7).tolist()) for _ in range(2))
        number, inclusion = reference.strata(q, 3)
        table = reference.slots_of_strata(number, inclusion)
        rate, _ = reference.judged(reference.independent(table), best_twins(p, table, True)[0], 7)
        floats = [np.array([float(x) for x in side]) for side in (p, q)]
        law = otmd.Stratified(floats[1], 3)
        if law.strata.tolist() == number:
            assert otmd.acceptance_rate(otmd.Preference(), floats[0], law) == pytest.approx(
                float(rate), abs=1e-13
            )


def test_the_certificate_says_where_the_rule_is_optimal() -> None:
    """The gap is 0 where the tokens that are accepted whole come before all that are thinned."""
    rng, optimal = np.random.default_rng(4), 0
    for _ in range(200):
        p, q = rng.dirichlet(np.ones(6), size=2)
        law = otmd.WithReplacement(q, 3)
        proof = otmd.Preference().certificate(p, law)
        assert proof.gap >= -1e-12
        assert proof.attained == pytest.approx(otmd.acceptance_rate(otmd.Preference(), p, law))
        prepared = Preference().prepare(p, law)
        rank, chance = prepared.choice.preferred(np.arange(6))
        whole = (chance > 1.0 - 1e-12)[np.argsort(rank)]
        if (np.diff(whole.astype(int)) <= 0).all():
            assert proof.gap < 1e-12
            optimal += 1
    assert 20 < optimal < 200


@pytest.mark.parametrize("law", [otmd.Stratified, otmd.WithReplacement])
def test_a_large_vocabulary_and_every_number_of_drafts(law: type) -> None:
    rng = np.random.default_rng(5)
    p, q = rng.dirichlet(np.full(3000, 0.1), size=2)
    q = 0.7 * p + 0.3 * q
    rule, drafts = otmd.Preference(), law(q, 4)
    low, high = otmd.acceptance_bounds(rule, p, drafts, every_n=True)
    np.testing.assert_array_equal(low, high)
    best = otmd.optimal_acceptance(p, drafts, every_n=True).rate
    assert (low <= best + 1e-12).all()
    for n in (1, 2, 3, 4):
        prepared = rule.prepare(p, law(q, n))
        assert prepared.rate == pytest.approx(low[n - 1], abs=1e-12)
        assert (prepared.accepted <= p).all()
    tokens = drafts.sample(rng=rng, size=20_000)
    verdict = rule.verify(p, drafts, tokens, rng=rng)
    hits = (verdict.draft_index >= 0).sum()
    assert abs(hits - 20_000 * low[3]) < 5 * np.sqrt(20_000 * low[3] * (1 - low[3]))


@pytest.mark.parametrize("heavy", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_groups_take_tokens_as_a_sort_does(n: int, heavy: float) -> None:
    rng = np.random.default_rng([7, n])
    for noise in (0.0, 0.3, 3.0):
        logits = 2.5 * rng.standard_normal(3000)
        p, q = (
            otmd.probs_from_logits(x)
            for x in (logits, logits + noise * rng.standard_normal(logits.size))
        )
        p, q = ((1.0 - heavy) * x + heavy * np.eye(3000)[7 * k] for k, x in enumerate((p, q)))
        q[::5] = 0.0
        law = otmd.WithReplacement(q / q.sum(), n)
        by_group = Preference().prepare(p, law)
        by_sort = Preference(lambda p, slots: np.argsort(-ratios(p, slots))).prepare(p, law)
        assert by_group.rate == pytest.approx(by_sort.rate, abs=1e-12)
        assert by_group.accepted.sum() == pytest.approx(by_group.rate, abs=1e-12)
        assert (by_group.accepted <= p).all()
        drawn = np.flatnonzero(law.draft_probs)
        rank, chance = by_group.choice.preferred(drawn)
        order, left, s = np.argsort(rank, kind="stable"), -rank, (-rank) ** (1.0 / n)
        accepted = left - (s - chance * law.draft_probs[drawn]) ** n
        np.testing.assert_allclose(accepted, by_group.accepted[drawn], atol=1e-12)
        after = (left - accepted)[order]
        np.testing.assert_allclose(after[:-1], left[order][1:], atol=1e-12)


def ratios(p: np.ndarray, slots: Slots) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(slots.probs > 0, p / slots.probs, np.inf)


def test_the_order_is_given_the_slots_of_the_random_drafts() -> None:
    seen = []

    def by_id(p: np.ndarray, slots: Slots) -> np.ndarray:
        seen.append((p[0], slots.copies.tolist(), slots.num_drafts))
        return np.arange(p.size)

    rule = otmd.Preference(by_id)
    otmd.acceptance_rate(rule, P, otmd.TopThen(Q, 3, 1, rest=otmd.Stratified))
    otmd.acceptance_rate(rule, P, otmd.WithReplacement(Q, 3))
    assert seen == [(0.0, [1, 1], 2), (P[0], [3], 3)]


@pytest.mark.parametrize(
    "law",
    [
        otmd.WithoutReplacement(Q, 2),
        otmd.ConditionalPoisson(Q, 2),
        otmd.TopThen(Q, 3, 1, rest=otmd.WithoutReplacement),
    ],
)
def test_dependent_drafts_are_not_served(law: otmd.DraftLaw) -> None:
    with pytest.raises(otmd.UnsupportedLaw, match="Preference"):
        otmd.acceptance_rate(otmd.Preference(), P, law)


def test_leading_axes_are_positions_of_their_own() -> None:
    rows = np.stack([Q, Q[::-1]])
    rule = otmd.Preference()
    rates = otmd.acceptance_rate(rule, P, otmd.Stratified(rows, 3))
    each = [otmd.acceptance_rate(rule, P, otmd.Stratified(row, 3)) for row in rows]
    np.testing.assert_array_equal(rates, each)
