"""Common mistakes of engines in verifying drafts, as distributions of the output token given the drafts."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from otmd.audit.draft_mistakes import with_draft_probs
from otmd.audit.faulty_verifiers import RejectionFault, RejectionSteps
from otmd.audit.mistakes import DISTRIBUTIONS, DISTRIBUTIONS_OF_ROW, Side, Variants
from otmd.audit.positions import Position
from otmd.laws import ProposalLaw, WithoutReplacement, WithReplacement
from otmd.probabilities import FloatArray


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


def _of_law(kind: type[ProposalLaw], position: Position) -> Variants:
    """The drafts are verified as if they had been drawn by a law of another kind."""
    law = position.law
    if not isinstance(law, ProposalLaw) or law.num_drafts == 1 or type(law) is kind:
        return {}
    if np.count_nonzero(law.draft_probs) < law.num_drafts:
        return {}
    return {"": _verified(position, position.target, kind(law.draft_probs, law.num_drafts))}


def _of_draft(variants: Callable[[Side], Variants], position: Position) -> Variants:
    """The drafts are verified with other draft probabilities."""
    law = position.law
    if not isinstance(law, ProposalLaw) or not isinstance(position.record.draft, np.ndarray):
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
    if not isinstance(law, ProposalLaw):
        return {}
    drafts = position.neighbours["draft"]
    return {
        row: _verified(position, target, with_draft_probs(law, drafts[row]))
        for row, target in targets.items()
    }


def _verified(
    position: Position, target: FloatArray | None, law: ProposalLaw | None
) -> FloatArray | None:
    """The distribution of the output (V,) of recursive rejection with a target (V,) and a law."""
    if target is None or law is None:
        return None
    return RejectionSteps(target, law)(position.record.draft_tokens)


def _of_residual(position: Position) -> Variants:
    """After all rejections the token is drawn from another row's residual, or from a buffer never written."""
    law = position.law
    if not isinstance(law, ProposalLaw):
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
