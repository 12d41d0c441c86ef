"""The optimal verifier: lossless at every tolerance, and as good as any can be at a small one."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from strategies import Array, optimal_plan, shared_tokens, unit

import otmd
from otmd.verifiers.optimal import ChoicePlan, slots_plan

TOLERANCES = (1e-10, 1e-3)
ROUNDING = 1e-12
GAP = 1e-9
pytestmark = pytest.mark.usefixtures("compiled")


def by_sets(prepared: otmd.PreparedVerifier, law: otmd.DraftLaw) -> tuple[Array, float]:
    """The distribution of the output and P(it is a draft), as sums over the multisets of drafts."""
    tuples, probs = law.enumerate()
    # Of several drafters it matters which has drafted a token.
    sets = tuples if isinstance(law, otmd.Independent) else np.sort(tuples, axis=1)
    multisets, index = np.unique(sets, axis=0, return_inverse=True)
    output = np.zeros(law.vocab_size)
    accepted = 0.0
    for tokens, prob in zip(multisets, np.bincount(index.ravel(), probs), strict=True):
        given = prepared.conditional_law(tokens)
        output += prob * given
        accepted += prob * given[np.unique(tokens)].sum()
    return output, accepted


def assert_sound(target: Array, law: otmd.DraftLaw, tol: float, where: object) -> None:
    """Output, certificate and bounds against sums over every multiset of drafts."""
    verifier = otmd.Optimal(tol)
    output, accepted = by_sets(verifier.prepare(target, law), law)
    assert np.abs(output - unit(target)).max() <= ROUNDING, where
    proof = verifier.certificate(target, law)
    assert proof.upper_bound == otmd.optimal_acceptance(target, law).rate, where
    assert proof.gap == proof.upper_bound - proof.attained
    assert proof.gap <= max(tol, GAP), where
    # The bounds are those of this verifier, whatever tolerance is asked of them.
    low, high = verifier.acceptance_bounds(target, law, tol=0.5)
    assert low - ROUNDING <= accepted <= min(high, proof.upper_bound) + ROUNDING, where


# ---------------------------------------------------------------- hostile

PEAK = [0.999999, 4e-7, 3e-7, 2e-7, 1e-7]
WIDE = 10.0 ** np.array([0.0, -30.0, -6.0, -12.0, -18.0, -24.0])
HOSTILE = {
    "q covers a part": ([0.1, 0.2, 0.3, 0.4], [0.0, 0.5, 0.5, 0.0]),
    "p covers a part": ([0.0, 0.7, 0.3, 0.0], [0.1, 0.2, 0.3, 0.4]),
    "no cut": ([0.2, 0.35, 0.45], [0.35, 0.3, 0.35]),
    "ratios far apart": ([1e-30, 1e-15, 0.5, 0.5], [0.7, 0.3, 1e-15, 1e-30]),
    "wide, opposed": (WIDE, WIDE[[1, 0, 5, 4, 3, 2]]),
    "subnormal p": ([5e-324, 1e-310, 0.6, 0.4], [0.2, 0.3, 0.3, 0.2]),
    "subnormal q": ([0.4, 0.3, 0.2, 0.1], [5e-324, 0.5, 0.25, 0.25]),
    "subnormal q that must be drafted": ([0.5, 0.25, 0.25], [5e-324, 1e-320, 1.0]),
    "barely normal q": ([0.5, 0.25, 0.25], [3e-308, 1e-300, 1.0]),
    "two of four are faint": ([0.4, 0.3, 0.2, 0.1], [1e-290, 3e-290, 0.5, 0.5]),
    "peaked q": ([0.5, 0.2, 0.2, 0.1, 0.0], PEAK),
    "peaked both": (PEAK, PEAK[:1] + PEAK[:0:-1]),
    # These once failed: a group that was not split next to one that was, and weights that grew without end.
    "five thousandths were lost": ([5 / 8, 3 / 8, 0.0], [1 / 4, 3 / 8, 3 / 8]),
    "ties of five prefixes": ([0.375, 0.0, 0.25, 0.375], [0.125, 0.375, 0.25, 0.25]),
    "eighths": ([0.0, 0.25, 0.375, 0.125, 0.25], [0.125, 0.125, 0.25, 0.25, 0.25]),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("n", [2, 4])
def test_hostile_pairs(name: str, n: int) -> None:
    target, draft = (unit(np.array(masses)) for masses in HOSTILE[name])
    laws: list[otmd.DraftLaw] = [otmd.WithReplacement(draft, n)]
    if n == 2:
        laws.append(otmd.Independent([draft, draft[::-1]]))
    if np.count_nonzero(draft) >= n:
        laws += [otmd.Stratified(draft, n), otmd.WithoutReplacement(draft, n)]
        laws += [otmd.TopThen(draft, n, top, rest=otmd.WithoutReplacement) for top in range(1, n)]
    for law in laws:
        for tol in TOLERANCES:
            assert_sound(target, law, tol, (name, law, tol))


@pytest.mark.parametrize("level", [True, False])
@pytest.mark.parametrize("counts", [(1, 1, 2, 4), (1, 2, 1, 2, 2)])
@pytest.mark.parametrize("n", [2, 4])
def test_several_cuts_at_once(n: int, counts: tuple[int, ...], level: bool) -> None:
    """If all prefixes are best cuts, weights would have to be infinitely far apart.

    With replacement, p is exact. Not ``level``: all prefixes but the empty one are best cuts.
    """
    size = len(counts)
    q = [Fraction(count, sum(counts)) for count in counts]
    ends = [sum(q[:k], Fraction(0)) ** n for k in range(size + 1)]
    draft = np.array(q, float)
    without = otmd.WithoutReplacement(draft, min(n, size - 1))
    contained = [float(without.containment(np.arange(size) < k)) for k in range(size + 1)]
    for law, values in ((otmd.WithReplacement(draft, n), ends), (without, contained)):
        target = np.array([float(after - before) for before, after in pairwise(values)])
        if not level:
            first = np.flatnonzero(target)[0]
            target[-1], target[first] = target[-1] + target[first], 0.0
        for tol in TOLERANCES:
            assert_sound(target, law, tol, (law, counts, level))


@pytest.mark.parametrize("step", [0.0, 1e-13])
def test_nearly_equal_ratios(step: float) -> None:
    rng = np.random.default_rng(8)
    for size in (6, 3000):
        q = rng.dirichlet(np.ones(size))
        p = unit(q * (1.0 + step * rng.choice([-1.0, 1.0], size)))
        for law in (otmd.WithReplacement(q, 1), otmd.WithReplacement(q, 3), otmd.Stratified(q, 1)):
            assert -ROUNDING <= otmd.Optimal().certificate(p, law).gap <= 1e-10, (size, law)


# ---------------------------------------------------------------- classes and tiers


def logits_pair(
    size: int, noise: float | None, seed: list[int], scale: float = 2.5, temperature: float = 1.0
) -> tuple[Array, Array]:
    """p and q of logits and of the same with noise, or, without it, of other logits."""
    logits, others = scale * np.random.default_rng(seed).standard_normal((2, size))
    if noise is not None:
        others = logits + noise / scale * others
    return tuple(otmd.probs_from_logits(x, temperature) for x in (logits, others))  # type: ignore[return-value]


@pytest.mark.parametrize("tol", [1e-6, 0.3])
def test_tokens_that_lie_between_two_classes(tol: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # As few tokens as can be enumerated would be classes of their own.
    monkeypatch.setattr(slots_plan, "_FEW", 0)
    monkeypatch.setattr(slots_plan, "_LARGEST", 1)
    split = 0
    for seed in range(3):
        target, draft = logits_pair(50, 0.5, [seed], scale=1.5)
        law = otmd.WithReplacement(draft, 2)
        assert_sound(target, law, tol, seed)
        split += shared_tokens(optimal_plan(target, law, tol)[1])
    # Without these the test would say nothing about the split.
    assert split >= 13


@pytest.mark.parametrize("tol", [1e-10, 1e-6])
def test_the_tolerance_is_kept_at_hundreds_of_tokens(tol: float) -> None:
    for seed in range(30):
        rng = np.random.default_rng([67, seed])
        size = int(np.exp(rng.uniform(1.0, 8.0)))
        n = int(rng.choice([1, 2, 3, 4, 6, 8, 16]))
        noise = float(rng.choice([1e-6, 1e-3, 0.1, 0.5, 1.0, 3.0]))
        scale = float(rng.choice([0.5, 2.5, 5.0]))
        temperature = float(rng.choice([0.3, 0.6, 1.0, 2.0]))
        target, draft = logits_pair(size, noise, [67, seed], scale, temperature)
        laws = [otmd.WithReplacement(draft, n)]
        if n <= size and seed % 3 == 0:
            laws.append(otmd.Stratified(draft, n))
        for law in laws:
            proof = otmd.Optimal(tol).certificate(target, law)
            assert -ROUNDING <= proof.gap <= max(tol, GAP), (seed, law, proof)


def lossy_output(
    size: int, law: type, n: int, part: float, seed: int, scale: float = 3.0
) -> tuple[Array, otmd.DraftLaw]:
    """Output of the lossy frontier for a part of the loss that takes α* to 1: most cuts are tight."""
    target, draft = logits_pair(size, 1.0, [29, size, seed], scale)
    drafts = law(draft, n)
    frontier = otmd.lossy_frontier(target, drafts)
    return frontier.output_distribution(part * (1.0 - frontier.lossless_rate)), drafts


@pytest.mark.parametrize("part", [0.1, 1.0])
@pytest.mark.parametrize("n", [1, 2, 8])
def test_outputs_of_the_lossy_frontier(n: int, part: float) -> None:
    for size in (50, 5000):
        target, law = lossy_output(size, otmd.WithReplacement, n, part, n)
        proof = otmd.Optimal().certificate(target, law)
        assert -ROUNDING <= proof.gap <= 1e-10, size
        assert proof.status == "optimal within the tolerance of 1e-10"


@pytest.mark.parametrize("tol", TOLERANCES)
def test_tiers_are_lossless(tol: float) -> None:
    tiers = 0
    for seed in range(12):
        target, law = lossy_output(7, otmd.WithReplacement, 1 + seed % 3, 1.0, seed)
        assert_sound(target, law, tol, seed)
        outer = optimal_plan(target, law, tol)[1].outer
        assert outer is not None
        tiers += int(outer.tiers.max())
    # Without these the test would say nothing about tiers.
    assert tiers >= 12


@pytest.mark.slow
def test_a_vocabulary_whose_cuts_are_all_tight() -> None:
    target, law = lossy_output(60_000, otmd.WithReplacement, 2, 1.0, 0, scale=1.0)
    plan = optimal_plan(target, law)[1]
    assert plan.outer is not None
    # Numbers of blocks once had 16 bits.
    assert plan.outer.tiers.max() > 2**15
    assert plan.bound - plan.rate <= 1e-10


def test_a_search_that_ends_early_says_so() -> None:
    target, law = lossy_output(1000, otmd.WithoutReplacement, 2, 0.5, 0)
    proof = otmd.Optimal().certificate(target, law)
    assert 1e-10 < proof.gap < 1e-4
    assert proof.status.endswith("below the optimum, more than the tolerance of 1e-10")


# ---------------------------------------------------------------- full size

VOCAB = 151_936


def assert_all_outside_is_chosen(plan: ChoicePlan, law: otmd.DraftLaw) -> None:
    """The chosen mass outside H* is P(some draft there has a clock), which differs little from 1 − g(H*)."""
    side = plan.outer
    tokens = np.flatnonzero(~plan.subset & (plan.target > 0))
    assert side is not None
    classes, probs = side.classes_of(tokens, np.zeros_like(tokens))
    silent = np.ones(law.vocab_size)
    silent[tokens] = 1.0 - np.where(side.weights[classes] > 0.0, probs, 0.0).sum(axis=1)
    low, high = (1.0 - float(law.containment(mute)) for mute in (silent > 1e-12, silent > 1 - 1e-12))
    assert low - 1e-10 <= side.offered(np.flatnonzero(~plan.subset)).sum() <= high + 1e-10
    assert high == pytest.approx(1.0 - float(law.containment(plan.subset)), abs=1e-10)


def standard_errors(plan: ChoicePlan, law: otmd.DraftLaw) -> Array:
    """Distance in σ of sampled means from the plan, for the 20 tokens of each side that are accepted most."""
    sums = np.zeros(law.vocab_size)
    accepted = plan.accepted
    for tokens in law.sample(2000, rng=3):
        np.add.at(sums, tokens, plan.choice_probs(tokens))
    sides = [np.flatnonzero(side) for side in (plan.subset, ~plan.subset)]
    most = np.concatenate([tokens[np.argsort(-accepted[tokens])[:20]] for tokens in sides])
    # P(a token is accepted) given the drafts is at most 1, so its variance is at most this.
    errors = np.sqrt(accepted * (1.0 - accepted) / 2000)[most]
    return np.abs(sums / 2000 - accepted)[most] / errors


@pytest.mark.parametrize(
    ("temperature", "noise", "n"),
    [
        (1.0, 1.0, 4),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((0.3, 1.0, 2), (0.3, 3.0, 8), (0.6, None, 8), (1.0, 0.3, 2), (2.0, 3.0, 2))
        ),
    ],
)
def test_a_language_models_vocabulary(temperature: float, noise: float | None, n: int) -> None:
    target, draft = logits_pair(VOCAB, noise, [73, n], temperature=temperature)
    for kind in (otmd.WithReplacement, otmd.Stratified, otmd.WithoutReplacement):
        law = kind(draft, n)
        plan = optimal_plan(target, law)[1]
        assert_all_outside_is_chosen(plan, law)
        assert standard_errors(plan, law).max() <= 5.0, kind
        assert -ROUNDING <= plan.bound - plan.rate <= (GAP if kind is otmd.Stratified else 1e-6)


@pytest.mark.parametrize(
    ("kind", "inner"),
    [
        pytest.param(otmd.WithReplacement, True, marks=pytest.mark.slow),
        (otmd.WithoutReplacement, True),
        (otmd.WithoutReplacement, False),
    ],
)
def test_other_weights_than_the_rates_were_made_for_are_noticed(kind: type, inner: bool) -> None:
    # Outside, weights matter only if two drafts lie there, which is rare with a cut: the other has none.
    target, draft = logits_pair(VOCAB, 3.0 if inner else 0.1, [73], temperature=0.3)
    law = kind(draft, 8 if inner else 4)
    plan = optimal_plan(target, law)[1]
    side = plan.inner if inner else plan.outer
    assert side is not None
    assert standard_errors(plan, law).max() <= 5.0
    side.weights[:] = 1.0
    assert standard_errors(plan, law).max() > 5.0
