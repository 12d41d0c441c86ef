"""The optimal verifier without replacement: lossless at every tolerance, optimal at a small one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import reference
from strategies import KINDS, Array, Instance, Remembering, instances, package_law, unit

import otmd
from otmd.verifiers.optimal import ChoicePlan
from otmd.verifiers.prepared import ChoosingVerifier

TOLERANCES = (1e-10, 1e-6, 1e-3, 0.3)
ROUNDING = 1e-12
GAP = 1e-9
NAMES = ("without_replacement", "top_then_without")
INSTANCES = [x for x in instances(660, seed=62) if x.applicable("without_replacement")]


def by_sets(rule: otmd.PreparedVerifier, law: otmd.DraftLaw) -> tuple[Array, float]:
    """The law of the output and P(it is a draft); a set's orders are added, as the rule ignores the order."""
    tuples, probs = law.enumerate()
    sets, place = np.unique(np.sort(tuples, axis=1), axis=0, return_inverse=True)
    output, accepted = np.zeros(law.vocab_size), 0.0
    for tokens, prob in zip(sets, np.bincount(place.ravel(), probs), strict=True):
        given = rule.conditional_law(tokens)
        output += prob * given
        accepted += prob * given[tokens].sum()
    return output, accepted


def assert_sound(target: Array, law: otmd.DraftLaw, tol: float, where: object) -> None:
    """Output law, certificate and bounds against sums over every set of drafts."""
    rule, p = Remembering(tol), unit(target)
    output, accepted = by_sets(rule.prepare(target, law), law)
    assert np.abs(output - p).max() <= ROUNDING, where
    proof = rule.certificate(target, law)
    assert proof.upper_bound == otmd.optimal_acceptance(target, law).rate, where
    assert proof.gap == proof.upper_bound - proof.attained
    assert -ROUNDING <= proof.gap <= max(tol, GAP), where
    assert proof.attained - ROUNDING <= accepted <= proof.upper_bound + ROUNDING, where
    low, high = rule.acceptance_bounds(target, law)
    assert low - ROUNDING <= accepted <= high + ROUNDING, where


def laws_of(instance: Instance) -> list[otmd.DraftLaw]:
    """The law without replacement, and for every third instance also after some top tokens."""
    names = NAMES if instance.seed[1] % 3 == 0 else NAMES[:1]
    return [package_law(instance, name) for name in names]


@pytest.mark.parametrize("tol", TOLERANCES)
def test_random_and_hostile_instances(tol: float) -> None:
    assert len(INSTANCES) >= 500
    for instance in INSTANCES:
        for law in laws_of(instance):
            assert_sound(instance.target_probs, law, tol, f"{law!r} {instance}")


def test_the_rate_is_that_of_the_linear_program() -> None:
    for instance in INSTANCES[:120]:
        for law in laws_of(instance):
            best = otmd.solve_transport(instance.target_probs, law, form="compact").rate
            attained = otmd.Optimal().certificate(instance.target_probs, law).attained
            assert abs(best - attained) <= GAP, instance


@pytest.mark.parametrize("tol", TOLERANCES)
@pytest.mark.parametrize("kind", ["random", "peaked", "uniform draft", "p close to q"])
def test_eight_drafts_of_ten_tokens(kind: str, tol: float) -> None:
    """Lossless and optimal for eight drafts; the probability of each of the 45 sets is the twin's."""
    for seed in range(3):
        target, draft = KINDS[kind](np.random.default_rng([59, seed]), 10)
        law = otmd.WithoutReplacement(draft, 8)
        optimal = Remembering(tol)
        rule, output = optimal.prepare(target, law), np.zeros(10)
        chances = reference.drawn_set(draft.tolist(), 8)
        for number in np.flatnonzero(chances):
            tokens = np.flatnonzero((number >> np.arange(10)) & 1)
            output += chances[number] * rule.conditional_law(tokens)
        assert np.abs(output - target).max() <= ROUNDING, seed
        proof = optimal.certificate(target, law)
        assert -ROUNDING <= proof.gap <= max(tol, GAP), seed


# ---------------------------------------------------------------- hostile

