"""Negative controls: each fault with a position at which it shows, and drafts from their true law."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from otmd.audit.faults import (
    CoarseCoin,
    KSequentialAt,
    RecursiveRejectionSteps,
    ResidualFromTarget,
    SkippedDuplicates,
    UnnormalisedResidual,
    WithoutReplacementSteps,
    bfloat16,
    drawn_by_running_sum,
    tempered,
    top_k,
)
from otmd.audit.sequence_faults import BreaksAtFirstRejection, GivenPath
from otmd.drafts import DraftLaw, Joint, WithoutReplacement, WithReplacement
from otmd.probabilities import FloatArray, IntArray, probs_from_logits
from otmd.sequences.block_verification import BlockVerification
from otmd.sequences.chance import every_outcome
from otmd.sequences.efficiency import target_law
from otmd.sequences.tree_laws import IIDPaths
from otmd.sequences.trees import Context, TableModel


@dataclass(frozen=True, eq=False)
class Control:
    """A faulty rule at one position.

    Attributes
    ----------
    name : str
        The fault.
    target_probs : ndarray of float64, shape (V,)
        p, which the output ought to follow.
    drafts : DraftLaw
        What the drafts are really drawn from.
    rule : callable
        From drafts (n,) to the law of the output token (V,).
    """

    name: str
    target_probs: FloatArray
    drafts: DraftLaw
    rule: Callable[[IntArray], FloatArray]


def pair(vocab_size: int = 12, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """A target and a draft distribution whose logits differ by a normal error, as close models' do."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=1.5, size=vocab_size)
    draft_logits = logits + rng.normal(scale=0.7, size=vocab_size)
    return probs_from_logits(logits), probs_from_logits(draft_logits)


def negative_controls() -> list[Control]:
    """Faulty rules, all of them found by an audit with 200,000 samples and a false-alarm rate of 1e-3.

    Returns
    -------
    list of Control
    """
    p, q = pair()
    with_two, distinct = WithReplacement(q, 2), WithoutReplacement(q, 3)
    without_mass = p.copy()
    without_mass[q.argmax()] = 0.0
    without_mass /= without_mass.sum()
    return [
        Control("duplicates skipped", p, WithReplacement(q, 3), SkippedDuplicates(p, q)),
        Control("residual not renormalised", p, with_two, UnnormalisedResidual(p, q)),
        Control("residual from p", p, with_two, ResidualFromTarget(p, q)),
        Control(
            "drafts from the top 6, verified with all of q",
            p,
            WithReplacement(top_k(q, 6), 2),
            RecursiveRejectionSteps(p, q),
        ),
        Control(
            "drafts at temperature 0.7, verified at 1",
            p,
            WithReplacement(tempered(q, 0.7), 2),
            RecursiveRejectionSteps(p, q),
        ),
        Control(
            "coin may equal 0, u ≤ p/q",
            without_mass,
            WithReplacement(q, 2),
            CoarseCoin(without_mass, q),
        ),
        Control(
            "distinct drafts verified as independent", p, distinct, RecursiveRejectionSteps(p, q)
        ),
        Control(
            "independent drafts verified as distinct",
            p,
            WithReplacement(q, 3),
            WithoutReplacementSteps(p, q),
        ),
        Control("K-SEQ with ρ = 1 < ρ*", p, WithReplacement(q, 3), KSequentialAt(p, q, 1.0)),
        rounded_drafts(),
        broken_block_verification(),
    ]


def rounded_drafts() -> Control:
    """Drafts looked up in the running sum of q rounded to bfloat16, and verified with q in full.

    The draft distribution is nearly uniform on 511 tokens, whose masses are all rounded down, and the last
    token of the vocabulary is one that is hardly ever wanted, such as padding. What the rounded masses
    lack to 1 falls to it.
    """
    q = np.append(np.full(511, 1.0 / 511.0), 1e-9)
    p = np.append(np.linspace(1.0, 2.0, 511), 0.0)
    p /= p.sum()
    p[-1] = 1e-9
    p, q = p / p.sum(), q / q.sum()
    drawn = drawn_by_running_sum(bfloat16(q))
    name = "drafts from q in bfloat16, by running sum"
    return Control(name, p, WithReplacement(drawn, 1), RecursiveRejectionSteps(p, q))


def renormalised_rounded_drafts() -> Control:
    """Drafts from the masses rounded to bfloat16 and renormalised: a fault too small for an affordable audit.

    Rounding moves each mass by at most one part in 256, and the sum of all by no more.
    """
    p, q = pair()
    rounded = bfloat16(q)
    drafts = WithReplacement(rounded / rounded.sum(), 1)
    return Control(
        "drafts from q in bfloat16, renormalised", p, drafts, RecursiveRejectionSteps(p, q)
    )


def broken_block_verification(rule: BlockVerification | None = None) -> Control:
    """Pairs of tokens as single tokens of a vocabulary of V²: a drafted path, and the first two emitted.

    Parameters
    ----------
    rule : BlockVerification, optional
        The rule that decides, :class:`BreaksAtFirstRejection` if none is given.
    """
    rng = np.random.default_rng(1)
    size, spoilt = 3, rule or BreaksAtFirstRejection()
    target, draft = TableModel.random(size, 1, rng), TableModel.random(size, 1, rng)
    context = Context(target, IIDPaths(draft, num_paths=1, depth=2))

    def law_of_pairs(tokens: IntArray) -> FloatArray:
        path = tuple(int(i) for i in np.unravel_index(tokens[0], (size, size)))
        law = np.zeros((size, size))
        for emitted, prob in every_outcome(
            lambda chance: spoilt.emit(context, GivenPath(path), chance)
        ):
            if len(emitted) == 1:
                law[emitted[0]] += prob * target(emitted)
            else:
                law[emitted[:2]] += prob
        return law.ravel()

    pairs = np.arange(size**2)[:, None]
    drafts = Joint(pairs, target_law(draft, 2).ravel(), size**2)
    name = "block verification stops at the first rejection"
    return Control(name, target_law(target, 2).ravel(), drafts, law_of_pairs)
