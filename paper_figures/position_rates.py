"""Read rates at positions of real models, put them side by side, and average them, with intervals."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from otmd.study import summarise

RESULTS = Path("paper_figures/results/real_positions.parquet")
PAIR = "skip:13,15,17"
POSITION = ("draft", "temperature", "domain", "prompt_id", "index")
ABOUT = ("entropy", "top_draft", "total_variation")

CHOICES = {
    "α*, with": ("WithReplacement", None),
    "RRS": ("WithReplacement", "RecursiveRejection"),
    "K-SEQ": ("WithReplacement", "KSequential"),
    "α*, without": ("WithoutReplacement", None),
    "RRSw": ("WithoutReplacement", "RecursiveRejection"),
    "greedy": ("Greedy", "GreedyCoupling"),
    "SpecHub": ("Hub", "SpecHub"),
    "α*, Poisson": ("ConditionalPoisson", None),
    "α*, 1 then with": ("1 likeliest, then WithReplacement", None),
    "α*, 2 then with": ("2 likeliest, then WithReplacement", None),
    "α*, 1 then without": ("1 likeliest, then WithoutReplacement", None),
    "α*, 2 then without": ("2 likeliest, then WithoutReplacement", None),
    "α*, 4 then without": ("4 likeliest, then WithoutReplacement", None),
}
"""Law and verifier by the name in figures; without a verifier, the law's optimum."""


def read_positions(path: Path = RESULTS) -> pl.DataFrame:
    """Rows of positions where the law is defined; a rate is the middle of its certain bounds."""
    table = pl.read_parquet(path)
    missing = {*POSITION, *ABOUT, "law", "verifier", "optimal", "rate_low"} - set(table.columns)
    if missing:
        raise ValueError(f"results: {path} lacks {sorted(missing)}, expected real_positions.py's")
    middle = (pl.col("rate_low") + pl.col("rate_high")) / 2
    return table.filter(pl.col("optimal").is_not_null()).with_columns(rate=middle)


def side_by_side(table: pl.DataFrame, names: Sequence[str], num_drafts: int) -> pl.DataFrame:
    """A row for each position and a column for each choice, where all choices are defined."""
    keys = [*POSITION, *ABOUT]
    wide = None
    for name in names:
        law, verifier = CHOICES[name]
        rows = table.filter(pl.col("num_drafts") == num_drafts, pl.col("law") == law)
        if verifier is None:
            rows = rows.unique(POSITION, keep="first", maintain_order=True)
        else:
            rows = rows.filter(pl.col("verifier") == verifier)
        column = rows.select(*keys, pl.col("rate" if verifier else "optimal").alias(name))
        wide = column if wide is None else wide.join(column, on=keys, how="inner")
    if wide is None or wide.is_empty():
        raise ValueError(f"names: got {list(names)} with {num_drafts} drafts, expected some rates")
    return wide


def means(wide: pl.DataFrame, by: Sequence[str], of: Mapping[str, pl.Expr]) -> pl.DataFrame:
    """Mean of each expression in each group, with its 95% interval over prompts.

    Columns ``by``, ``name``, ``value``, ``low``, ``high``, ``positions`` and ``prompts``.
    """
    kept = list(dict.fromkeys([*by, "domain", "prompt_id"]))
    measured = ("optimal", "rate", "rate_low", "rate_high", "gap", "gap_low", "gap_high")
    rows = [
        wide.select(*kept, pl.lit(name).alias("name"), *(value.alias(m) for m in measured))
        for name, value in of.items()
    ]
    return summarise(pl.concat(rows), by=[*by, "name"]).select(
        *by, "name", "positions", "prompts", value="rate", low="rate_low", high="rate_high"
    )
