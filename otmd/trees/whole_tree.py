"""Tree verifiers that look at all drafts of a layer, or of a subtree, before they decide.

Both decide by the pair sweep (:mod:`otmd.verifiers.pair_sweep`), from the deepest drafts up. A node is a
prefix of drafted tokens, M its target, and the *score* w of a node is the probability that it or a node below
it is accepted, given the drafts down to it; it is 1 at the root. The sweep at a node, or at a whole layer,
gives the masses a(y) ≤ w M(y) that are accepted below, and the scores of the children, whose mean is a(y). So
what remains for the node itself to emit is w M − a.
"""

from __future__ import annotations

import numpy as np

from otmd.laws import DraftLaw, Slots
from otmd.probabilities import FloatArray, IntArray
from otmd.trees.base import Context, DraftTree, Node, Prefix
from otmd.trees.random_choices import RandomChoices
from otmd.trees.verifiers import BottomUp, TreeVerifier
from otmd.verifiers import UnsupportedLaw
from otmd.verifiers.pair_sweep import sweep_pairs

# Scores are averaged over so many assignments of drafts to equal slots.
_MOST_ASSIGNMENTS = 120


class LayerVerification(TreeVerifier):
    """Verify the drafts of a layer together, the deepest layer first.

    The layer is one position: its tokens are the pairs of a node and a token, its target is w M of all its
    nodes, its drafts are the slots of all its nodes. The score of a child is the probability that the sweep
    accepts it, given all drafts of the layer. A layer whose nodes have scores of sum s accepts, after all
    deeper layers did not, with probability r/(r + 1 − s), r the mass of w M − a. It then emits a node and a
    token after it with the probabilities (w M − a)/r.

    Serves trees in which the drafts of each node are deterministic or drawn independently: with replacement,
    from strata, by different drafters, greedy. The frame, layers from the deepest up, is that of Layer
    Verification (Cha, Cho and Yun 2026).

    Examples
    --------
    >>> import otmd
    >>> from otmd import trees
    >>> target = trees.TableModel([[0.5, 0.3, 0.2], [[0.6, 0.2, 0.2], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]]])
    >>> draft = trees.TableModel([[0.2, 0.3, 0.5]])
    >>> tree = trees.TokenTree(draft, (2, 2), otmd.Stratified)
    >>> for rule in trees.TokenLevel(otmd.Preference()), trees.LayerVerification():
    ...     print(round(trees.block_efficiency(rule, target, tree).value, 4))
    2.66
    2.72
    """

    def emit(self, context: Context, tree: DraftTree, choices: RandomChoices) -> Prefix:
        layers = self.layers(context, tree)
        for layer in reversed(layers):
            if layer is layers[0] or choices.accepts(layer.stopping_prob):
                return layer.emit(choices)
        raise AssertionError("the root accepts")

    def tokens_per_step(self, context: Context, choices: RandomChoices) -> float:
        """1 + Σ s over the layers below the root: unbiased, and of less variance than emitted tokens.

        Given the drafts down to a layer, s is the probability that the layer or a deeper one is accepted.
        """
        layers = self.layers(context, DraftTree(context, choices))
        return 1.0 + sum(layer.score for layer in layers[1:])

    def layers(self, context: Context, tree: DraftTree) -> list[Layer]:
        """The layers of a tree, the root's first."""
        layers = [Layer(context, tree, {(): 1.0})]
        while scores := layers[-1].child_scores():
            layers.append(Layer(context, tree, scores))
        return layers


class SubtreeVerification(BottomUp):
    """Verify node by node: each node after its children, which are asked in the order of preference.

    The sweep at a node is that of the preference rule for the target w M. The score of a child is the
    probability c of its pair. The first child that succeeds is the answer. If none does, the node itself
    succeeds with probability r/(r + 1 − w), r the mass of w M − a, and emits a token ∝ w M − a. A single path
    is verified as by :class:`BlockVerification`, a single layer as by :class:`~otmd.Preference`. The
    principle is that of UniVer (arXiv 2605.04543), there for greedy drafts.

    Serves the same trees as :class:`LayerVerification`, which usually yields slightly more tokens per step,
    in some models fewer.

    Examples
    --------
    >>> import otmd
    >>> from otmd import trees
    >>> target = trees.TableModel([[0.5, 0.3, 0.2]])
    >>> draft = trees.TableModel([[0.2, 0.3, 0.5]])
    >>> tree = trees.TokenTree(draft, (2, 2), otmd.Stratified)
    >>> round(trees.block_efficiency(trees.SubtreeVerification(), target, tree).value, 4)
    2.76
    """

    def below(
        self,
        prefix: Prefix,
        prob: float,
        context: Context,
        tree: DraftTree,
        choices: RandomChoices,
    ) -> Prefix | None:
        layer = Layer(context, tree, {prefix: prob})
        for child, accept in layer.children_in_order():
            emitted = self.below(child, accept, context, tree, choices)
            if emitted is not None:
                return emitted
        if prefix and not choices.accepts(layer.stopping_prob):
            return None
        return layer.emit(choices)


