"""Rules that look right and are not: what an audit must catch.

Each fault is a rule given by its law of the output token given the drafts, so that its deviation is known
exactly and its samples are quick to draw (:func:`~otmd.audit.sampler_of`). Most are recursive rejection
with one line changed.
"""

import numpy as np

from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers.prepared import normalised


class RecursiveRejectionSteps:
    """Recursive rejection written step by step, as engines do: the sound rule, to be spoilt.

    Calling it with drafts (n,) gives the law of the output token (V,).

    Parameters
    ----------
    target_probs : ndarray of float64, shape (V,)
        p.
    draft_probs : ndarray of float64, shape (V,)
        q as the rule believes it to be.
    """

    distinct = False
    """Whether q loses a rejected token, as for drafts without replacement."""

    def __init__(self, target_probs: FloatArray, draft_probs: FloatArray) -> None:
        self.target_probs = np.asarray(target_probs, np.float64)
        self.draft_probs = np.asarray(draft_probs, np.float64)

    def __call__(self, tokens: IntArray) -> FloatArray:
        """Law of the output token given the drafts (n,), shape (V,)."""
        p, q = self.target_probs, self.draft_probs
        output, undecided = np.zeros(p.size), 1.0
        for token in self.looked_at(tokens):
            chance = self.chance_to_accept(float(p[token]), float(q[token]))
            output[token] += undecided * chance
            undecided *= 1.0 - chance
            p = self.after_rejection(p, q)
            if self.distinct:
                q = np.where(np.arange(q.size) == token, 0.0, q)
                q = normalised(q, q)
        return output + undecided * self.law_drawn(p)

    def looked_at(self, tokens: IntArray) -> IntArray:
        """The drafts, in the order in which they are tried."""
        return tokens

    def chance_to_accept(self, wanted: float, drawn: float) -> float:
        """P(u < p/q) for a uniform u; a draft that q cannot draw is never accepted, as 0/0 is no number."""
        return min(1.0, wanted / drawn) if drawn > 0 else 0.0

    def after_rejection(self, p: FloatArray, q: FloatArray) -> FloatArray:
        """What a rejection leaves of the target."""
        return normalised(np.maximum(p - q, 0.0), p)

    def law_drawn(self, residual: FloatArray) -> FloatArray:
        """The law of a token drawn from the residual."""
        return residual


class WithoutReplacementSteps(RecursiveRejectionSteps):
    """The same for distinct drafts: a rejected token leaves q."""

    distinct = True


class SkippedDuplicates(RecursiveRejectionSteps):
    """A draft that repeats a rejected one is skipped, and the residual left as it was."""

    def looked_at(self, tokens: IntArray) -> IntArray:
        """Each token once, where it first stands."""
        return tokens[np.sort(np.unique(tokens, return_index=True)[1])]


class UnnormalisedResidual(RecursiveRejectionSteps):
    """The residual keeps its sum, below 1, and a uniform number in [0, 1) is looked up in its running sum.

    What lies beyond the sum falls to the last token, as a search that is clipped to the vocabulary gives it.
    """

    def after_rejection(self, p: FloatArray, q: FloatArray) -> FloatArray:
        """(p − q)₊ as it is."""
        return np.maximum(p - q, 0.0)

    def law_drawn(self, residual: FloatArray) -> FloatArray:
        """What is left of 1 goes to the last token."""
        law = residual.copy()
        law[-1] += 1.0 - residual.sum()
        return law


class ResidualFromTarget(RecursiveRejectionSteps):
    """After all rejections the token is drawn from p itself, in place of (p − q)₊."""

    def law_drawn(self, residual: FloatArray) -> FloatArray:
        """The target as it was."""
        return self.target_probs


class CoarseCoin(RecursiveRejectionSteps):
    """u ≤ p/q in place of u < p/q, with u drawn in float16: u = k/2048, k from 0 to 2047.

    A draft of target probability zero is accepted when the coin is 0.
    """

    steps = 2048.0
    """How many values u has."""

    def chance_to_accept(self, wanted: float, drawn: float) -> float:
        """How many of the coins do not exceed p/q."""
        ratio = super().chance_to_accept(wanted, drawn)
        return min(1.0, (np.floor(ratio * self.steps) + 1.0) / self.steps)


class KSequentialAt:
    """K-SEQ with a scale ρ that may be too small: what its residual lacks is cut off, and it is renormalised.

    Parameters
    ----------
    target_probs, draft_probs : ndarray of float64, shape (V,)
        p and q.
    scale : float
        ρ. Below ρ* the tokens accepted alone exceed some p.
    """

    def __init__(self, target_probs: FloatArray, draft_probs: FloatArray, scale: float) -> None:
        self.target_probs, self.draft_probs, self.scale = target_probs, draft_probs, scale

    def __call__(self, tokens: IntArray) -> FloatArray:
        """Law of the output token given the drafts (n,), shape (V,)."""
        p, q = self.target_probs, self.draft_probs
        output, undecided = np.zeros(p.size), 1.0
        for token in tokens:
            chance = min(1.0, float(p[token] / (self.scale * q[token])))
            output[token] += undecided * chance
            undecided *= 1.0 - chance
        accepted_once = np.minimum(p / self.scale, q)
        tries = ((1.0 - accepted_once.sum()) ** np.arange(tokens.size)).sum()
        return output + undecided * normalised(np.maximum(p - tries * accepted_once, 0.0), p)


def top_k(probs: FloatArray, k: int) -> FloatArray:
    """The k likeliest tokens alone, renormalised."""
    kept = np.zeros(probs.size)
    best = np.argsort(-probs, kind="stable")[:k]
    kept[best] = probs[best]
    return kept / kept.sum()


def tempered(probs: FloatArray, temperature: float) -> FloatArray:
    """Probabilities ∝ probs^(1/temperature)."""
    with np.errstate(divide="ignore"):
        log = np.log(probs) / temperature
    raised = np.exp(log - log.max())
    return raised / raised.sum()


def bfloat16(probs: FloatArray) -> FloatArray:
    """Numbers ≥ 0 as torch.bfloat16 holds them: float32's upper 16 bits, rounded to nearest, ties to even."""
    bits = np.asarray(probs, np.float32).view(np.uint32)
    rounding = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return ((bits + rounding) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def drawn_by_running_sum(masses: FloatArray) -> FloatArray:
    """Law of the first token whose running sum exceeds a uniform number, the last one where none does."""
    law = np.diff(np.minimum(np.cumsum(masses), 1.0), prepend=0.0)
    law[-1] += 1.0 - law.sum()
    return law
