"""The audit of drafts: mistakes are laws, likelihood ratios are fair, and each mistake is told by its name.

Samples of a declared law are called faulty with a probability of at most 1e-2 each; the seeds are fixed.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from honest import Q_ZERO, P, Q, pair
from otmd.audit.draft_mistakes import draft_mistakes as mistakes
from otmd.audit.draft_mistakes import log_likelihoods
from scipy.stats import binom

import otmd
from otmd import audit
from otmd.audit.counts import p_value_of_exchangeable
from otmd.audit.draft_samples import _log_e_value, counts_of_extremes, draft_law

# A tenth of the usual draws for exact p-values.
ALARM = 0.01
LAWS: dict[str, otmd.DraftLaw] = {
    "with replacement": otmd.WithReplacement(Q, 3),
    "without replacement": otmd.WithoutReplacement(Q, 3),
    "without replacement, zeros": otmd.WithoutReplacement(Q_ZERO, 3),
    "conditional Poisson": otmd.ConditionalPoisson(Q, 3),
    "greedy": otmd.Greedy(Q, 3),
    "top one, then with replacement": otmd.TopThen(Q, 3, 1, rest=otmd.WithReplacement),
    "hub": otmd.Hub(Q),
    "stratified": otmd.Stratified(Q, 3, sharpness=1.5),
    "independent": otmd.Independent(np.stack([Q, P, Q])),
    "joint": otmd.Joint(np.array([[0, 1], [1, 1], [5, 2]]), np.array([0.2, 0.3, 0.5]), 6),
    "a single draft": otmd.WithReplacement(Q, 1),
}
by_law = pytest.mark.parametrize("name", LAWS)


def every_tuple(law: otmd.DraftLaw) -> np.ndarray:
    return np.array(list(product(range(law.vocab_size), repeat=law.num_drafts)))


def tuple_probs(mistake, tuples: np.ndarray) -> np.ndarray:
    """One tuple at a time, as a mistake may answer for all tuples at once that one of them cannot occur."""
    return np.array([mistake.tuple_prob(own[None])[0] for own in tuples])


@by_law
def test_every_mistake_is_a_law(name):
    tuples = every_tuple(LAWS[name])
    for own in mistakes(LAWS[name]):
        probs = tuple_probs(own, tuples)
        assert (probs >= 0).all(), own.kind
        assert probs.sum() == pytest.approx(1, abs=1e-9), (own.kind, own.setting)


@by_law
def test_the_likelihood_ratio_is_fair(name):
    """E[e] ≤ 1 over every single draw of the declared law; Markov's inequality then bounds the alarms."""
    law = LAWS[name]
    tuples, probs = law.enumerate()
    values = [_log_e_value(log_likelihoods(law, drafts[None], np.ones(1))) for drafts in tuples]
    assert probs @ np.exp(values) <= 1 + 1e-9


@by_law
def test_samples_of_the_declared_law_pass(name):
    rng = np.random.default_rng(31)
    found = draft_law(LAWS[name].sample(rng=rng, size=2_000), LAWS[name], ALARM, rng=rng)
    assert not found.faulty, found
    assert found.verdict == "no deviation from the declared law found in 2000 samples"
    assert np.isfinite(found.log_likelihood)


@by_law
def test_places_of_extreme_drafts_have_their_probabilities(name):
    """Against the enumerated law: cells of the largest place in the order by inclusion, and backwards."""
    law = LAWS[name]
    tuples, probs = law.enumerate()
    for (_, expected), order in zip(
        counts_of_extremes(law, tuples),
        (lambda x: np.argsort(-x, kind="stable"), lambda x: np.argsort(-x, kind="stable")[::-1]),
        strict=True,
    ):
        rank = np.argsort(order(law.inclusion_probs()))
        place = np.bincount(rank[tuples].max(axis=1), probs, minlength=law.vocab_size)
        np.testing.assert_allclose(expected, place[place > 1e-9], atol=1e-12)


MADE = {
    "drawn without replacement": (
        LAWS["with replacement"],
        lambda q, n: otmd.WithoutReplacement(q, n),
    ),
    "drawn independently": (LAWS["without replacement"], lambda q, n: otmd.WithReplacement(q, n)),
    "stratified": (LAWS["without replacement"], lambda q, n: otmd.Stratified(q, n)),
    "temperature × 0.5": (LAWS["stratified"], lambda q, n: otmd.Stratified(q, n, 3.0)),
    "top_k = 4": (
        LAWS["with replacement"],
        lambda q, n: otmd.WithReplacement(otmd.probs_from_logits(np.log(q), top_k=4), n),
    ),
    "temperature × 1.5": (
        LAWS["without replacement"],
        lambda q, n: otmd.WithoutReplacement(otmd.probs_from_logits(np.log(q), 1.5), n),
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_a_mistake_is_told_by_its_name(name):
    declared, make = MADE[name]
    rng = np.random.default_rng(32)
    found = draft_law(make(Q, 3).sample(rng=rng, size=1_500), declared, ALARM, rng=rng)
    assert found.faulty
    assert name in found.verdict
    assert found.best is not None
    assert found.best.mistake in str(found)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("sorted by token id", lambda x: np.sort(x, axis=1)),
        (
            "sorted, most likely first",
            lambda x: np.take_along_axis(x, np.argsort(-Q[x], axis=1), 1),
        ),
        ("one draw repeated", lambda x: np.repeat(x[:, :1], 3, axis=1)),
        ("always the most likely token", lambda x: np.full_like(x, Q.argmax())),
    ],
)
def test_what_was_done_to_samples_is_told_by_its_name(name, change):
    rng, law = np.random.default_rng(33), LAWS["with replacement"]
    found = draft_law(change(law.sample(rng=rng, size=500)), law, ALARM, rng=rng)
    assert found.faulty
    assert name in found.verdict


