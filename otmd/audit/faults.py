"""Rules that look right and are not: what an audit must catch, and what it names as the likeliest fault.

Each rule is given by its law of the output token given the drafts, so its deviation is known exactly
(:func:`~otmd.audit.enumerated`) and its samples are quick to draw (:func:`~otmd.audit.sampler_of`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from otmd.drafts import DraftLaw, Joint, WithoutReplacement, WithReplacement
from otmd.probabilities import FloatArray, IntArray, probs_from_logits
from otmd.sequences.block_verification import BlockVerification, chance_of_stopping, leftover
from otmd.sequences.chance import Chance, every_outcome
from otmd.sequences.efficiency import target_law
from otmd.sequences.tree_laws import IIDPaths
from otmd.sequences.trees import Context, DraftTree, Node, Prefix, TableModel
from otmd.verifiers.prepared import normalised


class RecursiveRejectionSteps:
    """Recursive rejection step by step, as engines write it: sound, and the base of faulty variants.

    ``target_probs`` is p (V,), ``draft_probs`` q as the rule believes it to be.
    """

    distinct = False
    """Whether q loses a rejected token, as for drafts without replacement."""

    def __init__(self, target_probs: FloatArray, draft_probs: FloatArray) -> None:
        self.target_probs = np.asarray(target_probs, np.float64)
        self.draft_probs = np.asarray(draft_probs, np.float64)

    def __call__(self, draft_tokens: IntArray) -> FloatArray:
        """Law of the output token given the drafts (n,), shape (V,)."""
        p, q = self.target_probs, self.draft_probs
        output, undecided = np.zeros(p.size), 1.0
        for token in self.looked_at(draft_tokens):
            chance = self.chance_to_accept(float(p[token]), float(q[token]))
            output[token] += undecided * chance
            undecided *= 1.0 - chance
            p = self.after_rejection(p, q)
            if self.distinct:
                q = np.where(np.arange(q.size) == token, 0.0, q)
                q = normalised(q, q)
        return output + undecided * self.law_drawn(p)

    def looked_at(self, draft_tokens: IntArray) -> IntArray:
        """The drafts, in the order in which they are tried."""
        return draft_tokens

    def chance_to_accept(self, wanted: float, drawn: float) -> float:
        """P(u < p/q) for a uniform u; 0 for a draft that q cannot draw."""
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

    def looked_at(self, draft_tokens: IntArray) -> IntArray:
        """Each token once, where it first stands."""
        return draft_tokens[np.sort(np.unique(draft_tokens, return_index=True)[1])]


class UnnormalisedResidual(RecursiveRejectionSteps):
    """The residual is not renormalised: what its sum lacks to 1 falls to the last token of the vocabulary."""

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


class ResidualFromDraft(RecursiveRejectionSteps):
    """After all rejections the token is drawn from q, in place of (p − q)₊."""

    def law_drawn(self, residual: FloatArray) -> FloatArray:
        """The draft distribution."""
        return self.draft_probs


class FirstDraftKept(RecursiveRejectionSteps):
    """The first draft is emitted, whatever the target says."""

    def chance_to_accept(self, wanted: float, drawn: float) -> float:
        """Certain."""
        return 1.0


class CoarseCoin(RecursiveRejectionSteps):
    """u ≤ p/q in place of u < p/q, with u drawn in float16: u = k/2048, k from 0 to 2047.

    A draft of target probability zero is accepted when u is 0.
    """

    steps = 2048.0
    """How many values u has."""

    def chance_to_accept(self, wanted: float, drawn: float) -> float:
        """The share of values of u that do not exceed p/q."""
        ratio = super().chance_to_accept(wanted, drawn)
        return min(1.0, (np.floor(ratio * self.steps) + 1.0) / self.steps)


class KSequentialAt:
    """K-SEQ with a scale ρ; below ρ* negative residuals are cut off, and the rest renormalised."""

    def __init__(self, target_probs: FloatArray, draft_probs: FloatArray, scale: float) -> None:
        self.target_probs, self.draft_probs, self.scale = target_probs, draft_probs, scale

    def __call__(self, draft_tokens: IntArray) -> FloatArray:
        """Law of the output token given the drafts (n,), shape (V,)."""
        p, q = self.target_probs, self.draft_probs
        output, undecided = np.zeros(p.size), 1.0
        for token in draft_tokens:
            chance = min(1.0, float(p[token] / (self.scale * q[token])))
            output[token] += undecided * chance
            undecided *= 1.0 - chance
        accepted_once = np.minimum(p / self.scale, q)
        tries = ((1.0 - accepted_once.sum()) ** np.arange(draft_tokens.size)).sum()
        return output + undecided * normalised(np.maximum(p - tries * accepted_once, 0.0), p)


class BreaksAtFirstRejection(BlockVerification):
    """Block verification that stops at the first rejected index; the last accepted one should count."""

    def emit(self, context: Context, tree: DraftTree, chance: Chance) -> Prefix:
        """See :class:`~otmd.sequences.SequenceRule`."""
        prefix: Prefix = ()
        reached, accepted, output = 1.0, prefix, context.target(prefix)
        while True:
            target, node = context.target(prefix), tree.node(prefix)
            draft = context.draft(prefix) if node else np.zeros(target.size)
            left, after = leftover(reached, target, draft) if node else (reached, target)
            warranted = chance_of_stopping(reached, left) if node else reached
            if prefix and not chance.accepts(warranted):
                return (*accepted, chance.token(output))
            accepted, output = prefix, after
            if node is None:
                return (*accepted, chance.token(output))
            token = int(node.tokens[0])
            reached = min(reached * float(target[token]) / float(draft[token]), 1.0)
            prefix = (*prefix, token)


class GivenPath(DraftTree):
    """A draft tree that is one given path."""

    def __init__(self, path: Prefix) -> None:
        self.path = path

    def node(self, prefix: Prefix) -> Node | None:
        """The next token of the path."""
        if len(prefix) == len(self.path):
            return None
        return Node(WithReplacement(np.ones(1), 1), np.array([self.path[len(prefix)]]), None)


def top_k(probs: FloatArray, k: int) -> FloatArray:
    """The k likeliest tokens alone, renormalised."""
    kept = np.zeros(probs.size)
    best = np.argsort(-probs, kind="stable")[:k]
    kept[best] = probs[best]
    return kept / kept.sum()


def tempered(probs: FloatArray, temperature: float) -> FloatArray:
    """Probabilities ∝ probs^(1/temperature)."""
    with np.errstate(divide="ignore"):
        return probs_from_logits(np.log(probs), temperature=temperature)


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


@dataclass(frozen=True, eq=False)
class Control:
    """A faulty rule at one position.

    Attributes
    ----------
    name : str
        The fault.
    target_probs : ndarray of float64, shape (V,)
    law : DraftLaw
        What the drafts are really drawn from.
    verifier : callable
        From drafts (n,) to the law of the output token (V,).
    """

    name: str
    target_probs: FloatArray
    law: DraftLaw
    verifier: Callable[[IntArray], FloatArray]


def pair(vocab_size: int = 12, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """A target and a draft distribution whose logits differ by a normal error, as close models' do."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=1.5, size=vocab_size)
    draft_logits = logits + rng.normal(scale=0.7, size=vocab_size)
    return probs_from_logits(logits), probs_from_logits(draft_logits)


