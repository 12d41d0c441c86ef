"""What tables and figures show of a summary, and what they call it."""

import re

import polars as pl

LAW_ORDER = (
    "WithReplacement",
    "WithoutReplacement",
    "ConditionalPoisson",
    "Greedy",
    "Hub",
)
VERIFIER_LABELS = {
    "MaximalCoupling": "maximal coupling",
    "RecursiveRejection": "recursive rejection",
    "KSequential": "K-SEQ",
    "SpecHub": "SpecHub",
    "GreedyCoupling": "greedy coupling",
    "TargetOnly": "target only",
    "Optimal": "optimal",
}


def law_label(name: str) -> str:
    """``WithoutReplacement`` → ``without replacement``; any class name becomes words."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", name).lower()


def verifier_label(name: str) -> str:
    """``KSequential`` → ``K-SEQ``: the name in the literature, or the class name as words."""
    return VERIFIER_LABELS.get(name) or law_label(name)


def processing_label(
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> str:
    """``T = 0.6, top-p 0.9``: the steps between logits and probabilities that change anything."""
    parts = [f"T = {temperature:g}"]
    if top_k is not None:
        parts.append(f"top-k {top_k}")
    if top_p is not None:
        parts.append(f"top-p {top_p:g}")
    if min_p is not None:
        parts.append(f"min-p {min_p:g}")
    return ", ".join(parts)


def in_order(names: set[str], order: tuple[str, ...]) -> list[str]:
    """Sort names by a house order, those that it does not know after it by alphabet."""
    return sorted(names, key=lambda n: (order.index(n) if n in order else len(order), n))


def worth_showing(summary: pl.DataFrame) -> pl.DataFrame:
    """Drop maximal coupling where others are measured: for one draft it *is* the optimum.

    It serves n = 1 only, and there α* says the same.
    """
    echo = (pl.col("verifier") == "MaximalCoupling") & (pl.col("gap").abs() < 1e-9)
    rest = summary.filter(~echo.fill_null(False))
    return summary if rest.is_empty() else rest
