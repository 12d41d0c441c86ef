"""Bounds of the acceptance rate that need no optimisation."""

import numpy as np
from numpy.typing import ArrayLike

from otmd.drafts import DraftLaw
from otmd.probabilities import (
    FloatArray,
    validate_count,
    validate_probs,
    validate_same_vocabulary,
)


def draft_probability_bound(target_probs: ArrayLike, law: DraftLaw) -> FloatArray | float:
    """Upper bound α* ≤ Σ_y min(p(y), P(y is drafted)) (SpecTr, Lemma 3).

    Parameters
    ----------
    target_probs : array_like, shape (…, V)
        The target distribution.
    law : DraftLaw
        The law of the drafts; leading axes are broadcast.

    Returns
    -------
    float or ndarray of float64, shape (…)

    Raises
    ------
    ValueError
        For an invalid distribution or another vocabulary than the drafts'.
    """
    p = validate_probs("target_probs", target_probs, copy=False)
    validate_same_vocabulary(p, law.vocab_size, law.batch_shape)
    bound = np.minimum(p, law.inclusion_probs()).sum(axis=-1)
    return bound if bound.ndim else float(bound)


def k_sequential_floor(num_drafts: int | None = None) -> float:
    """The part of α* that K-SEQ attains at least: 1 − (1 − 1/n)^n ≥ 1 − 1/e (SpecTr, Theorem 1).

    Parameters
    ----------
    num_drafts : int, optional
        n ≥ 1; without it the floor that holds for every n.

    Returns
    -------
    float
        1 for n = 1, falling to 1 − 1/e = 0.632… as n grows.

    Raises
    ------
    ValueError
        If ``num_drafts`` is not a whole number ≥ 1.
    """
    if num_drafts is None:
        return 1.0 - np.exp(-1.0)
    count = validate_count("num_drafts", num_drafts)
    return 1.0 - (1.0 - 1.0 / count) ** count
