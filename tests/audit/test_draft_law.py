"""The audit of drafts: samples of the declared law pass, and every mistake is found.

Samples of a declared law are called faulty with a probability of at most 1e-2 each; the seeds are fixed.
"""

from __future__ import annotations

import numpy as np
import pytest
from conformance import VARIANTS
from honest import Q_ZERO, P, Q

import otmd
from otmd.audit import draft_law
from otmd.audit.drafts import counts_of_extremes

# A tenth of the usual draws for exact p-values.
ALARM = 0.01
LAWS: dict[str, otmd.DraftLaw] = {
    **{name: make(Q, 3) for name, make in VARIANTS.items() if name != "independent"},
    "without replacement, zeros": otmd.WithoutReplacement(Q_ZERO, 3),
    "independent": otmd.Independent(np.stack([Q, P, Q])),
    "joint": otmd.Joint(np.array([[0, 1], [1, 1], [5, 2]]), np.array([0.2, 0.3, 0.5]), 6),
    "a single draft": otmd.WithReplacement(Q, 1),
}
by_law = pytest.mark.parametrize("name", LAWS)
FAR_Q = otmd.probs_from_logits(np.random.default_rng(1).normal(size=400))
FAR = otmd.WithReplacement(FAR_Q, 3)
FAR_DISTINCT = otmd.WithoutReplacement(FAR_Q, 3)


@by_law
def test_samples_of_the_declared_law_pass(name):
    rng = np.random.default_rng(31)
    found = draft_law(LAWS[name].sample(rng=rng, size=2_000), LAWS[name], ALARM, rng=rng)
    assert not found.faulty, found
    assert found.verdict == "no deviation from the declared law found in 2000 samples"


@by_law
def test_ranks_have_their_probabilities(name):
    """Compared with the enumerated law: cells of the least likely, the most likely and the first draft."""
    law = LAWS[name]
    tuples, probs = law.enumerate()
    descending = np.argsort(-law.inclusion_probs(), kind="stable")
    *extremes, (first_observed, first_probs) = counts_of_extremes(law, tuples)
    for (_, expected), order in zip(extremes, (descending, descending[::-1]), strict=True):
        rank = np.argsort(order)
        by_rank = np.bincount(rank[tuples].max(axis=1), probs, minlength=law.vocab_size)
        np.testing.assert_allclose(expected, by_rank[by_rank > 1e-9], atol=1e-12)
    by_token = np.bincount(tuples[:, 0], probs, minlength=law.vocab_size)[descending]
    # Tokens that follow one another share a cell.
    ends = np.abs(np.subtract.outer(first_probs.cumsum(), by_token.cumsum())).min(axis=1)
    np.testing.assert_allclose(ends, 0, atol=1e-12)
    assert first_observed.sum() == len(tuples)


def by_rank(q, sign):
    return lambda x: np.take_along_axis(x, np.argsort(sign * q[x], axis=1), 1)


def mistakes(q, declared):
    """Samples of other laws of q, and changes of samples of the declared law."""
    warm, cold = (otmd.probs_from_logits(np.log(q), temperature) for temperature in (1.5, 0.5))
    cut = otmd.probs_from_logits(np.log(q), top_k=4)
    laws = [otmd.WithReplacement, otmd.WithoutReplacement, otmd.Stratified, otmd.Greedy]
    rng = np.random.default_rng(32)
    for kind in laws:
        if kind is not type(declared):
            yield kind.__name__, kind(q, 3).sample(rng=rng, size=1_500)
    for probs, name in ((warm, "warm"), (cold, "cold"), (cut, "top-k")):
        yield name, type(declared)(probs, 3).sample(rng=rng, size=1_500)
    changes = {
        "sorted by token id": lambda x: np.sort(x, axis=1),
        "sorted, most likely first": by_rank(q, -1),
        "sorted, least likely first": by_rank(q, 1),
        "one draw repeated": lambda x: np.repeat(x[:, :1], 3, axis=1),
        "the most likely token": lambda x: np.full_like(x, q.argmax()),
    }
    for name, change in changes.items():
        yield name, change(declared.sample(rng=rng, size=500))


@pytest.mark.parametrize("declared", [LAWS["with-replacement"], FAR_DISTINCT], ids=repr)
def test_every_mistake_is_found(declared):
    for name, samples in mistakes(declared.draft_probs, declared):
        found = draft_law(samples, declared, ALARM, rng=0)
        assert found.faulty, name
        assert found.verdict.startswith(f"the {len(samples)} samples were not drawn from")


def test_drafts_that_cannot_be_drawn_are_proof():
    rng, law = np.random.default_rng(35), LAWS["without-replacement"]
    samples = law.sample(rng=rng, size=100)
    samples[7] = samples[7, 0]
    found = draft_law(samples, law, ALARM, rng=rng)
    assert found.impossible == 1
    assert found.faulty
    assert "1 of them it never draws" in found.verdict


def test_other_probabilities_of_the_same_tuples_are_found():
    rng, law = np.random.default_rng(36), LAWS["joint"]
    samples = otmd.Joint(law.tuples, np.array([0.3, 0.2, 0.5]), 6).sample(rng=rng, size=5_000)
    assert draft_law(samples, law, ALARM, rng=rng).p_values[0] < 1e-3


@pytest.mark.parametrize("name", ["copies", "draws repeated", "every draw twice"])
def test_dependent_drafts_of_a_position_are_found(name):
    rng = np.random.default_rng(2)
    samples, chosen = FAR.sample(rng=rng, size=3_000), np.flatnonzero(rng.random(2_999) < 0.2)
    if name == "copies":
        samples[chosen, 1] = samples[chosen, 0]
    elif name == "draws repeated":
        samples[chosen + 1] = samples[chosen]
    else:
        samples[1::2] = samples[::2]
    found = draft_law(samples, FAR, ALARM, rng=rng)
    assert found.faulty
    assert "they depend on one another" in found.verdict
    assert any(name in str(found) for name in found.dependent)
    if name == "copies":
        assert set(found.dependent) == {"equal drafts in a draw", "neighbouring drafts of a draw"}
