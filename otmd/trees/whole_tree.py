"""Tree verifiers that look at all drafts of a layer, or of a subtree, before they decide.

Both decide by the pair sweep (:mod:`otmd.verifiers.pair_sweep`), from the deepest drafts up. A node is a
prefix of drafted tokens, and M is its target. The *score* w of a node is the probability that the accepted
path ends at the node or below it, given the drafts down to it (in subtrees, given also that the search gets
to the node); it is 1 at the root. The sweep at a node, or at a whole layer, gives the masses a(y) ≤ w M(y)
that are accepted below the node, and the scores of its children. So the node itself has the mass w M − a to
emit. ``docs/theory_trees.md`` has the proofs.

The sweep needs only tokens that may be drafted: with strata of the k most likely tokens, a layer of m nodes
costs m k. A row of the whole vocabulary is made for the node that emits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np

from otmd.laws import Slots
from otmd.laws.base import RngLike
from otmd.laws.standard import WithStructure
from otmd.probabilities import FloatArray, IntArray
from otmd.trees.base import Context, DraftTree, Node, Prefix
from otmd.trees.random_choices import RandomChoices
from otmd.trees.verifiers import BottomUp, Stop, TreeVerifier
from otmd.verifiers import UnsupportedLaw, Verifier
from otmd.verifiers.base import as_verifier
from otmd.verifiers.pair_sweep import sweep_pairs

# Scores are averaged over at most this many assignments of drafts to equal slots.
_MOST_ASSIGNMENTS = 120
# A difference of probabilities below this is computed as a sum.
_CANCELLED = 1e-6


class LayerVerification(BottomUp):
    """Verify the drafts of a layer together, the deepest layer first.

    The layer is one position. Its tokens are the pairs of a node and a token, its target is w M of all its
    nodes, and its drafts are the slots of all its nodes. The score of a child is the probability that the
    sweep accepts it, given all drafts of the layer. Let s be the sum of the scores of the layer's nodes, and
    r the mass of w M − a. If no deeper layer has stopped, the layer stops with probability r/(r + 1 − s), and
    then emits a node and a token after it with the probabilities (w M − a)/r.

    Serves trees in which the drafts of each node are deterministic or drawn independently: with replacement,
    from strata, by different drafters, greedy. With a ``verifier``, each node decides by itself, for its
    share of the layer; this serves every law that the verifier serves. The order of the layers, from the
    deepest up, is that of Layer Verification (Cha, Cho and Yun 2026).

    Parameters
    ----------
    verifier : Verifier or str, optional
        Decides on the drafts of each node. Node v, of score w, has the share λ = w/s of the layer, and its
        target is s M, with 1 − s on a token that is never drafted. Anything but a verifier is a TypeError.

    Examples
    --------
    >>> import otmd
    >>> from otmd import trees
    >>> target = trees.TableModel([[0.5, 0.3, 0.2], [[0.6, 0.2, 0.2], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]]])
    >>> draft = trees.TableModel([[0.2, 0.3, 0.5]])
    >>> tree = trees.TokenTree(draft, (2, 2), otmd.Stratified)
    >>> for rule in trees.TokenLevel(otmd.Preference()), trees.LayerVerification():
    ...     print(round(trees.tokens_per_step(rule, target, tree).value, 4))
    2.66
    2.72
    """

    def __init__(self, verifier: Verifier | type[Verifier] | str | None = None) -> None:
        self.verifier = None if verifier is None else as_verifier(verifier)

    def __repr__(self) -> str:
        return f"LayerVerification({self.verifier!r})" if self.verifier else super().__repr__()

    def stops(self, context: Context, tree: DraftTree) -> Iterator[Stop]:
        for depth, layer in reversed([*enumerate(self.layers(context, tree))]):
            yield Stop(depth, layer.stopping_prob, layer.emit)

    def expected_tokens(
        self, context: Context, tree: DraftTree, *, rng: RngLike | RandomChoices = None
    ) -> float:
        """1 + Σ (s − r) over the layers; its variance is at most that of the number of emitted tokens.

        Given the drafts down to a layer, s is the probability that the accepted path reaches the layer, and
        s − r the mean of the next layer's s. This is not the mean number of tokens given the whole tree.
        """
        layers = self.layers(context, tree)
        return 1.0 + sum(float(layer.scores.sum() - layer.masses.sum()) for layer in layers)

    def layers(self, context: Context, tree: DraftTree) -> list[Layer]:
        """The layers of a tree, the root's first."""
        if not context.law.by_layer:
            raise UnsupportedLaw(
                f"{self!r}: got {context.law!r}, whose slots in a layer depend on drafts of deeper layers, "
                "expected a tree that is drawn layer by layer; SubtreeVerification serves it"
            )
        layers = [_layer(self, context, tree, {(): 1.0})]
        while scores := layers[-1].child_scores():
            layers.append(_layer(self, context, tree, scores))
        return layers


