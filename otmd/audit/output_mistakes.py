"""Common mistakes of engines in verifying drafts, as distributions of the output token given the drafts."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from otmd.audit.draft_mistakes import confused_law, with_draft_probs
from otmd.audit.mistakes import DISTRIBUTIONS, DISTRIBUTIONS_OF_ROW, Side, Variants
from otmd.audit.positions import Position
from otmd.audit.samples import next_draft_probs
from otmd.laws import DraftLaw, WithoutReplacement, WithReplacement
from otmd.probabilities import FloatArray, IntArray


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


class OutputMistake(NamedTuple):
    """A mistake in a sentence, and the distributions (V,) that it leads to at a position, by setting.

    They are distributions of the output token given the drafts or, if ``of_target``, of what a lossless
    verifier takes for the target. A setting that makes no difference may be left out.
    """

    sentence: str
    variants: Callable[[Position], Variants]
    of_target: bool = False


def _of_target(variants: Callable[[Side], Variants], position: Position) -> Variants:
    return variants(position.side("target"))


def _of_verifier(fault: RejectionFault, position: Position) -> Variants:
    law = position.law
    if law is None:
        return {}
    return {"": RejectionSteps(position.target, law, fault)(position.record.draft_tokens)}


def _of_law(kind: Callable[[FloatArray, int], DraftLaw], position: Position) -> Variants:
    """The drafts are verified as if they had been drawn by a law of another kind."""
    law = position.law
    if law is None or law.num_drafts == 1:
        return {}
    assumed = confused_law(kind, law)
    return {} if assumed is None else {"": _verified(position, position.target, assumed)}


def _of_draft(variants: Callable[[Side], Variants], position: Position) -> Variants:
    """The drafts are verified with other draft probabilities."""
    law = position.law
    if law is None or position.record.draft.probs is None:
        return {}
    return {
        setting: _verified(position, position.target, with_draft_probs(law, q))
        for setting, q in variants(position.side("draft")).items()
    }


def _of_both(position: Position) -> Variants:
    """The drafts are verified with the target and the draft distribution of another row."""
    law = position.law
    targets = position.neighbours["target"]
    if not position.record.draft_tokens.size:
        return targets
    if law is None:
        return {}
    drafts = position.neighbours["draft"]
    return {
        row: _verified(position, target, with_draft_probs(law, drafts[row]))
        for row, target in targets.items()
    }


def _verified(
    position: Position, target: FloatArray | None, law: DraftLaw | None
) -> FloatArray | None:
    """The distribution of the output (V,) of recursive rejection with a target (V,) and a law."""
    if target is None or law is None:
        return None
    return RejectionSteps(target, law)(position.record.draft_tokens)


def _of_residual(position: Position) -> Variants:
    """After all rejections the token is drawn from another row's residual, or from a buffer never written."""
    law = position.law
    if law is None:
        return {}
    tokens = position.record.draft_tokens
    size = position.target.size
    decision = RejectionSteps(position.target, law).decide(tokens)
    outputs: Variants = {
        "uniform": decision.output(np.full(size, 1.0 / size)),
        "all zero, so token 0": decision.output(np.eye(1, size)[0]),
    }
    for row, target in position.neighbours["target"].items():
        its_law = with_draft_probs(law, position.neighbours["draft"][row])
        for sides, used in ((f"target of {row}", law), (f"target and draft of {row}", its_law)):
            outputs[sides] = None
            if target is not None and used is not None:
                residual = RejectionSteps(target, used).decide(tokens).residual
                outputs[sides] = decision.output(residual)
    return outputs


_VERIFIED = "the drafts are verified"
OUTPUT_MISTAKES = [
    *(
        OutputMistake(f"the target is {kind}", partial(_of_target, variants), of_target=True)
        for kind, variants in DISTRIBUTIONS.items()
    ),
    *(OutputMistake(fault.value, partial(_of_verifier, fault)) for fault in RejectionFault),
    OutputMistake(f"{_VERIFIED} as if they were distinct", partial(_of_law, WithoutReplacement)),
    OutputMistake(f"{_VERIFIED} as if they were independent", partial(_of_law, WithReplacement)),
    *(
        OutputMistake(f"{_VERIFIED} with probabilities {kind}", partial(_of_draft, variants))
        for kind, variants in DISTRIBUTIONS_OF_ROW.items()
    ),
    OutputMistake(f"{_VERIFIED} with target and draft taken from another row", _of_both),
    OutputMistake("after all rejections the residual is another one", _of_residual),
]
