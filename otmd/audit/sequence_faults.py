"""A rule for whole paths that looks right and is not."""

import numpy as np

from otmd.drafts import WithReplacement
from otmd.sequences.block_verification import BlockVerification, chance_of_stopping, leftover
from otmd.sequences.chance import Chance
from otmd.sequences.trees import Context, DraftTree, Node, Prefix


class BreaksAtFirstRejection(BlockVerification):
    """Block verification that stops at the first coin that says no, where the last yes ought to count."""

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
        tokens = np.array([self.path[len(prefix)]])
        return Node(WithReplacement(np.ones(1), 1), tokens, None)
