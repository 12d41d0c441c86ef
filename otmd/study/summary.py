"""Means over positions, with confidence intervals over prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl

from otmd.probabilities import wrong
from otmd.registry import LAWS
from otmd.study import jackknife
from otmd.study.rows import uniform_law
from otmd.verifiers import Optimal

PROCESSING = ("temperature", "top_k", "top_p", "min_p", "order")
DEFAULT_BY = ("law", *PROCESSING, "num_drafts", "verifier")
ENDS = ("", "_low", "_high")
MEASURES = {
    "optimal": ("optimal", "optimal"),
    "rate": ("rate_low", "rate_high"),
    "gap": ("gap_low", "gap_high"),
}


def summarise(
    table: pl.DataFrame,
    by: Sequence[str] = DEFAULT_BY,
    confidence: float = 0.95,
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

    Returns
    -------
    polars.DataFrame
        One row for each group, in the table's order: the columns of ``by``; the means ``optimal``, ``rate``
        and ``gap`` as fractions, each with ``_low`` and ``_high``; the numbers of ``positions`` and
        ``prompts`` in the means; ``undefined``, how many positions have no rate, because they do not admit
        the law or the verifier could not be rated; ``bound_width``, the mean width of the rates' guaranteed
        bounds. An interval runs from the lower end for the lower bounds to the upper end for the upper
        bounds, by the jackknife over prompts with Student's t. So it covers the variation between prompts
        and the width of the bounds. It is symmetric, so over few prompts it may end beyond 0 or 1. It is
        null with fewer than two prompts; a mean is null where no position has a rate.

    Raises
    ------
    ValueError
        For a table without rows, an unknown column, or a confidence outside (0, 1).

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np, otmd
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "dump.npz"
    ...     np.savez(path, target_probs=[[0.5, 0.3, 0.2], [0.8, 0.1, 0.1]], draft_probs=[[0.2, 0.3, 0.5]] * 2)
    ...     table = otmd.measure(path, "with-replacement", "k-sequential", num_drafts=2, workers=1)
    >>> otmd.study.summarise(table).select("rate", "gap", "prompts").to_numpy().round(4)
    array([[0.6638, 0.0462, 2.    ]])
    """
    if table.is_empty():
        raise wrong("table", "no rows", "at least one")
    if not by:
        raise wrong("by", "nothing", "at least one column")
    if unknown := [name for name in by if name not in table.columns]:
        raise wrong("by", unknown, f"columns of the table: {table.columns}")
    if not 0 < confidence < 1:
        raise wrong("confidence", confidence, "a number between 0 and 1")
    rows = [
        dict(zip(by, key, strict=True)) | _group(group, confidence)
        for key, group in table.group_by(by, maintain_order=True)
    ]
    columns = {name: table.schema[name] for name in by} | _SCHEMA
    return pl.DataFrame(rows, schema=columns)


def with_optimal(table: pl.DataFrame) -> pl.DataFrame:
    """Add rows for ``Optimal``, with gap 0, to a table or a summary where it serves and was not measured."""
    served = [
        entry.class_name
        for entry in LAWS.values()
        if entry.measured and Optimal().supports(uniform_law(entry.load(), 2))
    ]
    columns = ("domain", "prompt_id", "index", "law", *PROCESSING, "num_drafts")
    group = [name for name in columns if name in table.columns]
    measured = table.filter(pl.col("verifier") == "Optimal").select(group)
    # A measurement has no ends of α*.
    optimal = {end: f"optimal{end}" * (f"optimal{end}" in table.columns) for end in ENDS}
    added = (
        table.filter(pl.col("law").is_in(served), pl.col("rate").is_not_null())
        .join(measured, on=group, how="anti", nulls_equal=True)
        .unique(group, keep="first", maintain_order=True)
        .with_columns(
            pl.lit("Optimal").alias("verifier"),
            *(pl.col(optimal[end] or "optimal").alias(f"rate{end}") for end in ENDS),
            *(pl.lit(0.0).alias(f"gap{end}") for end in ENDS),
        )
    )
    if "bound_width" in table.columns:
        added = added.with_columns(bound_width=pl.lit(0.0))
    return pl.concat([table, added])


_SCHEMA: dict[str, Any] = {
    **{f"{m}{end}": float for m in MEASURES for end in ENDS},
    **{"positions": int, "prompts": int, "undefined": int, "bound_width": float},
}


def _group(group: pl.DataFrame, confidence: float) -> dict[str, Any]:
    defined = group.filter(pl.col("rate").is_not_null())
    undefined = len(group) - len(defined)
    row: dict[str, Any] = {"positions": len(defined), "undefined": undefined, "prompts": 0}
    if defined.is_empty():
        return row
    row |= defined.select(
        pl.col(list(MEASURES)).mean(), bound_width=(pl.col("rate_high") - pl.col("rate_low")).mean()
    ).row(0, named=True)
    ends = {name for pair in MEASURES.values() for name in pair}
    row["prompts"], intervals = prompt_intervals(defined, ends, confidence)
    if intervals:
        for measure, (low, high) in MEASURES.items():
            row |= {f"{measure}_low": intervals[low][0], f"{measure}_high": intervals[high][1]}
    return row


def prompt_intervals(
    rows: pl.DataFrame, columns: Iterable[str], confidence: float
) -> tuple[int, dict[str, tuple[float, float]]]:
    """Count the prompts of a table's rows, and give the intervals of its columns' means.

    Without at least two prompts there are no intervals.
    """
    names = list(columns)
    sums = rows.group_by("domain", "prompt_id", maintain_order=True).agg(
        pl.col(names).sum(), size=pl.len()
    )
    if len(sums) < 2:
        return len(sums), {}
    sizes = sums["size"].to_numpy().astype(float)
    intervals = {}
    for name in names:
        totals = sums[name].to_numpy()
        without = jackknife.left_out(totals, sizes)
        intervals[name] = jackknife.interval(totals.sum() / sizes.sum(), without, confidence)
    return len(sums), intervals