def test_top_p_at_many_tokens():
    _, q = pair(200, seed=3)
    rng, law = np.random.default_rng(34), otmd.WithReplacement(q, 4)
    cut = otmd.probs_from_logits(np.log(q), top_p=0.9)
    found = draft_law(otmd.WithReplacement(cut, 4).sample(rng=rng, size=1_500), law, ALARM, rng=rng)
    assert len(found.p_values) == 2
    assert found.p_values[0] < 1e-3
    assert "top_p = 0.9" in found.verdict
    fine = draft_law(law.sample(rng=rng, size=1_500), law, ALARM, rng=rng)
    assert not fine.faulty


def test_drafts_that_cannot_be_drawn_are_proof():
    rng, law = np.random.default_rng(35), LAWS["without replacement"]
    samples = law.sample(rng=rng, size=100)
    samples[7] = samples[7, 0]
    found = draft_law(samples, law, ALARM, rng=rng)
    assert found.impossible == 1
    assert found.faulty
    assert "1 of them it never draws" in found.verdict
    assert found.log_likelihood == -np.inf
    assert "declared law" in str(found)


def test_a_mistake_without_a_name_is_found_by_the_test():
    """The second draft from another distribution than the first: no mistake explains it."""
    rng, law = np.random.default_rng(36), LAWS["joint"]
    samples = otmd.Joint(law.tuples, np.array([0.3, 0.2, 0.5]), 6).sample(rng=rng, size=5_000)
    found = draft_law(samples, law, ALARM, rng=rng)
    assert found.faulty
    assert found.best is None
    assert found.verdict.endswith("none of the common mistakes explains them better")


@pytest.mark.parametrize(
    ("samples", "law", "options", "told"),
    [
        ([[0, 1, 2]], otmd.WithReplacement(np.stack([Q, Q]), 3), {}, "law.*leading axes"),
        ([0, 1, 2], LAWS["with replacement"], {}, r"samples.*\(N, n\)"),
        (np.empty((0, 3), int), LAWS["with replacement"], {}, "samples.*N ≥ 1"),
        ([[0, 1]], LAWS["with replacement"], {}, "samples"),
        ([[0, 1, 6]], LAWS["with replacement"], {}, r"samples.*\[0, 6\)"),
        ([[0, 1, 2]], LAWS["with replacement"], {"false_alarm": 2}, "false_alarm"),
    ],
)
def test_bad_input_is_named(samples, law, options, told):
    with pytest.raises(ValueError, match=told):
        draft_law(np.array(samples), law, **{"rng": np.random.default_rng(0), **options})


FAR = otmd.WithReplacement(otmd.probs_from_logits(np.random.default_rng(1).normal(size=400)), 3)


def spoilt(samples: np.ndarray, name: str, rng: np.random.Generator) -> np.ndarray:
    chosen = np.flatnonzero(rng.random(len(samples)) < 0.2)
    if name == "copies":
        samples[chosen, 1] = samples[chosen, 0]
    elif name == "draws repeated":
        samples[chosen[chosen > 0]] = samples[chosen[chosen > 0] - 1]
    else:
        samples[1::2] = samples[::2]
    return samples


@pytest.mark.parametrize("name", ["copies", "draws repeated", "every draw twice"])
def test_dependent_drafts_of_a_position_are_found(name):
    rng = np.random.default_rng(2)
    found = audit.draft_law(spoilt(FAR.sample(rng=rng, size=3_000), name, rng), FAR, ALARM, rng=rng)
    assert found.faulty
    assert "they depend on one another" in found.verdict
    assert any(name in str(found) for name in found.dependent)
    if name == "copies":
        assert set(found.dependent) == {"equal drafts in a draw", "neighbouring drafts of a draw"}


@pytest.mark.parametrize("law", [FAR, otmd.WithoutReplacement(FAR.draft_probs, 3)], ids=repr)
def test_sound_drafts_of_a_position_raise_alarms_at_the_stated_rate(law):
    alarms = 0
    for seed in range(15):
        rng = np.random.default_rng(seed)
        alarms += audit.draft_law(law.sample(rng=rng, size=300), law, 0.2, rng=rng).faulty
    assert alarms <= binom.isf(1e-4, 15, 0.2)


def test_p_values_of_exchangeable_sets_are_super_uniform():
    rng, law = np.random.default_rng(3), np.array([0.5, 0.3, 0.15, 0.05])
    values = [
        p_value_of_exchangeable(rng.multinomial(40, law), rng.multinomial(90, law), 0.01, rng=rng)
        for _ in range(400)
    ]
    for x in (0.02, 0.1, 0.5):
        assert sum(own <= x for own in values) <= binom.isf(1e-6, 400, x)
    far = p_value_of_exchangeable(np.array([40, 0]), np.array([10, 80]), 1e-3, rng=rng)
    assert far <= 1e-3
