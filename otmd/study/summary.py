"""Means over positions, with confidence intervals over prompts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import polars as pl

from otmd.probabilities import wrong
from otmd.registry import LAWS
from otmd.study.estimate import Estimate, estimate
from otmd.study.rows import uniform_law
from otmd.verifiers import Optimal

PROCESSING = ("temperature", "top_k", "top_p", "min_p", "order")
DEFAULT_BY = ("law", *PROCESSING, "num_drafts", "verifier")
ENDS = ("", "_low", "_high")
# The columns of a measure, and of its guaranteed bounds if it has them.
MEASURES = {
    "optimal": ("optimal",),
    "rate": ("rate", "rate_low", "rate_high"),
    "gap": ("gap", "gap_low", "gap_high"),
}


def summarise(
    table: pl.DataFrame,
    by: Sequence[str] = DEFAULT_BY,
) -> pl.DataFrame:
    """Average a table of :func:`otmd.measure` over positions, in groups.

    Parameters
    ----------
    table : polars.DataFrame
        The result of :func:`otmd.measure`.
    by : sequence of str
        The columns that define a group. Add ``domain`` for a group for each domain.

    Returns
    -------
    polars.DataFrame
        One row for each group, in the table's order: the columns of ``by``; the means ``optimal``, ``rate``
        and ``gap`` as fractions, each with ``_low`` and ``_high``; the numbers of ``positions`` and
        ``prompts`` in the means; ``undefined``, how many positions have no rate, because they do not admit
        the law or the verifier could not be rated; ``bound_width``, the mean width of the rates' guaranteed
        bounds. A 95% interval, by the jackknife over prompts with Student's t, runs from the lower end for
        the lower bounds to the upper end for the upper bounds. So it covers the variation between prompts
        and the width of the bounds. It is symmetric, so over few prompts it may end beyond 0 or 1. It is
        null with fewer than two prompts; a mean is null where no position has a rate.

    Raises
    ------
    ValueError
        For a table without rows, or an unknown column.

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
    rated = table.filter(pl.col("rate").is_not_null())
    rows = []
    for row, means in estimate(rated, by, [*{*chain(*MEASURES.values())}]):
        for name, bounds in MEASURES.items():
            ends = Estimate.of(*(means[column] for column in bounds))
            row |= dict(zip((f"{name}{end}" for end in ENDS), ends, strict=True))
        rows.append(row | {"prompts": means["rate"].size - 1})
    counts = table.group_by(by, maintain_order=True).agg(
        pl.col("rate").count().cast(int).alias("positions"),
        pl.col("rate").null_count().cast(int).alias("undefined"),
        (pl.col("rate_high") - pl.col("rate_low")).mean().alias("bound_width"),
    )
    columns = [f"{name}{end}" for name in MEASURES for end in ENDS]
    schema = {name: table.schema[name] for name in by} | dict.fromkeys(columns, float)
    means = pl.DataFrame(rows, schema=schema | {"prompts": int})
    return counts.join(means, on=by, how="left", nulls_equal=True, maintain_order="left").select(
        *by, *columns, "positions", pl.col("prompts").fill_null(0), "undefined", "bound_width"
    )


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
    ends = {end: f"optimal{end}" if f"optimal{end}" in table.columns else "optimal" for end in ENDS}
    zero = {"gap", "gap_low", "gap_high", "bound_width"} & {*table.columns}
    added = (
        table.filter(pl.col("law").is_in(served), pl.col("rate").is_not_null())
        .join(measured, on=group, how="anti", nulls_equal=True)
        .unique(group, keep="first", maintain_order=True)
        .with_columns(
            pl.lit("Optimal").alias("verifier"),
            *(pl.col(name).alias(f"rate{end}") for end, name in ends.items()),
            *(pl.lit(0.0).alias(name) for name in zero),
        )
    )
    return pl.concat([table, added])


def worth_showing(table: pl.DataFrame) -> pl.DataFrame:
    """Leave out maximal coupling, which serves n = 1 only and is optimal there, unless it is alone."""
    trivial = (pl.col("verifier") == "MaximalCoupling") & (pl.col("gap").abs() < 1e-9)
    others = table.filter(~trivial.fill_null(False))
    return table if others.is_empty() else others


def comparable(table: pl.DataFrame) -> pl.DataFrame:
    """The rows with a rate, at each law's largest number of drafts, with those of ``Optimal``."""
    rated = worth_showing(table.filter(pl.col("rate").is_not_null()))
    return with_optimal(
        rated.filter(pl.col("num_drafts") == pl.col("num_drafts").max().over("law"))
    )
