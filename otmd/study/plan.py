"""A plan: which drafts to draw, in which tree, and how to verify them, for two models and their prompts.

Each candidate writes its own steps after texts of the target (:mod:`otmd.study.steps`). With a table of
times, candidates are ranked by tokens per second.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import joblib
import numpy as np
import polars as pl

from otmd.laws import Stratified
from otmd.models.prompts import Prompt, prompt_tokens
from otmd.models.tree_reading import Reader
from otmd.probabilities import Processing
from otmd.storage.parquet import read_parquet
from otmd.storage.store import Layout, Store
from otmd.study import jackknife, tree_comparison
from otmd.study.runner import Bar, finish_run, frame, numbered
from otmd.study.steps import LEFT_OUT, NUM_STEPS, Estimate, Walk, lead, over_prompts, take_steps
from otmd.study.table import Cell, Table, wrapped
from otmd.study.tree_comparison import MakeTree
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
    from otmd.study.latency import Latency

LAYOUT = Layout(
    read_parquet,
    pattern=r"prompt-\d+",
    record="plan.json",
    result="plan.parquet",
    subfolder="parts",
)
STARTS = (0, 16)
"""Candidates begin after so many tokens of a text of the target."""

WIDTHS = (1, 2, 4)
"""Paths of a tree: so many drafts at the root, and one after each."""

SCHEMA: dict[str, Any] = {
    **{"domain": str, "prompt_id": str, "law": str, "tree": str, "rule": str},
    **{"tokens": float, "bound": float, "steps": int},
}
NO_DRAFTS = "no drafts"


class Candidate(NamedTuple):
    """A law of trees of one shape, the rules that verify them, and what a step costs.

    ``levels`` and ``budget`` are as :meth:`otmd.study.latency.Latency.step` takes them.
    """

    law: str
    tree: str
    make: MakeTree
    rules: Mapping[str, TreeVerifier]
    levels: tuple[int, ...]
    budget: int = 0


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
        listed.append(Candidate("most likely paths", tree, make, rules, (budget,) * levels, budget))
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
        yield Candidate("one draft", f"chain of {depth}", make, rules, shape)
        return
    tree = f"{paths} paths of {depth}"
    of_trees = {"node by node": SubtreeVerification(), "layer by layer": LayerVerification()}
    yield Candidate(
        "strata",
        tree,
        partial(TokenTree, branching=shape, law=Stratified),
        {"preference": TokenLevel(Preference()), **of_trees},
        shape,
    )
    yield Candidate(
        "strata, adaptive",
        tree,
        partial(AdaptiveTree, quotas=levels),
        of_trees,
        levels,
        paths * depth,
    )
    yield Candidate(
        "without replacement",
        tree,
        partial(TokenTree, branching=shape),
        {"recursive rejection": TokenLevel(RecursiveRejection()), "Traversal": Traversal()},
        shape,
    )
    yield Candidate(
        "independent paths",
        tree,
        partial(IIDPaths, num_paths=paths, depth=depth),
        {"K-SEQ": TokenLevel(KSequential()), "greedy multi-path": GreedyMultiPath()},
        levels,
        paths * depth,
    )


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
    """Let each candidate take steps after texts of the target.

    Parameters
    ----------
    target, draft : str
        Names as :func:`otmd.models.load_target` and :func:`otmd.models.load_draft` take them.
    prompts : sequence of Prompt
        The prompts; at least two.
    output : Path
        The folder of the results; an interrupted run is continued, a finished one is read.
    ways : sequence of Candidate
        Of :func:`candidates`.
    processing : Processing
        From the logits of both models to probabilities. At temperature 0 the draft has temperature 1.
    seed, workers, overwrite, progress
        Of the random numbers; processes, each with both models; whether another run in the folder is
        replaced; whether a progress bar is shown.

    Returns
    -------
    polars.DataFrame
        A row for each prompt, start, law, tree and rule: the sums of ``tokens`` and ``bound`` over the
        ``steps`` that count. ``bound`` is null where the inclusion bound is not known.
    """
    if len(prompts) < 2:
        raise ValueError(f"prompts: got {len(prompts)}, expected at least 2 for an interval")
    about = {"target": target, "draft": draft, "processing": repr(processing), "seed": seed}
    about |= {"prompts": [prompt.id for prompt in prompts]}
    about |= {"candidates": [[way.law, way.tree, *way.rules] for way in ways]}
    store = Store(output, about, LAYOUT, overwrite)

    work = partial(_steps_of, target, draft, tuple(prompts), ways, processing, seed)
    most = min(workers or joblib.cpu_count(), len(prompts))
    jobs = numbered("prompt", prompts)
    return finish_run(work, jobs, store, most, Bar("plan", len(prompts), progress))


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


class Row(NamedTuple):
    """A candidate's place in a ranking; per second with a table of times, else per step."""

    law: str
    tree: str
    rule: str
    tokens: Estimate
    bound: float | None
    seconds: float | None
    lead: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def value(self) -> float:
        """Tokens per second, or per step without times."""
        return self.tokens.value / (self.seconds or 1.0)

    @property
    def name(self) -> str:
        """Law, tree and rule in words."""
        return f"{self.law}, {self.tree}, {self.rule}" if self.tree else self.law

    def to_dict(self) -> dict[str, Any]:
        """Numbers for JSON."""
        shown = {"law": self.law, "tree": self.tree, "rule": self.rule, "bound": self.bound}
        shown |= {"tokens": self.tokens.value, "low": self.tokens.low, "high": self.tokens.high}
        if self.seconds is not None:
            shown["tokens_per_second"] = self.value
        return shown | dict(zip(("lead", "lead_low", "lead_high"), self.lead, strict=True))


