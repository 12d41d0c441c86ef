"""Audit of a verifier by enumeration: the distribution of its output, compared with the target."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from otmd.audit.base import (
    ConditionalLaw,
    Report,
    TokenDeviation,
    acceptance_ceiling,
    as_rule,
    deviations_table,
    largest_deviations,
    validate_position,
)
from otmd.laws import DraftLaw
from otmd.probabilities import FloatArray, validate_probs, validate_tol, wrong
from otmd.verifiers import Verifier


@dataclass(frozen=True)
class GuiltyDrafts:
    """Drafts x on which a faulty verifier emits tokens that it emits too often, drawn with probability Q(x).

    Their part of the total variation, the ``excess``, is Q(x) Σ_y r(y|x) (r(y) − p(y))₊/r(y), where r is the
    distribution of the output token.
    """

    tokens: tuple[int, ...]
    prob: float
    excess: float


@dataclass(frozen=True, eq=False)
class EnumeratedAudit(Report):
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
    worst: tuple[TokenDeviation, ...]
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
            *deviations_table("largest deviations of the output's distribution:", self.worst, ".6f"),
            "drafts on which the excess is emitted:",
            *(
                f"  {x.tokens}: drafted with probability {x.prob:.4g}, "
                f"part of the total variation {x.excess:.4g}"
                for x in self.worst_drafts
            ),
        ]


def enumerated(
    verifier: Verifier | ConditionalLaw | str,
    target_probs: ArrayLike,
    law: DraftLaw,
    tol: float = 1e-12,
) -> EnumeratedAudit:
    """Audit a verifier whose output has a known distribution given the drafts, by enumerating all tuples.

    Errors are those of :func:`losslessness`; too many tuples are a ValueError as well.

    Parameters
    ----------
    verifier : Verifier, str or callable
        A verifier, the name of one, or a callable, which takes drafts (n,) and returns the distribution of
        the output token (V,).
    target_probs, law
        As for :func:`losslessness`.
    tol : float
        The largest difference allowed at a token.

    Returns
    -------
    EnumeratedAudit
        ``print`` shows the deviations, and the drafts that they come from.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithoutReplacement([0.2, 0.2, 0.6], 2)
    >>> print(otmd.audit.enumerated(otmd.RecursiveRejection(), [0.6, 0.3, 0.1], law).faulty)
    False
    """
    rule = as_rule(verifier)
    p = validate_position(target_probs, law)
    tol = validate_tol(tol)
    if isinstance(rule, Verifier):
        rule = rule.prepare(p, law).conditional_law
    output = np.zeros(p.size)
    accepted = 0.0
    tuples, probs = law.enumerate()
    for tokens, prob in zip(tuples, probs, strict=True):
        given_drafts = validate_probs("verifier", rule(tokens))
        if given_drafts.shape != p.shape:
            raise wrong("verifier", f"a distribution of shape {given_drafts.shape}", p.shape)
        output += prob * given_drafts
        accepted += prob * float(given_drafts[np.unique(tokens)].sum())
    guilty: list[GuiltyDrafts] = []
    if np.abs(output - p).max() > tol:
        excess = np.maximum(output - p, 0.0)
        share = np.divide(excess, output, out=np.zeros(p.size), where=excess > 0)
        for tokens, prob in zip(tuples, probs.tolist(), strict=True):
            part = prob * float(validate_probs("verifier", rule(tokens)) @ share)
            guilty.append(GuiltyDrafts(tuple(tokens.tolist()), prob, part))
    return EnumeratedAudit(
        target_probs=p,
        output_distribution=output,
        tol=tol,
        acceptance=accepted,
        ceiling=acceptance_ceiling(p, law),
        worst=largest_deviations(output, p),
        worst_drafts=tuple(sorted(guilty, key=lambda drafts: -drafts.excess)[:5]),
    )
