"""Rules that decide on whole paths: block verification for one path, traversal verification for trees."""

import numpy as np

from otmd.drafts import WithoutReplacement
from otmd.probabilities import FloatArray
from otmd.sequences.chance import Chance
from otmd.sequences.sequence_rule import SequenceRule
from otmd.sequences.trees import Context, DraftTree, Prefix
from otmd.verifiers import UnsupportedLaw


class BlockVerification(SequenceRule):
    """Accept as much of one path as its tokens together warrant (Sun et al. 2024).

    With p_0 = 1 and p_i = min(p_{i−1}·M(x_i)/D(x_i), 1) the first i tokens are accepted if a coin of their
    own says so, and the *last* such i counts, whatever the coins before it said.
    """

    def __repr__(self) -> str:
        return "BlockVerification()"

    def emit(self, context: Context, tree: DraftTree, chance: Chance) -> Prefix:
        """See :class:`SequenceRule`."""
        prefix: Prefix = ()
        reached, accepted = 1.0, prefix
        output = None
        while True:
            target = context.target(prefix)
            node = tree.node(prefix)
            if node is None:
                warranted, after = reached, target
            else:
                if node.tokens.size > 1:
                    raise UnsupportedLaw(
                        f"BlockVerification: got {node.tokens.size} drafts after {prefix}, wanted a "
                        "single path; Traversal serves trees"
                    )
                left, after = leftover(reached, target, context.draft(prefix))
                warranted = chance_of_stopping(reached, left)
            if not prefix or chance.accepts(warranted):
                accepted, output = prefix, after
            if node is None:
                break
            token = int(node.tokens[0])
            draft = context.draft(prefix)
            reached = min(reached * float(target[token]) / float(draft[token]), 1.0)
            prefix = (*prefix, token)
        assert output is not None
        return (*accepted, chance.token(output))


def leftover(reached: float, target: FloatArray, draft: FloatArray) -> tuple[float, FloatArray]:
    """Σ (reached·M − D)₊ and its law, shape (V,); M itself where nothing is left."""
    rest = np.maximum(reached * target - draft, 0.0)
    left = float(rest.sum())
    return left, rest / left if left > 0 else target


def chance_of_stopping(reached: float, left: float) -> float:
    """P(a prefix is accepted, given that nothing longer is): left/(left + 1 − reached)."""
    refused = 1.0 - reached
    return left / (left + refused) if left + refused > 0 else 1.0


class Traversal(SequenceRule):
    """Accept a leaf with what its path warrants; else take what is left to the next leaf, and to its parent.

    Block verification generalised to trees whose nodes draft without replacement (Weng et al. 2025). A node
    is judged after all below it: once a child's subtree is refused the node's target is the rest
    (p·M − D)₊, and the child's token is taken out of D.
    """

    def __repr__(self) -> str:
        return "Traversal()"

    def emit(self, context: Context, tree: DraftTree, chance: Chance) -> Prefix:
        """See :class:`SequenceRule`."""
        emitted = self._below((), 1.0, context, tree, chance)
        assert emitted is not None
        return emitted

    def _below(
        self, prefix: Prefix, reached: float, context: Context, tree: DraftTree, chance: Chance
    ) -> Prefix | None:
        """What is emitted if the prefix is accepted, or a longer one; None if all of these are refused."""
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
