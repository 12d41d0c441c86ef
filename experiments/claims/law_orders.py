"""The preference rule on strata: its orders, and shares of the strata by position.

    python experiments/claims/law_orders.py

Measures the rule at the first position of each text that ``draft_laws.py`` collected, in four orders: its
own, the largest ratio first, the better of both, and the default, which is the better of its own and one by
half octaves of the ratio. All are lossless, since the order depends on p and q alone. Beside them stand the
law's optimum and the rule on drafts with replacement. Each stratum may also have a smaller or larger share
than the one below it; the best share at each position bounds what a choice by q alone could gain.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import sweep_script
from draft_laws import chosen_prompts, collected, own_order, ratio_order, text_file

import otmd
from otmd.probabilities import FloatArray

PROMPTS = range(12)
FALLING = (0.4, 0.6, 0.8, 1.0, 1.25, 1.6)
"""The share of each stratum in units of that below it."""
BINS = 3
"""Ranges of the draft's largest probability, for each of which a share is chosen."""


def orders(
    rng: np.random.Generator, draft: str, temperature: float, num_drafts: int
) -> Iterator[dict[str, Any]]:
    """A row for each prompt."""
    step, chosen = otmd.Processing(temperature), chosen_prompts()
    per_domain = len(chosen) // 4
    for number, prompt in enumerate(chosen):
        if number % per_domain not in PROMPTS:
            continue
        with np.load(text_file(prompt)) as arrays:
            at = int(np.flatnonzero(arrays["temperature"] == temperature)[0])
            target, drafted = step(arrays["target"][at]), step(arrays[draft][at])
        law = otmd.Stratified(drafted, num_drafts)
        alike = otmd.WithReplacement(drafted, num_drafts)
        own, ratio, default = (
            float(otmd.acceptance_rate(rule, target, law))
            for rule in (
                otmd.Preference(own_order),
                otmd.Preference(ratio_order),
                otmd.Preference(),
            )
        )
        yield {
            "domain": prompt.domain,
            "prompt_id": prompt.id,
            "own_order": own,
            "ratio_order": ratio,
            "better_order": max(own, ratio),
            "default": default,
            "optimum": float(otmd.optimal_acceptance(target, law).rate),
            "with_replacement": float(otmd.acceptance_rate(otmd.Preference(), target, alike)),
            "greedy": float(otmd.optimal_acceptance(target, otmd.Greedy(drafted, num_drafts)).rate),
            "top_draft": float(drafted.max()),
            **{
                f"shares_{falling:g}": shared(target, drafted, num_drafts, falling)
                for falling in FALLING
            },
        }


def shared(target: FloatArray, draft: FloatArray, num_drafts: int, falling: float) -> float:
    """The rule's rate on strata each of which has ``falling`` times the share of the one below."""
    law = otmd.Stratified(draft, num_drafts, shares=falling ** np.arange(num_drafts)[::-1])
    return float(otmd.acceptance_rate(otmd.Preference(), target, law))


def shares_by_position(table: pl.DataFrame) -> pl.DataFrame:
    """Mean gains over equal shares.

    Shares are chosen on the texts of other prompts, over all pairs and temperatures: one for all positions,
    or one for each range of the draft's largest probability. The best at each position is chosen by its rate.
    """
    gains = []
    for (num_drafts,), rows in table.group_by("num_drafts", maintain_order=True):
        half = rows["prompt_id"].rank("dense").to_numpy() % 2
        rates = rows.select(f"shares_{falling:g}" for falling in FALLING).to_numpy()
        rates = rates - rates[:, [FALLING.index(1.0)]]
        top = rows["top_draft"].rank().to_numpy() / (len(rows) + 1)
        row = {"num_drafts": num_drafts}
        for name, bins in (("one", 1), ("by_top_draft", BINS)):
            part, total = np.floor(bins * top) * 2 + half, 0.0
            for own in np.unique(part):
                other = own + 1 if own % 2 == 0 else own - 1
                best = rates[part == other].mean(axis=0).argmax()
                total += float(rates[part == own, best].sum())
            row[name] = total / len(rows)
        gains.append(row | {"best": float(rates.max(axis=1).mean())})
    return pl.DataFrame(gains)


def main(arguments: list[str] | None = None) -> pl.DataFrame:
    """Measure, and print means."""
    table = sweep_script.run(
        orders, __doc__ or "", 6.0, arguments, lambda tasks: collected(chosen_prompts())
    )
    means = table.group_by("temperature", "draft", "num_drafts", maintain_order=True).agg(
        pl.col(
            "own_order",
            "ratio_order",
            "better_order",
            "default",
            "optimum",
            "with_replacement",
            "greedy",
        ).mean()
    )
    with pl.Config(tbl_rows=-1, tbl_cols=-1, float_precision=4, tbl_width_chars=140):
        print(means)
        print(shares_by_position(table))
    return table


if __name__ == "__main__":
    main()
