"""What rows of claims share: commands, verdicts and intervals in words."""

from collections.abc import Sequence

import polars as pl
from position_rates import means

ROUNDING = 1e-9


def command(script: str, folder: str = "claims") -> str:
    """The script that makes the results of a row, as code."""
    return f"`experiments/{folder}/{script}.py`"


def holds(is_so: bool, remark: str = "") -> str:
    """The verdict on a claim that numbers decide."""
    return ("holds" if is_so else "does not hold") + remark


def theorem(agrees: bool) -> str:
    """The verdict on a theorem: whether the numbers agree with it."""
    return "theorem; code " + ("agrees" if agrees else "disagrees")


def interval(row: dict[str, float], unit: float = 100.0) -> str:
    """A mean and its interval in words, in per cent (or points) by default."""
    value, low, high = (unit * row[name] for name in ("value", "low", "high"))
    return f"{value:.1f} ({low:.1f} to {high:.1f})"


def by_name(wide: pl.DataFrame, of: dict[str, pl.Expr]) -> dict[str, dict[str, float]]:
    """Means over all rows, by name."""
    return {row["name"]: row for row in means(wide, [], of).iter_rows(named=True)}


def listed(values: Sequence[float]) -> str:
    """The numbers in a row, or "none"."""
    return ", ".join(f"{value:g}" for value in values) or "none"
