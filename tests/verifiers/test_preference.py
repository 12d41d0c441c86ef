"""The preference rule: lossless for every law and order, and its rate exact."""

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
import reference
import strategies
from sweep_twin import order_of, swept

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


def table_of(law: otmd.DraftLaw) -> list[list[float]]:
    """The distribution of each slot."""
    slots = law.position_structure().random
    return np.repeat(slots.dense, slots.copies, axis=0).tolist()


def test_it_decides_as_its_twin() -> None:
    """Given the drafts, the rule has the output of its twin, which takes pair after pair in its order."""
    for instance in strategies.instances(60, seed=44):
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
    for _ in range(40):
        p, *table = (reference.exact([*rng.integers(0, 12, 4).tolist(), 1]) for _ in range(4))
        law = reference.independent(table)
        pairs = [(j, y) for j in range(3) for y in range(5) if table[j][y] > 0]
        order = [pairs[i] for i in rng.permutation(len(pairs))]
        rate, output = reference.judged(law, swept(p, table, order), 5)
        assert output == p
        assert rate <= reference.optimal_by_subsets(p, law)[0]
        _, faulty = reference.judged(law, swept(p, table, order, thinned=False), 5)
        wrong += max(abs(a - b) for a, b in zip(faulty, p, strict=True)) > Fraction(1, 100)
    assert wrong > 25


def test_a_pair_order_of_the_users_is_taken() -> None:
    """Slot by slot, the sweep is recursive rejection."""
    slot_by_slot = otmd.Preference(
        lambda p, slots: np.stack(
            np.mgrid[: slots.num_drafts, : slots.vocab_size], axis=-1
        ).reshape(-1, 2)
    )
    for instance in strategies.instances(40, seed=8):
        for law in (
            otmd.WithReplacement(instance.q, instance.num_drafts),
            otmd.Independent(instance.table),
        ):
            rate = otmd.acceptance_rate(slot_by_slot, instance.p, law)
            expected = otmd.acceptance_rate(otmd.RecursiveRejection(), instance.p, law)
            assert rate == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ([0, 1], "4 pairs"),
        ([0] * 7, "twice"),
        ([[0, 1]], "1 pairs"),
        ([[[0]]], r"shape \(1, 1, 1\)"),
        ([7], "range"),
    ],
)
def test_an_order_that_leaves_pairs_out_is_named(order: list, said: str) -> None:
    rule = otmd.Preference(lambda p, slots: np.array(order))
    with pytest.raises(ValueError, match=rf"order: got .*{said}"):
        otmd.acceptance_rate(rule, P, otmd.WithReplacement(Q, 2))


@pytest.mark.parametrize("order", [[2.0, 1.0, 0.0], [True, False, True], None, "abc"])
def test_an_order_that_is_not_of_integers_is_named(order: object) -> None:
    rule = otmd.Preference(lambda p, slots: order)
    with pytest.raises(TypeError, match="order: got dtype"):
        otmd.acceptance_rate(rule, P, otmd.WithReplacement(Q, 2))


def test_an_order_of_rows_of_different_lengths_is_named() -> None:
    rule = otmd.Preference(lambda p, slots: [[0, 1], [0]])
    with pytest.raises(ValueError, match="order: got rows of different lengths"):
        otmd.acceptance_rate(rule, P, otmd.WithReplacement(Q, 2))


def test_a_pair_order_in_small_integers_is_taken() -> None:
    rng = np.random.default_rng(6)
    p, q = rng.dirichlet(np.ones(200), size=2)
    pairs = np.stack(np.mgrid[:2, :200], axis=-1).reshape(-1, 2)
    rates = [
        otmd.acceptance_rate(
            otmd.Preference(lambda p, slots, kind=kind: pairs.astype(kind)),
            p,
            otmd.WithReplacement(q, 2),
        )
        for kind in (np.int64, np.uint8)
    ]
    assert rates[0] == rates[1]


def test_equal_distributions_are_always_accepted() -> None:
    """The thinned token-by-token order loses (s − s^n)^n here."""
    for law in (otmd.WithReplacement(Q, 2), otmd.WithReplacement(Q, 5), otmd.Stratified(Q, 3)):
        assert otmd.acceptance_rate(otmd.Preference(), Q, law) == pytest.approx(1.0, abs=1e-14)


def test_it_is_near_the_optimum_and_above_recursive_rejection_in_the_mean() -> None:
    gaps, above = [], []
    for instance in strategies.instances(200, seed=3):
        law = otmd.WithReplacement(instance.q, instance.num_drafts)
        rate = otmd.acceptance_rate(otmd.Preference(), instance.p, law)
        gaps.append(otmd.optimal_acceptance(instance.p, law).rate - rate)
        above.append(rate - otmd.acceptance_rate(otmd.RecursiveRejection(), instance.p, law))
    assert max(gaps) < 0.05
    assert np.mean(gaps) < 5e-4
    assert np.mean(above) > 0.01


def test_the_certificate_says_where_the_rule_is_optimal() -> None:
    """The gap is 0 where the pairs that are accepted whole come before all that are thinned."""
    rng, optimal = np.random.default_rng(4), 0
    for _ in range(200):
        p, q = rng.dirichlet(np.ones(6), size=2)
        law = otmd.WithReplacement(q, 3)
        proof = otmd.Preference().certificate(p, law)
        assert proof.gap >= -1e-12
        assert proof.attained == pytest.approx(otmd.acceptance_rate(otmd.Preference(), p, law))
        sweep = otmd.Preference().prepare(p, law).sweep
        short = {y for y in range(6) if sweep.left[y] > 0}
        tokens = [token for _, token in order_of(p, law)]
        last_short = max((i for i, y in enumerate(tokens) if y in short), default=-1)
        if last_short < min((i for i, y in enumerate(tokens) if y not in short), default=99):
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


@pytest.mark.parametrize("n", [2, 4, 8])
def test_cells_take_pairs_as_one_by_one(n: int) -> None:
    """Cells of a large vocabulary, with tokens of no mass, against the same order pair by pair."""
    rng = np.random.default_rng([7, n])
    for noise in (0.0, 0.3, 3.0):
        logits = 2.5 * rng.standard_normal(600)
        p, q = (
            otmd.probs_from_logits(x)
            for x in (logits, logits + noise * rng.standard_normal(logits.size))
        )
        q[::5] = 0.0
        for law in (otmd.WithReplacement(q / q.sum(), n), otmd.Stratified(q / q.sum(), n)):
            order = np.array(order_of(p, law))
            in_cells = Preference().prepare(p, law)
            one_by_one = Preference(lambda p, slots, order=order: order).prepare(p, law)
            assert in_cells.rate == pytest.approx(one_by_one.rate, abs=1e-12)
            np.testing.assert_allclose(in_cells.accepted, one_by_one.accepted, atol=1e-12)
            assert in_cells.accepted.sum() == pytest.approx(in_cells.rate, abs=1e-12)
            pairs = order[rng.integers(len(order), size=200)].T
            _, accept, taken = in_cells.sweep.pairs(*pairs)
            _, expected_accept, expected_taken = one_by_one.sweep.pairs(*pairs)
            np.testing.assert_allclose(taken, expected_taken, atol=1e-12)
            drawn = law.position_structure().random.prob(
                law.position_structure().random.row_of_slot[pairs[0]], pairs[1]
            )
            np.testing.assert_allclose(accept * drawn, expected_accept * drawn, atol=1e-9)


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
