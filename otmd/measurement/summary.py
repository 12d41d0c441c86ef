"""Means over positions, with confidence intervals from a bootstrap over prompts.

Positions of one prompt resemble each other, so a bootstrap over positions would give intervals that are too
narrow. The cluster bootstrap draws prompts with replacement, each with all its positions, and takes a mean as
a ratio of two sums (Davison & Hinkley, *Bootstrap Methods and their Application*, §3.8).
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl

from otmd.probabilities import wrong
from otmd.verifiers import Optimal

PROCESSING = ("temperature", "top_k", "top_p", "min_p", "order")
DEFAULT_BY = ("law", *PROCESSING, "num_drafts", "verifier")
MEASURES = {
    "optimal": ("optimal", "optimal"),
    "rate": ("rate_low", "rate_high"),
    "gap": ("gap_low", "gap_high"),
}


def summarise(
    table: pl.DataFrame,
    by: Sequence[str] = DEFAULT_BY,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> pl.DataFrame:
    """Average a table of :func:`otmd.measure` over positions, in groups.

    Parameters
    ----------
    table : polars.DataFrame
        The result of :func:`otmd.measure`.
    by : sequence of str
        The columns that define a group. Add ``domain`` for a group for each domain.
    confidence : float
        Coverage of the intervals, in (0, 1).
    resamples : int
        How many bootstrap samples of the prompts.
    seed : int
        Equal seeds give equal intervals.

    Returns
    -------
    polars.DataFrame
        One row for each group, in the table's order: the columns of ``by``; the means ``optimal``, ``rate``
        and ``gap`` as fractions, each with ``_low`` and ``_high``; the numbers of ``positions`` and
        ``prompts`` in the means; ``undefined``, how many positions have no rate, because they do not admit
        the law or the verifier could not be rated; ``bound_width``, the mean width of the rates' certain
        bounds. An interval runs from the lower quantile of the lower bounds to the upper quantile of the
        upper bounds. So it covers the variation between prompts and the width of the bounds. It is null
        with fewer than two prompts; a mean is null where no position has a rate.

    Raises
    ------
    ValueError
        For a table without rows, an unknown column, a confidence outside (0, 1), or resamples < 1.
    """
    if table.is_empty():
        raise wrong("table", "no rows", "at least one")
    if not by:
        raise wrong("by", "nothing", "at least one column")
    if unknown := [name for name in by if name not in table.columns]:
        raise wrong("by", unknown, f"columns of the table: {table.columns}")
    if not 0 < confidence < 1:
        raise wrong("confidence", confidence, "a number between 0 and 1")
    if resamples < 1:
        raise wrong("resamples", resamples, "at least 1")
    rows = [
        dict(zip(by, key, strict=True)) | _group(group, confidence, resamples, seed)
        for key, group in table.group_by(by, maintain_order=True)
    ]
    columns = {name: table.schema[name] for name in by} | _SCHEMA
    return pl.DataFrame(rows, schema=columns)


def with_optimal(summary: pl.DataFrame) -> pl.DataFrame:
    """Add a row for ``Optimal``, with gap 0, where it serves the law and was not measured."""
    served = [law.__name__ for law in Optimal.serves]
    group = ["law", *PROCESSING, "num_drafts"]
    measured = summary.filter(pl.col("verifier") == "Optimal").select(group)
    added = (
        summary.filter(pl.col("law").is_in(served), pl.col("rate").is_not_null())
        .join(measured, on=group, how="anti", nulls_equal=True)
        .unique(group, keep="first", maintain_order=True)
        .with_columns(
            pl.lit("Optimal").alias("verifier"),
            *(pl.col(f"optimal{end}").alias(f"rate{end}") for end in ("", "_low", "_high")),
            *(pl.lit(0.0).alias(f"gap{end}") for end in ("", "_low", "_high")),
            pl.lit(0.0).alias("bound_width"),
        )
    )
    return pl.concat([summary, added])


@lru_cache(8)
def prompt_weights(prompts: int, resamples: int, seed: int) -> np.ndarray:
    """How often each prompt is drawn, (resamples, prompts): the same for all groups of as many prompts."""
    rng = np.random.default_rng([seed, prompts])
    return rng.multinomial(prompts, np.full(prompts, 1.0 / prompts), size=resamples)


_SCHEMA: dict[str, Any] = {
    **{f"{m}{end}": float for m in MEASURES for end in ("", "_low", "_high")},
    **{"positions": int, "prompts": int, "undefined": int, "bound_width": float},
}


def _group(group: pl.DataFrame, confidence: float, resamples: int, seed: int) -> dict[str, Any]:
    defined = group.filter(pl.col("rate").is_not_null())
    undefined = len(group) - len(defined)
    row: dict[str, Any] = {"positions": len(defined), "undefined": undefined, "prompts": 0}
    if defined.is_empty():
        return row
    row |= defined.select(
        pl.col(list(MEASURES)).mean(), bound_width=(pl.col("rate_high") - pl.col("rate_low")).mean()
    ).row(0, named=True)
    ends = sorted({name for pair in MEASURES.values() for name in pair})
    sums = (
        defined.group_by("domain", "prompt_id")
        .agg(pl.len().alias("size"), pl.col(ends).sum())
        .sort("domain", "prompt_id")
    )
    row["prompts"] = len(sums)
    if len(sums) > 1:
        drawn = prompt_weights(len(sums), resamples, seed)
        sizes, tail = drawn @ sums["size"].to_numpy(), (1.0 - confidence) / 2.0
        for measure, names in MEASURES.items():
            for end, name, at in zip(("low", "high"), names, (tail, 1 - tail), strict=True):
                means = drawn @ sums[name].to_numpy() / sizes
                row[f"{measure}_{end}"] = float(np.quantile(means, at))
    return row
