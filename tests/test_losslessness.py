"""Losslessness as it is met in use: draw drafts, verify them, count what comes out.

Every comparison draws from a fixed seed and raises a false alarm with a probability of at most
`ALARM` over the choice of that seed. The helpers that judge are held to faulty rules,
which they must catch.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable

import naive
import numpy as np
import pytest
from scipy import stats
from strategies import dirichlet

import otmd
from otmd.verifiers import verifiers_serving

ALARM = 1e-6
DRAWS = 20_000
LEAST_EXPECTED = 10.0
Array = np.ndarray


def assert_follows(counts: Array, probs: Array, alarm: float = ALARM) -> None:
    """G-test of counts against probabilities; cells too thin for the test are pooled.

    A count where the probability is zero fails whatever the alarm rate.
    """
    total = counts.sum()
    impossible = counts[probs == 0].sum()
    assert impossible == 0, f"{impossible} of {total} outcomes have probability zero"
    expected = probs * total
    thick = expected >= LEAST_EXPECTED
    observed = np.append(counts[thick], counts[~thick].sum())
    wanted = np.append(expected[thick], expected[~thick].sum())
    if wanted[-1] < LEAST_EXPECTED:
        # Too little to stand alone even when pooled: it joins the smallest of the others.
        smallest = np.argmin(wanted[:-1]) if len(wanted) > 1 else -1
        observed[smallest] += observed[-1]
        wanted[smallest] += wanted[-1]
        observed, wanted = observed[:-1], wanted[:-1]
    some = observed > 0
    statistic = 2 * (observed[some] * np.log(observed[some] / wanted[some])).sum()
    chance = stats.chi2.sf(statistic, max(len(wanted) - 1, 1))
    assert chance >= alarm, f"G = {statistic:.1f} over {len(wanted)} cells, p-value {chance:.1e}"


def assert_frequency(hits: int, draws: int, rate: float, alarm: float = ALARM) -> None:
    """Exact two-sided binomial test of an acceptance frequency against its rate."""
    chance = stats.binomtest(int(hits), draws, min(max(rate, 0.0), 1.0)).pvalue
    assert chance >= alarm, f"{hits} of {draws} against a rate of {rate}, p-value {chance:.1e}"


def pair(V: int, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return dirichlet(rng, V), dirichlet(rng, V)


P, Q = pair(6, seed=41)
P_ZERO = np.array([0.0, 0.5, 0.3, 0.0, 0.15, 0.05])
Q_ZERO = np.array([0.4, 0.0, 0.25, 0.0, 0.25, 0.1])
TABLE = np.stack([Q, *pair(6, seed=42)])

LAWS: dict[str, otmd.DraftLaw] = {
    "one draft": otmd.WithReplacement(Q, 1),
    "with replacement": otmd.WithReplacement(Q, 3),
    "with replacement, zeros": otmd.WithReplacement(Q_ZERO, 3),
    "without replacement": otmd.WithoutReplacement(Q, 3),
    "without replacement, zeros": otmd.WithoutReplacement(Q_ZERO, 3),
    "conditional Poisson": otmd.ConditionalPoisson(Q, 3),
    "conditional Poisson, zeros": otmd.ConditionalPoisson(Q_ZERO, 3),
    "stratified": otmd.Stratified(Q, 3),
    "stratified, zeros": otmd.Stratified(Q_ZERO, 3, sharpness=0.7),
    "greedy": otmd.Greedy(Q, 3),
    "top one, then with replacement": otmd.TopThen(Q, 3, 1, rest=otmd.WithReplacement),
    "top one, then without": otmd.TopThen(Q, 3, 1, rest=otmd.WithoutReplacement),
    "hub": otmd.Hub(Q),
    "independent": otmd.Independent(TABLE),
    "joint": otmd.Joint(np.array([[0, 1], [1, 1], [5, 2]]), np.array([0.2, 0.3, 0.5]), 6),
}

RULES = [
    (otmd.Preference, "one draft"),
    (otmd.RecursiveRejection, "with replacement"),
    (otmd.RecursiveRejection, "with replacement, zeros"),
    (otmd.RecursiveRejection, "without replacement"),
    (otmd.RecursiveRejection, "without replacement, zeros"),
    (otmd.RecursiveRejection, "independent"),
    (otmd.KSequential, "with replacement"),
    (otmd.KSequential, "with replacement, zeros"),
    (otmd.SpecHub, "hub"),
    (otmd.Preference, "greedy"),
    (otmd.Preference, "with replacement"),
    (otmd.Preference, "stratified"),
    (otmd.Preference, "stratified, zeros"),
    (otmd.Preference, "independent"),
    (otmd.Preference, "top one, then with replacement"),
    (otmd.TargetOnly, "with replacement"),
    (otmd.TargetOnly, "conditional Poisson"),
    (otmd.TargetOnly, "top one, then without"),
    (otmd.TargetOnly, "joint"),
]


@pytest.mark.parametrize("name", LAWS)
def test_a_prepared_rule_is_the_same_after_a_pickle(name: str) -> None:
    law = LAWS[name]
    rules = verifiers_serving(law)
    assert rules
    for rule in rules:
        prepared = rule.prepare(P, law)
        again = pickle.loads(pickle.dumps(prepared))
        for tokens in law.enumerate()[0][:5]:
            want = prepared.conditional_law(tokens)
            np.testing.assert_array_equal(again.conditional_law(tokens), want, repr(rule))


@pytest.mark.parametrize("name", LAWS)
def test_samples_follow_the_law(name: str) -> None:
    """Ordered tuples, counted against `tuple_prob`; the sum over the table is the whole."""
    law = LAWS[name]
    tokens = law.sample(np.random.default_rng(101), size=DRAWS)
    assert tokens.shape == (DRAWS, law.num_drafts)
    assert tokens.dtype == np.int64
    axes = np.indices((law.vocab_size,) * law.num_drafts)
    every = axes.reshape(law.num_drafts, -1).T
    place = np.ravel_multi_index(tuple(tokens.T), (law.vocab_size,) * law.num_drafts)
    counts = np.bincount(place, minlength=len(every))
    probs = law.tuple_prob(every)
    assert probs.sum() == pytest.approx(1, abs=1e-12)
    assert_follows(counts, probs)


@pytest.mark.parametrize(("rule", "name"), RULES)
def test_verified_tokens_follow_the_target(rule: type, name: str) -> None:
    """Output tokens against p, acceptance against the rate, and the index against the drafts."""
    law, target = LAWS[name], P_ZERO if "zeros" in name else P
    rng = np.random.default_rng(202)
    tokens = law.sample(rng, size=DRAWS)
    verdict = rule().verify(target, law, tokens, rng=rng)
    assert verdict.token.shape == verdict.draft_index.shape == (DRAWS,)
    assert_follows(np.bincount(verdict.token, minlength=6), target)
    hit = verdict.draft_index >= 0
    rate = otmd.acceptance_rate(rule(), target, law)
    assert_frequency(hit.sum(), DRAWS, rate)
    drafted = (tokens == verdict.token[:, None]).any(axis=1)
    np.testing.assert_array_equal(hit, drafted)
    chosen = np.take_along_axis(tokens, np.maximum(verdict.draft_index, 0)[:, None], axis=1)[:, 0]
    np.testing.assert_array_equal(chosen[hit], verdict.token[hit])


@pytest.mark.parametrize("rule", [otmd.RecursiveRejection, otmd.TargetOnly])
def test_given_the_drafts_the_output_follows_its_conditional_law(rule: type) -> None:
    law, tokens = LAWS["without replacement"], np.array([3, 0, 5])
    rng = np.random.default_rng(404)
    verdict = rule().verify(P, law, np.broadcast_to(tokens, (DRAWS, 3)), rng=rng)
    wanted = rule().prepare(P, law).conditional_law(tokens)
    assert_follows(np.bincount(verdict.token, minlength=6), wanted)


LARGE = [
    (otmd.RecursiveRejection, otmd.WithReplacement),
    (otmd.RecursiveRejection, otmd.WithoutReplacement),
    (otmd.KSequential, otmd.WithReplacement),
    (otmd.Preference, otmd.Greedy),
    (otmd.Preference, otmd.Stratified),
    (otmd.SpecHub, otmd.Hub),
]


@pytest.mark.parametrize(("rule", "family"), LARGE)
def test_a_large_vocabulary(rule: type, family: Callable[..., otmd.DraftLaw]) -> None:
    """V = 2000 with a heavy head and a long thin tail, as a language model's."""
    rng = np.random.default_rng(505)
    V = 2000
    zipf = 1 / np.arange(1, V + 1) ** 1.3
    target = zipf * rng.gamma(2.0, size=V)
    draft = zipf * rng.gamma(2.0, size=V)
    target, draft = target / target.sum(), draft / draft.sum()
    law = family(draft, 2) if family is otmd.Hub else family(draft, 4)
    tokens = law.sample(rng, size=DRAWS)
    verdict = rule().verify(target, law, tokens, rng=rng)
    assert_follows(np.bincount(verdict.token, minlength=V), target)
    low, high = otmd.acceptance_bounds(rule(), target, law, tol=1e-3)
    hits = (verdict.draft_index >= 0).sum()
    # Between certain bounds the frequency is held against the nearer end.
    assert_frequency(hits, DRAWS, float(np.clip(hits / DRAWS, low, high)))
    if law.num_drafts > 1 and family is not otmd.Greedy:
        drafted = np.bincount(tokens[:, 0], minlength=V)
        first = draft if family is not otmd.Hub else hub_first(draft)
        if isinstance(law, otmd.Stratified):
            # The first draft is that of the head.
            first = np.where(law.strata == 0, law.inclusion_probs(), 0.0)
        assert_follows(drafted, first)


