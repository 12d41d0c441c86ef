"""Sound verifiers with laws that they serve, for the audits to pass."""

from __future__ import annotations

import numpy as np

import otmd


def pair(vocab_size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A target and a draft distribution whose logits differ by a normal error, as close models' do."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=1.5, size=vocab_size)
    draft_logits = logits + rng.normal(scale=0.7, size=vocab_size)
    return otmd.probs_from_logits(logits), otmd.probs_from_logits(draft_logits)


P, Q = pair(6, seed=41)
P_ZERO = np.array([0.0, 0.5, 0.3, 0.0, 0.15, 0.05])
Q_ZERO = np.array([0.4, 0.0, 0.25, 0.0, 0.25, 0.1])

HONEST: list[tuple[otmd.Verifier, otmd.DraftLaw, np.ndarray]] = [
    (otmd.RecursiveRejection(), otmd.WithReplacement(Q, 3), P),
    (otmd.RecursiveRejection(), otmd.WithoutReplacement(Q_ZERO, 3), P_ZERO),
    (otmd.RecursiveRejection(), otmd.Independent(np.stack([Q, P, np.full(6, 1 / 6)])), P),
    (otmd.KSequential(), otmd.WithReplacement(Q_ZERO, 3), P_ZERO),
    (otmd.SpecHub(), otmd.Hub(Q), P),
    (otmd.TargetOnly(), otmd.Joint(np.array([[0, 1], [5, 2]]), np.array([0.4, 0.6]), 6), P),
    (otmd.Preference(), otmd.TopThen(Q, 3, 1, rest=otmd.Stratified), P),
]
NAMES = [f"{verifier!r} on {law!r}" for verifier, law, _ in HONEST]
