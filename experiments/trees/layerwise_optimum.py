"""Tokens per step that tree verifiers lack to the optimum, on small random models.

    python -m experiments layerwise_optimum
    python -m experiments layerwise_optimum --models 4 --output runs/quick.parquet

Every number is exact: verifiers by enumeration, the others by linear programs. The best layerwise rule is the
best of the rules that are lossless by the proof for ``LayerVerification``: given all drafts down to a layer,
its nodes v have scores w_v of sum at most 1, and the children vy have scores whose mean over the drafts of
the layer is at most w_v M(y|v). Given the drafts this is linear in the scores, so the best rule solves a
linear program with a score for each node of each tree.
"""

from argparse import Namespace
from collections import defaultdict
from collections.abc import Hashable, Iterator
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from scipy.sparse import csc_array

import otmd
from experiments.runner import markdown, run
from otmd.transport.program import program_of
from otmd.transport.solvers import certified_optimum
from otmd.trees import (
    GreedyMultiPath,
    IIDPaths,
    InclusionBound,
    LayerVerification,
    SubtreeVerification,
    TableModel,
    TokenLevel,
    TokenTree,
    TreeLaw,
    optimal_block_efficiency,
    tokens_per_step,
)
from otmd.trees.base import Context, Model, Prefix

TREES = {
    "strata 2×1": lambda draft: TokenTree(draft, (2, 1), otmd.Stratified),
    "strata 2×2": lambda draft: TokenTree(draft, (2, 2), otmd.Stratified),
    "strata 3×1": lambda draft: TokenTree(draft, (3, 1), otmd.Stratified),
    "two paths": lambda draft: IIDPaths(draft, 2, 2),
}
VERIFIERS = {
    "token level": TokenLevel(otmd.Preference()),
    "node by node": SubtreeVerification(),
    "layer by layer": LayerVerification(),
}
GREEDY = "greedy multi-path"
BEST, BOUND, OPTIMUM = "best layerwise rule", "inclusion bound", "optimum"
COLUMNS = (*VERIFIERS, GREEDY, BEST, BOUND)
# The programs are solved to about this.
SLACK = 1e-7


class Score(NamedTuple):
    """A node and its state. Its score is the variable ``column``."""

    prefix: Prefix
    state: Hashable
    column: int


class LayerwiseProgram:
    """The program of the best layerwise rule: scores of the nodes, given the drafts down to their layer.

    The tokens per step are the mean of the sum of all scores; that of the root is 1.
    """

    def __init__(self, target: Model, law: TreeLaw) -> None:
        self.context = Context(target, law)
        self.gains: list[float] = []
        self.entries: list[tuple[float, int, int]] = []
        self.limits: list[float] = []
        root = Score((), law.root(self.context.draft), self._new(1.0))
        self._row([(1.0, root.column)], 1.0)
        self._layer([root], 1.0)

    def value(self) -> float:
        """Tokens per step of the best layerwise rule."""
        values, rows, columns = map(np.array, zip(*self.entries, strict=True))
        shape = (len(self.limits), len(self.gains))
        matrix = csc_array((values, (rows, columns)), shape=shape)
        gains = np.array(self.gains)
        program = program_of("layers", gains, matrix, rows=(-np.inf, np.array(self.limits)))
        return float(gains @ certified_optimum(program, "simplex")[0])

    def _layer(self, nodes: list[Score], reached: float) -> None:
        """Add the scores below the nodes of a drawn layer, which is reached with this probability."""
        means: dict[Prefix, list[tuple[float, int]]] = defaultdict(list)
        for children, prob in self._outcomes(nodes).items():
            scores = [Score(prefix, state, self._new(reached * prob)) for prefix, state in children]
            self._row([(1.0, score.column) for score in scores], 1.0)
            for score in scores:
                means[score.prefix].append((prob, score.column))
            self._layer(scores, reached * prob)
        parents = {node.prefix: node.column for node in nodes}
        for child, terms in means.items():
            mass = float(self.context.target(child[:-1])[child[-1]])
            self._row([*terms, (-mass, parents[child[:-1]])], 0.0)

    def _outcomes(self, nodes: list[Score]) -> dict[tuple, float]:
        """The children (prefix, state) that a layer may draft, with their probabilities."""
        drafted = [(node, self.context.node_law(node.prefix, node.state))
                   for node in nodes if len(node.prefix) < self.context.law.depth]  # fmt: skip
        drafted = [(node, law) for node, law in drafted if law is not None]
        listed = [list(zip(*law.enumerate(), strict=True)) for _, law in drafted]
        outcomes: dict[tuple, float] = defaultdict(float)
        for drawn in product(*listed) if drafted else ():
            children = [
                ((*node.prefix, token), self.context.law.child(node.state, tokens, token))
                for (node, _), (tokens, _) in zip(drafted, drawn, strict=True)
                for token in np.unique(tokens).tolist()
            ]
            outcomes[tuple(children)] += float(np.prod([prob for _, prob in drawn]))
        return outcomes

    def _new(self, gain: float) -> int:
        self.gains.append(gain)
        return len(self.gains) - 1

    def _row(self, terms: list[tuple[float, int]], limit: float) -> None:
        self.entries += [(value, len(self.limits), column) for value, column in terms]
        self.limits.append(limit)


def measure(rng: np.random.Generator, tree: str, vocab_size: int, seed: int) -> Iterator[dict[str, Any]]:
    """Tokens per step of each verifier, of the best layerwise rule, the bound and the optimum."""
    target, draft = (TableModel.random(vocab_size, 2, rng=[seed, i]) for i in range(2))
    law = TREES[tree](draft)
    values = {name: tokens_per_step(verifier, target, law).value for name, verifier in VERIFIERS.items()}
    values[GREEDY] = np.nan
    if isinstance(law, IIDPaths):
        values[GREEDY] = tokens_per_step(GreedyMultiPath(), target, law).value
    values[BEST] = LayerwiseProgram(target, law).value()
    values[BOUND] = tokens_per_step(InclusionBound(), target, law).value
    optimum = optimal_block_efficiency(target, law).value
    ascending = [values["layer by layer"], values[BEST], optimum, values[BOUND]]
    if min(np.diff(ascending)) < -SLACK:
        raise RuntimeError(f"{tree}, seed {seed}: got {ascending}, expected them to ascend")
    yield {**values, OPTIMUM: optimum}


def tasks_of(chosen: Namespace) -> list[dict[str, Any]]:
    """A task for each tree and model: half of them of three tokens, half of four."""
    return [
        {"tree": tree, "vocab_size": 3 + seed % 2, "seed": seed}
        for tree in TREES
        for seed in range(chosen.models)
    ]


def main(arguments: list[str]) -> pl.DataFrame:
    """Run, and print the mean distance to the optimum times 1,000, and which verifier yields fewer tokens."""
    table = run(measure, arguments, 3.0, tasks_of, models=60)
    lines = []
    for (tree,), rows in table.group_by("tree", maintain_order=True):
        lacks = [1000 * (rows[OPTIMUM] - rows[name]).to_numpy() for name in COLUMNS]
        cells = ["–" if np.isnan(lack).any() else f"{lack.mean().round(2) + 0.0:.2f}" for lack in lacks]
        lines.append([tree, f"{rows[OPTIMUM].mean():.3f}", *cells])
    print(markdown(["tree", OPTIMUM, *COLUMNS], lines))
    for better, worse in pairwise(reversed(VERIFIERS)):
        fewer = (table[better] < table[worse] - SLACK).sum()
        print(f"{better} below {worse} in {fewer} of {table.height} models")
    return table
