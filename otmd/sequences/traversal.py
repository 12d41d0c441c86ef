"""Traversal verification: from the leaves to the root, each path as a whole."""

from otmd.drafts import WithoutReplacement
from otmd.sequences.block_verification import chance_of_stopping, leftover
from otmd.sequences.chance import Chance
from otmd.sequences.models import Prefix
from otmd.sequences.rule import SequenceRule
from otmd.sequences.trees import Context, DraftTree
from otmd.verifiers import UnsupportedLaw


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
