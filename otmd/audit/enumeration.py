"""Is a rule lossless, exactly: its output law by enumeration of all tuples of drafts."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from otmd.audit.samples import (
    ConditionalLaw,
    TokenDeviation,
    acceptance_ceiling,
    deviation_table,
    largest_deviations,
    validate_position,
    validate_verifier,
    wrong,
)
from otmd.drafts import DraftLaw
from otmd.probabilities import FloatArray, validate_probs
from otmd.verifiers import Verifier


@dataclass(frozen=True)
class GuiltyDrafts:
    """Drafts x on which a faulty rule emits tokens that it emits too often.

    Attributes
    ----------
    tokens : tuple of int
    prob : float
        Q(x), the probability of these drafts.
    excess : float
        Their part of the total variation: Q(x) Σ_y r(y|x) (r(y) − p(y))₊/r(y), where r is the output law.
    """

    tokens: tuple[int, ...]
    prob: float
    excess: float


@dataclass(frozen=True, eq=False)
class EnumeratedAudit:
    """The output law of a rule, compared with the target at each token.

    Attributes
    ----------
    target_probs, output_law : ndarray of float64, shape (V,)
        p and r.
    tol : float
        The largest difference allowed at a token.
    acceptance, ceiling : float
        P(the output token is among the drafts), and the largest value for a lossless rule.
    worst : tuple of TokenDeviation
        The tokens with the largest deviations.
    worst_drafts : tuple of GuiltyDrafts
        The drafts with the largest parts of the total variation. Empty if the rule is not faulty.
    """

    target_probs: FloatArray
    output_law: FloatArray
    tol: float
    acceptance: float
    ceiling: float
    worst: tuple[TokenDeviation, ...]
    worst_drafts: tuple[GuiltyDrafts, ...]

    @property
    def deviation(self) -> FloatArray:
        """``output_law − target_probs``, shape (V,)."""
        return self.output_law - self.target_probs

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
        return (
            f"not lossless: total variation {self.total_variation:.3g} from the target, a token off by up to "
            f"{largest:.3g}; accepts {self.acceptance:.4f}, a lossless rule at most {self.ceiling:.4f}"
        )

    def __str__(self) -> str:
        if not self.faulty:
            return self.verdict
        guilty = [
            f"  {x.tokens}: drafted with probability {x.prob:.4g}, part of the total variation {x.excess:.4g}"
            for x in self.worst_drafts
        ]
        table = "largest deviations of the output law:", deviation_table(self.worst, ".6f")
        return "\n".join([self.verdict, *table, "drafts on which the excess is emitted:", *guilty])


def enumerated(
    verifier: Verifier | ConditionalLaw,
    target_probs: ArrayLike,
    law: DraftLaw,
    tol: float = 1e-12,
) -> EnumeratedAudit:
    """Audit a rule whose law given the drafts is known. All tuples of drafts are enumerated.

    Parameters
    ----------
    verifier : Verifier or callable
        A callable takes drafts (n,) and returns the law of the output token (V,).
    target_probs : array_like, shape (V,)
        p.
    law : DraftLaw
        The law of the drafts, without leading axes.
    tol : float
        The largest difference allowed at a token.

    Raises
    ------
    ValueError
        For invalid input, too many tuples, or a rule that returns no distribution; UnsupportedLaw for a
        Verifier that does not serve the law.
    TypeError
        For a class in place of an instance, or swapped arguments.
    """
    validate_verifier(verifier)
    p = validate_position(target_probs, law)
    if not isinstance(tol, int | float | np.floating) or isinstance(tol, bool) or not tol > 0:
        raise wrong("tol", repr(tol), "a positive number")
    rule = verifier.prepare(p, law).conditional_law if isinstance(verifier, Verifier) else verifier
    output, accepted = np.zeros(p.size), 0.0
    tuples, probs = law.enumerate()
    for tokens, prob in zip(tuples, probs, strict=True):
        given = validate_probs("verifier", rule(tokens))
        if given.shape != p.shape:
            raise wrong("verifier", f"a law of shape {given.shape}", p.shape)
        output += prob * given
        accepted += prob * float(given[np.unique(tokens)].sum())
    guilty: list[GuiltyDrafts] = []
    if np.abs(output - p).max() > tol:
        excess = np.maximum(output - p, 0.0)
        share = np.divide(excess, output, out=np.zeros(p.size), where=excess > 0)
        for tokens, prob in zip(tuples, probs, strict=True):
            part = float(prob * (validate_probs("verifier", rule(tokens)) @ share))
            guilty.append(GuiltyDrafts(tuple(tokens.tolist()), float(prob), part))
    worst = tuple(sorted(guilty, key=lambda own: -own.excess)[:5])
    ceiling, deviations = acceptance_ceiling(p, law), largest_deviations(output, p)
    return EnumeratedAudit(p, output, float(tol), accepted, ceiling, deviations, worst)
