"""Recursive rejection with faults, by which an audit explains a run, and faulty verifiers that it finds."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from otmd.audit.samples import next_draft_probs
from otmd.laws import DraftLaw, WithoutReplacement, WithReplacement
from otmd.probabilities import FloatArray, IntArray, probs_from_logits


class RejectionFault(StrEnum):
    """A fault of recursive rejection that comes from one wrong line."""

    RESIDUAL_FROM_TARGET = "after all rejections the token is drawn from p, not from the residual"
    RESIDUAL_FROM_DRAFT = "after all rejections the token is drawn from q, not from the residual"
    NOT_NORMALISED = "the residual is not renormalised"
    SOFTMAXED = "the residual goes through a softmax, as if it were logits"
    NOT_UPDATED = "each draft is tested against p, not against the residual of those before it"
    DUPLICATES_SKIPPED = "a draft that repeats a rejected one is skipped"
    FIRST_DRAFT_KEPT = "the first draft is emitted unverified"
    INVERTED = "a draft is accepted with probability q/p, not p/q"
    NOT_DIVIDED = "a draft is accepted with probability p, not p/q"
    COARSE_COIN = "a draft is accepted if u ≤ p/q, not u < p/q, with u in float16"


class Decision(NamedTuple):
    """The decision on one tuple of drafts, for targets (…, V).

    ``accepted`` (…, V) is the probability to accept each token, ``rejected`` (…) that of accepting none, and
    ``residual`` (…, V) the distribution of the output token in that case.
    """

    accepted: FloatArray
    rejected: FloatArray
    residual: FloatArray

    def output(self, residual: FloatArray | None = None) -> FloatArray:
        """The distribution of the output token (…, V), with this residual or with another one."""
        residual = self.residual if residual is None else residual
        return self.accepted + self.rejected[..., None] * residual


@dataclass(eq=False)
class RejectionSteps:
    """Recursive rejection with targets (…, V), step by step as engines write it, with a fault or without.

    Draft j is tested against its distribution given the drafts before it. So without a fault the verifier is
    lossless for every ``law`` that draws one draft after another.
    """

    target_probs: FloatArray
    law: DraftLaw
    fault: RejectionFault | None = None
    # Number of values k/2048 of a coarse coin u: the spacing of float16 between 1/2 and 1.
    coin_values: int = 2048

    def __call__(self, draft_tokens: IntArray) -> FloatArray:
        """Distribution of the output token given the drafts (n,), of the shape of the targets."""
        return self.decide(draft_tokens).output()

    def decide(self, draft_tokens: IntArray) -> Decision:
        """Test the drafts (n,) one after another."""
        p = self.target_probs
        draft_probs = next_draft_probs(self.law, draft_tokens)
        accepted = np.zeros(p.shape)
        rejected = np.ones(p.shape[:-1])
        for j, (token, q) in enumerate(zip(draft_tokens, draft_probs, strict=True)):
            if self.fault is RejectionFault.DUPLICATES_SKIPPED and token in draft_tokens[:j]:
                continue
            tested = self.target_probs if self.fault is RejectionFault.NOT_UPDATED else p
            acceptance = self._acceptance(tested[..., token], q[token])
            accepted[..., token] += rejected * acceptance
            rejected = rejected * (1.0 - acceptance)
            residual = np.maximum(tested - q, 0.0)
            if self.fault is not RejectionFault.NOT_NORMALISED:
                total = residual.sum(axis=-1, keepdims=True)
                residual = np.divide(residual, total, out=p.copy(), where=total > 0)
            p = residual
        return Decision(accepted, rejected, self._residual(p, draft_probs))

    def _acceptance(self, p: FloatArray, q: FloatArray) -> FloatArray:
        """The probability (…) to accept a draft of probabilities p (…) and q; 0 if q cannot draw it."""
        # P(u < p/q) for a uniform u.
        acceptance = np.minimum(p, q) / (float(q) or 1.0)
        if self.fault is RejectionFault.FIRST_DRAFT_KEPT:
            return np.ones_like(acceptance)
        if self.fault is RejectionFault.INVERTED:
            return np.divide(np.minimum(p, q), p, out=np.ones_like(acceptance), where=p > 0)
        if self.fault is RejectionFault.NOT_DIVIDED:
            return p
        if self.fault is RejectionFault.COARSE_COIN:
            coins = np.floor(acceptance * self.coin_values) + 1.0
            return np.minimum(1.0, coins / self.coin_values)
        return acceptance

    def _residual(self, p: FloatArray, draft_probs: list[FloatArray]) -> FloatArray:
        """The distribution that is drawn from after all rejections (…, V), if the residual is p (…, V)."""
        if self.fault is RejectionFault.RESIDUAL_FROM_TARGET:
            return self.target_probs
        if self.fault is RejectionFault.RESIDUAL_FROM_DRAFT:
            return draft_probs[0]
        if self.fault is RejectionFault.SOFTMAXED:
            return softmax(p, axis=-1)
        if self.fault is RejectionFault.NOT_NORMALISED:
            # The mass that is missing from 1 goes to the last token, as in a search of running sums.
            p = p.copy()
            p[..., -1] += 1.0 - p.sum(axis=-1)
        return p


@dataclass(frozen=True, eq=False)
class Control:
    """A faulty verifier at one position.

    The drafts are in fact drawn from ``law``; ``verifier`` takes drafts (n,) and returns the distribution of
    the output token (V,).
    """

    name: str
    target_probs: FloatArray
    law: DraftLaw
    verifier: Callable[[IntArray], FloatArray]


def negative_controls() -> list[Control]:
    """Faulty verifiers that an audit finds with 200,000 samples and a false-alarm rate of 1e-3.

    The logits of the two models differ by a normal error, as those of close models do.
    """
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=1.5, size=12)
    draft_logits = logits + rng.normal(scale=0.7, size=12)
    p = probs_from_logits(logits)
    q = probs_from_logits(draft_logits)
    two = WithReplacement(q, 2)
    three = WithReplacement(q, 3)
    distinct = WithoutReplacement(q, 3)
    cut = WithReplacement(probs_from_logits(draft_logits, top_k=6), 2)
    cold = WithReplacement(probs_from_logits(draft_logits, temperature=0.7), 2)
    no_mass = np.where(np.arange(p.size) == q.argmax(), 0.0, p)
    no_mass /= no_mass.sum()

    def faulty(name: str, target: FloatArray, law: DraftLaw, fault: RejectionFault) -> Control:
        return Control(name, target, law, RejectionSteps(target, law, fault))

    def confused(name: str, law: DraftLaw, assumed: DraftLaw) -> Control:
        return Control(name, p, law, RejectionSteps(p, assumed))

    return [
        faulty("duplicates skipped", p, three, RejectionFault.DUPLICATES_SKIPPED),
        faulty("residual not renormalised", p, two, RejectionFault.NOT_NORMALISED),
        faulty("residual from p", p, two, RejectionFault.RESIDUAL_FROM_TARGET),
        faulty("coin may equal 0, u ≤ p/q", no_mass, two, RejectionFault.COARSE_COIN),
        confused("drafts from the top 6, verified with all of q", cut, two),
        confused("drafts at temperature 0.7, verified at 1", cold, two),
        confused("distinct drafts verified as independent", distinct, three),
        confused("independent drafts verified as distinct", three, distinct),
    ]
