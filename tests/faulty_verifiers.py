"""Faulty verifiers that look right, for audits to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from otmd.laws import DraftLaw, WithoutReplacement, WithReplacement
from otmd.probabilities import FloatArray, IntArray, probs_from_logits


class RejectionFault(StrEnum):
    """A fault of recursive rejection that comes from one wrong line."""

    RESIDUAL_FROM_TARGET = "after all rejections the token is drawn from p"
    NOT_NORMALISED = "the residual is not renormalised"
    DUPLICATES_SKIPPED = "a draft that repeats a rejected one is skipped"
    COARSE_COIN = "a draft is accepted if u ≤ p/q, with u in float16"


@dataclass(frozen=True, eq=False)
class RejectionSteps:
    """Recursive rejection step by step as engines write it, with a fault or without.

    Draft j is tested against its distribution given the drafts before it. So without a fault the verifier is
    lossless for every ``law`` that draws one draft after another. A coarse coin has ``coin_values`` values,
    by default the spacing of float16 between 1/2 and 1.
    """

    target_probs: FloatArray
    law: DraftLaw
    fault: RejectionFault | None = None
    coin_values: int = 2048

    def __call__(self, draft_tokens: IntArray) -> FloatArray:
        """Distribution of the output token (V,) given the drafts (n,)."""
        p = self.target_probs
        output = np.zeros(p.size)
        rejected = 1.0
        for j, token in enumerate(draft_tokens):
            if self.fault is RejectionFault.DUPLICATES_SKIPPED and token in draft_tokens[:j]:
                continue
            q = self.law.position_structure.next_draft_probs(draft_tokens[:j])
            acceptance = min(p[token], q[token]) / (q[token] or 1.0)
            if self.fault is RejectionFault.COARSE_COIN:
                coins = np.floor(acceptance * self.coin_values) + 1.0
                acceptance = min(1.0, coins / self.coin_values)
            output[token] += rejected * acceptance
            rejected *= 1.0 - acceptance
            residual = np.maximum(p - q, 0.0)
            if self.fault is not RejectionFault.NOT_NORMALISED:
                residual = residual / residual.sum() if residual.sum() > 0 else p
            p = residual
        if self.fault is RejectionFault.RESIDUAL_FROM_TARGET:
            p = self.target_probs
        output += rejected * p
        if self.fault is RejectionFault.NOT_NORMALISED:
            # The mass that is missing goes to the last token, as in a search of running sums.
            output[-1] += rejected * (1.0 - p.sum())
        return output


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
