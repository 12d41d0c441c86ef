"""The optimal verifier: as many drafts accepted as any lossless verifier can."""

from __future__ import annotations

from otmd.laws import DraftLaw, Race, Slots, Structure
from otmd.probabilities import FloatArray, validate_tol
from otmd.verifiers.base import Verifier
from otmd.verifiers.optimal import (
    MOST_DISTRIBUTIONS,
    plan_slots,
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
            choice = plan_slots(remaining, random, self.tol)
        return ChoosingVerifier(target, law, choice)

    def position_bounds(self, target: FloatArray, law: DraftLaw, tol: float) -> tuple[float, float]:
        prepared = self.prepare_position(target, law)
        by_residual = getattr(prepared.choice, "residual_hit_bound", 0.0)
        return prepared.rate, prepared.rate + by_residual