def negative_controls() -> list[Control]:
    """Faulty rules, all of them found by an audit with 200,000 samples and a false-alarm rate of 1e-3."""
    p, q = pair()
    two, three = WithReplacement(q, 2), WithReplacement(q, 3)
    distinct = WithoutReplacement(q, 3)
    steps = RecursiveRejectionSteps(p, q)
    no_mass = np.where(np.arange(p.size) == q.argmax(), 0.0, p)
    no_mass /= no_mass.sum()
    cut, cold = WithReplacement(top_k(q, 6), 2), WithReplacement(tempered(q, 0.7), 2)
    return [
        Control("duplicates skipped", p, three, SkippedDuplicates(p, q)),
        Control("residual not renormalised", p, two, UnnormalisedResidual(p, q)),
        Control("residual from p", p, two, ResidualFromTarget(p, q)),
        Control("drafts from the top 6, verified with all of q", p, cut, steps),
        Control("drafts at temperature 0.7, verified at 1", p, cold, steps),
        Control("coin may equal 0, u ≤ p/q", no_mass, two, CoarseCoin(no_mass, q)),
        Control("distinct drafts verified as independent", p, distinct, steps),
        Control("independent drafts verified as distinct", p, three, WithoutReplacementSteps(p, q)),
        Control("K-SEQ with ρ = 1 < ρ*", p, three, KSequentialAt(p, q, 1.0)),
        rounded_drafts(),
        broken_block_verification(),
    ]


def rounded_drafts() -> Control:
    """Drafts looked up in the running sum of q rounded to bfloat16, and verified with q in full.

    q is nearly uniform on 511 tokens, whose masses are all rounded down. What they lack to 1 falls to the
    last token, which is hardly ever wanted, as padding is.
    """
    q = np.append(np.full(511, 1.0 / 511.0), 1e-9)
    p = np.append(np.linspace(1.0, 2.0, 511), 0.0)
    p /= p.sum()
    p[-1] = 1e-9
    p, q = p / p.sum(), q / q.sum()
    drawn = WithReplacement(drawn_by_running_sum(bfloat16(q)), 1)
    name = "drafts from q in bfloat16, by running sum"
    return Control(name, p, drawn, RecursiveRejectionSteps(p, q))


def renormalised_rounded_drafts() -> Control:
    """Drafts from the masses rounded to bfloat16 and renormalised: a fault too small for an affordable audit.

    Rounding moves each mass by at most one part in 256, and the sum of all by no more.
    """
    p, q = pair()
    rounded = bfloat16(q)
    drawn = WithReplacement(rounded / rounded.sum(), 1)
    name = "drafts from q in bfloat16, renormalised"
    return Control(name, p, drawn, RecursiveRejectionSteps(p, q))


def broken_block_verification(rule: BlockVerification | None = None) -> Control:
    """Pairs of tokens as single tokens of a vocabulary of V²: a drafted path, and the first two emitted.

    ``rule`` decides; it is :class:`BreaksAtFirstRejection` if none is given.
    """
    rng = np.random.default_rng(1)
    size, spoilt = 3, rule or BreaksAtFirstRejection()
    target, draft = TableModel.random(size, 1, rng), TableModel.random(size, 1, rng)
    context = Context(target, IIDPaths(draft, num_paths=1, depth=2))

    def law_of_pairs(draft_tokens: IntArray) -> FloatArray:
        path = tuple(int(i) for i in np.unravel_index(draft_tokens[0], (size, size)))
        law = np.zeros((size, size))
        for emitted, prob in every_outcome(lambda own: spoilt.emit(context, GivenPath(path), own)):
            if len(emitted) == 1:
                law[emitted[0]] += prob * target(emitted)
            else:
                law[emitted[:2]] += prob
        return law.ravel()

    drawn = Joint(np.arange(size**2)[:, None], target_law(draft, 2).ravel(), size**2)
    name = "block verification stops at the first rejection"
    return Control(name, target_law(target, 2).ravel(), drawn, law_of_pairs)
