"""Block verification: the whole path at once, which no rule for a single path exceeds."""

import numpy as np

from otmd.probabilities import FloatArray
from otmd.sequences.chance import Chance
from otmd.sequences.models import Prefix
from otmd.sequences.rule import SequenceRule
from otmd.sequences.trees import Context, DraftTree
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
