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

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np

from otmd.laws import DraftLaw, Slots
from otmd.laws.base import RngLike
from otmd.laws.standard import WithStructure
from otmd.probabilities import FloatArray, IntArray
from otmd.trees.base import Context, DraftTree, Node, Prefix
from otmd.trees.random_choices import RandomChoices
from otmd.trees.verifiers import BottomUp, Stop, TreeVerifier
from otmd.verifiers import UnsupportedLaw, Verifier
from otmd.verifiers.base import as_verifier
from otmd.verifiers.pair_sweep import sweep_pairs
from otmd.verifiers.prepared import PreparedVerifier

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
        layers = [self._layer(context, tree, {(): 1.0})]
        while scores := layers[-1].child_scores():
            layers.append(self._layer(context, tree, scores))
        return layers

    def _layer(self, context: Context, tree: DraftTree, scores: dict[Prefix, float]) -> Layer:
        layer = SweptLayer if self.verifier is None else SharedLayer
        return layer(self, context, tree, scores)


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
        layer = SweptLayer(self, context, tree, {prefix: score})
        for child, accept in layer.children_in_order():
            yield from self._stops(child, accept, context, tree)
        yield Stop(len(prefix), layer.stopping_prob, layer.emit)


class Layer(ABC):
    """Nodes of a tree with their scores, and the decision about all their drafts.

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

    masses: FloatArray
    missed: float

    def __init__(
        self, rule: TreeVerifier, context: Context, tree: DraftTree, scores: dict[Prefix, float]
    ) -> None:
        self.nodes, self.scores = list(scores), np.array(list(scores.values()))
        self._context = context
        self._drafting = {i: node for i, prefix in enumerate(scores) if (node := tree.node(prefix))}

    @abstractmethod
    def child_scores(self) -> dict[Prefix, float]:
        """The scores of the drafted children that may be accepted."""

    @abstractmethod
    def left_by(self, i: int) -> FloatArray:
        """Masses (V,) that node i has to emit, up to a factor."""

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
    """A layer that is decided by the pair sweep over the slots of all its nodes."""

    def __init__(
        self, rule: TreeVerifier, context: Context, tree: DraftTree, scores: dict[Prefix, float]
    ) -> None:
        super().__init__(rule, context, tree, scores)
        for node in self._drafting.values():
            _require_independent(rule, node.law)
        self._pairs = _Pairs(self._drafting, context.target(()).size) if self._drafting else None
        self._sweep, self.missed = None, 1.0
        if self._pairs is not None:
            targets = [self.scores[i] * self._target(i)[y] for i, y in self._pairs.tokens.items()]
            self._sweep = sweep_pairs(np.concatenate(targets), self._pairs.slots)
            self._left, self.missed = self._sweep.left, self._sweep.missed

    @cached_property
    def masses(self) -> FloatArray:  # pyright: ignore[reportIncompatibleVariableOverride]
        if self._pairs is None:
            return self.scores
        masses = self.scores.copy()
        for i, tokens in self._pairs.tokens.items():
            masses[i] *= _mass_without(self._target(i), tokens)
            masses[i] += self._left[self._pairs.parts[i]].sum()
        return masses

    def left_by(self, i: int) -> FloatArray:
        left = self._target(i)
        if self._pairs is not None and i in self._pairs.tokens:
            left = left.copy()
            # Not times the score: where that is tiny, the products may be 0.
            left[self._pairs.tokens[i]] = self._left[self._pairs.parts[i]] / self.scores[i]
        return left

    def child_scores(self) -> dict[Prefix, float]:
        if self._sweep is None or self._pairs is None:
            return {}
        scores: dict[Prefix, float] = {}
        # Equal slots have the same distribution, so the scores of every assignment of drafts to them have the
        # same mean, the accepted masses. Their average has less variance, and the optimum over the rest of
        # the tree is concave in the scores.
        permutations = self._pairs.slots.assignments(_MOST_ASSIGNMENTS)
        assigned = np.array([permuted[self._pairs.slot] for permuted in permutations])
        chosen = self._sweep.chosen(assigned, self._pairs.pair).mean(axis=0)
        for child, prob in zip(self._children(), chosen.tolist(), strict=True):
            if prob > 0.0:
                scores[child] = scores.get(child, 0.0) + prob
        return scores

    def children_in_order(self) -> list[tuple[Prefix, float]]:
        """The drafted children in the order of preference, each with c of its first pair."""
        if self._sweep is None or self._pairs is None:
            return []
        rank, accept, _ = self._sweep.pairs(self._pairs.slot, self._pairs.pair)
        children = self._children()
        first: dict[Prefix, float] = {}
        for i in np.argsort(rank, kind="stable").tolist():
            # After a first pair with c < 1 the token has all its mass; with c = 1 no later one is asked.
            first.setdefault(children[i], float(accept[i]))
        return list(first.items())

    def _children(self) -> list[Prefix]:
        """The child of each draft, those of the first node first."""
        return [
            (*self.nodes[i], token) for i, node in self._drafting.items() for token in node.tokens.tolist()
        ]


class SharedLayer(Layer):
    """A layer whose nodes decide by themselves: node v has the share λ = w/s of the layer.

    Its target is s M, with 1 − s on an additional token, which is never drafted. The score of a child is λ
    times the probability that its token is the output, given the drafts. λ times the probability of every
    other output token is left to the node.
    """

    def __init__(
        self,
        rule: LayerVerification,
        context: Context,
        tree: DraftTree,
        scores: dict[Prefix, float],
    ) -> None:
        super().__init__(rule, context, tree, scores)
        score = float(self.scores.sum())
        shares = self.scores / score
        self.masses, missed = self.scores.copy(), shares.copy()
        self._left: dict[int, FloatArray] = {}
        self._child_scores: dict[Prefix, float] = {}
        for i, node in self._drafting.items():
            target = np.append(score * self._target(i), max(1.0 - score, 0.0))
            output = _prepared(rule, target, node.law).conditional_law(node.tokens)
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


def _prepared(rule: LayerVerification, target: FloatArray, law: DraftLaw) -> PreparedVerifier:
    """The verifier of a rule for a target (V + 1,), and drafts that are never its last token."""
    verifier = rule.verifier
    assert verifier is not None
    if not verifier.supports(law):
        raise UnsupportedLaw(f"{rule!r}: got drafts of {law!r}, expected drafts that {verifier!r} serves")
    wider = WithStructure(law.position_structure.widened(target.size))
    return verifier.prepare(target, wider)


def _require_independent(rule: TreeVerifier, law: DraftLaw) -> None:
    """UnsupportedLaw unless the drafts of a node are deterministic or independent."""
    random = law.position_structure.random
    if random is not None and not isinstance(random, Slots):
        raise UnsupportedLaw(
            f"{type(rule).__name__}: got drafts of {law!r}, expected independent drafts at each node, such "
            "as Stratified, WithReplacement or Greedy; LayerVerification(RecursiveRejection()) and Traversal "
            "serve drafts without replacement"
        )


class _Pairs:
    """The E pairs of a node of a layer and a token that it may draft, and the slots over them.

    ``tokens`` has the tokens of each node, by its index, and ``parts`` the slice of its pairs among all
    pairs, those of the first node first. ``slot`` and ``pair`` (n,) are those of each draft. A deterministic
    draft is a slot of its own.
    """

    def __init__(self, drafting: dict[int, Node], vocab_size: int) -> None:
        self.tokens: dict[int, IntArray] = {}
        self.parts: dict[int, slice] = {}
        # The pair of each token of the node in turn.
        pair_of_token = np.empty(vocab_size, np.int64)
        parts, slot, pair = [], [], []
        num_pairs = num_slots = 0
        for i, node in drafting.items():
            slots, slot_of_draft = _slots_of_node(node)
            tokens = slots.tokens if slots.disjoint else np.unique(slots.tokens)
            pair_of_token[tokens] = np.arange(num_pairs, num_pairs + tokens.size)
            self.tokens[i] = tokens
            self.parts[i] = slice(num_pairs, num_pairs + tokens.size)
            parts.append(replace(slots, tokens=pair_of_token[slots.tokens]))
            slot.append(num_slots + slot_of_draft)
            pair.append(pair_of_token[node.tokens])
            num_pairs += tokens.size
            num_slots += slots.num_drafts
        self.slots = Slots.joined(parts, num_pairs)
        self.slot, self.pair = np.concatenate(slot), np.concatenate(pair)


def node_slots(law: DraftLaw) -> Slots:
    """The slots of independent drafts: each deterministic one first, ascending, as a slot of its own."""
    structure = law.position_structure
    deterministic, random = structure.deterministic, structure.random
    assert random is None or isinstance(random, Slots)
    if random is not None and not deterministic.size:
        return random
    ones = np.ones(deterministic.size)
    starts = np.arange(deterministic.size + 1)
    copies = ones.astype(np.int64)
    parts = [Slots(np.sort(deterministic), ones, starts, copies, law.vocab_size, True)]
    if random is not None:
        parts.append(_with_mass(random))
    return Slots.joined(parts, law.vocab_size)


def _slots_of_node(node: Node) -> tuple[Slots, IntArray]:
    """The slots of a node over the tokens that have mass, and the slot of each draft, shape (n,)."""
    structure = node.law.position_structure
    deterministic, random = structure.deterministic, structure.random
    slot = np.searchsorted(np.sort(deterministic), node.tokens)
    if isinstance(random, Slots):
        others = ~np.isin(node.tokens, deterministic)
        slot[others] = deterministic.size + random.slots_of(node.tokens[others])
    return _with_mass(node_slots(node.law)), slot


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