class Layer:
    """Nodes of a tree with their scores, and the sweep over the slots of all of them.

    Attributes
    ----------
    nodes : list of tuple of int
        The prefixes, m of them.
    score : float
        The sum of their scores.
    left : ndarray of float64, shape (m, V)
        w M − a, the masses that the nodes themselves emit.
    """

    def __init__(self, context: Context, tree: DraftTree, scores: dict[Prefix, float]) -> None:
        self.nodes, self.score = list(scores), sum(scores.values())
        targets = np.stack([score * context.target(node) for node, score in scores.items()])
        self._vocab_size = targets.shape[1]
        drafted = [(i, node) for i, prefix in enumerate(scores) if (node := tree.node(prefix))]
        self.left, self._missed, self._sweep, self._targets = targets, 1.0, None, targets
        if drafted:
            size = self._vocab_size
            slots, self._slot, self._pair = _slots_of_nodes(drafted, size, len(targets))
            self._sweep = sweep_pairs(targets.ravel(), slots)
            self.left = self._sweep.left.reshape(targets.shape)
            self._missed = self._sweep.missed

    @property
    def stopping_prob(self) -> float:
        """P(one of these nodes emits | nothing below them does): r/(r + 1 − s), and r + 1 − s = Π_j s_j."""
        return min(float(self.left.sum()) / self._missed, 1.0) if self._missed > 0.0 else 1.0

    def emit(self, choices: RandomChoices) -> Prefix:
        """A node and a token after it, ∝ ``left``."""
        masses = self.left if self.left.any() else self._targets
        node, token = divmod(choices.token(masses.ravel()), self._vocab_size)
        return (*self.nodes[node], token)

    def child_scores(self) -> dict[Prefix, float]:
        """The scores of the drafted children that may be accepted."""
        if self._sweep is None:
            return {}
        scores: dict[Prefix, float] = {}
        # Equal slots have the same distribution, so every assignment of drafts to them has the same mean, the
        # accepted masses. The average has less variance, and the value of going on is concave in the scores.
        permutations = self._sweep.slots.assignments(_MOST_ASSIGNMENTS)
        assigned = np.array([permuted[self._slot] for permuted in permutations])
        chosen = self._sweep.chosen(assigned, self._pair).mean(axis=0)
        for pair, prob in zip(self._pair.tolist(), chosen.tolist(), strict=True):
            if prob > 0.0:
                child = self._child(pair)
                scores[child] = scores.get(child, 0.0) + prob
        return scores

    def children_in_order(self) -> list[tuple[Prefix, float]]:
        """The drafted children in the order of preference, each with c of its first pair."""
        if self._sweep is None:
            return []
        rank, accept, _ = self._sweep.pairs(self._slot, self._pair)
        first: dict[Prefix, float] = {}
        for i in np.argsort(rank, kind="stable").tolist():
            # After a first pair with c < 1 the token has all its mass; with c = 1 no later one is asked.
            first.setdefault(self._child(int(self._pair[i])), float(accept[i]))
        return list(first.items())

    def _child(self, pair: int) -> Prefix:
        node, token = divmod(pair, self._vocab_size)
        return (*self.nodes[node], token)


def _slots_of_nodes(
    drafted: list[tuple[int, Node]], vocab_size: int, num_nodes: int
) -> tuple[Slots, IntArray, IntArray]:
    """The slots of those nodes of a layer that draft, and for each draft its slot and its pair.

    The pair of node i and token y has the number i V + y. A deterministic draft is a slot of its own.
    """
    rows: list[tuple[IntArray, FloatArray, int]] = []
    slot, pair = [], []
    disjoint, num_slots = True, 0
    for i, node in drafted:
        deterministic, random = _structure(node.law)
        certain = np.isin(node.tokens, deterministic)
        rows += [(i * vocab_size + token, np.ones(1), 1) for token in deterministic[:, None]]
        slot.append(num_slots + np.searchsorted(deterministic, node.tokens[certain]))
        pair.append(i * vocab_size + node.tokens[certain])
        num_slots += deterministic.size
        if random is not None:
            parts = [
                slice(*ends) for ends in zip(random.starts[:-1], random.starts[1:], strict=True)
            ]
            rows += [
                (i * vocab_size + random.tokens[part], random.probs[part], int(copies))
                for part, copies in zip(parts, random.copies, strict=True)
            ]
            slot.append(num_slots + random.slots_of(node.tokens[~certain]))
            pair.append(i * vocab_size + node.tokens[~certain])
            num_slots += random.num_drafts
            disjoint &= random.disjoint
    slots = Slots.joined(rows, num_nodes * vocab_size, disjoint)
    return slots, np.concatenate(slot), np.concatenate(pair)


def _structure(law: DraftLaw) -> tuple[IntArray, Slots | None]:
    """The deterministic tokens, ascending, and the slots of the others; UnsupportedLaw if there are none."""
    deterministic, random = law.position_structure()
    if random is None or isinstance(random, Slots):
        return np.sort(deterministic), random
    raise UnsupportedLaw(
        f"got drafts of {law!r}, expected independent drafts at each node, such as Stratified, "
        "WithReplacement or Greedy; Traversal serves drafts without replacement"
    )
