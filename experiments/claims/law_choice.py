"""A summary of what ``draft_laws.py`` measured: mean rates, differences, and what is left to gain.

    python -m experiments law_choice
    python -m experiments law_choice --rows runs/two_sizes_positions.parquet

Intervals are 95%, by a bootstrap over prompts within domains; differences are of the same positions. Stores a
row for each draft, temperature, number of drafts and choice; what is stored of other drafts stays.

Ceilings bound what any law that sees only q could accept, for π ∝ q and for a fitted π (of
``experiments.claims.ceiling``). The fitted one is evaluated on prompts that it was not fitted on (somewhat
too low) and on those that it was fitted on (too high).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

import otmd
from experiments.claims.ceiling import newsvendor, proportional, quantiles
from experiments.claims.draft_laws import COUNTS, ROWS
from experiments.claims.positions import MODELS, chosen_prompts, stored, text_file
from experiments.estimates import resampled
from experiments.runner import RESULTS, options, save, show
from otmd.probabilities import FloatArray, IntArray

KEYS = ("domain", "prompt_id", "draft", "temperature", "position")
CELL = ("draft", "temperature", "num_drafts")
RESAMPLES = 2000
CEILING_AT = (0.6, 1.0, 1.5)
BASES = {"greedy": "greedy", "stratified": "stratified", "k_sequential": "with, K-SEQ"}
"""Choices that the rest is compared with, by the name of the columns."""


def ceilings(table: pl.DataFrame) -> pl.DataFrame:
    """Bounds at the positions of a table of rates, in rows of the same columns."""
    about = table.select(KEYS).unique().sort(KEYS)
    prompts = about.select("domain", "prompt_id").unique().sort("domain", "prompt_id")
    half = prompts.with_columns(half=pl.int_range(pl.len()).over("domain") % 2)
    about = about.join(half, on=["domain", "prompt_id"], maintain_order="left")
    about = about.filter(pl.col("temperature").is_in(CEILING_AT))
    rows = []
    for (draft, temperature), part in about.group_by("draft", "temperature", maintain_order=True):
        step = otmd.Processing(float(str(temperature)))
        logits = _logits(str(draft))
        pairs = [
            (step(logits[prompt][0][at]), step(logits[prompt][1][at]))
            for prompt, at in part.select("prompt_id", "position").iter_rows()
        ]
        for name, bounds in _bounds(pairs, part["half"].to_numpy()).items():
            for n, rates in zip(COUNTS, bounds, strict=True):
                count = pl.lit(n, pl.Int64)
                columns = {"choice": pl.lit(name), "num_drafts": count, "rate": pl.Series(rates)}
                rows.append(part.select(KEYS).with_columns(**columns))
    return pl.concat(rows)


def _bounds(pairs: list[tuple[FloatArray, FloatArray]], half: IntArray) -> dict[str, FloatArray]:
    """Bounds of one draft at one temperature, (COUNTS, positions), by name."""
    shape = (len(COUNTS), len(pairs))
    bounds = {
        "ceiling, π ∝ q": np.array([proportional(p, q, COUNTS) for p, q in pairs]).T,
        "ceiling, fitted": np.empty(shape),
        "ceiling, fitted on itself": np.empty(shape),
    }
    for side in (0, 1):
        held_out, fit = np.flatnonzero(half == side), np.flatnonzero(half != side)
        ratios = quantiles([pairs[i] for i in fit])
        for name, rows in (("ceiling, fitted", held_out), ("ceiling, fitted on itself", fit)):
            columns = [newsvendor(*pairs[i], ratios, COUNTS) for i in rows]
            bounds[name][:, rows] = np.array(columns).T
    return bounds


def _logits(draft: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Logits of target and draft at the positions of each prompt."""
    [models] = (models for models in MODELS.values() if draft in models.drafts)
    prompts = [prompt for prompt in chosen_prompts() if text_file(prompt, models).exists()]
    arrays = {prompt.id: stored(prompt, models) for prompt in prompts}
    return {name: (of["target"], of[draft]) for name, of in arrays.items()}


def summary(table: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Mean rates, and their differences to other choices at the same positions, with intervals."""
    prompts = table.select("domain", "prompt_id").unique().sort("domain", "prompt_id")
    weights = resampled(prompts["domain"].to_list(), RESAMPLES)
    numbered = table.join(prompts.with_row_index("prompt"), on=["domain", "prompt_id"])
    wide = numbered.pivot("choice", index=[*KEYS, "num_drafts", "prompt"], values="rate")
    names = numbered["choice"].unique().sort()
    for cell, rows in wide.sort(KEYS).group_by(CELL, maintain_order=True):
        for name in names:
            measured = rows.drop_nulls(name)
            if measured.is_empty():
                continue
            row = dict(zip(CELL, cell, strict=True))
            row |= {"choice": name, "positions": measured.height}
            values = {"": pl.col(name)}
            values |= {f"_over_{base}": pl.col(name) - pl.col(of) for base, of in BASES.items()}
            for suffix, value in values.items():
                numbers = measured.select(value.alias("value"))["value"].to_numpy()
                ends = interval(numbers, measured["prompt"].to_numpy(), weights)
                parts = ("value", "low", "high", "error")
                row |= {f"{part}{suffix}": end for part, end in zip(parts, ends, strict=True)}
            yield row


def interval(values: FloatArray, prompt: IntArray, weights: FloatArray) -> tuple[float, float, float, float]:
    """The mean of the values, its interval and its standard error, by resampled prompts."""
    sums = np.bincount(prompt, values, weights.shape[1])
    counts = np.bincount(prompt, minlength=weights.shape[1])
    means = (weights @ sums) / (weights @ counts)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(values.mean()), float(low), float(high), float(means.std(ddof=1))


def main(arguments: list[str]) -> pl.DataFrame:
    """Read the rows, store the summary, and print it at temperature 1."""
    chosen = options(__name__, arguments, rows=ROWS, output=RESULTS / "draft_laws.parquet")
    table = pl.read_parquet(chosen.rows).select(*KEYS, "choice", "num_drafts", "rate")
    rows = summary(pl.concat([table, ceilings(table)]))
    result = pl.DataFrame(list(rows), infer_schema_length=None)
    kept = [result]
    if chosen.output.exists():
        before = pl.read_parquet(chosen.output)
        kept.insert(0, before.filter(~pl.col("draft").is_in(result["draft"].unique().to_list())))
    save(chosen.output, pl.concat(kept), chosen)
    shown = result.filter(temperature=1.0).sort("draft", "num_drafts", "choice")
    show(shown.select("draft", "num_drafts", "choice", "value", "value_over_stratified"))
    return result
