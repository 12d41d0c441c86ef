"""Rules for draft trees: one position at a time, block verification for paths, traversal for trees."""

from abc import ABC, abstractmethod

import numpy as np

from otmd.drafts import WithoutReplacement
from otmd.drafts.base import validate_rng
from otmd.probabilities import FloatArray
from otmd.sequences.chance import Chance, Sampled
from otmd.sequences.trees import Context, DraftTree, Model, Node, Prefix, TreeLaw
from otmd.verifiers import UnsupportedLaw, Verifier


class SequenceRule(ABC):
    """A lossless rule: from a draft tree to one of its paths, accepted, and one token more."""

    @abstractmethod
    def emit(self, context: Context, tree: DraftTree, chance: Chance) -> Prefix:
        """Decide on a tree: the accepted path and the token after it, 1 to depth + 1 tokens.

        ``context`` has the models, ``tree`` what was drafted; ``chance`` makes every random choice.
        """

    def step(self, target_model: Model, law: TreeLaw, *, rng: np.random.Generator) -> Prefix:
        """Draft a tree and decide on it: the emitted tokens.

        Parameters
        ----------
        target_model : callable
            From a prefix to the target distribution (V,).
        law : TreeLaw
            The law of the tree; UnsupportedLaw for one that is not served.
        rng : numpy.random.Generator
            Equal seeds give equal steps.
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