PEAK = [0.999999, 4e-7, 3e-7, 2e-7, 1e-7]
WIDE = 10.0 ** np.array([0.0, -30.0, -6.0, -12.0, -18.0, -24.0])
HOSTILE = {
    "p = q": ([0.5, 0.3, 0.2], [0.5, 0.3, 0.2]),
    "disjoint": ([0.5, 0.5, 0.0, 0.0, 0.0], [0.0, 0.0, 0.4, 0.5, 0.1]),
    "one-hot p": ([0.0, 1.0, 0.0, 0.0], [0.2, 0.5, 0.2, 0.1]),
    "q covers a part": ([0.1, 0.2, 0.3, 0.2, 0.2], [0.0, 0.5, 0.4, 0.1, 0.0]),
    "p covers a part": ([0.0, 0.7, 0.3, 0.0], [0.1, 0.2, 0.3, 0.4]),
    "ratios far apart": ([1e-30, 1e-15, 0.5, 0.5], [0.7, 0.3, 1e-15, 1e-30]),
    "wide, opposed": (WIDE, WIDE[[1, 0, 5, 4, 3, 2]]),
    "subnormal p": ([5e-324, 1e-310, 0.6, 0.4], [0.2, 0.3, 0.3, 0.2]),
    "subnormal q": ([0.4, 0.3, 0.2, 0.1], [5e-324, 0.5, 0.25, 0.25]),
    "subnormal q that must win": ([0.5, 0.25, 0.25], [5e-324, 1e-320, 1.0]),
    "barely normal q": ([0.5, 0.25, 0.25], [3e-308, 1e-300, 1.0]),
    "two of four are faint": ([0.4, 0.3, 0.2, 0.1], [1e-290, 3e-290, 0.5, 0.5]),
    "peaked q": ([0.5, 0.2, 0.2, 0.1, 0.0], PEAK),
    "peaked both": (PEAK, PEAK[:1] + PEAK[:0:-1]),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_hostile_pairs(name: str, n: int) -> None:
    target, draft = (unit(np.array(masses)) for masses in HOSTILE[name])
    if np.count_nonzero(draft) < n:
        with pytest.raises(ValueError, match="num_drafts"):
            otmd.WithoutReplacement(draft, n)
        return
    for tol in TOLERANCES:
        law = otmd.WithoutReplacement(draft, n)
        assert_sound(target, law, tol, (name, n, tol))


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_hostile_pairs_after_top_tokens(name: str, n: int) -> None:
    target, draft = (unit(np.array(masses)) for masses in HOSTILE[name])
    if np.count_nonzero(draft) < n:
        return
    for top in range(1, n + 1):
        law = otmd.TopThen(draft, n, top, rest=otmd.WithoutReplacement)
        best = otmd.solve_transport(target, law, form="compact").rate
        assert otmd.optimal_acceptance(target, law).rate == pytest.approx(best, abs=GAP), top
        assert_sound(target, law, 1e-10, (name, n, top))


@pytest.mark.parametrize("level", [True, False])
@pytest.mark.parametrize("counts", [(1, 1, 2, 4), (1, 1, 1, 1), (1, 2, 1, 2, 2), (5, 4, 3, 2, 1)])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_several_cuts_at_once(n: int, counts: tuple[int, ...], level: bool) -> None:
    """If all prefixes are best cuts up to rounding, weights would have to be infinitely far apart."""
    V = len(counts)
    law = otmd.WithoutReplacement(unit(np.array(counts, float)), n)
    ends = [float(law.containment(np.arange(V) < size)) for size in range(V + 1)]
    target = np.array([after - before for before, after in pairwise(ends)])
    first = np.flatnonzero(target)[0]
    if not level:
        target[-1], target[first] = target[-1] + target[first], 0.0
    best = reference.optimal_by_masks(
        target.tolist(), reference.without_replacement(law.draft_probs.tolist(), n)
    )
    if list(counts) == sorted(counts):
        # These prefixes are in the order of p/q, so no other set is better.
        assert best == pytest.approx(1.0 if level else 1.0 - ends[first + 1], abs=ROUNDING)
    for tol in TOLERANCES:
        proof = otmd.Optimal(tol).certificate(target, law)
        assert proof.upper_bound == pytest.approx(best, abs=ROUNDING)
        assert_sound(target, law, tol, (n, counts, level))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
def test_as_many_drafts_as_tokens(n: int) -> None:
    """If every token is drafted, every output is accepted, also in half precision."""
    for seed in range(4):
        rng = np.random.default_rng([n, seed])
        target, draft = (unit(rng.uniform(0.2, 1.0, n)).astype(np.float16) for _ in range(2))
        proof = otmd.Optimal().certificate(target, otmd.WithoutReplacement(draft, n))
        assert proof.upper_bound == pytest.approx(1.0, abs=ROUNDING)
        assert -ROUNDING <= proof.gap <= GAP


def test_one_draft_is_the_maximal_coupling() -> None:
    for instance in INSTANCES[:150]:
        law = otmd.WithoutReplacement(instance.draft_probs, 1)
        attained = otmd.Optimal().certificate(instance.target_probs, law).attained
        coupled = otmd.acceptance_rate(otmd.Preference(), instance.target_probs, law)
        assert attained == pytest.approx(coupled, abs=GAP)


# ---------------------------------------------------------------- invariance


@pytest.mark.parametrize("name", NAMES)
def test_names_and_order_do_not_matter(name: str) -> None:
    for instance in INSTANCES[:60]:
        law = package_law(instance, name)
        order = np.random.default_rng(instance.seed).permutation(instance.vocab_size)
        rule = otmd.Optimal().prepare(instance.target_probs, law)
        tokens = law.sample(rng=np.random.default_rng(1))
        given = rule.conditional_law(tokens)
        np.testing.assert_allclose(rule.conditional_law(tokens[::-1]), given, atol=ROUNDING)
        if name == "without_replacement":
            renamed = otmd.WithoutReplacement(instance.draft_probs[order], law.num_drafts)
            target = instance.target_probs[order]
            other = otmd.Optimal().prepare(target, renamed)
            rates = [
                otmd.Optimal().certificate(*position).attained
                for position in ((target, renamed), (instance.target_probs, law))
            ]
            assert rates[0] == pytest.approx(rates[1], abs=GAP)
            found = other.conditional_law(np.argsort(order)[tokens])
            np.testing.assert_allclose(found, given[order], atol=1e-6, err_msg=str(instance))


# ---------------------------------------------------------------- full size

V = 151_936
# Temperature, noise of the draft's logits (None: unrelated logits), n.
POSITIONS = [
    (0.3, 1.0, 2),
    (0.3, 3.0, 8),
    (0.6, 0.3, 4),
    (0.6, None, 8),
    (1.0, 0.3, 2),
    (1.0, 1.0, 4),
    (1.0, 3.0, 4),
    (2.0, 1.0, 2),
    (2.0, 3.0, 2),
]


def language_position(
    temperature: float, noise: float | None, n: int
) -> tuple[Array, otmd.WithoutReplacement]:
    rng = np.random.default_rng([73, round(10 * temperature), round(10 * (noise or 0)), n])
    logits, other = 2.5 * rng.standard_normal((2, V))
    if noise is not None:
        other = logits + noise / 2.5 * other
    target, draft = (otmd.probs_from_logits(x, temperature) for x in (logits, other))
    return target, otmd.WithoutReplacement(draft, n)


def plan_of(target: Array, law: otmd.WithoutReplacement, tol: float = 1e-10) -> ChoicePlan:
    rule = otmd.Optimal(tol).prepare(target, law)
    assert isinstance(rule, ChoosingVerifier)
    assert rule.choice is not None
    return rule.choice


def assert_all_outside_is_chosen(plan: ChoicePlan, law: otmd.WithoutReplacement) -> None:
    """The chosen mass outside H* is P(some draft there has a clock), which differs little from 1 − g(H*)."""
    side, own = plan.outer, np.flatnonzero(~plan.subset & (plan.target > 0))
    assert side is not None
    lower, share, _ = side.locate(own)
    upper = np.minimum(lower + 1, side.weights.size - 1)
    silent = np.ones(law.vocab_size)
    silent[own] = share * (side.weights[lower] == 0) + (1.0 - share) * (side.weights[upper] == 0)
    low, high = (1.0 - float(law.containment(mute)) for mute in (silent > 0, silent == 1))
    assert low - 1e-10 <= side.locate(np.flatnonzero(~plan.subset))[2].sum() <= high + 1e-10
    assert high == pytest.approx(1.0 - float(law.containment(plan.subset)), abs=1e-10)


def standard_errors(plan: ChoicePlan, law: otmd.WithoutReplacement) -> Array:
    """How far sampled mean chances of the 20 likeliest tokens of each side are from the plan, in σ."""
    sums, said = np.zeros(law.vocab_size), plan.accepted
    for tokens in law.sample(2000, rng=3):
        sums[tokens] += plan.choice_probs(tokens)
    own = [np.flatnonzero(side) for side in (plan.subset, ~plan.subset)]
    likeliest = np.concatenate([tokens[np.argsort(-said[tokens])[:20]] for tokens in own])
    # A chance is at most 1, so its variance is at most this.
    errors = np.sqrt(said * (1.0 - said) / 2000)[likeliest]
    return np.abs(sums / 2000 - said)[likeliest] / errors


@pytest.mark.parametrize(("temperature", "noise", "n"), POSITIONS)
def test_a_language_models_vocabulary(temperature: float, noise: float | None, n: int) -> None:
    target, law = language_position(temperature, noise, n)
    plan = plan_of(target, law)
    assert plan.subset.any()
    assert_all_outside_is_chosen(plan, law)
    assert standard_errors(plan, law).max() <= 5.0
    assert -ROUNDING <= plan.bound - plan.rate <= 1e-6


@pytest.mark.parametrize("inner", [True, False])
def test_other_weights_than_the_rates_were_made_for_are_noticed(inner: bool) -> None:
    # Outside, weights matter only if two drafts lie there, which is rare with a cut: the other has none.
    target, law = language_position(*((0.3, 3.0, 8) if inner else (0.3, 0.1, 4)))
    plan = plan_of(target, law)
    side = plan.inner if inner else plan.outer
    assert standard_errors(plan, law).max() <= 5.0
    assert side is not None
    side.weights[:] = 1.0
    assert standard_errors(plan, law).max() > 5.0
