"""A ranking of draft laws, trees and rules by tokens per step or second, its decision and its table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from otmd.probabilities import wrong
from otmd.study.estimate import PROMPT, Estimate, estimate, few_prompts
from otmd.study.table import Cell, Table, wrapped

if TYPE_CHECKING:
    from otmd.study.latency import Latency
    from otmd.study.plan import Candidate

NO_DRAFTS = "no drafts"
WAY = ["law", "tree", "rule"]
TOKEN_LEVEL = ("position by position", "preference", "recursive rejection", "K-SEQ")
"""Rules of one position, over which the decision gives the lead of the best."""

MOST_NAMED = 3
"""So many candidates are named that may be as good as the best."""


def rank(
    table: pl.DataFrame, latency: Latency | None = None, candidates: Sequence[Candidate] = ()
) -> pl.DataFrame:
    """Rank draft laws, trees and rules by tokens per step, with intervals over prompts.

    Parameters
    ----------
    table : polars.DataFrame
        ``plan.parquet`` of ``otmd plan``: ``domain``, ``prompt_id``, ``law``, ``tree``, ``rule``, and the
        sums of ``tokens`` and ``bound`` over ``steps``.
    latency : Latency, optional
        A table of times: then the ranking is by tokens per second, the target alone in it.
    candidates : sequence of Candidate
        Those of the table, whose steps cost time.

    Returns
    -------
    polars.DataFrame
        The best first: ``law``, ``tree`` and ``rule``; ``tokens`` per step with its ends ``low`` and
        ``high``; ``bound``, null where it is not known; with times ``tokens_per_second``; the share by which
        the best exceeds the row on the same prompts, ``lead`` with ``lead_low`` and ``lead_high``; the number
        of ``prompts``.

    Raises
    ------
    ValueError
        For rows of fewer than two prompts.
    """
    prompts = table.select(PROMPT).n_unique()
    if prompts < 2:
        raise wrong("table", f"rows of {prompts} prompts", "at least two, for intervals")
    # The sum of a null is 0, and that of a NaN NaN.
    summable = table.with_columns(pl.col("bound").fill_null(math.nan))
    ranked = [
        (row, means["tokens"], means["bound"][0])
        for row, means in estimate(summable, WAY, ["tokens", "bound"], "steps")
    ]
    seconds = [1.0] * len(ranked)
    if latency:
        shapes = {(way.law, way.tree): (way.levels, way.budget) for way in candidates}
        seconds = [latency.step(*shapes[row["law"], row["tree"]]) for row, _, _ in ranked]
        alone = {"law": NO_DRAFTS, "tree": "", "rule": ""}
        ranked.append((alone, np.ones(prompts + 1), math.nan))
        seconds.append(latency.alone)
    speeds = [tokens / cost for (_, tokens, _), cost in zip(ranked, seconds, strict=True)]
    best = max(speeds, key=lambda speed: speed[0])
    rows = [
        row
        | Estimate.of(tokens).columns("tokens")
        | {"bound": None if math.isnan(bound) else bound}
        | ({"tokens_per_second": speed[0]} if latency else {})
        | Estimate.of(best / speed - 1.0).columns("lead", "lead_")
        | {"prompts": prompts}
        for (row, tokens, bound), speed in zip(ranked, speeds, strict=True)
    ]
    return pl.DataFrame(rows, infer_schema_length=None).sort("lead", maintain_order=True)


def held_out(
    table: pl.DataFrame, latency: Latency | None = None, candidates: Sequence[Candidate] = ()
) -> float:
    """The value of the best on half of the prompts, measured on the rest: the mean of both ways.

    On the prompts on which it was chosen, the value of the best of many candidates is biased upwards.
    Parameters are those of :func:`rank`; values are tokens per second with times, else per step. NaN for
    fewer than four prompts, or if the best has no row on the rest.
    """
    prompts = table.select(PROMPT).unique().sort(PROMPT).with_row_index("half")
    if len(prompts) < 4:
        return math.nan
    split = table.join(prompts.with_columns(pl.col("half") % 2), on=PROMPT)
    first, second = (rank(split.filter(half=half).drop("half"), latency, candidates) for half in (0, 1))
    value = "tokens_per_second" if latency else "tokens"
    values = []
    for chosen, measured in ((first, second), (second, first)):
        best = chosen.row(0, named=True)
        there = measured.filter(**{name: best[name] for name in WAY})
        values.append(there[value][0] if len(there) else math.nan)
    return float(np.mean(values))


def decision(ranked: pl.DataFrame, on_the_rest: float = math.nan) -> list[str]:
    """Say what to take, and which others this ranking does not tell apart from it.

    ``on_the_rest`` is what :func:`held_out` says of the same table.
    """
    best, *others = ranked.to_dicts()
    if best["law"] == NO_DRAFTS:
        said = (
            f"Do not draft: the target alone writes {best['tokens_per_second']:.1f} tokens per second; "
            f"{_name(others[0])}: {others[0]['tokens_per_second']:.1f}."
        )
    else:
        said = f"Take {_name(best)}: {best['tokens']:.2f} tokens per step"
        said += f" [{best['low']:.2f}, {best['high']:.2f}]"
        per_second = best.get("tokens_per_second")
        said += f", {per_second:.1f} tokens per second." if per_second else "."
        for row in others:
            same_trees = (row["law"], row["tree"]) == (best["law"], best["tree"])
            if same_trees and row["rule"] in TOKEN_LEVEL:
                lead, low, high = (100 * row[f"lead{end}"] for end in ("", "_low", "_high"))
                said += f" {lead:+.1f}% [{low:+.1f}, {high:+.1f}] over {row['rule']}."
        if best["bound"] is not None:
            said += f" Estimated bound of any lossless rule with these drafts: {best['bound']:.2f}."
    alike = [_name(row) for row in others if row["lead_low"] <= 0.0]
    sentences = [said]
    if not math.isnan(on_the_rest):
        unit = "second" if "tokens_per_second" in best else "step"
        sentences.append(
            f"Chosen on half of the prompts, the best yields {on_the_rest:.2f} tokens per {unit} on the rest."
        )
    if alike:
        left = len(alike) - MOST_NAMED
        more = f"; and {left} more" * (left > 0)
        sentences.append(f"Perhaps as good: {'; '.join(alike[:MOST_NAMED])}{more}.")
    return sentences + few_prompts(best["prompts"])


def ranking_table(ranked: pl.DataFrame, title: str, note: str) -> Table:
    """The table of a ranking; ``note`` says what its values are means of."""
    value = "tokens\nper step"
    heads = ["drafts, tree and rule", value, "low", "high", "upper\nbound"]
    timed = ["tokens_per_second"] * ("tokens_per_second" in ranked.columns)
    heads += ["tokens\nper second"] * len(timed) + ["best\nleads by"]
    numbers = ("tokens", "low", "high", "bound", *timed)
    cells: list[Sequence[Cell]] = []
    for row in ranked.iter_rows(named=True):
        lead = f"{100 * row['lead']:.1f}%{' *' * (row['lead_low'] > 0)}"
        cells.append([_name(row), *(row[name] for name in numbers), lead])
    note += (
        f"95% intervals over {ranked['prompts'][0]} prompts. *: the interval of the lead, on the same "
        "prompts, excludes 0. Estimates on drawn trees: a rule may lie above its bound through noise."
    )
    return Table(title, heads, cells, wrapped(note), interval=(value, "low", "high"))


def _name(row: dict[str, Any]) -> str:
    """Law, tree and rule in few words."""
    return ", ".join(filter(None, (row[name] for name in WAY)))
