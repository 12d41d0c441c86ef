"""Checks that a tree verifier is lossless and within its bounds, on small trees that are enumerated."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cache, partial

import numpy as np

from otmd.laws import (
    DraftLaw,
    Greedy,
    Hub,
    Independent,
    Joint,
    Race,
    Slots,
    Stratified,
    Structure,
    WithoutReplacement,
    WithReplacement,
)
from otmd.probabilities import FloatArray, IntArray
from otmd.testing.comparisons import SAME, agree, refuses, within
from otmd.trees import (
    AdaptiveTree,
    IIDPaths,
    InclusionBound,
    MostLikelyTree,
    TableModel,
    TokenTree,
    TreeLaw,
    TreeVerifier,
    optimal_block_efficiency,
    output_distribution,
    target_distribution,
    tokens_per_step,
)
from otmd.trees.adaptive import GrownLaw
from otmd.trees.base import Context, DraftTree, Model, Node, Prefix
from otmd.trees.random_choices import every_outcome
from otmd.verifiers import UnsupportedLaw

# The program of the optimum is solved to about this.
_SAME_OPTIMUM = 1e-8
_SEEDS = range(10)


def check_tree_verifier(
    rule: TreeVerifier,
    tree: TreeLaw,
    target_model: Model | None = None,
    *,
    rng: int | np.random.Generator = 0,
) -> None:
    """Fail unless a tree verifier is lossless, within the bounds, and decided by its seed.

    Its tokens per step must be the mean number of emitted tokens, and at most the optimum and, where drafts
    depend on their prefix alone, the inclusion bound. A law of trees that it does not serve must be an
    UnsupportedLaw error.

    Parameters
    ----------
    rule : TreeVerifier
        The verifier.
    tree : TreeLaw
        The law of the draft trees, small enough for all outcomes to be listed, such as those of
        :func:`~otmd.testing.hostile_trees`.
    target_model : callable, optional
        Takes a prefix and returns the target distribution (V,). By default targets are made for the tree:
        random, equal to the draft model, disjoint from it, with ties and zeros, and mixed, one-hot included.
    rng : int or numpy.random.Generator
        Makes the targets.

    Raises
    ------
    AssertionError
        Names the verifier and the law, and what was given and expected.
    ValueError
        For a tree that is too large.

    Examples
    --------
    >>> import otmd
    >>> from otmd import trees
    >>> draft = trees.TableModel([[0.2, 0.3, 0.5]])
    >>> otmd.testing.check_tree_verifier(trees.Traversal(), trees.TokenTree(draft, (2,)))
    """
    targets = _hostile_targets(tree, rng) if target_model is None else {"given": target_model}
    for name, target in targets.items():
        _check_target(rule, tree, target, f"{rule!r} for {tree!r} and the target {name!r}")


def hostile_trees() -> dict[str, TreeLaw]:
    """Laws of small trees that are hard on tree verifiers.

    Of three tokens; among them deterministic and dependent drafts, draft models with ties, with a single
    token and without mass on a token, nodes without drafts, leaves of unequal depth, and trees that adapt.

    Returns
    -------
    dict of str to TreeLaw
        The laws by name.

    Examples
    --------
    >>> import otmd
    >>> otmd.testing.hostile_trees()["two paths"]
    IIDPaths(num_paths=2, depth=2)
    """
    draft = TableModel.random(3, 1, rng=1)
    ties = TableModel([[1 / 3, 1 / 3, 1 / 3], [[0.5, 0.25, 0.25]] * 3])
    zeros = TableModel([[0.6, 0.4, 0.0], [[0.0, 0.5, 0.5], [0.7, 0.0, 0.3], [0.2, 0.8, 0.0]]])
    certain = TableModel([[0.0, 1.0, 0.0], np.eye(3)[[1, 2, 0]]])
    return {
        "one path": IIDPaths(draft, 1, 3),
        "two paths": IIDPaths(draft, 2, 2),
        "two equal paths": IIDPaths(certain, 2, 2),
        "with replacement": TokenTree(zeros, (2, 1), WithReplacement),
        "without replacement": TokenTree(draft, (2, 2)),
        "strata": TokenTree(draft, (2, 2), Stratified),
        "strata, three levels": TokenTree(zeros, (2, 1, 1), Stratified),
        "sharp strata": TokenTree(draft, (3, 1), partial(Stratified, sharpness=2.0)),
        "strata of ties": TokenTree(ties, (2, 1), Stratified),
        "strata of a single token": TokenTree(certain, (2, 1), Stratified),
        "greedy": TokenTree(ties, (2, 1), Greedy),
        "hub": TokenTree(zeros, (2, 2), Hub),
        "most likely": MostLikelyTree(draft, 5, 3, 3),
        "two drafters": TokenTree(draft, (2, 1), _two_drafters),
        "dependent drafts": TokenTree(draft, (2, 1), _dependent),
        "drafts that depend on V": TokenTree(zeros, (2, 1), _Smoothed),
        "drafts from the last tokens": TokenTree(draft, (2, 1), _FromTheEnd),
        "drafts by a second array": TokenTree(ties, (2, 1), _Weighted),
        "a node without drafts": TokenTree(draft, ((), ((),)), Stratified),
        "unequal depths": TokenTree(draft, ((((),),), ()), WithReplacement),
        "unequal depths, distinct": TokenTree(zeros, (((), ()), ())),
        "adaptive": AdaptiveTree(zeros, (2, 2)),
        "cut as a whole": CutTree(zeros, 4, 3),
    }


class CutTree(GrownLaw):
    """The best drafts of a tree of drafts without replacement, scored by q's order statistics.

    The score of the i-th draft after a node is the i-th largest q there, whatever its token, times the score
    of the node. A plug-in of EAGLE-4 (eagle-harness 0.1.3) draws such trees. What is kept of a layer depends
    on deeper layers: the output is the target's position by position and by Traversal, and is not by
    LayerVerification.
    """

    by_layer = False

    def __init__(self, draft_model: Model, budget: int, depth: int, width: int = 2) -> None:
        super().__init__(draft_model, depth, WithoutReplacement)
        self.budget, self.width = budget, width

    def __repr__(self) -> str:
        return f"CutTree(budget={self.budget}, depth={self.depth}, width={self.width})"

    def grow(self, tree: DraftTree) -> Iterator[list[Prefix]]:
        """Draw a tree node by node: scores fall along a path, and with each further draft of a node."""
        draft = tree.context.draft
        scores: dict[Prefix, float] = {(): 1.0}
        drafts: dict[Prefix, IntArray] = {}
        kept = Counter[Prefix]()
        child: Prefix = ()
        for _ in range(self.budget):
            if len(child) < self.depth:
                yield [child]
                num_drafts = min(self.width, int(np.count_nonzero(draft(child))))
                node = tree.draw(child, num_drafts)
                assert node is not None
                drafts[child] = node.tokens
            waiting = {
                prefix: scores[prefix] * float(self.score(draft(prefix), tokens)[kept[prefix]])
                for prefix, tokens in drafts.items()
                if kept[prefix] < tokens.size
            }
            if not waiting:
                break
            best = max(waiting, key=waiting.__getitem__)
            child = (*best, int(drafts[best][kept[best]]))
            scores[child] = waiting[best]
            kept[best] += 1
        keep_first(tree, kept)

    def score(self, q: FloatArray, tokens: IntArray) -> FloatArray:
        """The score of each draft (n,) of a node, without that of the node."""
        return np.sort(q)[::-1][: tokens.size]


def keep_first(tree: DraftTree, counts: Counter[Prefix]) -> None:
    """Keep the first drafts of each node of a drawn tree: they are drawn as if there had been no others."""
    for prefix, node in tree.nodes.items():
        count = counts[prefix]
        law = tree.context.node_law(prefix, count) if count else None
        tree.nodes[prefix] = node and law and Node(law, node.tokens[:count], count)


class _Smoothed(DraftLaw):
    """Independent drafts from (q + uniform)/2."""

    def structure(self, q: FloatArray) -> Slots:
        return Slots.single(0.5 * (q + 1.0 / q.size), self.num_drafts)


class _FromTheEnd(DraftLaw):
    """The last token, then independent drafts of the others, all equally likely."""

    def structure(self, q: FloatArray) -> Structure:
        others = np.append(np.full(q.size - 1, 1.0 / (q.size - 1)), 0.0)
        random = Slots.single(others, self.num_drafts - 1) if self.num_drafts > 1 else None
        return Structure(np.array([q.size - 1]), random, q.size)


class _Weighted(DraftLaw):
    """Drafts without replacement from q, reweighted by an array of its own."""

    def __init__(self, draft_probs: FloatArray, num_drafts: int) -> None:
        super().__init__(draft_probs, num_drafts)
        self.weights = np.arange(1.0, self.vocab_size + 1.0)

    def structure(self, q: FloatArray) -> Race:
        return Race(q * self.weights / (q @ self.weights), self.num_drafts)


def _two_drafters(draft_probs: FloatArray, num_drafts: int) -> Independent:
    return Independent([draft_probs, draft_probs[::-1]][:num_drafts])


def _dependent(draft_probs: FloatArray, num_drafts: int) -> Joint:
    """Drafts y, y + 1, …, modulo V, that have nothing to do with the draft model but their number."""
    size = draft_probs.size
    first = np.arange(size)
    return Joint((first[:, None] + np.arange(num_drafts)) % size, (first + 1) / (first + 1).sum(), size)


Row = Callable[[FloatArray, np.random.Generator], FloatArray]
_ROWS: dict[str, Row] = {
    "random": lambda q, rng: rng.dirichlet(np.ones(q.size)),
    "equal to the draft": lambda q, rng: q,
    "disjoint from the draft": lambda q, rng: (
        np.where(q > 0, 0.0, 1.0) if not q.all() else np.eye(q.size)[q.argmin()]
    ),
    "ties and zeros": lambda q, rng: np.append(rng.integers(0, 3, q.size - 1), 1.0),
    "one-hot": lambda q, rng: np.eye(q.size)[rng.integers(q.size)],
}
"""Masses (V,) of a target after a prefix, given the draft distribution there."""


def _hostile_targets(tree: TreeLaw, rng: int | np.random.Generator) -> dict[str, Model]:
    """Targets of one kind of rows, and one that mixes them."""
    seed = int(np.random.default_rng(rng).integers(2**32))
    targets = {name: _target(tree, seed, [row]) for name, row in _ROWS.items() if name != "one-hot"}
    return {**targets, "mixed": _target(tree, seed, [*_ROWS.values()])}


def _target(tree: TreeLaw, seed: int, rows: list[Row]) -> Model:
    size = np.asarray(tree.draft_model(())).size

    @cache
    def model(prefix: Prefix) -> FloatArray:
        rng = np.random.default_rng([seed, len(prefix), *prefix])
        # After the longest path nothing is drafted.
        below = len(prefix) >= tree.depth
        draft = np.full(size, 1.0 / size) if below else np.asarray(tree.draft_model(prefix))
        masses = rows[rng.integers(len(rows))](draft, rng)
        return masses / masses.sum()

    return model


def _check_target(rule: TreeVerifier, tree: TreeLaw, target: Model, where: str) -> None:
    try:
        output = output_distribution(rule, target, tree)
    except UnsupportedLaw:
        refuses(f"tokens_per_step of {where}", tokens_per_step, rule, target, tree)
        return
    expected = target_distribution(target, tree.depth + 1)
    agree(f"output_distribution of {where}", output, expected, SAME)
    emitted: dict[Prefix, float] = defaultdict(float)
    for tokens, prob in every_outcome(partial(rule.run, Context(target, tree))):
        emitted[tokens] += prob
    mean_length = sum(len(tokens) * prob for tokens, prob in emitted.items())
    value = tokens_per_step(rule, target, tree).value
    agree(f"tokens_per_step of {where}", value, mean_length, SAME)
    if tree.by_prefix:
        bound = tokens_per_step(InclusionBound(), target, tree).value
        within(f"tokens per step of {where}, up to the inclusion bound", value, 1.0, bound, SAME)
    best = optimal_block_efficiency(target, tree).value
    within(f"tokens per step of {where}, up to the optimum", value, 1.0, best, _SAME_OPTIMUM)
    for seed in _SEEDS:
        step = rule.step(target, tree, rng=seed)
        what = f"step(rng={seed}) of {where}"
        if emitted.get(step, 0.0) == 0.0:
            raise AssertionError(f"{what}: got {step}, expected one of {sorted(emitted)}")
        agree(f"{what}, the second time", rule.step(target, tree, rng=seed), step, 0)
