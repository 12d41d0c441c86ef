"""A plan: which drafts to draw, in which tree, and how to verify them, for two models and their prompts.

Each candidate writes its own steps after texts of the target (:mod:`otmd.study.steps`). With a table of
times, candidates are ranked by tokens per second.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from otmd.laws import Stratified
from otmd.models.continuations import Reader
from otmd.models.prompts import Prompt, prompt_tokens
from otmd.probabilities import Processing
from otmd.study import tree_comparison
from otmd.study.runner import frame, run_study
from otmd.study.steps import LEFT_OUT, NUM_STEPS, Walk, take_steps
from otmd.study.tree_comparison import Candidate
from otmd.trees import (
    AdaptiveTree,
    BlockVerification,
    GreedyMultiPath,
    IIDPaths,
    LayerVerification,
    MostLikelyTree,
    SubtreeVerification,
    TokenLevel,
    TokenTree,
    Traversal,
)
from otmd.trees.random_choices import Sampled
from otmd.verifiers import KSequential, Preference, RecursiveRejection, TargetOnly

STARTS = (0, 16)
"""Candidates begin after so many tokens of a text of the target."""

WIDTHS = (1, 2, 4)
"""Paths of a tree: so many drafts at the root, and one after each."""

SCHEMA: dict[str, Any] = {
    **{"domain": str, "prompt_id": str, "law": str, "tree": str, "rule": str},
    **{"tokens": float, "bound": float, "steps": int},
}
MEANS = f"Means over {NUM_STEPS - LEFT_OUT} steps at each start, the first {LEFT_OUT} left out; "
"""The meaning of the values of a plan."""


def candidates(budgets: Sequence[int], depth: int, temperature: float) -> list[Candidate]:
    """The candidates whose trees hold at most ``budgets`` tokens, and are at most ``depth`` long.

    At temperature 0 the draft's most likely tokens are drafted, since a sampled tree is a single path there.
    """
    listed: list[Candidate] = []
    for budget in sorted(budgets):
        levels, width = min(budget, depth), min(budget, 10)
        make = partial(MostLikelyTree, budget=budget, depth=levels, width=width)
        rules = {"target only": TokenLevel(TargetOnly())}
        tree = f"{budget} nodes"
        shape = (budget,) * levels
        listed.append(Candidate("most likely paths", make, rules, tree, shape, budget))
        if temperature > 0.0:
            for paths in WIDTHS:
                if paths <= budget:
                    listed += _sampled(paths, min(budget // paths, depth))
    return list({(way.law, way.tree): way for way in listed}.values())


def _sampled(paths: int, depth: int) -> Iterator[Candidate]:
    """Candidates that sample so many paths."""
    shape, levels = (paths, *[1] * (depth - 1)), (paths,) * depth
    if paths == 1:
        rules = {"token by token": TokenLevel(Preference()), "block": BlockVerification()}
        make = partial(TokenTree, branching=shape)
        yield Candidate("one draft", make, rules, f"chain of {depth}", shape)
        return
    tree = f"{paths} paths of {depth}"
    of_trees = {"node by node": SubtreeVerification(), "layer by layer": LayerVerification()}
    strata = partial(TokenTree, branching=shape, law=Stratified)
    rules = {"preference": TokenLevel(Preference()), **of_trees}
    yield Candidate("strata", strata, rules, tree, shape)
    drafts = paths * depth
    adaptive = partial(AdaptiveTree, quotas=levels)
    yield Candidate("strata, adaptive", adaptive, of_trees, tree, levels, drafts)
    without = partial(TokenTree, branching=shape)
    rules = {"recursive rejection": TokenLevel(RecursiveRejection()), "Traversal": Traversal()}
    yield Candidate("without replacement", without, rules, tree, shape)
    independent = partial(IIDPaths, num_paths=paths, depth=depth)
    rules = {"K-SEQ": TokenLevel(KSequential()), "greedy multi-path": GreedyMultiPath()}
    yield Candidate("independent paths", independent, rules, tree, levels, drafts)


def plan_table(
    target: str,
    draft: str,
    prompts: Sequence[Prompt],
    output: Path,
    ways: Sequence[Candidate],
    processing: Processing,
    seed: int = 0,
    workers: int | None = None,
    overwrite: bool = False,
    progress: bool = False,
) -> pl.DataFrame:
    """Let each candidate of :func:`candidates` take steps after texts of the target.

    There is a row for each prompt, start, law, tree and rule: the sums of ``tokens`` and ``bound`` over the
    ``steps`` that count. ``bound`` is null where the inclusion bound is not known. At temperature 0 the
    draft has temperature 1. An interrupted run in ``output`` is continued, a finished one is read.
    """
    if len(prompts) < 2:
        raise ValueError(f"prompts: got {len(prompts)}, expected at least 2 for an interval")
    about = {"target": target, "draft": draft, "processing": repr(processing), "seed": seed}
    about |= {"prompts": [prompt.id for prompt in prompts]}
    about |= {"candidates": [[way.law, way.tree, *way.rules] for way in ways]}
    work = partial(_steps_of, target, draft, tuple(prompts), ways, processing, seed)
    return run_study("plan", work, prompts, output, about, workers, overwrite, progress)


def _steps_of(
    target: str,
    draft: str,
    prompts: tuple[Prompt, ...],
    ways: Sequence[Candidate],
    processing: Processing,
    seed: int,
    prompt: Prompt,
) -> pl.DataFrame:
    """The rows of a prompt."""
    from otmd.models import decode
    from otmd.models.continuations import branches

    models = tree_comparison.loaded_pair(target, draft, prompts)
    drafting = processing if processing.temperature else Processing()
    size, stops = models[0].token_count, sorted(models[0].stop_tokens)
    tokens = prompt_tokens(models[0].tokenizer, prompt)
    key = [seed, zlib.crc32(prompt.id.encode())]
    text = decode(models[0], tokens, max(STARTS), processing=processing, rng=key).tokens
    named = [(way, name) for way in ways for name in way.rules]
    about = {"domain": prompt.domain, "prompt_id": prompt.id}
    rows = []
    for start in STARTS:
        if start > len(text) or not set(stops).isdisjoint(text[:start]):
            continue
        begun = [[*tokens, *text[:start]]] * len(named)
        reading = [Reader(at, processing, size) for at in branches(models[0], begun)]
        writing = [Reader(at, drafting, size) for at in branches(models[1], begun)]
        walks = []
        for (way, name), after, drafting_after in zip(named, reading, writing, strict=True):
            choices = Sampled(np.random.default_rng([*key, start]))
            walks.append(Walk(way.make, way.rules[name], after, drafting_after, choices))
        for (way, name), sums in zip(named, take_steps(walks, stop_tokens=stops), strict=True):
            rows.append(about | {"law": way.law, "tree": way.tree, "rule": name} | sums._asdict())
    return frame(rows, schema=SCHEMA)