class SubtreeVerification(BottomUp):
    """Verify node by node: each node after its children, which decide in the order of preference.

    The sweep at a node is that of the preference rule for the target w M. The score of a child is the
    probability c of its pair. The first child whose subtree accepts ends the search. If none accepts, the
    node itself stops with probability r/(r + 1 − w), r being the mass of w M − a, and emits a token ∝
    w M − a. A single path is verified as by :class:`BlockVerification`, a single layer as by
    :class:`~otmd.Preference`. The principle is that of UniVer (arXiv 2605.04543), there for greedy drafts.

    Serves the same trees as :class:`LayerVerification` without a verifier, which usually yields slightly more
    tokens per step. There is no proof that it always does.

    Examples
    --------
    >>> import otmd
    >>> from otmd import trees
    >>> target = trees.TableModel([[0.5, 0.3, 0.2]])
    >>> draft = trees.TableModel([[0.2, 0.3, 0.5]])
    >>> tree = trees.TokenTree(draft, (2, 2), otmd.Stratified)
    >>> round(trees.tokens_per_step(trees.SubtreeVerification(), target, tree).value, 4)
    2.76
    """

    def stops(self, context: Context, tree: DraftTree) -> Iterator[Stop]:
        return self._stops((), 1.0, context, tree)

    def _stops(self, prefix: Prefix, score: float, context: Context, tree: DraftTree) -> Iterator[Stop]:
        layer = _layer(self, context, tree, {prefix: score})
        for child, accept in layer.children_in_order():
            yield from self._stops(child, accept, context, tree)
        yield Stop(len(prefix), layer.stopping_prob, layer.emit)


def _layer(rule: TreeVerifier, context: Context, tree: DraftTree, scores: dict[Prefix, float]) -> Layer:
    drafting = {i: node for i, prefix in enumerate(scores) if (node := tree.node(prefix))}
    if not drafting:
        return Layer(context, scores)
    if isinstance(rule, LayerVerification) and rule.verifier is not None:
        return SharedLayer(rule, rule.verifier, context, scores, drafting)
    return SweptLayer(rule, context, scores, drafting)


class Layer:
    """Nodes of a tree with their scores, and the decision about all their drafts; here of nodes without any.

    Attributes
    ----------
    nodes : list of tuple of int
        The m prefixes.
    scores : ndarray of float64, shape (m,)
        Their scores.
    masses : ndarray of float64, shape (m,)
        The mass that each node itself has to emit.
    missed : float
        P(no draft of the layer is accepted), r + 1 − s.
    """

    missed = 1.0

    def __init__(self, context: Context, scores: dict[Prefix, float]) -> None:
        self.nodes, self.scores = list(scores), np.array(list(scores.values()))
        self._context = context

    @cached_property
    def masses(self) -> FloatArray:
        return self.scores

    def child_scores(self) -> dict[Prefix, float]:
        """The scores of the drafted children that may be accepted."""
        return {}

    def children_in_order(self) -> list[tuple[Prefix, float]]:
        """The drafted children in the order of preference, each with c of its first pair."""
        return []

    def left_by(self, i: int) -> FloatArray:
        """Masses (V,) that node i has to emit, up to a factor."""
        return self._target(i)

    @property
    def stopping_prob(self) -> float:
        """P(one of these nodes emits | nothing below them does): r/(r + 1 − s)."""
        return min(float(self.masses.sum()) / self.missed, 1.0) if self.missed > 0.0 else 1.0

    def emit(self, choices: RandomChoices) -> Prefix:
        """A node ∝ ``masses``, and a token after it."""
        # Where rounding alone leads here, there is no mass left, and the tokens of the target will do.
        any_left = bool(self.masses.any())
        i = choices.token(self.masses if any_left else self.scores)
        left = self.left_by(i) if any_left else self._target(i)
        return (*self.nodes[i], choices.token(left))

    def _target(self, i: int) -> FloatArray:
        """M after node i, shape (V,)."""
        return self._context.target(self.nodes[i])


