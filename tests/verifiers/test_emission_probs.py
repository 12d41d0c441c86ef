"""The draft that an emitted token is: against enumeration of the drafts and the verifier's decisions."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import otmd
from otmd.laws import Slots

# Two-sided, of a normal distribution: false alarms once in 160,000.
SIGMAS = 4.5
VOCAB = 5


def top_then(rest):
    return lambda q, _: otmd.TopThen(q, 3, top=1, rest=rest)


LAWS = {
    "with": lambda q, _: otmd.WithReplacement(q, 3),
    "without, 2": lambda q, _: otmd.WithoutReplacement(q, 2),
    "without, 4": lambda q, _: otmd.WithoutReplacement(q, 4),
    "strata": lambda q, _: otmd.Stratified(q, 3),
    "independent": lambda q, second: otmd.Independent(np.array([q, second, q])),
    "hub": lambda q, _: otmd.Hub(q),
    "greedy": lambda q, _: otmd.Greedy(q, 3),
    "top": lambda q, _: otmd.TopK(q, 3),
    "top, with": top_then(otmd.WithReplacement),
    "top, without": top_then(otmd.WithoutReplacement),
}
COMMON = ("with", "strata", "greedy", "top", "top, with")
EXACT = [
    *(
        (verifier(), name)
        for verifier in (otmd.Preference, otmd.Optimal, otmd.TargetOnly)
        for name in COMMON
    ),
    *(
        (otmd.RecursiveRejection(), name)
        for name in ("with", "strata", "independent", "without, 2")
    ),
    (otmd.TargetOnly(), "independent"),
    (otmd.KSequential(), "with"),
    (otmd.SpecHub(), "hub"),
]
EXACT_SUM = [
    (otmd.Preference(), "hub"),
    (otmd.Preference(), "independent"),
    (otmd.Optimal(), "top, without"),
    (otmd.TargetOnly(), "top, without"),
]


def instances(name: str, seed: int = 0):
    """Prepared targets with laws, also equal models and tokens without mass."""
    rng = np.random.default_rng(seed)
    for case in range(4):
        p, q, second = rng.dirichlet(np.full(VOCAB, 0.6), 3)
        if case == 1:
            p = q
        elif case == 2:
            p[q.argmin()] = 0.0
            p /= p.sum()
        yield p, LAWS[name](q, second)


def enumerated(prepared: otmd.verifiers.PreparedVerifier, token: int) -> np.ndarray:
    n = prepared.law.num_drafts
    probs = np.zeros((n, n))
    for tokens, prob in zip(*prepared.law.enumerate(), strict=True):
        (copies,) = np.nonzero(tokens == token)
        if copies.size:
            emitted = prepared.conditional_law(tokens)[token]
            probs[copies[0], copies.size - 1] += prob * emitted / prepared.target[token]
    return probs


@pytest.mark.parametrize(("verifier", "name"), EXACT, ids=str)
def test_without_sampling(verifier: otmd.Verifier, name: str) -> None:
    for p, law in instances(name):
        prepared = verifier.prepare(p, law)
        for token in np.flatnonzero(p > 1e-4):
            probs = prepared.emission_probs(token)
            np.testing.assert_allclose(probs, enumerated(prepared, token), rtol=0, atol=1e-9)


def assert_unbiased(
    prepared: otmd.PreparedVerifier, token: int, rng: np.random.Generator, samples: int
) -> np.ndarray:
    """2,000 estimates, whose mean is compared with the enumeration."""
    estimates = np.array(
        [prepared.emission_probs(token, rng=rng, samples=samples) for _ in range(2000)]
    )
    errors = estimates.std(axis=0) / len(estimates) ** 0.5
    away = np.abs(estimates.mean(axis=0) - enumerated(prepared, token))
    assert (away <= SIGMAS * errors + 1e-9).all()
    return estimates


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verifier", "name"), [*EXACT_SUM, (otmd.RecursiveRejection(), "without, 4")], ids=str
)
def test_estimates_are_unbiased(verifier: otmd.Verifier, name: str) -> None:
    rng = np.random.default_rng(1)
    p, law = next(instances(name))
    prepared = verifier.prepare(p, law)
    for token in np.argsort(-p)[:2]:
        estimates = assert_unbiased(prepared, token, rng, samples=2)
        if (verifier, name) in EXACT_SUM:
            total = enumerated(prepared, token).sum()
            np.testing.assert_allclose(estimates.sum(axis=(1, 2)), total, atol=1e-9)


class Estimated(otmd.KSequential):
    """A verifier that says nothing of its own about which draft an emitted token is."""

    def prepare_position(self, target, law):
        prepared = super().prepare_position(target, law)
        prepared._emission_probs = partial(otmd.PreparedVerifier._emission_probs, prepared)
        return prepared


def test_the_estimate_of_any_verifier_is_unbiased() -> None:
    rng = np.random.default_rng(2)
    p, q = rng.dirichlet(np.ones(VOCAB), 2)
    prepared = Estimated().prepare(p, otmd.WithReplacement(q, 2))
    for token in range(VOCAB):
        assert_unbiased(prepared, token, rng, samples=1)


def test_a_biased_estimate_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws that do not count with the probability of what was put into them."""
    drawn = Slots.next_draft_probs
    monkeypatch.setattr(Slots, "next_draft_probs", lambda *of: drawn(*of) ** 2)
    with pytest.raises(AssertionError):
        test_the_estimate_of_any_verifier_is_unbiased()
