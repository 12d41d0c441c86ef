"""Which draft an emitted token is: against enumeration of the drafts and the verifier's decisions."""

from __future__ import annotations

import numpy as np
import pytest

import otmd

# Two-sided, of a normal distribution: false alarms once in 160,000.
SIGMAS = 4.5
VOCAB = 5


def top_then(rest):
    return lambda q, _: otmd.TopThen(q, 3, top=1, rest=rest)


LAWS = {
    "with": lambda q, _: otmd.WithReplacement(q, 3),
    "without, 2": lambda q, _: otmd.WithoutReplacement(q, 2),
    "without, 3": lambda q, _: otmd.WithoutReplacement(q, 3),
    "without, 4": lambda q, _: otmd.WithoutReplacement(q, 4),
    "Poisson": lambda q, _: otmd.ConditionalPoisson(q, 3),
    "strata": lambda q, _: otmd.Stratified(q, 3),
    "independent": lambda q, other: otmd.Independent(np.array([q, other, q])),
    "hub": lambda q, _: otmd.Hub(q),
    "greedy": lambda q, _: otmd.Greedy(q, 3),
    "top": lambda q, _: otmd.CertainTop(q, 3),
    "top, with": top_then(otmd.WithReplacement),
    "top, without": top_then(otmd.WithoutReplacement),
}
EXACT = [
    *((otmd.Preference(), name) for name in ("with", "strata", "greedy", "top", "top, with")),
    *((otmd.Optimal(), name) for name in ("with", "strata", "greedy", "top", "top, with")),
    *((otmd.TargetOnly(), name) for name in ("with", "strata", "greedy", "top", "top, with")),
    *((otmd.RecursiveRejection(), name) for name in ("with", "strata", "independent")),
    (otmd.RecursiveRejection(), "without, 2"),
    (otmd.TargetOnly(), "independent"),
    (otmd.KSequential(), "with"),
    (otmd.SpecHub(), "hub"),
]
EXACT_SUM = [
    (otmd.Preference(), "hub"),
    (otmd.Preference(), "independent"),
    (otmd.Optimal(), "without, 3"),
    (otmd.Optimal(), "top, without"),
    (otmd.TargetOnly(), "without, 3"),
    (otmd.TargetOnly(), "Poisson"),
    (otmd.TargetOnly(), "hub"),
]


def instances(name: str, seed: int = 0):
    """Prepared targets with laws, also equal models and tokens without mass."""
    rng = np.random.default_rng(seed)
    for case in range(4):
        p, q, other = rng.dirichlet(np.full(VOCAB, 0.6), 3)
        if case == 1:
            p = q
        elif case == 2:
            p[q.argmin()] = 0.0
            p /= p.sum()
        yield p, LAWS[name](q, other)


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
            found = prepared.emission_probs(token)
            np.testing.assert_allclose(found, enumerated(prepared, token), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("verifier", "name"), [*EXACT_SUM, (otmd.RecursiveRejection(), "without, 4")], ids=str
)
def test_estimates_are_unbiased(verifier: otmd.Verifier, name: str) -> None:
    rng = np.random.default_rng(1)
    p, law = next(instances(name))
    prepared = verifier.prepare(p, law)
    for token in np.argsort(-p)[:3]:
        wanted = enumerated(prepared, token)
        found = np.array([prepared.emission_probs(token, rng=rng, samples=2) for _ in range(2000)])
        errors = found.std(axis=0) / len(found) ** 0.5
        assert (np.abs(found.mean(axis=0) - wanted) <= SIGMAS * errors + 1e-9).all()
        if (verifier, name) in EXACT_SUM:
            np.testing.assert_allclose(found.sum(axis=(1, 2)), wanted.sum(), atol=1e-9)


class FirstDraft(otmd.verifiers.Verifier):
    """Maximal coupling of the first draft; the others count where the residual hits them."""

    def serves(self, structure) -> bool:
        return structure.single is not None

    def prepare_position(self, target, law):
        return PreparedFirstDraft(target, law)


class PreparedFirstDraft(otmd.verifiers.PreparedVerifier):
    def accept_probs(self, draft_tokens):
        first = draft_tokens[0]
        accept = min(1.0, self.target[first] / self.law.draft_probs[first])
        return np.array([accept, *[0.0] * (draft_tokens.size - 1)])

    def residual(self, draft_tokens):
        missing = np.maximum(self.target - self.law.draft_probs, 0.0)
        return missing / missing.sum()


def test_a_verifier_of_a_user_is_sampled() -> None:
    rng = np.random.default_rng(2)
    p, q = rng.dirichlet(np.ones(VOCAB), 2)
    prepared = FirstDraft().prepare(p, otmd.WithReplacement(q, 2))
    for token in range(VOCAB):
        wanted = enumerated(prepared, token)
        found = np.array([prepared.emission_probs(token, rng=rng, samples=1) for _ in range(3000)])
        errors = found.std(axis=0) / len(found) ** 0.5
        assert (np.abs(found.mean(axis=0) - wanted) <= SIGMAS * errors + 1e-12).all()
        # A token that the residual draws may be a draft that was not accepted.
        assert p[token] <= q[token] or wanted[1, 0] > 0.0


def test_a_biased_estimate_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws that do not count with the probability of what was put into them."""
    law = otmd.WithReplacement
    drawn = law.position_next_draft_probs
    monkeypatch.setattr(law, "position_next_draft_probs", lambda *of: drawn(*of) ** 2)
    with pytest.raises(AssertionError):
        test_a_verifier_of_a_user_is_sampled()


def test_bad_input_is_named() -> None:
    rule = otmd.RecursiveRejection()
    prepared = rule.prepare([1.0, 0.0, 0.0], otmd.WithoutReplacement([0.5, 0.3, 0.2], 3))
    for token, said in ((1, "never emits"), (3, "token: got 3"), (-1, "token: got -1")):
        with pytest.raises(ValueError, match=said):
            prepared.emission_probs(token)
    with pytest.raises(ValueError, match="samples: got 0"):
        prepared.emission_probs(0, samples=0)
    with pytest.raises(ValueError, match="rng: got int"):
        prepared.emission_probs(0, rng=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rng: got none"):
        otmd.TargetOnly().prepare(prepared.target, prepared.law).emission_probs(0)