class SweptLayer(Layer):
    """A layer that is decided by the pair sweep over the slots of all its nodes.

    Its pairs are those of a node and a token that it may draft, the pairs of the first node first. A
    deterministic draft is a slot of its own.
    """

    def __init__(
        self,
        rule: TreeVerifier,
        context: Context,
        scores: dict[Prefix, float],
        drafting: dict[int, Node],
    ) -> None:
        super().__init__(context, scores)
        # The tokens and the slice of the pairs of each node that drafts.
        self._pairs_of: dict[int, tuple[IntArray, slice]] = {}
        # The child, the slot and the pair of each draft (n,).
        self._children: list[Prefix] = []
        slot, pair = [], []
        # The pair of each token of the node in turn.
        pair_of_token = np.empty(context.target(()).size, np.int64)
        parts, targets = [], []
        num_pairs = num_slots = 0
        for i, node in drafting.items():
            slots, slot_of_draft = _slots_of_node(rule, node)
            tokens = slots.tokens if slots.disjoint else np.unique(slots.tokens)
            part = slice(num_pairs, num_pairs + tokens.size)
            self._pairs_of[i] = tokens, part
            pair_of_token[tokens] = np.arange(part.start, part.stop)
            parts.append(replace(slots, tokens=pair_of_token[slots.tokens]))
            targets.append(self.scores[i] * self._target(i)[tokens])
            self._children += [(*self.nodes[i], token) for token in node.tokens.tolist()]
            slot.append(num_slots + slot_of_draft)
            pair.append(pair_of_token[node.tokens])
            num_pairs, num_slots = part.stop, num_slots + slots.num_drafts
        self._slot, self._pair = np.concatenate(slot), np.concatenate(pair)
        self._sweep = sweep_pairs(np.concatenate(targets), Slots.joined(parts, num_pairs))
        self._left, self.missed = self._sweep.left, self._sweep.missed

    @cached_property
    def masses(self) -> FloatArray:
        masses = self.scores.copy()
        for i, (tokens, part) in self._pairs_of.items():
            masses[i] *= _mass_without(self._target(i), tokens)
            masses[i] += self._left[part].sum()
        return masses

    def left_by(self, i: int) -> FloatArray:
        left = self._target(i)
        if i in self._pairs_of:
            tokens, part = self._pairs_of[i]
            left = left.copy()
            # Not times the score: where that is tiny, the products may be 0.
            left[tokens] = self._left[part] / self.scores[i]
        return left

    def child_scores(self) -> dict[Prefix, float]:
        scores: dict[Prefix, float] = {}
        # Equal slots have the same distribution, so the scores of every assignment of drafts to them have the
        # same mean, the accepted masses. Their average has less variance, and the optimum over the rest of
        # the tree is concave in the scores.
        permutations = self._sweep.slots.assignments(_MOST_ASSIGNMENTS)
        assigned = np.array([permuted[self._slot] for permuted in permutations])
        chosen = self._sweep.chosen(assigned, self._pair).mean(axis=0)
        for child, prob in zip(self._children, chosen.tolist(), strict=True):
            if prob > 0.0:
                scores[child] = scores.get(child, 0.0) + prob
        return scores

    def children_in_order(self) -> list[tuple[Prefix, float]]:
        rank, accept, _ = self._sweep.pairs(self._slot, self._pair)
        first: dict[Prefix, float] = {}
        for i in np.argsort(rank, kind="stable").tolist():
            # After a first pair with c < 1 the token has all its mass; with c = 1 no later one is asked.
            first.setdefault(self._children[i], float(accept[i]))
        return list(first.items())


