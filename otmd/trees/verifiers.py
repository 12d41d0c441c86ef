"""Rules for draft trees: position by position, block verification for paths, traversal for trees."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from otmd.laws.base import RngLike, validate_rng
from otmd.probabilities import FloatArray
from otmd.trees.base import Context, DraftTree, Model, Node, Prefix, TreeLaw
from otmd.trees.random_choices import RandomChoices, Sampled
from otmd.verifiers import UnsupportedLaw, Verifier
from otmd.verifiers.base import as_verifier
from otmd.verifiers.prepared import accept_prob


class TreeVerifier(ABC):
    """A lossless rule. It accepts a path of a draft tree, and adds one more token.

    Examples
    --------
    >>> import otmd
    >>> from otmd import trees
    >>> target = trees.TableModel([[0.5, 0.3, 0.2]])
    >>> draft = trees.TableModel([[0.2, 0.3, 0.5]])
    >>> rule = trees.TokenLevel(otmd.RecursiveRejection())
    >>> rule.step(target, trees.TokenTree(draft, (2, 1)), rng=0)
    (2, 0, 2)
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @abstractmethod
    def emit(self, context: Context, tree: DraftTree, choices: RandomChoices) -> Prefix:
        """Decide on a tree: the accepted path and the token after it, 1 to depth + 1 tokens.

        ``context`` has the models, ``tree`` the drafts; ``choices`` makes every random choice.
        """

    def step(self, target_model: Model, law: TreeLaw, *, rng: RngLike = None) -> Prefix:
        """Draft a tree and decide on it: the emitted tokens.

        Parameters
        ----------
        target_model : callable
            Takes a prefix and returns the target distribution (V,).
        law : TreeLaw
            The law of the tree. A law that the rule does not serve is an UnsupportedLaw error.
        rng : int, sequence of int, numpy.random.Generator or None
            A seed or a generator. Equal seeds give equal steps; None, the default, draws others at every
            call.

        Returns
        -------
        tuple of int
            The accepted path and the token after it, 1 to depth + 1 tokens.
        """
        return self.run(Context(target_model, law), Sampled(validate_rng(rng)))

    def expected_tokens(
        self, context: Context, tree: DraftTree, *, rng: RngLike | RandomChoices = None
    ) -> float:
        """Tokens whose mean over drawn trees is the rule's tokens per step.

        By default the number that :meth:`emit` returns, with the choices of ``rng``. The rules of otmd know
        its expectation, and make no random choice.
        """
        choices = rng if isinstance(rng, RandomChoices) else Sampled(validate_rng(rng))
        return float(len(self.emit(context, tree, choices)))

    def run(self, context: Context, choices: RandomChoices) -> Prefix:
        """Draft a tree and decide on it, see :meth:`step` and :meth:`emit`."""
        return self.emit(context, context.law.draft_tree(context, choices), choices)


class TokenLevel(TreeVerifier):
    """Verify position by position from the root, as long as the emitted token is a draft.

    SpecTr's rule with :class:`~otmd.KSequential` and :class:`~otmd.trees.IIDPaths` (Sun et al. 2023);
    SpecInfer's with :class:`~otmd.RecursiveRejection`; SpecHub's with :class:`~otmd.SpecHub`.

    Parameters
    ----------
    verifier : Verifier or str
        Decides at each node, by name or as an object. It must serve the law of the node's drafts. Anything
        else is a TypeError.

    Notes
    -----
    A token sampled from the residual may be one of the drafts. The rule then continues below it, as below an
    accepted draft: the drafts below a token do not depend on how the token was chosen.

    Examples
    --------
    >>> import otmd
    >>> from otmd import trees
    >>> target = trees.TableModel([[0.5, 0.3, 0.2]])
    >>> draft = trees.TableModel([[0.2, 0.3, 0.5]])
    >>> rule = trees.TokenLevel(otmd.KSequential())
    >>> round(trees.tokens_per_step(rule, target, trees.IIDPaths(draft, 2, 2)).value, 4)
    2.3672
    """

    def __init__(self, verifier: Verifier | type[Verifier] | str) -> None:
        self.verifier = as_verifier(verifier)

    def __repr__(self) -> str:
        return f"TokenLevel({self.verifier!r})"

    def emit(self, context: Context, tree: DraftTree, choices: RandomChoices) -> Prefix:
        prefix: Prefix = ()
        while (node := tree.node(prefix)) is not None:
            token = self._decide(context, prefix, node, choices)
            prefix = (*prefix, token)
            if token not in node.tokens:
                return prefix
        return (*prefix, choices.token(context.target(prefix)))

    def expected_tokens(
        self, context: Context, tree: DraftTree, *, rng: RngLike | RandomChoices = None
    ) -> float:
        # Every node that is reached emits one token.
        expected = 0.0
        reached: list[tuple[Prefix, float]] = [((), 1.0)]
        while reached:
            prefix, prob = reached.pop()
            expected += prob
            if (node := tree.node(prefix)) is not None:
                rule = context.rule(self.verifier, prefix, node.state)
                output = prob * rule.conditional_law(node.tokens)
                drafted = np.unique(node.tokens)
                accepted = drafted[output[drafted] > 0.0].tolist()
                reached += [((*prefix, token), float(output[token])) for token in accepted]
        return expected

    def _decide(self, context: Context, prefix: Prefix, node: Node, choices: RandomChoices) -> int:
        rule = context.rule(self.verifier, prefix, node.state)
        for token, prob in zip(node.tokens.tolist(), rule.accept_probs(node.tokens), strict=True):
            if choices.accepts(float(prob)):
                return token
        return choices.token(rule.residual(node.tokens))


