"""Rules that judge whole paths: block verification for one path, traversal verification for trees."""

import numpy as np

from otmd.drafts import WithoutReplacement
from otmd.probabilities import FloatArray
from otmd.sequences.chance import Chance
from otmd.sequences.sequence_rule import SequenceRule
from otmd.sequences.trees import Context, DraftTree, Prefix
from otmd.verifiers import UnsupportedLaw


def leftover(reached: float, target: FloatArray, draft: FloatArray) -> tuple[float, FloatArray]:
    """The sum of (reached·M − D)₊ and its distribution, shape (V,); M itself where the sum is 0."""
    rest = np.maximum(reached * target - draft, 0.0)
    left = float(rest.sum())
    return left, rest / left if left > 0 else target


def chance_of_stopping(reached: float, left: float) -> float:
    """P(a prefix is accepted, given that no longer one is), by p_i and the sum of :func:`leftover`."""
    refused = 1.0 - reached
    return left / (left + refused) if left + refused > 0 else 1.0


class Traversal(SequenceRule):
    """Judge the leaves of a tree first, and each node after its children (Weng et al. 2025).

    Block verification for trees whose nodes draft without replacement. Where a child and all below it are
    refused, the node's target becomes (p·M − D)₊, and the child's token is removed from D.
    """

    def __repr__(self) -> str:
        return "Traversal()"

    def emit(self, context: Context, tree: DraftTree, chance: Chance) -> Prefix:
        emitted = self._below((), 1.0, context, tree, chance)
        assert emitted is not None
        return emitted

    def _below(
        self, prefix: Prefix, reached: float, context: Context, tree: DraftTree, chance: Chance
    ) -> Prefix | None:
        """The tokens emitted if this prefix or one that extends it is accepted; None if all are refused."""
        target = context.target(prefix)
        node = tree.node(prefix)
        if node is not None:
            if node.tokens.size > 1 and type(node.law) is not WithoutReplacement:
                raise UnsupportedLaw(
                    f"Traversal: got drafts of {node.law!r} after {prefix}, wanted a single draft or "
                    "drafts without replacement"
                )
            draft = context.draft(prefix).copy()
            for token in node.tokens.tolist():
                own = min(reached * float(target[token]) / float(draft[token]), 1.0)
                emitted = self._below((*prefix, token), own, context, tree, chance)
                if emitted is not None:
                    return emitted
                left, target = leftover(reached, target, draft)
                reached = chance_of_stopping(reached, left)
                draft[token] = 0.0
                others = float(draft.sum())
                # Without others this was the last draft.
                draft = draft / others if others > 0 else draft
        if prefix and not chance.accepts(reached):
            return None
        return (*prefix, chance.token(target))


class BlockVerification(Traversal):
    """Accept a prefix of one path, judged by its tokens together (Sun et al. 2024).

    M is the target, D the draft distribution. A coin of its own accepts or refuses each prefix of i tokens,
    with a probability that follows from p_i = min(p_{i−1}·M(x_i)/D(x_i), 1), p_0 = 1. The longest accepted
    prefix counts. So the longest is looked at first, which makes it the rule of :class:`Traversal` for trees
    that are a single path.
    """

    def __repr__(self) -> str:
        return "BlockVerification()"

    def emit(self, context: Context, tree: DraftTree, chance: Chance) -> Prefix:
        prefix: Prefix = ()
        while (node := tree.node(prefix)) is not None:
            if node.tokens.size > 1:
                raise UnsupportedLaw(
                    f"BlockVerification: got {node.tokens.size} drafts after {prefix}, wanted a single "
                    "path; Traversal serves trees"
                )
            prefix = (*prefix, int(node.tokens[0]))
        return super().emit(context, tree, chance)
