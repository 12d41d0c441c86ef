"""One slot for an n-gram next to a model's drafts, at positions of texts that the target samples.

    python -m experiments second_drafter

Of n drafts the model gives n − 1, one from each of n − 1 strata, and the last comes from an n-gram model that
also counts the text so far, which costs no call of a model. It is sampled, or it is the n-gram's most likely
token. Compared with n strata of the model. All are independent drafts, so the preference rule serves them,
and α* is exact (Theorem 13 of docs/theory.md). The positions are the first ones of the texts of
``positions.py``. Intervals are 95%, over prompts.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

import otmd
from experiments.claims.positions import chosen_prompts, stored, texts_of
from experiments.estimates import interval
from experiments.runner import run, show
from otmd.probabilities import FloatArray
from otmd.study import jackknife

NGRAM = "ngram:3+context"
LAWS = ("sampled", "most_likely")


def drafters(
    rng: np.random.Generator, draft: str, temperature: float, num_drafts: int
) -> Iterator[dict[str, Any]]:
    """A row for each prompt."""
    step = otmd.Processing(temperature)
    for prompt in chosen_prompts():
        arrays = stored(prompt)
        at = int(np.flatnonzero(arrays["temperature"] == temperature)[0])
        target, model, ngram = (step(arrays[name][at]) for name in ("target", draft, NGRAM))
        about = {"domain": prompt.domain, "prompt_id": prompt.id}
        yield about | position_rates(target, model, ngram, num_drafts)


def position_rates(
    target: FloatArray, model: FloatArray, ngram: FloatArray, num_drafts: int
) -> dict[str, float]:
    """The preference rule's rate and α* of each law at one position."""
    fewer = otmd.Stratified(model, num_drafts - 1).position_structure().slots
    assert fewer is not None
    certain = np.zeros(target.size)
    certain[np.argmax(ngram)] = 1.0
    laws = {
        "strata": otmd.Stratified(model, num_drafts),
        "sampled": otmd.Independent([*fewer.dense, ngram]),
        "most_likely": otmd.Independent([*fewer.dense, certain]),
    }
    rates = {}
    for name, law in laws.items():
        rates[name] = float(otmd.acceptance_rate(otmd.Preference(), target, law))
        rates[f"{name}_optimum"] = float(otmd.optimal_acceptance(target, law).rate)
    return rates


def gains(table: pl.DataFrame) -> pl.DataFrame:
    """Mean rates in per cent, and what the n-gram's slot adds to them, with 95% intervals."""
    rows = []
    keys = ("draft", "temperature", "num_drafts")
    for cell, of_cell in table.group_by(*keys, maintain_order=True):
        row: dict[str, Any] = dict(zip(keys, cell, strict=True))
        row["strata"] = 100 * of_cell["strata"].to_numpy().mean()
        for law in LAWS:
            for kind in ("", "_optimum"):
                gain = 100 * (of_cell[law + kind] - of_cell["strata" + kind]).to_numpy()
                without = jackknife.left_out(gain, np.ones(gain.size))
                row[law + kind] = interval(float(gain.mean()), without, "+.1f")
        rows.append(row)
    return pl.DataFrame(rows)


def main(arguments: list[str]) -> pl.DataFrame:
    """Measure, and print what the slot adds."""
    table = run(drafters, arguments, 20.0, data=texts_of)
    show(gains(table))
    return table
