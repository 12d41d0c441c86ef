"""The optimal verifier: as many drafts accepted as any lossless verifier can."""

from __future__ import annotations

import numpy as np
from scipy.special import comb

from otmd.laws import DraftLaw, Race, Slots, Structure
from otmd.probabilities import FloatArray, validate_tol
from otmd.verifiers.base import Verifier
from otmd.verifiers.optimal import (
    MOST_DISTRIBUTIONS,
    ChoicePlan,
    plan_independent,
    plan_overlapping,
    plan_without_replacement,
)
from otmd.verifiers.prepared import ChoosingVerifier


class Optimal(Verifier):
    """Choose among the drafts by weights of the tokens, and attain α*.

    Let H* be the smallest minimiser of p(H) − g(H). If some drafts lie outside H*, one of them is chosen;
    otherwise one of the drafts or none is. Each is chosen with probability proportional to its weight. The
    weights are solved for such that every token of H* is chosen with its p, and no token with more. If the
    weights found choose a token with more than its p, its acceptance is thinned. So it is lossless at every
    tolerance.

    It serves drafts with and without replacement, from strata, and from up to 16 distributions that overlap.

    Parameters
    ----------
    tol : float
        The acceptance rate may stay so far below α*; positive, else ValueError. Where the search for the
        weights ends before that, as it may without replacement and with many cuts that are equally good,
        ``status`` of :meth:`certificate` says so.

    Examples
    --------
    >>> import otmd
    >>> target_probs, law = [0.5, 0.25, 0.25], otmd.WithReplacement([0.25, 0.25, 0.5], num_drafts=2)
    >>> verifier = otmd.Optimal()
    >>> verifier.certificate(target_probs, law).status
    'optimal within the tolerance of 1e-10'
    >>> round(verifier.acceptance_rate(target_probs, law), 9)  # α* = 15/16
    0.9375
    """

    def __init__(self, tol: float = 1e-10) -> None:
        self.tol = validate_tol(tol)

    def __repr__(self) -> str:
        return f"Optimal(tol={self.tol:g})"

    def serves(self, structure: Structure) -> bool:
        random = structure.random
        if isinstance(random, Slots):
            return random.disjoint or random.copies.size <= MOST_DISTRIBUTIONS
        return random is None or isinstance(random, Race)

    def prepare_position(self, target: FloatArray, law: DraftLaw) -> ChoosingVerifier:
        structure = law.position_structure
        choice = None
        remaining = structure.random_target(target)
        random = structure.random
        if isinstance(random, Race):
            choice = plan_without_replacement(remaining, random, self.tol)
        elif isinstance(random, Slots):
            plan = plan_independent if random.disjoint else plan_overlapping
            choice = plan(remaining, random, self.tol)
        return _PreparedOptimal(target, law, structure.deterministic, choice)

    def position_bounds(self, target: FloatArray, law: DraftLaw, tol: float) -> tuple[float, float]:
        prepared = self.prepare_position(target, law)
        by_residual = getattr(prepared.choice, "residual_hit_bound", 0.0)
        return prepared.rate, prepared.rate + by_residual


class _PreparedOptimal(ChoosingVerifier):
    def _copies(self, token: int, slots: Slots) -> FloatArray:
        """See :class:`ChoosingVerifier`.

        Each draft has a clock, and the one whose clock rings first is accepted. All drafts are treated alike,
        so the probability depends only on the number of them that hold the token.
        """
        plan = self.choice
        more = np.arange(slots.num_drafts)
        assert isinstance(plan, ChoicePlan)
        inside = plan.subset[token]
        drawn = slots.probs[token]
        side = plan.inner if inside else plan.outer
        if side is None or drawn == 0.0:
            return np.zeros((more.size, more.size))
        tokens = np.flatnonzero(plan.subset == inside)
        lower, share, offered = side.locate(tokens)
        index = np.searchsorted(tokens, token)
        masses, of_token = np.zeros((2, side.weights.size))
        for classes, part in (
            (lower, share),
            (np.minimum(lower + 1, masses.size - 1), 1.0 - share),
        ):
            masses += np.bincount(classes, part * slots.probs[tokens], masses.size)
            of_token[classes[index]] += part[index]
        times, steps = side.quadrature
        silent = np.exp(-np.outer(times, side.weights))
        tier = side.tiers[lower[index]]
        silent[:, side.tiers < tier] = 1.0
        silent[:, side.tiers > tier] = 0.0
        token_silent, rings = silent @ of_token, silent @ (of_token * side.weights)
        # If a draft lies outside H*, the clocks of tokens in H* never ring.
        never = 0.0 if inside else slots.probs[plan.subset].sum()
        others = np.maximum(never + silent @ masses - drawn * token_silent, 0.0)
        kept = min(1.0, plan.target[token] / offered[index]) if offered[index] else 0.0
        powers = token_silent ** more[:, None] * others ** more[::-1, None]
        accepted = powers @ (kept * rings * steps * np.exp(-times * side.rejection))
        return (more + 1) * drawn ** (more + 1) * accepted * comb(more[::-1, None], more)
