"""The recommendation under the tables of ``otmd measure``."""

from __future__ import annotations

from typing import Any, NamedTuple

import polars as pl

from otmd.study.jackknife import FEW_PROMPTS
from otmd.study.report import law_label, processing_label, verifier_label, worth_showing
from otmd.study.summary import PROCESSING, prompt_intervals, with_optimal

POSITION = ["domain", "prompt_id", "index"]


class _Rated(NamedTuple):
    """A law and a verifier with their rows at the law's largest number of drafts, and the mean rate."""

    law: str
    verifier: str
    rows: pl.DataFrame
    rate: float


def recommend(table: pl.DataFrame, confidence: float = 0.95) -> list[str]:
    """Recommend a law and a verifier for each processing of logits, and say what the optimal one would add.

    First comes the best verifier that needs no solver. ``Optimal`` is compared with it at the same positions,
    for the law on which it accepts most; the interval is that of the paired difference.

    Parameters
    ----------
    table : polars.DataFrame
        The result of :func:`otmd.measure`.
    confidence : float
        The coverage of the intervals, in (0, 1).

    Returns
    -------
    list of str
        A sentence or two for each processing of which two pairs of law and verifier were measured, and a
        warning if the prompts are few.
    """
    said = []
    fewest = FEW_PROMPTS
    for key, rows in table.group_by(PROCESSING, maintain_order=True):
        rated = _rated(rows)
        if len(rated) > 1:
            steps: Any = key
            fewest = min(fewest, rated[0].rows.select("domain", "prompt_id").n_unique())
            said.append(f"{processing_label(*steps)}: {_sentence(rated, confidence)}")
    if fewest < FEW_PROMPTS:
        said.append(
            f"Only {fewest} prompts: intervals over so few are wide, and may miss the truth."
        )
    return said


def _rated(rows: pl.DataFrame) -> list[_Rated]:
    """Every law and verifier with a rate, ``Optimal`` included for the laws that it serves."""
    rows = worth_showing(rows.filter(pl.col("rate").is_not_null()))
    rows = rows.filter(pl.col("num_drafts") == pl.col("num_drafts").max().over("law"))
    return [
        _Rated(str(law), str(verifier), part, part["rate"].to_numpy().mean())
        for (law, verifier), part in with_optimal(rows).group_by(
            "law", "verifier", maintain_order=True
        )
    ]


def _sentence(rated: list[_Rated], confidence: float) -> str:
    solved = [pair for pair in rated if pair.verifier == "Optimal"]
    simple = [pair for pair in rated if pair.verifier != "Optimal"]
    # Of equal rates the first is taken, up to rounding.
    best = max(simple or solved, key=lambda pair: round(pair.rate, 9))
    _, ends = prompt_intervals(best.rows, ("rate_low", "rate_high"), confidence)
    interval = ""
    if ends:
        # Over few prompts a symmetric interval may leave [0, 1].
        low, high = max(ends["rate_low"][0], 0.0), min(ends["rate_high"][1], 1.0)
        interval = f" [{100 * low:.1f}, {100 * high:.1f}]"
    drafts = _drafts(best.law, best.rows["num_drafts"][0])
    said = f"take {drafts}, {verifier_label(best.verifier)}: {100 * best.rate:.1f}%{interval}."
    if not simple:
        return f"{said} It needs a solver."
    optimal = max(solved, key=lambda pair: round(pair.rate, 9), default=None)
    return said if optimal is None else f"{said} {_gain_of_optimal(optimal, best, confidence)}"


def _gain_of_optimal(optimal: _Rated, best: _Rated, confidence: float) -> str:
    ends = ("rate", "rate_low", "rate_high")
    both = optimal.rows.join(best.rows.select(*POSITION, *ends), on=POSITION, suffix="_simple")
    gains = both.select(
        "domain",
        "prompt_id",
        gain=pl.col("optimal") - pl.col("rate_simple"),
        low=pl.col("optimal") - pl.col("rate_high_simple"),
        high=pl.col("optimal") - pl.col("rate_low_simple"),
    )
    gain = 100 * float(gains["gain"].to_numpy().mean())
    if gain < 0.05:
        return "The optimal verifier accepts no more, with any law that was measured."
    _, intervals = prompt_intervals(gains, ("low", "high"), confidence)
    interval = significance = ""
    if intervals:
        low, high = 100 * intervals["low"][0], 100 * intervals["high"][1]
        interval = f" [{low:+.1f}, {high:+.1f}]"
        significance = "" if low > 0 else " (not significant)"
    return f"Optimal {law_label(optimal.law)}: {gain:+.1f} points{interval}{significance}, needs a solver."


def _drafts(law: str, count: int) -> str:
    label = law_label(law)
    drafts = "draft" + "s" * (count > 1)
    return f"{count} {drafts} {label}" if label.startswith("with") else f"{count} {label} {drafts}"