def rank(
    table: pl.DataFrame, ways: Sequence[Candidate], latency: Latency | None = None
) -> list[Row]:
    """Rank the candidates of :func:`plan_table`, the best first; with times, the target alone among them."""
    costs = {(way.law, way.tree): way for way in ways}
    prompts = table.select("domain", "prompt_id").unique(maintain_order=True)
    by = table.group_by("law", "tree", "rule", maintain_order=True)
    rows = []
    for (law, tree, rule), part in by:
        sums = part.group_by("domain", "prompt_id").agg(pl.col("tokens", "steps").sum())
        sums = prompts.join(sums, on=["domain", "prompt_id"], how="left", maintain_order="left")
        tokens, steps = sums.select(pl.col("tokens", "steps").fill_null(0).cast(float)).to_numpy().T
        bound = None if part["bound"].has_nulls() else part["bound"].sum() / steps.sum()
        way = costs[str(law), str(tree)]
        seconds = latency.step(way.levels, way.budget) if latency else None
        estimate = over_prompts(tokens, steps)
        rows.append(Row(str(law), str(tree), str(rule), estimate, bound, seconds))
    if latency:
        alone = Estimate(1.0, 1.0, 1.0, np.ones(prompts.height))
        rows.append(Row(NO_DRAFTS, "", "", alone, None, latency.alone))
    rows.sort(key=lambda row: -row.value)
    return [row._replace(lead=_lead(rows[0], row)) for row in rows]


def _lead(best: Row, row: Row) -> tuple[float, float, float]:
    """By which share the best row exceeds another."""
    shares = lead(best.tokens, row.tokens)
    cost = (row.seconds or 1.0) / (best.seconds or 1.0)
    return tuple((1.0 + share) * cost - 1.0 for share in shares)  # type: ignore[return-value]


def decision(rows: Sequence[Row]) -> list[str]:
    """Say what to take, and which others this plan does not tell apart from it."""
    best = rows[0]
    if best.law == NO_DRAFTS:
        second = rows[1]
        said = (
            f"Do not draft: the target alone writes {best.value:.1f} tokens per second; {second.name}: "
            f"{second.value:.1f}."
        )
    else:
        ends = f"[{best.tokens.low:.2f}, {best.tokens.high:.2f}]"
        said = f"Take {best.name}: {best.tokens.value:.2f} tokens per step {ends}"
        said += f", {best.value:.1f} tokens per second." if best.seconds else "."
        if best.bound is not None:
            said += f" The bound of any lossless rule with these drafts: {best.bound:.2f}."
    others = [row.name for row in rows[1:] if row.lead[1] <= 0.0]
    sentences = [said]
    if others:
        more = f"; and {len(others) - 3} more" if len(others) > 3 else ""
        sentences.append(f"Perhaps as good: {'; '.join(others[:3])}{more}.")
    prompts = best.tokens.without.size
    if prompts < jackknife.FEW_PROMPTS:
        sentences.append(f"{prompts} prompts are few: their intervals may be too narrow.")
    return sentences


def ranking_table(rows: Sequence[Row], title: str) -> Table:
    """The table of a ranking."""
    heads = ["drafts, tree and rule", "tokens\nper step", "low", "high", "bound of\nany rule"]
    timed = rows[0].seconds is not None
    heads += ["tokens\nper second"] * timed + ["best\nleads by"]
    cells: list[Sequence[Cell]] = [
        [row.name, row.tokens.value, row.tokens.low, row.tokens.high, row.bound]
        + [row.value] * timed
        + [f"{100 * row.lead[0]:.1f}%{' *' * (row.lead[1] > 0)}"]
        for row in rows
    ]
    note = (
        f"Means over {NUM_STEPS - LEFT_OUT} steps at each start, the first {LEFT_OUT} left out; 95% "
        "intervals over prompts. *: the interval of the lead, on the same prompts, excludes 0. Estimates on "
        "drawn trees: a rule may lie above its bound through noise."
    )
    return Table(title, heads, cells, wrapped(note), interval=("tokens\nper step", "low", "high"))
