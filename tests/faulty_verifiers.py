"""Faulty verifiers that look right, for audits to find: the rows of the table in docs/howto/audit.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from otmd.audit.output_mistakes import RejectionFault, RejectionSteps
from otmd.laws import DraftLaw, WithoutReplacement, WithReplacement
from otmd.probabilities import FloatArray, IntArray, probs_from_logits


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
