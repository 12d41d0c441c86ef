"""Rows of the table of claims on tokens per call, from the results of ``experiments/sequences``."""

from pathlib import Path

import polars as pl
from claims_words import command, holds, theorem

RESULTS = Path("paper_figures/results")
# A 95% interval reaches so many standard errors to either side of a mean.
ERRORS = 1.96


def rows() -> list[list[str]]:
    """Claim, source, what was measured, script and verdict."""
    return [paths(), hub_trees(), hot_hub(), one_path(), left_over()]


def _difference(row: dict[str, float]) -> str:
    around = ERRORS * row["difference_error"]
    low, high = row["difference"] - around, row["difference"] + around
    return f"{row['difference']:+.2f} ({low:+.2f} to {high:+.2f})"


def paths() -> list[str]:
    """K-SEQ on several paths."""
    table = pl.read_parquet(RESULTS / "spectr_paths.parquet").filter(paths=8).sort("depth")
    found = table.filter(rule="K-SEQ").to_dicts()
    words = "; ".join(
        f"L = {row['depth']}: {row['value']:.2f}, over RRS {_difference(row)}" for row in found
    )
    return [
        "K-SEQ on eight paths yields more tokens a call than recursive rejection",
        "SpecTr, PaLM-2 on LM1B: 3.1 at L = 4, 4.0 at L = 8",
        f"tokens a call, eight paths: {words}",
        command("spectr_paths", "sequences"),
        holds(all(row["difference"] > ERRORS * row["difference_error"] for row in found)),
    ]


def _hub(temperature: float) -> dict[str, dict[str, float]]:
    table = pl.read_parquet(RESULTS / "spechub_depths.parquet")
    rows = table.filter(temperature=temperature, depth=4).to_dicts()
    return {row["rule"]: row for row in rows}


def hub_trees() -> list[str]:
    """The hub on binary trees, at the paper's temperature."""
    found = _hub(0.6)
    values = [found[name]["value"] for name in ("RRS", "RRSw", "SpecHub")]
    return [
        "SpecHub yields more tokens a call than RRSw, and that more than RRS",
        "SpecHub, T = 0.6, depth 4: 2.403, 2.315, 2.139",
        f"T = 0.6, binary tree of depth 4: {values[2]:.2f}, {values[1]:.2f}, {values[0]:.2f}; "
        f"hub over RRS {_difference(found['SpecHub'])}",
        command("spechub_depths", "sequences"),
        holds(values == sorted(values)),
    ]


def hot_hub() -> list[str]:
    """The hub on binary trees at a high temperature."""
    hub = _hub(2.0)["SpecHub"]
    return [
        "The same at high temperature",
        "asked here",
        f"T = 2, depth 4: hub over RRS {_difference(hub)}",
        command("spechub_depths", "sequences"),
        holds(hub["difference"] > 0),
    ]


def _optimum() -> pl.DataFrame:
    return pl.read_parquet(RESULTS / "sequence_optimum.parquet")


def one_path() -> list[str]:
    """Block verification against the sequence-level optimum."""
    table = _optimum().filter(law="one path", rule="block verification")
    gap = table["largest_gap"].to_numpy().max()
    return [
        "No lossless rule for a single path beats block verification",
        "Block verification (Sun et al. 2025)",
        f"{table['steps'].sum():.0f} small problems from real models: at most {gap:.0e} tokens "
        "from the sequence-level optimum",
        command("sequence_optimum", "sequences"),
        theorem(gap < 1e-6),
    ]


def left_over() -> list[str]:
    """What the best choice at each token leaves with two drafts or more."""
    table = _optimum().filter(pl.col("law") != "one path", rule="optimal at each token")
    short = -table["difference"].to_numpy()
    return [
        "Choosing optimally at each token is optimal for the sequence",
        "asked here",
        f"two drafts, {table.height} laws and depths: {short.min():.2f} to {short.max():.2f} tokens "
        "a call below the sequence-level optimum",
        command("sequence_optimum", "sequences"),
        holds(short.max() < 1e-6),
    ]
