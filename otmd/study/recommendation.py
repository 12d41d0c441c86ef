"""The recommendation under the tables of ``otmd measure``."""

from __future__ import annotations

from typing import Any

import polars as pl

from otmd.study.estimate import FEW_PROMPTS, PROMPT, Estimate, estimate, few_prompts
from otmd.study.report import law_label, processing_label, verifier_label
from otmd.study.summary import MEASURES, PROCESSING, comparable


def recommend(table: pl.DataFrame) -> list[str]:
    """Recommend a law and a verifier for each processing of logits, and say what the optimal one would add.

    First comes the best verifier that needs no solver. ``Optimal`` is compared with it at the same positions,
    for the law on which it accepts most; the interval is that of the paired difference.

    Parameters
    ----------
    table : polars.DataFrame
        The result of :func:`otmd.measure`.

    Returns
    -------
    list of str
        A sentence or two for each processing of which two pairs of law and verifier were measured, and a
        warning if the prompts are few.
    """
    said = []
    prompts = []
    for key, rows in table.group_by(PROCESSING, maintain_order=True):
        rated = comparable(rows)
        if rated.select("law", "verifier").n_unique() > 1:
            steps: Any = key
            sentence, count = _sentence(rated)
            said.append(f"{processing_label(*steps)}: {sentence}")
            prompts.append(count)
    return said + few_prompts(min(prompts, default=FEW_PROMPTS))


def _sentence(rated: pl.DataFrame) -> tuple[str, int]:
    """The sentence for one processing, and the number of prompts of the best pair."""
    pairs = estimate(rated, ["law", "num_drafts", "verifier"], MEASURES["rate"])
    # Of equal rates the first is taken, up to rounding.
    best_first = sorted(pairs, key=lambda pair: -round(pair[1]["rate"][0], 9))
    solved = [pair for pair in best_first if pair[0]["verifier"] == "Optimal"]
    simple = [pair for pair in best_first if pair[0]["verifier"] != "Optimal"]
    best, means = (simple or solved)[0]
    rate, low, high = Estimate.of(*(means[name] for name in MEASURES["rate"]))
    # Over few prompts a symmetric interval may leave [0, 1].
    interval = ""
    if low is not None and high is not None:
        interval = f" [{100 * max(low, 0.0):.1f}, {100 * min(high, 1.0):.1f}]"
    drafts = _drafts(best["law"], best["num_drafts"])
    said = f"take {drafts}, {verifier_label(best['verifier'])}: {100 * rate:.1f}%{interval}."
    if not simple:
        said += " It needs a solver."
    elif solved:
        said += f" {_gain_of_optimal(rated, solved[0][0]['law'], best)}"
    return said, means["rate"].size - 1


def _gain_of_optimal(rated: pl.DataFrame, law: str, best: dict[str, Any]) -> str:
    """The gain of the optimal verifier with a law over the best pair, at the positions of both."""
    optimal = rated.filter(law=law, verifier="Optimal")
    simple = rated.filter(**best).select("index", *PROMPT, "rate", "rate_low", "rate_high")
    gains = optimal.join(simple, on=["index", *PROMPT], suffix="_best").with_columns(
        gain=pl.col("optimal") - pl.col("rate_best"),
        low=pl.col("optimal") - pl.col("rate_high_best"),
        high=pl.col("optimal") - pl.col("rate_low_best"),
    )
    if gains.is_empty():
        return "The optimal verifier has no rate at the same positions."
    ((_, means),) = estimate(gains, ["law"], ["gain", "low", "high"])
    gain, low, high = Estimate.of(*means.values())
    if gain < 0.0005:
        return "The optimal verifier accepts no more, with any law that was measured."
    interval = significance = ""
    if low is not None and high is not None:
        interval = f" [{100 * low:+.1f}, {100 * high:+.1f}]"
        significance = "" if low > 0 else " (not significant)"
    return f"Optimal {law_label(law)}: {100 * gain:+.1f} points{interval}{significance}, needs a solver."


def _drafts(law: str, count: int) -> str:
    label = law_label(law)
    drafts = "draft" + "s" * (count > 1)
    return f"{count} {drafts} {label}" if label.startswith("with") else f"{count} {label} {drafts}"
