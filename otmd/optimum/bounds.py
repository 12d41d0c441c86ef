"""Bounds of α* and of K-SEQ's rate that need no optimisation."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from otmd.laws import DraftLaw
from otmd.laws.base import validate_target
from otmd.probabilities import FloatArray, validate_count


def draft_probability_bound(target_probs: ArrayLike, law: DraftLaw) -> FloatArray | float:
    """Upper bound α* ≤ Σ_y min(p(y), P(y is drafted)) (SpecTr, Lemma 3), shape (…).

    Parameters
    ----------
    target_probs : array_like, shape (…, V)
        p; ValueError unless it is a distribution over the drafts' vocabulary.
    law : DraftLaw
        The law of the drafts; leading axes are broadcast.

    Returns
    -------
    float or ndarray of float64, shape (…)
        The bound of each position.

    Examples
    --------
    >>> import otmd
    >>> from otmd.optimum.bounds import draft_probability_bound
    >>> draft_probability_bound([0.5, 0.25, 0.25], otmd.WithReplacement([0.25, 0.25, 0.5], 2))
    0.9375
    """
    p = validate_target(target_probs, law)
    bound = np.minimum(p, law.inclusion_probs()).sum(axis=-1)
    return bound if bound.ndim else float(bound)


def k_sequential_floor(num_drafts: int | None = None) -> float:
    """The part of α* that K-SEQ always attains: 1 − (1 − 1/n)^n ≥ 1 − 1/e (SpecTr, Theorem 1).

    Parameters
    ----------
    num_drafts : int, optional
        n ≥ 1, else ValueError. The default is the floor for every n, 1 − 1/e = 0.632….

    Returns
    -------
    float
        The part, a fraction.

    Examples
    --------
    >>> from otmd.optimum.bounds import k_sequential_floor
    >>> k_sequential_floor(2)
    0.75
    """
    if num_drafts is None:
        return 1.0 - np.exp(-1.0)
    count = validate_count("num_drafts", num_drafts)
    return 1.0 - (1.0 - 1.0 / count) ** count
