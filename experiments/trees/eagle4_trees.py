"""EAGLE-4's trees at T > 0, compared with strata and with independent paths of as many drafts.

    python -m experiments eagle4_trees

A plug-in of EAGLE-4 (eagle-harness 0.1.3) draws up to eight children of a node without replacement. The score
of the i-th is the i-th largest q there, whatever its token, times the score of the node. On each level the
eight nodes of the largest scores get children. The best drafts of the whole tree are kept, and verified token
by token. Another tree keeps the best drafts of each level. ``docs/theory_trees.md`` says which rules are
lossless for which. Every rule writes after each prompt, by steps of its own (:mod:`otmd.study.steps`).
"""

from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import polars as pl

from experiments.runner import Task, require, run, show
from experiments.texts import all_prompts, load_models
from otmd import Processing
from otmd.laws import Stratified
from otmd.models import DEFAULT_DRAFT, DOMAINS, LanguageModel, load_prompts
from otmd.models.continuations import Reader, branches
from otmd.models.packing import pack_weights
from otmd.models.prompts import prompt_tokens
from otmd.study.estimate import Estimate, estimate
from otmd.study.plan import Candidate
from otmd.study.steps import Walk, take_steps
from otmd.testing.trees import CutDrafts, CutTree
from otmd.trees import IIDPaths, LayerVerification, TokenLevel, TokenTree, Traversal
from otmd.trees.adaptive import GrownTree
from otmd.trees.base import Model, Prefix
from otmd.trees.random_choices import Sampled
from otmd.verifiers import RecursiveRejection

NUM_STEPS, LEFT_OUT = 6, 2
"""Steps from the end of a prompt, and how many of them are not counted."""

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

    def grow(self, tree: GrownTree) -> Iterator[list[Prefix]]:
        """Draw a tree level by level."""
        assert isinstance(tree, CutDrafts)
        best = partial(sorted, key=lambda draft: -draft[0])
        kept: list[tuple[float, Prefix]] = []
        level: dict[Prefix, float] = {(): 1.0}
        for depth in range(self.depth):
            yield list(level)
            drafts = []
            for node, score in level.items():
                leaf = tree.leaf(node, score)
                largest = np.sort(leaf.draft_probs)[::-1][: min(self.width, leaf.num_tokens)]
                drafts += [(score * float(q), node) for q in largest]
            # Scores fall along a path, so what is not kept now would be dropped in the end. Of equal scores
            # the first are kept: a parent before its children.
            kept += best(drafts)[: self.width] if self.by_layer else drafts
            kept = best(kept)[: self.budget]
            new = [(score, node) for score, node in kept if len(node) == depth]
            tokens = {node: iter(tree.draw(node, n).tokens) for node, n in Counter(v for _, v in new).items()}
            level = {(*node, int(next(tokens[node]))): score for score, node in new[: self.width]}
            if not level:
                break
        tree.keep(Counter(node for _, node in kept))


def candidates(paths: int, depth: int) -> Iterator[Candidate]:
    """Every law of so many drafts, with the rules that are lossless for the law."""
    by_node = {"token by token": TokenLevel(RecursiveRejection()), "Traversal": Traversal()}
    by_level = by_node | {"layer by layer": LayerVerification(RecursiveRejection())}
    pooled = {"layer by layer": LayerVerification()}
    drafts = paths * depth
    of = partial(Candidate, tree=f"{drafts} drafts", levels=(paths,) * depth, budget=drafts)
    yield of("cut as a whole", partial(OrderStatistics, budget=drafts, depth=DEPTH, width=WIDTH), by_node)
    levels = partial(OrderStatistics, budget=drafts, depth=depth, width=paths, by_layer=True)
    yield of("cut by level", levels, by_level)
    strata = partial(TokenTree, branching=(paths, *[1] * (depth - 1)), law=Stratified)
    yield of("strata", strata, pooled)
    yield of("independent paths", partial(IIDPaths, num_paths=paths, depth=depth), pooled)


@cache
def loaded(draft: str) -> tuple[LanguageModel, LanguageModel]:
    """The target and a draft, with weights packed for a CPU."""
    target, [drafting] = load_models("default", [draft])
    assert isinstance(drafting, LanguageModel), f"drafts: got {draft}, expected a language model"
    return pack_weights(target), pack_weights(drafting)


def prompt_rows(
    rng: np.random.Generator, draft: str, temperature: float, domain: str, prompt_id: str
) -> Iterator[dict[str, Any]]:
    """Sums over the counted steps of every law and rule after a prompt."""
    target, drafting = loaded(draft)
    before = prompt_tokens(target.tokenizer, all_prompts((domain,), 0)[prompt_id])
    step, seed = Processing(temperature), int(rng.integers(2**32))
    for shape in SHAPES:
        ways = [(way, rule) for way in candidates(*shape) for rule in way.rules]
        texts = [branches(model, [before] * len(ways)) for model in (target, drafting)]
        walks = []
        for (way, rule), *both in zip(ways, *texts, strict=True):
            readers = [Reader(text, step, target.token_count) for text in both]
            choices = Sampled(np.random.default_rng(seed))
            walks.append(Walk(way.make, way.rules[rule], readers[0], readers[1], choices))
        by_walk = take_steps(walks, NUM_STEPS, LEFT_OUT, target.stop_tokens)
        for (way, rule), sums in zip(ways, by_walk, strict=True):
            about = {"drafts": way.budget, "law": way.law, "rule": rule}
            yield about | {"tokens": sums.tokens, "steps": sums.steps}


def tasks_of(chosen: Namespace) -> list[Task]:
    """A task for each pair, temperature and prompt."""
    require(min(chosen.temperatures) > 0, "temperatures", chosen.temperatures, "numbers above 0")
    prompts = load_prompts(list(DOMAINS), chosen.prompts, 0, progress=False)
    return [
        {"draft": draft, "temperature": temperature, "domain": prompt.domain, "prompt_id": prompt.id}
        for draft in chosen.drafts
        for temperature in chosen.temperatures
        for prompt in prompts
    ]


def main(arguments: list[str]) -> pl.DataFrame:
    """Measure what is missing, and print the tokens per step."""
    grid: dict[str, Any] = {"prompts": 8, "drafts": (DEFAULT_DRAFT, "skip:15"), "temperatures": (1.0, 0.6)}
    table = run(prompt_rows, arguments, 60.0, tasks_of, workers=1, **grid)
    means = estimate(table, ["draft", "temperature", "drafts", "law", "rule"], ["tokens"], "steps")
    show(pl.DataFrame([way | Estimate.of(of["tokens"]).columns("value") for way, of in means]))
    return table
