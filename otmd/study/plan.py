"""A plan: which drafts to draw, in which tree, and how to verify them, for two models and their prompts.

Each candidate writes its own steps after texts of the target (:mod:`otmd.study.steps`). With a table of
times, candidates are ranked by tokens per second.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from otmd.laws import Stratified
from otmd.models.prompts import Prompt, prompt_tokens
from otmd.models.tree_reading import Reader
from otmd.probabilities import Processing
from otmd.storage.parquet import read_parquet
from otmd.storage.store import Layout, Store
from otmd.study.runner import Bar, frame, run_study
from otmd.study.steps import LEFT_OUT, NUM_STEPS, MakeTree, Walk, take_steps
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
    TreeVerifier,
)
from otmd.trees.random_choices import Sampled
from otmd.verifiers import KSequential, Preference, RecursiveRejection, TargetOnly

if TYPE_CHECKING:
    from otmd.models import Draft, LanguageModel

STARTS = (0, 16)
"""Candidates begin after so many tokens of a text of the target."""

WIDTHS = (1, 2, 4)
"""Paths of a tree: so many drafts at the root, and one after each."""

RESULT = "plan.parquet"
LAYOUT = Layout(
    read_parquet, pattern=r"part-\d+", record="plan.json", result=RESULT, subfolder="parts"
)
SCHEMA: dict[str, Any] = {
    **{"domain": str, "prompt_id": str, "law": str, "tree": str, "rule": str},
    **{"tokens": float, "bound": float, "steps": int},
}
MEANS = f"Means over {NUM_STEPS - LEFT_OUT} steps at each start, the first {LEFT_OUT} left out; "
"""The meaning of the values of a plan."""


class Candidate(NamedTuple):
    """A law of draft trees, made from the draft model, and the rules that verify its trees, by name.

    ``tree`` says its shape; ``levels`` and ``budget`` what a step costs, as
    :meth:`otmd.study.latency.Latency.step` takes them.
    """

    law: str
    make: MakeTree
    rules: Mapping[str, TreeVerifier]
    tree: str
    levels: tuple[int, ...]
    budget: int = 0


def candidates(
    budgets: Sequence[int], depth: int, temperature: float, widths: Sequence[int] = WIDTHS
) -> list[Candidate]:
    """The candidates whose trees hold at most ``budgets`` tokens, and are at most ``depth`` long.

    At temperature 0 the draft's most likely tokens are drafted, since a sampled tree is a single path there.
    """
    listed: list[Candidate] = []
    for budget in sorted(budgets):
        levels = min(budget, depth)
        make = partial(MostLikelyTree, budget=budget, depth=levels, width=min(budget, 10))
        rules = {"target only": TokenLevel(TargetOnly())}
        shape = (budget,) * levels
        listed.append(Candidate("most likely paths", make, rules, f"{budget} nodes", shape, budget))
        if temperature > 0.0:
            for paths in widths:
                if paths <= budget:
                    listed += _sampled(paths, min(budget // paths, depth))
    return list({(way.law, way.tree): way for way in listed}.values())


def _sampled(paths: int, depth: int) -> Iterator[Candidate]:
    """Candidates that sample so many paths."""
    shape, levels = (paths, *[1] * (depth - 1)), (paths,) * depth
    without = partial(TokenTree, branching=shape)
    if paths == 1:
        rules = {"token by token": TokenLevel(Preference()), "block": BlockVerification()}
        yield Candidate("one draft", without, rules, f"chain of {depth}", shape)
        return
    tree = f"{paths} paths of {depth}"
    of_trees = {"node by node": SubtreeVerification(), "layer by layer": LayerVerification()}
    strata = partial(TokenTree, branching=shape, law=Stratified)
    rules = {"preference": TokenLevel(Preference()), **of_trees}
    yield Candidate("strata", strata, rules, tree, shape)
    drafts = paths * depth
    adaptive = partial(AdaptiveTree, quotas=levels)
    yield Candidate("strata, adaptive", adaptive, of_trees, tree, levels, drafts)
    rules = {"recursive rejection": TokenLevel(RecursiveRejection()), "Traversal": Traversal()}
    yield Candidate("without replacement", without, rules, tree, shape)
    independent = partial(IIDPaths, num_paths=paths, depth=depth)
    rules = {"K-SEQ": TokenLevel(KSequential()), "greedy multi-path": GreedyMultiPath()}
    rules |= {"layer by layer": LayerVerification()}
    yield Candidate("independent paths", independent, rules, tree, levels, drafts)


def plan_table(
    target: str,
    draft: str,
    prompts: Sequence[Prompt],
    output: Path,
    ways: Sequence[Candidate],
    processing: Processing,
    starts: Sequence[int] = STARTS,
    num_steps: int = NUM_STEPS,
    left_out: int = LEFT_OUT,
    seed: int = 0,
    workers: int | None = None,
    overwrite: bool = False,
    progress: bool = False,
) -> pl.DataFrame:
    """Let each candidate of :func:`candidates` take steps after texts of the target.

    They begin after each of ``starts`` tokens; steps are as for :func:`otmd.study.steps.take_steps`. There is
    a row for each prompt, start, law, tree and rule: the sums of ``tokens`` and ``bound`` over the ``steps``
    that count. ``bound`` is null where the inclusion bound is not known. At temperature 0 the draft has
    temperature 1. An interrupted run in ``output`` is continued, a finished one is read.
    """
    if len(prompts) < 2:
        raise ValueError(f"prompts: got {len(prompts)}, expected at least 2 for an interval")
    about = {"target": target, "draft": draft, "processing": repr(processing), "seed": seed}
    about |= {"starts": [*starts], "num_steps": num_steps, "left_out": left_out}
    about |= {"prompts": [prompt.id for prompt in prompts]}
    about |= {"candidates": [[way.law, way.tree, *way.rules] for way in ways]}
    steps = partial(take_steps, num_steps=num_steps, left_out=left_out)
    work = partial(_rows, target, draft, tuple(prompts), ways, processing, starts, steps, seed)
    jobs = {f"part-{i:06d}": prompt for i, prompt in enumerate(prompts)}
    store = Store(output, about, LAYOUT, overwrite)
    return run_study(work, jobs, store, workers, Bar("steps after prompts", len(jobs), progress))


@cache
def loaded_pair(
    target: str, draft: str, prompts: tuple[Prompt, ...]
) -> tuple[LanguageModel, Draft]:
    """Both models of a process; an n-gram draft is fitted on texts that are not among the prompts."""
    # A finished run is read without torch.
    import torch

    from otmd.models import load_draft, load_target
    from otmd.models.collection import held_out_corpus

    torch.set_num_threads(1)
    model = load_target(target, progress=False)
    corpus = held_out_corpus(draft, model, prompts, progress=False)
    return model, load_draft(draft, model, corpus)


def _rows(
    target: str,
    draft: str,
    prompts: tuple[Prompt, ...],
    ways: Sequence[Candidate],
    processing: Processing,
    starts: Sequence[int],
    steps: Any,
    seed: int,
    prompt: Prompt,
) -> pl.DataFrame:
    """The rows of a prompt."""
    from otmd.models import decode
    from otmd.models.continuations import branches

    models = loaded_pair(target, draft, prompts)
    both = processing, processing if processing.temperature else Processing()
    size, stops = models[0].token_count, models[0].stop_tokens
    tokens = prompt_tokens(models[0].tokenizer, prompt)
    key = [seed, zlib.crc32(prompt.id.encode())]
    text: Sequence[int] = []
    if max(starts):
        text = decode(models[0], tokens, max(starts), processing=processing, rng=key).tokens
    named = [(way, name) for way in ways for name in way.rules]
    rows = []
    for start in starts:
        if start > len(text) or stops & {*text[:start]}:
            continue
        begun, seeds = [[*tokens, *text[:start]]] * len(named), [*key, start]
        targets, drafts = (
            [Reader(after, step, size) for after in branches(model, begun)]
            for model, step in zip(models, both, strict=True)
        )
        walks = [
            Walk(way.make, way.rules[name], reading, writing, Sampled(np.random.default_rng(seeds)))
            for (way, name), reading, writing in zip(named, targets, drafts, strict=True)
        ]
        about = {"domain": prompt.domain, "prompt_id": prompt.id}
        for (way, name), sums in zip(named, steps(walks, stop_tokens=stops), strict=True):
            rows.append(about | {"law": way.law, "tree": way.tree, "rule": name} | sums._asdict())
    return frame(rows, schema=SCHEMA)