class SharedLayer(Layer):
    """A layer whose nodes decide by themselves: node v has the share λ = w/s of the layer.

    Its target is s M, with 1 − s on an additional token, which is never drafted. The score of a child is λ
    times the probability that its token is the output, given the drafts. λ times the probability of every
    other output token is left to the node.
    """

    def __init__(
        self,
        rule: TreeVerifier,
        verifier: Verifier,
        context: Context,
        scores: dict[Prefix, float],
        drafting: dict[int, Node],
    ) -> None:
        super().__init__(context, scores)
        score = float(self.scores.sum())
        shares = self.scores / score
        self.masses, missed = self.scores.copy(), shares.copy()
        self._left: dict[int, FloatArray] = {}
        self._child_scores: dict[Prefix, float] = {}
        for i, node in drafting.items():
            if not verifier.supports(node.law):
                raise UnsupportedLaw(
                    f"{rule!r}: got drafts of {node.law!r}, expected drafts that {verifier!r} serves"
                )
            target = np.append(score * self._target(i), max(1.0 - score, 0.0))
            wider = WithStructure(node.law.position_structure.widened(target.size))
            output = verifier.prepare(target, wider).conditional_law(node.tokens)
            for token in np.unique(node.tokens).tolist():
                if output[token] > 0.0:
                    self._child_scores[*self.nodes[i], token] = float(shares[i] * output[token])
                output[token] = 0.0
            self._left[i] = output[:-1]
            self.masses[i] = shares[i] * output[:-1].sum()
            missed[i] *= output.sum()
        self.missed = float(missed.sum())

    def child_scores(self) -> dict[Prefix, float]:
        return self._child_scores

    def left_by(self, i: int) -> FloatArray:
        return self._left[i] if i in self._left else self._target(i)


def _slots_of_node(rule: TreeVerifier, node: Node) -> tuple[Slots, IntArray]:
    """The slots of a node over the tokens that have mass, and the slot of each draft, shape (n,).

    Each deterministic draft comes first, ascending, as a slot of its own.
    """
    structure = node.law.position_structure
    deterministic, random = np.sort(structure.deterministic), structure.random
    if random is not None and not isinstance(random, Slots):
        raise UnsupportedLaw(
            f"{type(rule).__name__}: got drafts of {node.law!r}, expected independent drafts at each node, "
            "such as Stratified, WithReplacement or Greedy; LayerVerification(RecursiveRejection()) and "
            "Traversal serve drafts without replacement"
        )
    if random is not None and not deterministic.size:
        return _with_mass(random), random.slots_of(node.tokens)
    ones, starts = np.ones(deterministic.size, np.int64), np.arange(deterministic.size + 1)
    alone = Slots(deterministic, ones.astype(np.float64), starts, ones, node.law.vocab_size, True)
    slot = np.searchsorted(deterministic, node.tokens)
    if random is None:
        return alone, slot
    others = ~np.isin(node.tokens, deterministic)
    slot[others] = deterministic.size + random.slots_of(node.tokens[others])
    return Slots.joined([alone, _with_mass(random)], node.law.vocab_size), slot


def _with_mass(slots: Slots) -> Slots:
    """The slots without the tokens that they never draw."""
    if slots.probs.all():
        return slots
    kept = np.flatnonzero(slots.probs)
    starts = np.searchsorted(kept, slots.starts)
    return replace(slots, tokens=slots.tokens[kept], probs=slots.probs[kept], starts=starts)


def _mass_without(probs: FloatArray, tokens: IntArray) -> float:
    """The sum of probabilities (V,) without those of distinct tokens; 0 where there is no mass but theirs."""
    mass = 1.0 - float(probs[tokens].sum())
    if mass > _CANCELLED:
        return mass
    others = probs.copy()
    others[tokens] = 0.0
    return float(others.sum())
