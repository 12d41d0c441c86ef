"""Orders of the preference rule on strata, and shares of the strata by position.

    python -m experiments law_orders

Measures the rule at the first position of each text of ``positions.py``, in four orders: two classes (p ≥ q_j
first), the largest ratio first, the better of both, and the default. In the stored results the default was
the better of the first and one by half octaves of the ratio; now it is the pair sweep. All are lossless,
since the order depends on p and q alone. Compared with them are the law's optimum and the rule on drafts with
replacement. Each stratum may also have a smaller or larger share than the one below it; the best share at
each position bounds what a choice by q alone could gain.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

import otmd
from experiments.claims.draft_laws import own_order, ratio_order
from experiments.claims.positions import PER_DOMAIN, chosen_prompts, stored, texts_of
from experiments.runner import run, show
from otmd.probabilities import FloatArray

PROMPTS = range(12)
FALLING = (0.4, 0.6, 0.8, 1.0, 1.25, 1.6)
"""The share of each stratum in units of that below it."""
BINS = 3
"""Ranges of the draft's largest probability, for each of which a share is chosen."""
ORDERS = ("own_order", "ratio_order", "better_order", "default")


def orders(
    rng: np.random.Generator, draft: str, temperature: float, num_drafts: int
) -> Iterator[dict[str, Any]]:
    """A row for each prompt."""
    step = otmd.Processing(temperature)
    for number, prompt in enumerate(chosen_prompts()):
        if number % PER_DOMAIN not in PROMPTS:
            continue
        arrays = stored(prompt)
        at = int(np.flatnonzero(arrays["temperature"] == temperature)[0])
        target, drafted = step(arrays["target"][at]), step(arrays[draft][at])
        about = {"domain": prompt.domain, "prompt_id": prompt.id}
        yield about | position_rates(target, drafted, num_drafts)


def position_rates(target: FloatArray, draft: FloatArray, num_drafts: int) -> dict[str, float]:
    """Rates of all orders and shares at one position."""

    def rate(rule: otmd.Verifier, law: otmd.DraftLaw) -> float:
        return float(otmd.acceptance_rate(rule, target, law))

    strata = otmd.Stratified(draft, num_drafts)
    preference = otmd.Preference()
    rates = {
        "own_order": rate(otmd.Preference(own_order), strata),
        "ratio_order": rate(otmd.Preference(ratio_order), strata),
    }
    rates["better_order"] = max(rates.values())
    rates |= {
        "default": rate(preference, strata),
        "optimum": float(otmd.optimal_acceptance(target, strata).rate),
        "with_replacement": rate(preference, otmd.WithReplacement(draft, num_drafts)),
        "greedy": float(otmd.optimal_acceptance(target, otmd.Greedy(draft, num_drafts)).rate),
        "top_draft": float(draft.max()),
    }
    for falling in FALLING:
        shares = falling ** np.arange(num_drafts)[::-1]
        law = otmd.Stratified(draft, num_drafts, shares=shares)
        rates[f"shares_{falling:g}"] = rate(preference, law)
    return rates


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
            part = np.floor(bins * top) * 2 + half
            total = 0.0
            for number in np.unique(part):
                fit = number + 1 if number % 2 == 0 else number - 1
                best = rates[part == fit].mean(axis=0).argmax()
                total += float(rates[part == number, best].sum())
            row[name] = total / len(rows)
        gains.append(row | {"best": float(rates.max(axis=1).mean())})
    return pl.DataFrame(gains)


def main(arguments: list[str]) -> pl.DataFrame:
    """Measure, and print means."""
    table = run(orders, arguments, 6.0, data=texts_of)
    by = ("temperature", "draft", "num_drafts")
    columns = pl.col(*ORDERS, "optimum", "with_replacement", "greedy")
    show(table.group_by(*by, maintain_order=True).agg(columns.mean()), shares_by_position(table))
    return table