def after_rejection(reached: float, target: FloatArray, draft: FloatArray) -> tuple[float, FloatArray]:
    """A prefix once a draft below it is rejected: P(it is accepted), and the law (V,) of the token after it.

    ``reached`` is p_i of :class:`BlockVerification`. The law is (p_i·M − D)₊, normalised, M being ``target``
    and D ``draft``; where nothing is left, it is M.
    """
    residual = np.maximum(reached * target - draft, 0.0)
    mass = float(residual.sum())
    total = mass + (1.0 - reached)
    return mass / total if total > 0 else 1.0, residual / mass if mass > 0 else target


class Stop(NamedTuple):
    """A place where a step may end: ``prob`` is its probability, if the step has not ended before.

    ``length`` drafts are accepted there, and ``emit`` makes the tokens of the step.
    """

    length: int
    prob: float
    emit: Callable[[RandomChoices], Prefix]

    @classmethod
    def at(cls, prefix: Prefix, prob: float, target: FloatArray) -> Stop:
        """Stop after a prefix, with a token of masses (V,)."""
        return cls(len(prefix), prob, lambda choices: (*prefix, choices.token(target)))


class BottomUp(TreeVerifier):
    """A rule that decides on each node after all that is below it, down from the root."""

    @abstractmethod
    def stops(self, context: Context, tree: DraftTree) -> Iterator[Stop]:
        """The places where the step may end, in the order in which they are asked; the root is the last."""

    def emit(self, context: Context, tree: DraftTree, choices: RandomChoices) -> Prefix:
        for stop in self.stops(context, tree):
            if stop.length == 0 or choices.accepts(stop.prob):
                return stop.emit(choices)
        raise AssertionError("the root accepts")

    def expected_tokens(
        self, context: Context, tree: DraftTree, *, rng: RngLike | RandomChoices = None
    ) -> float:
        tokens, refused = 1.0, 1.0
        for stop in self.stops(context, tree):
            tokens += refused * stop.prob * stop.length
            refused *= 1.0 - stop.prob
        return tokens


class Traversal(BottomUp):
    """Decide on the leaves of a tree first, and on each node after its children (Weng et al. 2025).

    This is :class:`BlockVerification` for trees whose nodes have distinct drafts, of any law. When a child
    and all nodes below it are rejected, the node's target M becomes (p·M − D)₊, normalised. Here p is the
    node's p_i. D is the distribution of the child's token given the drafts before it, which the node's law
    tells (:meth:`~otmd.DraftLaw.next_draft_probs`). What is drafted below a child must not depend on the
    drafts after it.

    Examples
    --------
    >>> from otmd import trees
    >>> target = trees.TableModel([[0.5, 0.3, 0.2]])
    >>> draft = trees.TableModel([[0.2, 0.3, 0.5]])
    >>> tree = trees.TokenTree(draft, (2, 1))
    >>> round(trees.tokens_per_step(trees.Traversal(), target, tree).value, 4)
    2.454
    """

    def stops(self, context: Context, tree: DraftTree) -> Iterator[Stop]:
        return self._stops((), 1.0, context, tree)

    def _stops(self, prefix: Prefix, prob: float, context: Context, tree: DraftTree) -> Iterator[Stop]:
        """The stops at a prefix and below; ``prob`` is that of any, given the drafts down to the prefix."""
        target = context.target(prefix)
        node = tree.node(prefix)
        for token, draft in self._drafts_in_turn(prefix, node) if node else ():
            drafted = float(accept_prob(prob * target[token], draft[token]))
            yield from self._stops((*prefix, token), drafted, context, tree)
            prob, target = after_rejection(prob, target, draft)
        yield Stop.at(prefix, prob, target)

    def _drafts_in_turn(self, prefix: Prefix, node: Node) -> list[tuple[int, FloatArray]]:
        """The drafts of a node, each with its distribution (V,) given those before it."""
        tokens = node.tokens.tolist()
        drafts = [(token, node.law.next_draft_probs(tokens[:i])) for i, token in enumerate(tokens)]
        # The nodes below a draft can be judged only once.
        if any(probs[tokens[:i]].any() for i, (_, probs) in enumerate(drafts)):
            raise UnsupportedLaw(
                f"{type(self).__name__}: got drafts of {node.law!r} after {prefix}, which may be equal, "
                "expected a single draft or distinct drafts, such as drafts without replacement"
            )
        return drafts


class BlockVerification(Traversal):
    """Verify the tokens of a single path together (Sun et al. 2024).

    M is the target. D is the distribution of the draft, which the node's law tells; it need not be the draft
    model's. Each prefix of i tokens is accepted or rejected by its own random number, with a probability that
    follows from p_i = min(p_{i−1}·M(x_i)/D(x_i), 1), where p_0 = 1. The longest accepted prefix is emitted.
    Looking at the longest prefix first gives the rule of :class:`Traversal` for trees that are a single path.

    Examples
    --------
    >>> import otmd
    >>> from otmd import trees
    >>> target = trees.TableModel([[0.5, 0.3, 0.2]])
    >>> draft = trees.TableModel([[0.2, 0.3, 0.5]])
    >>> path = trees.TokenTree(draft, (1, 1))
    >>> for rule in trees.TokenLevel(otmd.Preference()), trees.BlockVerification():
    ...     print(round(trees.tokens_per_step(rule, target, path).value, 4))
    2.19
    2.25
    """

    def stops(self, context: Context, tree: DraftTree) -> Iterator[Stop]:
        prefix: Prefix = ()
        while (node := tree.node(prefix)) is not None:
            if node.tokens.size > 1:
                raise UnsupportedLaw(
                    f"BlockVerification: got {node.tokens.size} drafts after {prefix}, expected a single "
                    "path; Traversal serves trees"
                )
            prefix = (*prefix, int(node.tokens[0]))
        yield from super().stops(context, tree)
