"""A plan: which drafts to draw, in which tree, and how to verify them, for two models and their prompts.

Each candidate writes its own steps after texts of the target (:mod:`otmd.study.steps`). With a table of
times, candidates are ranked by tokens per second.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from otmd.laws import Stratified
from otmd.models.continuations import Reader
from otmd.models.prompts import Prompt, prompt_tokens
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

SHORT = (1, 2, 4)
"""Budgets of short drafts: per second they may yield more than longer ones, per step they do not."""

TOGETHER = 4
"""So many prompts are read together before a single step."""

RESULT = "plan.parquet"
LAYOUT = Layout(read_parquet, pattern=r"part-\d+", record="plan.json", result=RESULT, subfolder="parts")
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
    budgets: Sequence[int],
    depth: int,
    temperature: float,
    widths: Sequence[int] = WIDTHS,
    short: Sequence[int] = (),
) -> list[Candidate]:
    """The candidates whose trees hold at most ``budgets`` tokens, and are at most ``depth`` long.

    Of the budgets ``short`` below both, there are chains and most likely paths alone. At temperature 0 the
    draft's most likely tokens are drafted, since a sampled tree is a single path there.
    """
    listed: list[Candidate] = []
    below = {budget for budget in short if budget < min(max(budgets), depth)}
    for budget in sorted({*budgets} | below):
        levels = min(budget, depth)
        make = partial(MostLikelyTree, budget=budget, depth=levels, width=min(budget, 10))
        rules = {"target only": TokenLevel(TargetOnly())}
        shape = (budget,) * levels
        listed.append(Candidate("most likely paths", make, rules, f"{budget} nodes", shape, budget))
        if temperature > 0.0:
            for paths in widths if budget in budgets else [1]:
                if paths <= budget:
                    listed += _sampled(paths, min(budget // paths, depth))
    return list({(way.law, way.tree): way for way in listed}.values())


def _sampled(paths: int, depth: int) -> Iterator[Candidate]:
    """Candidates that sample so many paths."""
    shape, levels = (paths, *[1] * (depth - 1)), (paths,) * depth
    without = partial(TokenTree, branching=shape)
    if paths == 1:
        rules = {"position by position": TokenLevel(Preference())}
        # With one draft, block verification is the same rule.
        rules |= {"block": BlockVerification()} if depth > 1 else {}
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
    yield Candidate("sampled paths", independent, rules, tree, levels, drafts)


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
    models = target, draft, tuple(prompts)
    work = partial(_rows, models, ways, processing, starts, num_steps, left_out, seed)
    # A call of a model costs little more for more texts, but later steps have a text for each candidate.
    together = TOGETHER if num_steps == 1 else 1
    parts = range(0, len(prompts), together)
    jobs = {f"part-{i:06d}": prompts[i : i + together] for i in parts}
    store = Store(output, about, LAYOUT, overwrite)
    return run_study(work, jobs, store, workers, Bar("draft trees", len(jobs), progress))


@cache
def loaded_pair(target: str, draft: str, prompts: tuple[Prompt, ...]) -> tuple[LanguageModel, Draft]:
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
    models: tuple[str, str, tuple[Prompt, ...]],
    ways: Sequence[Candidate],
    processing: Processing,
    starts: Sequence[int],
    num_steps: int,
    left_out: int,
    seed: int,
    prompts: Sequence[Prompt],
) -> pl.DataFrame:
    """The rows of some prompts, whose trees each model reads together."""
    from otmd.models import decode
    from otmd.models.continuations import branches

    pair = loaded_pair(*models)
    both = processing, processing if processing.temperature else Processing()
    stops = pair[0].stop_tokens
    begun = []
    for prompt in prompts:
        tokens, text = prompt_tokens(pair[0].tokenizer, prompt), []
        if max(starts):
            key = [seed, zlib.crc32(prompt.id.encode())]
            text = decode(pair[0], tokens, max(starts), processing=processing, rng=key).tokens
        begun.append((prompt, tokens, text))
    named = [(way, name) for way in ways for name in way.rules]
    # Before a single step all candidates read the same text, then each reads its own.
    copies = len(named) if num_steps > 1 else 1
    rows = []
    for start in starts:
        at = [
            (prompt, [*tokens, *text[:start]])
            for prompt, tokens, text in begun
            if start <= len(text) and not stops & {*text[:start]}
        ]
        texts = [text for _, text in at for _ in range(copies)]
        targets, drafts = (
            [Reader(after, step, pair[0].token_count) for after in branches(model, texts)]
            for model, step in zip(pair, both, strict=True)
        )
        walks = []
        for i, (prompt, _) in enumerate(at):
            seeds = [seed, zlib.crc32(prompt.id.encode()), start]
            for j, (way, name) in enumerate(named):
                reader = i * copies + min(j, copies - 1)
                choices = Sampled(np.random.default_rng(seeds))
                walks.append(Walk(way.make, way.rules[name], targets[reader], drafts[reader], choices))
        by_walk = take_steps(walks, num_steps, left_out, stops)
        for ((prompt, _), (way, name)), sums in zip(product(at, named), by_walk, strict=True):
            about = {"domain": prompt.domain, "prompt_id": prompt.id}
            about |= {"law": way.law, "tree": way.tree, "rule": name}
            rows.append(about | sums._asdict())
    return frame(rows, schema=SCHEMA)
