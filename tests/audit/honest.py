"""A pair of distributions for the audits, as of close models."""

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
Q_ZERO = np.array([0.4, 0.0, 0.25, 0.0, 0.25, 0.1])
