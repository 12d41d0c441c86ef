"""Token by token down the tree, each with a verifier for a single position (SpecTr, SpecInfer, SpecHub)."""

from otmd.sequences.chance import Chance
from otmd.sequences.models import Prefix
from otmd.sequences.rule import SequenceRule
from otmd.sequences.trees import Context, DraftTree, Node
from otmd.verifiers import Verifier


class TokenLevel(SequenceRule):
    """Verify the drafts at the root, go on below the token that is emitted if it was drafted, and so on.

    SpecTr's rule with :class:`~otmd.KSequential` and :class:`~otmd.sequences.IIDPaths` (Sun et al. 2023);
    SpecInfer's with :class:`~otmd.RecursiveRejection`; SpecHub's with :class:`~otmd.SpecHub`.

    Parameters
    ----------
    verifier : Verifier
        Decides at each node; it must serve the laws of the tree's nodes.

    Notes
    -----
    A token that the residual happens to give and that was drafted is gone on from like an accepted one: what
    was drafted below it is independent of how it came to be emitted.
    """

    def __init__(self, verifier: Verifier) -> None:
        if not isinstance(verifier, Verifier):
            raise ValueError(f"verifier: got {verifier!r}, wanted a Verifier")
        self.verifier = verifier

    def __repr__(self) -> str:
        return f"TokenLevel({self.verifier!r})"

    def emit(self, context: Context, tree: DraftTree, chance: Chance) -> Prefix:
        """See :class:`SequenceRule`."""
        prefix: Prefix = ()
        while (node := tree.node(prefix)) is not None:
            token = self._decide(context, prefix, node, chance)
            prefix = (*prefix, token)
            if token not in node.tokens:
                return prefix
        return (*prefix, chance.token(context.target(prefix)))

    def _decide(self, context: Context, prefix: Prefix, node: Node, chance: Chance) -> int:
        rule = context.rule(self.verifier, prefix, node)
        for token, prob in zip(node.tokens.tolist(), rule.accept_probs(node.tokens), strict=True):
            if chance.accepts(float(prob)):
                return token
        return chance.token(rule.residual(node.tokens))
