"""EAGLE-4's trees at T > 0, compared with strata and with sampled paths of as many drafts.

    python -m experiments eagle4_trees
    python -m experiments eagle4_trees --drafts skip:15 --prompts 2 --output runs/quick.parquet

A plug-in of EAGLE-4 (eagle-harness 0.1.3) draws up to eight children of a node without replacement. The score
of the i-th is the i-th largest q there, whatever its token, times the score of the node. On each level the
eight nodes of the largest scores get children. The best drafts of the whole tree are kept, and verified
position by position. Another tree keeps the best drafts of each level. ``docs/theory_trees.md`` says which
rules are lossless for which. All laws draw trees at the same positions of texts that the target samples, as a
plan with a single step does (:mod:`otmd.study.plan`); all rules of a law decide on the same trees.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from experiments.runner import RESULTS, options, require, save, show
from otmd import Processing
from otmd.laws import Stratified
from otmd.models import DEFAULT_DRAFT, DOMAINS, load_prompts
from otmd.study.estimate import Estimate, estimate
from otmd.study.plan import Candidate, plan_table
from otmd.testing.trees import CutTree, keep_first
from otmd.trees import IIDPaths, LayerVerification, TokenLevel, TokenTree, Traversal
from otmd.trees.base import DraftTree, Model, Prefix
from otmd.verifiers import RecursiveRejection

SHAPES = ((2, 4), (2, 8), (4, 8), (6, 10))
"""Drafts of a level, and levels: 8, 16, 32 and 60 drafts."""

WIDTH, DEPTH = 8, 10
"""The most nodes of a level that get children, and the levels, of a tree that is cut as a whole."""


class OrderStatistics(CutTree):
    """A tree of drafts without replacement, scored by q's order statistics and drawn level by level.

    A node has at most ``width`` children, and at most so many nodes of a level have any, those of the largest
    scores. Of the whole tree ``budget`` drafts are kept; if ``by_layer``, ``width`` of each level.
    """

    def __init__(
        self, draft_model: Model, budget: int, depth: int, width: int, by_layer: bool = False
    ) -> None:
        super().__init__(draft_model, budget, depth, width)
        self.by_layer = by_layer

    def grow(self, tree: DraftTree) -> Iterator[list[Prefix]]:
        """Draw a tree level by level."""
        best = partial(sorted, key=lambda draft: -draft[0])
        kept: list[tuple[float, Prefix]] = []
        level: dict[Prefix, float] = {(): 1.0}
        for depth in range(self.depth):
            yield list(level)
            drafts = []
            for node, score in level.items():
                largest = np.sort(tree.context.draft(node))[::-1][: self.width]
                drafts += [(score * float(q), node) for q in largest[largest > 0.0]]
            # Scores fall along a path, so what is not kept now would be dropped in the end. Of equal scores
            # the first are kept: a parent before its children.
            kept += best(drafts)[: self.width] if self.by_layer else drafts
            kept = best(kept)[: self.budget]
            new = [(score, node) for score, node in kept if len(node) == depth]
            drawn = {node: tree.draw(node, count) for node, count in Counter(v for _, v in new).items()}
            tokens = {node: iter(below.tokens) for node, below in drawn.items() if below}
            level = {(*node, int(next(tokens[node]))): score for score, node in new[: self.width]}
            if not level:
                break
        keep_first(tree, Counter(node for _, node in kept))


def candidates() -> Iterator[Candidate]:
    """Every law and number of drafts, with the rules that are lossless for the law."""
    by_node = {"position by position": TokenLevel(RecursiveRejection()), "Traversal": Traversal()}
    by_level = by_node | {"layer by layer": LayerVerification(RecursiveRejection())}
    pooled = {"layer by layer": LayerVerification()}
    for paths, depth in SHAPES:
        drafts = paths * depth
        of = partial(Candidate, tree=f"{drafts}", levels=(paths,) * depth, budget=drafts)
        yield of("cut as a whole", partial(OrderStatistics, budget=drafts, depth=DEPTH, width=WIDTH), by_node)
        levels = partial(OrderStatistics, budget=drafts, depth=depth, width=paths, by_layer=True)
        yield of("cut by level", levels, by_level)
        strata = partial(TokenTree, branching=(paths, *[1] * (depth - 1)), law=Stratified)
        yield of("strata", strata, pooled)
        yield of("sampled paths", partial(IIDPaths, num_paths=paths, depth=depth), pooled)


def main(arguments: list[str]) -> pl.DataFrame:
    """Measure what is missing, save what there is after each step, and print the tokens per step."""
    common: dict[str, Any] = {"output": RESULTS / "eagle4_trees.parquet", "parts": Path("runs/eagle4_trees")}
    grid: dict[str, Any] = {"drafts": (DEFAULT_DRAFT, "skip:15"), "temperatures": (1.0, 0.6)}
    grid |= {"starts": (4, 12, 20, 28), "prompts": 8, "workers": 1}
    chosen = options(__name__, arguments, **common, **grid)
    require(min(chosen.temperatures) > 0, "temperatures", chosen.temperatures, "numbers above 0")
    prompts = load_prompts(list(DOMAINS), chosen.prompts, 0, progress=False)
    tables = []
    for start, draft, temperature in product(chosen.starts, chosen.drafts, chosen.temperatures):
        folder = chosen.parts / f"{draft.replace(':', '-')}-{temperature:g}-{start}-{len(prompts)}-prompts"
        given = "default", draft, prompts, folder, list(candidates()), Processing(temperature)
        single = plan_table(*given, (start,), num_steps=1, left_out=0, workers=chosen.workers, progress=True)
        about = (
            pl.lit(draft).alias("draft"),
            pl.lit(temperature).alias("temperature"),
            pl.lit(start).alias("start"),
        )
        tables.append(
            single.select(*about, pl.col("tree").cast(int).alias("drafts"), pl.exclude("tree", "bound"))
        )
        # What there is so far may be read at any time.
        save(chosen.output, pl.concat(tables), chosen)
    table = pl.concat(tables)
    means = estimate(table, ["draft", "temperature", "drafts", "law", "rule"], ["tokens"], "steps")
    show(pl.DataFrame([way | Estimate.of(of["tokens"]).columns("value") for way, of in means]))
    return table