def hub_first(draft: Array) -> Array:
    """The first of a hub pair is x with q(x), and the hub itself with what is left."""
    first = draft.copy()
    first[draft.argmax()] = 1 - (draft.sum() - draft.max())
    return first


# ---------------------------------------------------------------- what must be caught


def simulate(law: otmd.DraftLaw, faulty: Callable[[naive.Tokens], naive.Outcomes]) -> Array:
    """Count the output of a rule of the twins on drafts of the package."""
    rng = np.random.default_rng(606)
    tokens = law.sample(rng, size=DRAWS)
    counts = np.zeros(law.vocab_size, dtype=int)
    cache: dict[naive.Tokens, Array] = {}
    for row, chance in zip(tokens.tolist(), rng.random(DRAWS), strict=True):
        drafts = tuple(row)
        if drafts not in cache:
            cache[drafts] = np.cumsum(naive.conditional(faulty(drafts), law.vocab_size))
        counts[min(np.searchsorted(cache[drafts], chance, side="right"), law.vocab_size - 1)] += 1
    return counts


FAULTS = {"duplicates skipped": naive.skipping_duplicates, "residual kept": naive.residual_kept}
CAUGHT_ON = {
    "the pair of the table": (np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.2, 0.6]), 2),
    "six tokens": (
        np.array([0.35, 0.25, 0.2, 0.15, 0.05, 0.0]),
        np.array([0.05, 0.05, 0.1, 0.1, 0.2, 0.5]),
        3,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("where", CAUGHT_ON)
def test_a_faulty_rule_is_caught(fault: str, where: str) -> None:
    target, draft, n = CAUGHT_ON[where]
    law = otmd.WithReplacement(draft, n)
    counts = simulate(law, FAULTS[fault](target.tolist(), draft.tolist()))
    with pytest.raises(AssertionError, match="p-value"):
        assert_follows(counts, target)
    # The same machinery passes the sound rule, and the faulty one against its own exact law.
    sound = simulate(law, naive.rrs(target.tolist(), draft.tolist()))
    assert_follows(sound, target)
    twin = naive.with_replacement(draft.tolist(), n)
    rule = FAULTS[fault](target.tolist(), draft.tolist())
    assert_follows(counts, np.array(naive.judged(twin, rule, len(target))[1]))


def test_without_replacement_verified_as_with_is_caught() -> None:
    """The package's own rule for the wrong law: q is never renormalised."""
    rng = np.random.default_rng(707)
    tokens = otmd.WithoutReplacement(Q, 3).sample(rng, size=DRAWS)
    rule = otmd.RecursiveRejection()
    verdict = rule.verify(P, otmd.WithReplacement(Q, 3), tokens, rng=rng)
    with pytest.raises(AssertionError, match="p-value"):
        assert_follows(np.bincount(verdict.token, minlength=6), P)


def test_the_helpers_can_fail() -> None:
    with pytest.raises(AssertionError, match="probability zero"):
        assert_follows(np.array([10, 1]), np.array([1.0, 0.0]))
    with pytest.raises(AssertionError, match="p-value"):
        assert_follows(np.array([5300, 4700]), np.array([0.5, 0.5]))
    with pytest.raises(AssertionError, match="p-value"):
        assert_frequency(5300, 10_000, 0.5)
    with pytest.raises(AssertionError, match="p-value"):
        assert_frequency(9_999, 10_000, 1.0)
    # A surplus spread over many thin cells is still a surplus.
    probs = np.append(0.9, np.full(1000, 1e-4))
    with pytest.raises(AssertionError, match="p-value"):
        assert_follows(np.append(8500, np.full(1000, 1.5)), probs)
    assert_follows(np.array([5050, 4950]), np.array([0.5, 0.5]))
    assert_frequency(5050, 10_000, 0.5)


def test_the_alarm_rate_is_what_it_says() -> None:
    """Under a true law the G-test raises about as often as it is told to."""
    rng = np.random.default_rng(808)
    alarms = 0
    for counts in rng.multinomial(5000, P, size=2000):
        try:
            assert_follows(counts, P, alarm=0.05)
        except AssertionError:
            alarms += 1
    assert stats.binomtest(alarms, 2000, 0.05).pvalue > ALARM
