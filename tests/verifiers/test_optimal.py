"""The optimal verifier: lossless at every tolerance, and as good as any can be at a small one."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats
from strategies import KINDS, Array, Instance, Remembering, instances, package_law, unit

import otmd
from otmd.verifiers.prepared import ChoosingVerifier

TOLERANCES = (1e-10, 1e-6, 1e-3, 0.3)
ROUNDING = 1e-12
GAP = 1e-9
SERVED = ("with_replacement", "greedy", "hub", "top_then_with")
INSTANCES = instances(520, seed=61)


def laws_of(instance: Instance) -> list[otmd.DraftLaw]:
    """The law with replacement, strata, and one of the other laws in turn."""
    names = ["with_replacement", SERVED[1 + instance.seed[1] % 3]]
    laws = [package_law(instance, name) for name in names if instance.applicable(name)]
    q, n = instance.draft_probs, instance.num_drafts
    if instance.draft_support >= n:
        uneven = otmd.Stratified(q, n, sharpness=2.0, shares=np.arange(1, n + 1))
        behind = otmd.TopThen(q, n, 1, rest=otmd.Stratified)
        laws.append((otmd.Stratified(q, n), uneven, behind)[instance.seed[1] // 3 % 3])
    return laws


def prepared(tol: float, target: Array, law: otmd.DraftLaw) -> ChoosingVerifier:
    rule = otmd.Optimal(tol).prepare(target, law)
    assert isinstance(rule, ChoosingVerifier)
    return rule


def enumerated(
    rule: otmd.PreparedVerifier, law: otmd.DraftLaw, ordered: bool = True
) -> tuple[Array, float]:
    """The law of the output and P(it is a draft), as sums over every tuple or every multiset of drafts."""
    tuples, probs = law.enumerate()
    if not ordered:
        tuples, place = np.unique(np.sort(tuples, axis=1), axis=0, return_inverse=True)
        probs = np.bincount(place.ravel(), probs)
    output, accepted = np.zeros(law.vocab_size), 0.0
    for tokens, prob in zip(tuples, probs, strict=True):
        given = rule.conditional_law(tokens)
        output += prob * given
        accepted += prob * given[np.unique(tokens)].sum()
    return output, accepted


def assert_sound(target: Array, law: otmd.DraftLaw, tol: float, where: object) -> None:
    """Output law and certificate against sums over every tuple, or every multiset except at tol 1e-10."""
    rule = Remembering(tol)
    p = unit(target)
    output, accepted = enumerated(rule.prepare(target, law), law, ordered=tol == 1e-10)
    assert np.abs(output - p).max() <= ROUNDING, where
    proof = rule.certificate(target, law)
    assert proof.upper_bound == otmd.optimal_acceptance(target, law).rate, where
    assert proof.gap == proof.upper_bound - proof.attained
    assert proof.attained - ROUNDING <= accepted <= proof.upper_bound + ROUNDING, where
    assert proof.gap <= max(tol, GAP), where


@pytest.mark.parametrize("tol", TOLERANCES)
def test_random_and_hostile_instances(tol: float) -> None:
    for instance in INSTANCES:
        for law in laws_of(instance):
            assert_sound(instance.target_probs, law, tol, f"{law!r} {instance}")


@pytest.mark.parametrize("asked", [1e-6, 0.5])
@pytest.mark.parametrize("tol", TOLERANCES)
def test_bounds_hold_the_rate_of_the_rule_itself(tol: float, asked: float) -> None:
    """The bounds are for the rule with its own tolerance, whatever tolerance is asked of the bounds."""
    for instance in INSTANCES[:150]:
        for law in laws_of(instance):
            rule = Remembering(tol)
            _, accepted = enumerated(rule.prepare(instance.target_probs, law), law)
            low, high = rule.acceptance_bounds(instance.target_probs, law, tol=asked)
            assert low - ROUNDING <= accepted <= high + ROUNDING, f"{law!r} {instance}"


def test_the_rate_is_that_of_the_linear_program() -> None:
    for instance in INSTANCES[:130]:
        for law in laws_of(instance):
            best = otmd.solve_transport(instance.target_probs, law, form="compact").rate
            attained = otmd.Optimal().certificate(instance.target_probs, law).attained
            assert abs(best - attained) <= GAP, instance


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("tol", TOLERANCES)
def test_every_number_of_top_tokens(n: int, tol: float) -> None:
    for seed in range(4):
        rng = np.random.default_rng([n, seed])
        target, draft = rng.dirichlet(np.full(6, 0.8), size=2)
        for top in range(n + 1):
            law = otmd.TopThen(draft, n, top, rest=otmd.WithReplacement)
            assert_sound(target, law, tol, (n, top, seed))


def test_what_it_serves() -> None:
    q = [0.5, 0.3, 0.2]
    rule = otmd.Optimal()
    for law in (otmd.WithReplacement(q, 2), otmd.Hub(q), otmd.Greedy(q, 2), otmd.Stratified(q, 3)):
        assert rule.supports(law)
    assert rule.supports(otmd.TopThen(q, 2, 1, rest=otmd.WithReplacement))
    for law in (otmd.Independent([q, q]), otmd.ConditionalPoisson(q, 2)):
        assert not rule.supports(law)
        with pytest.raises(otmd.UnsupportedLaw, match="Optimal does not serve"):
            rule.prepare(q, law)


@pytest.mark.parametrize("tol", [0.0, -1.0, np.nan, True, "1e-6", None])
def test_a_wrong_tolerance_is_named(tol: object) -> None:
    with pytest.raises(ValueError, match=r"^tol: got .*, expected a positive number"):
        otmd.Optimal(tol)  # type: ignore[arg-type]


def test_a_tolerance_that_no_float_holds_is_that_of_any_rate():
    law = otmd.WithoutReplacement([0.4, 0.3, 0.2, 0.1], num_drafts=3)
    assert otmd.Optimal(10**400).tol == 1.0
    low, high = otmd.acceptance_bounds(otmd.RecursiveRejection(), [0.25] * 4, law, tol=10**400)
    assert 0 <= low <= high <= 1


# ---------------------------------------------------------------- tokens between classes


@pytest.mark.parametrize("V", [40, 60])
@pytest.mark.parametrize("tol", [1e-6, 1e-3, 0.1, 0.3])
def test_tokens_that_lie_between_two_classes(V: int, tol: float) -> None:
    split = 0
    for seed in range(4):
        rng = np.random.default_rng([V, seed])
        logits = 1.5 * rng.standard_normal(V)
        target = otmd.probs_from_logits(logits)
        draft = otmd.probs_from_logits(logits + 0.5 * rng.standard_normal(V))
        law = otmd.WithReplacement(draft, 2)
        assert_sound(target, law, tol, (V, seed))
        plan = prepared(tol, target, law).choice
        assert plan is not None
        for side, own in ((plan.inner, plan.subset), (plan.outer, ~plan.subset)):
            share = side.locate(np.flatnonzero(own))[1] if side is not None else np.ones(1)
            split += np.count_nonzero((share > 1e-3) & (share < 1 - 1e-3))
    # Without these the test would say nothing about the split.
    assert split >= V


# ---------------------------------------------------------------- hostile


def rational(values: list[Fraction]) -> Array:
    return np.array([float(value) for value in values])


def tight_prefixes(counts: tuple[int, ...], n: int, level: bool) -> tuple[Array, Array]:
    """p and q for which all prefixes are exactly equally good cuts; not ``level``, all but the empty one."""
    q = [Fraction(count, sum(counts)) for count in counts]
    ends = [sum(q[:k]) ** n for k in range(len(q) + 1)]
    p = [after - before for before, after in pairwise(ends)]
    if not level:
        p[-1], p[0] = p[-1] + p[0], Fraction(0)
    assert sum(p) == 1
    return rational(p), rational(q)


@pytest.mark.parametrize("tol", TOLERANCES)
@pytest.mark.parametrize("level", [True, False])
@pytest.mark.parametrize("counts", [(1, 1, 2, 4), (1, 1, 1, 1), (1, 2, 1, 2, 2), (4, 4), (1, 7)])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_several_cuts_at_once(n: int, counts: tuple[int, ...], level: bool, tol: float) -> None:
    """With several best cuts, weights would have to be infinitely far apart."""
    target, draft = tight_prefixes(counts, n, level)
    law = otmd.WithReplacement(draft, n)
    wanted = 1.0 if level else 1.0 - draft[0] ** n
    assert otmd.Optimal(tol).certificate(target, law).upper_bound == pytest.approx(wanted)
    assert_sound(target, law, tol, (n, counts, level))


HOSTILE = {
    "p = q": ([0.5, 0.3, 0.2], [0.5, 0.3, 0.2], 1.0),
    "disjoint": ([0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.4, 0.6], 0.0),
    "one-hot p": ([0.0, 1.0, 0.0], [0.2, 0.5, 0.3], None),
    "one-hot q": ([0.2, 0.5, 0.3], [0.0, 1.0, 0.0], 0.5),
    "both one-hot": ([0.0, 1.0], [0.0, 1.0], 1.0),
    "q covers a part": ([0.1, 0.2, 0.3, 0.4], [0.0, 0.5, 0.5, 0.0], None),
    "no cut": ([0.2, 0.35, 0.45], [0.35, 0.3, 0.35], None),
    "vocabulary of one": ([1.0], [1.0], 1.0),
    "ratios far apart": ([1e-30, 1e-15, 0.5, 0.5], [0.7, 0.3, 1e-15, 1e-30], None),
    "subnormal q": ([0.5, 0.25, 0.25], [5e-324, 0.5, 0.5], None),
    "eighths": ([0.0, 0.25, 0.375, 0.125, 0.25], [0.125, 0.125, 0.25, 0.25, 0.25], None),
}


@pytest.mark.parametrize("tol", TOLERANCES)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pairs(name: str, tol: float) -> None:
    target, draft, rate = HOSTILE[name]
    for n in (1, 2, 4):
        law = otmd.WithReplacement(draft, n)
        assert_sound(np.array(target), law, tol, (name, n))
        if np.count_nonzero(draft) >= n:
            assert_sound(np.array(target), otmd.Stratified(draft, n), tol, (name, n))
        if rate is not None:
            attained = otmd.Optimal(tol).certificate(target, law).attained
            assert attained == pytest.approx(rate, abs=max(tol, GAP))


def test_one_draft_is_the_maximal_coupling() -> None:
    for instance in INSTANCES[:200]:
        law = otmd.WithReplacement(instance.draft_probs, 1)
        attained = otmd.Optimal().certificate(instance.target_probs, law).attained
        assert attained == pytest.approx(np.minimum(instance.p, instance.q).sum(), abs=GAP)


@pytest.mark.parametrize("kind", KINDS)
def test_thirty_two_drafts(kind: str) -> None:
    rng = np.random.default_rng(32)
    for vocab_size in (2, 7, 50):
        target, draft = KINDS[kind](rng, vocab_size)
        proof = otmd.Optimal().certificate(target, otmd.WithReplacement(draft, 32))
        assert -ROUNDING <= proof.gap <= GAP, vocab_size


def test_half_precision_at_a_vocabulary_of_two() -> None:
    target, draft = np.array([0.7, 0.3], np.float16), np.array([0.4, 0.6], np.float16)
    assert_sound(target, otmd.WithReplacement(draft, 3), 1e-10, "")


# Pairs that once failed: a group that was not split beside one that was, and weights that grew without end.
DELICATE = {
    "five thousandths were lost": ([5 / 8, 3 / 8, 0.0], [1 / 4, 3 / 8, 3 / 8], 3),
    "ties of five prefixes": ([0.375, 0.0, 0.25, 0.375], [0.125, 0.375, 0.25, 0.25], 2),
    "no way to go": ([0.0, 0.25, 0.375, 0.125, 0.25], [0.125, 0.125, 0.25, 0.25, 0.25], 2),
}


@pytest.mark.parametrize("name", DELICATE)
def test_delicate_pairs(name: str) -> None:
    target, draft, n = DELICATE[name]
    for tol in TOLERANCES:
        assert_sound(np.array(target), otmd.WithReplacement(draft, n), tol, name)


@pytest.mark.parametrize("tol", [1e-10, 1e-6])
def test_the_tolerance_is_kept_at_hundreds_of_tokens(tol: float) -> None:
    for seed in range(300):
        rng = np.random.default_rng([67, seed])
        V, n = int(np.exp(rng.uniform(1.0, 8.0))), int(rng.choice([1, 2, 3, 4, 6, 8, 16]))
        logits = rng.choice([0.5, 2.5, 5.0]) * rng.standard_normal(V)
        noise = rng.choice([1e-6, 1e-3, 0.1, 0.5, 1.0, 3.0]) * rng.standard_normal(V)
        temperature = float(rng.choice([0.3, 0.6, 1.0, 2.0]))
        target = otmd.probs_from_logits(logits, temperature)
        draft = otmd.probs_from_logits(logits + noise, temperature)
        laws = [otmd.WithReplacement(draft, n)]
        if n <= V and seed % 3 == 0:
            laws.append(otmd.Stratified(draft, n))
        for law in laws:
            proof = otmd.Optimal(tol).certificate(target, law)
            assert -ROUNDING <= proof.gap <= max(tol, GAP), (seed, V, n, proof)


# ---------------------------------------------------------------- full size


@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize("temperature", [0.3, 0.6, 1.0, 2.0])
def test_a_language_models_vocabulary(n: int, temperature: float) -> None:
    rng = np.random.default_rng([n, round(10 * temperature)])
    logits = 2.5 * rng.standard_normal(151_936)
    target = otmd.probs_from_logits(logits, temperature)
    for noise in (0.3, 1.0, 3.0):
        moved = logits + noise * rng.standard_normal(logits.size)
        draft = otmd.probs_from_logits(moved, temperature)
        proof = otmd.Optimal().certificate(target, otmd.WithReplacement(draft, n))
        assert -ROUNDING <= proof.gap <= 1e-6
        proof = otmd.Optimal().certificate(target, otmd.Stratified(draft, n))
        assert -ROUNDING <= proof.gap <= GAP


# ---------------------------------------------------------------- output laws of the lossy front


def lossy_output(
    V: int, law: type, n: int, part: float, seed: int, spread: float = 3.0
) -> tuple[Array, otmd.DraftLaw]:
    """The output law of the front that buys a part of what α* lacks to 1: nearly all its cuts are tight."""
    rng = np.random.default_rng([29, V, seed])
    logits = spread * rng.standard_normal(V)
    target = otmd.probs_from_logits(logits)
    drafts = law(otmd.probs_from_logits(logits + rng.standard_normal(V)), n)
    front = otmd.lossy_frontier(target, drafts)
    return front.output_distribution(part * (1.0 - front.lossless_rate)), drafts


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_output_laws_of_the_lossy_front(n: int, part: float) -> None:
    for V in (50, 1000, 5000):
        target, law = lossy_output(V, otmd.WithReplacement, n, part, n)
        proof = otmd.Optimal().certificate(target, law)
        assert -ROUNDING <= proof.gap <= 1e-10, V
        assert proof.status == "optimal within the tolerance of 1e-10"


@pytest.mark.parametrize("tol", TOLERANCES)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_tiers_are_lossless(n: int, tol: float) -> None:
    tiers = 0
    for seed in range(8):
        target, law = lossy_output(7, otmd.WithReplacement, n, 1.0, seed)
        assert_sound(target, law, tol, seed)
        plan = prepared(tol, target, law).choice
        assert plan is not None
        assert plan.outer is not None
        tiers += int(plan.outer.tiers.max())
    # Without these the test would say nothing about tiers.
    assert tiers >= 8


def test_a_vocabulary_whose_cuts_are_all_tight() -> None:
    target, law = lossy_output(60_000, otmd.WithReplacement, 2, 1.0, 0, spread=1.0)
    rule = prepared(1e-10, target, law)
    assert rule.choice is not None
    # Numbers of blocks once had 16 bits.
    assert rule.choice.outer.tiers.max() > 2**15
    assert rule.choice.bound - rule.rate <= 1e-10
    assert abs(float(rule.accepted.sum()) - rule.rate) <= ROUNDING
    tokens = law.sample(rng=np.random.default_rng(0))
    assert rule.conditional_law(tokens).sum() == pytest.approx(1.0, abs=1e-12)


def test_a_search_that_ends_early_says_so() -> None:
    target, law = lossy_output(1000, otmd.WithoutReplacement, 2, 0.5, 0)
    proof = otmd.Optimal().certificate(target, law)
    assert 1e-10 < proof.gap < 1e-4
    assert proof.status.endswith("below the optimum, more than the tolerance of 1e-10")
    rate = otmd.KSequential().certificate([0.2, 0.8], otmd.WithReplacement([0.8, 0.2], 2))
    assert "below the optimum" in rate.status


def test_two_tokens_hold_nearly_all_mass() -> None:
    """No log weight may keep the others from moving: 5.5e-7 were lost."""
    target = np.full(10, 2.5e-14)
    target[:2] = (1.0 - target[2:].sum()) / 2.0
    law = otmd.Stratified(np.full(10, 0.1), 8)
    assert otmd.Optimal().certificate(target, law).gap <= 1e-10


@pytest.mark.parametrize("step", [0.0, 1e-16, 1e-13, 1e-11])
def test_nearly_equal_ratios(step: float) -> None:
    rng = np.random.default_rng(8)
    for V in (6, 3000):
        q = rng.dirichlet(np.ones(V))
        p = unit(q * (1.0 + step * rng.choice([-1.0, 1.0], V)))
        for law in (otmd.WithReplacement(q, 1), otmd.WithReplacement(q, 3), otmd.Stratified(q, 1)):
            assert -ROUNDING <= otmd.Optimal().certificate(p, law).gap <= 1e-10, (V, law)


# ---------------------------------------------------------------- invariance


def test_names_of_tokens_do_not_matter() -> None:
    for instance in INSTANCES[:150]:
        order = np.random.default_rng(instance.seed).permutation(instance.vocab_size)
        law = package_law(instance, "with_replacement")
        renamed = otmd.WithReplacement(instance.draft_probs[order], instance.num_drafts)
        one = otmd.Optimal().prepare(instance.target_probs, law)
        two = otmd.Optimal().prepare(instance.target_probs[order], renamed)
        tokens = law.sample(rng=np.random.default_rng(1))
        place = np.argsort(order)[tokens]
        found = two.conditional_law(place)
        np.testing.assert_allclose(found, one.conditional_law(tokens)[order], atol=1e-7)


def test_the_order_of_the_drafts_does_not_matter() -> None:
    for instance in INSTANCES[:150]:
        law = package_law(instance, "with_replacement")
        rule = otmd.Optimal().prepare(instance.target_probs, law)
        tokens = law.sample(rng=np.random.default_rng(2))
        given = rule.conditional_law(tokens)
        np.testing.assert_allclose(rule.conditional_law(tokens[::-1]), given, atol=ROUNDING)


def test_more_drafts_are_never_worse() -> None:
    for seed in range(20):
        rng = np.random.default_rng([5, seed])
        target, draft = rng.dirichlet(np.full(300, 0.3), size=2)
        rates = [
            otmd.Optimal().certificate(target, otmd.WithReplacement(draft, n)).attained
            for n in (1, 2, 3, 4, 6, 8, 12)
        ]
        assert (np.diff(rates) >= -GAP).all(), seed


def test_no_other_rule_is_better() -> None:
    for instance in INSTANCES[:150]:
        law = package_law(instance, "with_replacement")
        attained = otmd.Optimal().certificate(instance.target_probs, law).attained
        for other in (otmd.RecursiveRejection(), otmd.KSequential(), otmd.TargetOnly()):
            rate = otmd.acceptance_rate(other, instance.target_probs, law)
            assert rate <= attained + GAP, instance


# ---------------------------------------------------------------- in use

ALARM = 1e-4
DRAWS = 40_000
LEAST_EXPECTED = 10.0


def p_value(counts: Array, probs: Array) -> float:
    """The p-value of a G-test. Cells that expect fewer than ten counts are pooled before any draw."""
    expected = probs * counts.sum()
    thick = expected >= LEAST_EXPECTED
    observed = np.append(counts[thick], counts[~thick].sum())
    wanted = np.append(expected[thick], expected[~thick].sum())
    assert (wanted >= LEAST_EXPECTED).all()
    some = observed > 0
    statistic = 2 * (observed[some] * np.log(observed[some] / wanted[some])).sum()
    return float(stats.chi2.sf(statistic, wanted.size - 1))


def thousand_tokens() -> tuple[Array, otmd.WithReplacement]:
    rng = np.random.default_rng(12)
    logits = 1.5 * rng.standard_normal(1000)
    draft = otmd.probs_from_logits(logits + 0.8 * rng.standard_normal(1000))
    return otmd.probs_from_logits(logits), otmd.WithReplacement(draft, 3)


@pytest.mark.parametrize("tol", [1e-10, 0.1])
def test_output_tokens_follow_the_target(tol: float) -> None:
    """Each of the two tests raises a false alarm with probability 1e-4 over the seed."""
    target, law = thousand_tokens()
    rng = np.random.default_rng(909)
    tokens = law.sample(rng=rng, size=DRAWS)
    verdict = otmd.Optimal(tol).verify(target, law, tokens, rng=rng)
    out, index = np.asarray(verdict.token), np.asarray(verdict.draft_index)
    assert p_value(np.bincount(out, minlength=1000), target) >= ALARM
    hit = index >= 0
    np.testing.assert_array_equal(hit, (tokens == out[:, None]).any(axis=1))
    low, high = otmd.Optimal(tol).acceptance_bounds(target, law)
    rate = float(np.clip(hit.mean(), low, high))
    assert stats.binomtest(int(hit.sum()), DRAWS, rate).pvalue >= ALARM


@pytest.mark.parametrize("fault", ["other weights", "residual from p"])
def test_faults_are_caught(fault: str) -> None:
    """Two faults: weights that the thinning was not made for, a residual that ignores what was accepted."""
    target, law = thousand_tokens()
    rule = prepared(1e-10, target, law)
    if fault == "other weights":
        assert rule.choice is not None
        assert rule.choice.inner is not None
        assert rule.choice.outer is not None
        rule.choice.inner.weights[:] = 1.0
        rule.choice.outer.weights[:] = 1.0
    else:
        rule.residual = lambda tokens: target
    rng = np.random.default_rng(909)
    drafts = law.sample(rng=rng, size=DRAWS)
    out = np.array([rule.verify(tokens, rng=rng).token for tokens in drafts])
    assert p_value(np.bincount(out, minlength=1000), target) < ALARM
