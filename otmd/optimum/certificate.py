"""Proof of an optimum: a value that is attained, and a bound that no value exceeds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OptimalityCertificate:
    """A value that is attained and an upper bound of all values; at an optimum they agree.

    Attributes
    ----------
    attained : float
        The acceptance rate of a verifier or of a plan, or the objective that a solver's point attains.
    upper_bound : float
        α* = 1 + p(H*) − g(H*), or the objective of a solver's multipliers: no value is larger.
    residual : float
        The largest violation of a constraint by the point or by the multipliers; 0 where both are exact.
    tol : float
        The gap that counts as none.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithReplacement([0.25, 0.25, 0.5], num_drafts=2)
    >>> proof = otmd.Optimal().certificate([0.5, 0.25, 0.25], law)
    >>> round(proof.upper_bound, 6), proof.gap < 1e-9
    (0.9375, True)
    """

    attained: float
    upper_bound: float
    residual: float = 0.0
    tol: float = 1e-7

    @property
    def gap(self) -> float:
        """``upper_bound`` − ``attained``."""
        return self.upper_bound - self.attained

    @property
    def worst(self) -> float:
        """The larger of the residual and the size of the gap."""
        return max(self.residual, abs(self.gap))

    @property
    def status(self) -> str:
        """In words, whether the gap is within the tolerance."""
        if self.gap <= self.tol:
            return f"optimal within the tolerance of {self.tol:g}"
        return f"{self.gap:.2g} below the optimum, more than the tolerance of {self.tol:g}"
