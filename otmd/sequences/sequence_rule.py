"""Rules for draft trees: the base class, and the rule that verifies one position at a time."""

from abc import ABC, abstractmethod

import numpy as np

from otmd.drafts.base import validate_rng
from otmd.sequences.chance import Chance, Sampled
from otmd.sequences.trees import Context, DraftTree, Model, Node, Prefix, TreeLaw
from otmd.verifiers import Verifier


class SequenceRule(ABC):
    """A lossless rule: from a draft tree to one of its paths, accepted, and one token more."""

    @abstractmethod
    def emit(self, context: Context, tree: DraftTree, chance: Chance) -> Prefix:
        """Decide on a tree: the accepted path and the token after it, 1 to depth + 1 tokens.

        Parameters
        ----------
        context : Context
            The models.
        tree : DraftTree
            What was drafted.
        chance : Chance
            Makes every random choice.
        """

    def step(self, target_model: Model, law: TreeLaw, *, rng: np.random.Generator) -> Prefix:
        """Draft a tree and decide on it: the emitted tokens.

        Parameters
        ----------
        target_model : callable
            From a prefix to the target distribution (V,).
        law : TreeLaw
            The law of the tree.
        rng : numpy.random.Generator
            Equal seeds give equal steps.

        Raises
        ------
        ValueError
            For models that give no distributions; UnsupportedLaw for a law not served.
        """
        validate_rng(rng)
        return self.run(Context(target_model, law), Sampled(rng))

    def run(self, context: Context, chance: Chance) -> Prefix:
        """Draft a tree and decide on it, see :meth:`step` and :meth:`emit`."""
        return self.emit(context, DraftTree(context, chance), chance)


class TokenLevel(SequenceRule):
    """Verify one position at a time, from the root on, as long as the emitted token was drafted.

    SpecTr's rule with :class:`~otmd.KSequential` and :class:`~otmd.sequences.IIDPaths` (Sun et al. 2023);
    SpecInfer's with :class:`~otmd.RecursiveRejection`; SpecHub's with :class:`~otmd.SpecHub`.

    Parameters
    ----------
    verifier : Verifier
        Decides at each node; it must serve the laws of the tree's nodes.

    Notes
    -----
    A token sampled from the residual may be among the drafts. The rule then goes on below it, as below an
    accepted one: the drafts below a token do not depend on how it was chosen.
    """

    def __init__(self, verifier: Verifier) -> None:
        if not isinstance(verifier, Verifier):
            raise ValueError(f"verifier: got {verifier!r}, wanted a Verifier")
        self.verifier = verifier

    def __repr__(self) -> str:
        return f"TokenLevel({self.verifier!r})"

    def emit(self, context: Context, tree: DraftTree, chance: Chance) -> Prefix:
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
