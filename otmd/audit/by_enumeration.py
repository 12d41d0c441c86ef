"""Audit whether a verifier is lossless, exactly, by enumeration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from otmd.audit import samples
from otmd.laws import DraftLaw
from otmd.probabilities import FloatArray, validate_probs, validate_tol, wrong
from otmd.verifiers import Verifier


@dataclass(frozen=True)
class GuiltyDrafts:
    """Drafts x on which a faulty verifier emits tokens that it emits too often.

    Attributes
    ----------
    tokens : tuple of int
        x.
    prob : float
        Q(x), the probability of drawing them.
    excess : float
        Their part of the total variation: Q(x) Σ_y r(y|x) (r(y) − p(y))₊/r(y), where r is the distribution of
        the output token.
    """

    tokens: tuple[int, ...]
    prob: float
    excess: float


@dataclass(frozen=True, eq=False)
class EnumeratedAudit(samples.Report):
    """The distribution r of a verifier's output, compared with the target p.

    At each token they may differ by ``tol``.

    Attributes
    ----------
    acceptance, ceiling : float
        P(the output token is among the drafts), and its largest value for a lossless verifier.
    worst, worst_drafts : tuple of TokenDeviation, tuple of GuiltyDrafts
        The tokens with the largest deviations; the drafts with the largest parts of the total variation,
        none if the verifier is not faulty.
    """

    target_probs: FloatArray
    output_distribution: FloatArray
    tol: float
    acceptance: float
    ceiling: float
    worst: tuple[samples.TokenDeviation, ...]
    worst_drafts: tuple[GuiltyDrafts, ...]

    @property
    def deviation(self) -> FloatArray:
        """``output_distribution − target_probs``, shape (V,)."""
        return self.output_distribution - self.target_probs

    @property
    def total_variation(self) -> float:
        """½ Σ|r − p|."""
        return 0.5 * float(np.abs(self.deviation).sum())

    @property
    def faulty(self) -> bool:
        """Whether r and p differ by more than ``tol`` at a token."""
        return bool(np.abs(self.deviation).max() > self.tol)

    @property
    def verdict(self) -> str:
        """One sentence."""
        largest = float(np.abs(self.deviation).max())
        if not self.faulty:
            return f"lossless to {self.tol:.0e}: no token is off by more than {largest:.1e}"
        distance = f"total variation {self.total_variation:.3g} from the target"
        accepts = f"accepts {self.acceptance:.4f}, a lossless verifier at most {self.ceiling:.4f}"
        return f"not lossless: {distance}, a token off by up to {largest:.3g}; {accepts}"

    @property
    def details(self) -> list[str]:
        """The tokens with the largest deviations, and the drafts that they come from."""
        if not self.faulty:
            return []
        return [
            "largest deviations of the output's distribution:",
            samples.deviation_table(self.worst, ".6f"),
            "drafts on which the excess is emitted:",
            *(
                f"  {x.tokens}: drafted with probability {x.prob:.4g}, "
                f"part of the total variation {x.excess:.4g}"
                for x in self.worst_drafts
            ),
        ]


def enumerated(
    verifier: Verifier | samples.ConditionalLaw,
    target_probs: ArrayLike,
    law: DraftLaw,
    tol: float = 1e-12,
) -> EnumeratedAudit:
    """Audit a verifier whose output has a known distribution given the drafts, by enumerating all tuples.

    Parameters
    ----------
    verifier : Verifier or callable
        A callable takes drafts (n,) and returns the distribution of the output token (V,).
    target_probs, law
        As for :func:`losslessness`.
    tol : float
        The largest difference allowed at a token.

    Returns
    -------
    EnumeratedAudit
        ``faulty`` is True if a token deviates by more than ``tol``; ``print`` shows the deviations.

    Raises
    ------
    ValueError, TypeError
        As :func:`losslessness`, and for too many tuples or a callable that returns no distribution.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithoutReplacement([0.2, 0.2, 0.6], 2)
    >>> print(otmd.audit.enumerated(otmd.RecursiveRejection(), [0.6, 0.3, 0.1], law).faulty)
    False
    """
    samples.validate_verifier(verifier)
    p = samples.validate_position(target_probs, law)
    tol = validate_tol(tol)
    if isinstance(verifier, Verifier):
        verifier = verifier.prepare(p, law).conditional_law
    output = np.zeros(p.size)
    accepted = 0.0
    tuples, probs = law.enumerate()
    for tokens, prob in zip(tuples, probs, strict=True):
        given_drafts = validate_probs("verifier", verifier(tokens))
        if given_drafts.shape != p.shape:
            raise wrong("verifier", f"a distribution of shape {given_drafts.shape}", p.shape)
        output += prob * given_drafts
        accepted += prob * float(given_drafts[np.unique(tokens)].sum())
    guilty: list[GuiltyDrafts] = []
    if np.abs(output - p).max() > tol:
        excess = np.maximum(output - p, 0.0)
        share = np.divide(excess, output, out=np.zeros(p.size), where=excess > 0)
        for tokens, prob in zip(tuples, probs, strict=True):
            part = float(prob * (validate_probs("verifier", verifier(tokens)) @ share))
            guilty.append(GuiltyDrafts(tuple(tokens.tolist()), float(prob), part))
    return EnumeratedAudit(
        target_probs=p,
        output_distribution=output,
        tol=tol,
        acceptance=accepted,
        ceiling=samples.acceptance_ceiling(p, law),
        worst=samples.largest_deviations(output, p),
        worst_drafts=tuple(sorted(guilty, key=lambda drafts: -drafts.excess)[:5]),
    )
