"""Recursive rejection with faults that tests plant, and faulty rules that an audit finds."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy.special import softmax

from otmd.audit.samples import next_draft_laws
from otmd.drafts import DraftLaw, WithoutReplacement, WithReplacement
from otmd.probabilities import FloatArray, IntArray, probs_from_logits


class RuleFault(StrEnum):
    """What goes wrong in recursive rejection if one line is off."""

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


@dataclass(eq=False)
class RejectionSteps:
    """Recursive rejection with targets (…, V), step by step as engines write it, with a fault or without.

    Draft j is tested against its law given the drafts before it. So without a fault the rule is lossless
    for every ``law`` that draws one draft after another.
    """

    target_probs: FloatArray
    law: DraftLaw
    fault: RuleFault | None = None
    # How many values k/2048 a coarse coin u has: the spacing of float16 between 1/2 and 1.
    coin_values: int = 2048

    def __call__(self, draft_tokens: IntArray) -> FloatArray:
        """Law of the output token given the drafts (n,), of the shape of the targets."""
        accepted, undecided, residual = self.parts(draft_tokens)
        return accepted + undecided[..., None] * residual

    def parts(self, draft_tokens: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The accepted mass (…, V), the probability (…) that no draft is accepted, the law (…, V) then."""
        p, fault = self.target_probs, self.fault
        laws = next_draft_laws(self.law, draft_tokens)
        accepted, undecided = np.zeros(p.shape), np.ones(p.shape[:-1])
        for j, (token, q) in enumerate(zip(draft_tokens, laws, strict=True)):
            if fault is RuleFault.DUPLICATES_SKIPPED and token in draft_tokens[:j]:
                continue
            tested = self.target_probs if fault is RuleFault.NOT_UPDATED else p
            chance = self._acceptance(tested[..., token], q[token])
            accepted[..., token] += undecided * chance
            undecided = undecided * (1.0 - chance)
            left = np.maximum(tested - q, 0.0)
            total = left.sum(axis=-1, keepdims=True)
            if fault is not RuleFault.NOT_NORMALISED:
                left = np.divide(left, total, out=p.copy(), where=total > 0)
            p = left
        return accepted, undecided, self._residual(p, laws)

    def _acceptance(self, wanted: FloatArray, drafted: FloatArray) -> FloatArray:
        """The probability (…) to accept a draft of probabilities p (…) and q; 0 if q cannot draw it."""
        # P(u < p/q) for a uniform u.
        chance = np.minimum(wanted, drafted) / (float(drafted) or 1.0)
        if self.fault is RuleFault.FIRST_DRAFT_KEPT:
            return np.ones_like(chance)
        if self.fault is RuleFault.INVERTED:
            return np.divide(
                np.minimum(wanted, drafted), wanted, out=np.ones_like(chance), where=wanted > 0
            )
        if self.fault is RuleFault.NOT_DIVIDED:
            return wanted
        if self.fault is RuleFault.COARSE_COIN:
            coins = np.floor(chance * self.coin_values) + 1.0
            return np.minimum(1.0, coins / self.coin_values)
        return chance

    def _residual(self, p: FloatArray, laws: list[FloatArray]) -> FloatArray:
        """What is drawn from after all rejections (…, V), if the residual is p (…, V)."""
        if self.fault is RuleFault.RESIDUAL_FROM_TARGET:
            return self.target_probs
        if self.fault is RuleFault.RESIDUAL_FROM_DRAFT:
            return laws[0]
        if self.fault is RuleFault.SOFTMAXED:
            return softmax(p, axis=-1)
        if self.fault is RuleFault.NOT_NORMALISED:
            # The mass that is missing from 1 goes to the last token, as in a search of running sums.
            p = p.copy()
            p[..., -1] += 1.0 - p.sum(axis=-1)
        return p


@dataclass(frozen=True, eq=False)
class Control:
    """A faulty rule at one position.

    The drafts are in fact drawn from ``law``; ``verifier`` takes drafts (n,) and returns the law of the
    output token (V,).
    """

    name: str
    target_probs: FloatArray
    law: DraftLaw
    verifier: Callable[[IntArray], FloatArray]


def negative_controls() -> list[Control]:
    """Faulty rules that an audit finds with 200,000 samples and a false-alarm rate of 1e-3.

    The logits of the two models differ by a normal error, as those of close models do.
    """
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=1.5, size=12)
    draft_logits = logits + rng.normal(scale=0.7, size=12)
    p, q = probs_from_logits(logits), probs_from_logits(draft_logits)
    two, three, distinct = WithReplacement(q, 2), WithReplacement(q, 3), WithoutReplacement(q, 3)
    cut = WithReplacement(probs_from_logits(draft_logits, top_k=6), 2)
    cold = WithReplacement(probs_from_logits(draft_logits, temperature=0.7), 2)
    no_mass = np.where(np.arange(p.size) == q.argmax(), 0.0, p)
    no_mass /= no_mass.sum()
    steps, coin = RejectionSteps, RuleFault.COARSE_COIN
    return [
        Control("duplicates skipped", p, three, steps(p, three, RuleFault.DUPLICATES_SKIPPED)),
        Control("residual not renormalised", p, two, steps(p, two, RuleFault.NOT_NORMALISED)),
        Control("residual from p", p, two, steps(p, two, RuleFault.RESIDUAL_FROM_TARGET)),
        Control("coin may equal 0, u ≤ p/q", no_mass, two, steps(no_mass, two, coin)),
        Control("drafts from the top 6, verified with all of q", p, cut, steps(p, two)),
        Control("drafts at temperature 0.7, verified at 1", p, cold, steps(p, two)),
        Control("distinct drafts verified as independent", p, distinct, steps(p, three)),
        Control("independent drafts verified as distinct", p, three, steps(p, distinct)),
    ]
