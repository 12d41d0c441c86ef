"""How a draft's quality, the vocabulary's size and hopeless drafts change the rates.

    python experiments/claims/draft_quality.py

The target is a Zipf law. "noise" adds normal noise of this standard deviation to the draft's logits;
"surplus" moves this share of the draft's mass to tokens that the target never emits. In "missing", the draft
never proposes tokens that hold this share of the target's mass. The others are drafts that nobody would want.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import polars as pl
import sweep_script

import otmd
from otmd.study.rows import (
    DEFAULT_LAWS,
    DEFAULT_VERIFIERS,
    Settings,
    make_settings,
    position_rows,
)

EXPONENT = 1.2
MOST_DRAFTS = 4
TOLERANCE = 1e-3
Pair = tuple[np.ndarray, np.ndarray]


def pair_of(rng: np.random.Generator, family: str, quality: float, vocab_size: int) -> Pair:
    """Target and draft of a family."""
    zipf = np.arange(1.0, vocab_size + 1.0) ** -EXPONENT
    zipf /= zipf.sum()
    if family == "noise":
        noise = quality * rng.standard_normal(vocab_size)
        return zipf, otmd.probs_from_logits(np.log(zipf) + noise)
    head, tail = np.zeros((2, vocab_size))
    head[0::2], tail[1::2] = zipf[0::2] / zipf[0::2].sum(), zipf[1::2] / zipf[1::2].sum()
    mixed = (1.0 - quality) * head + quality * tail
    if family == "surplus":
        return head, mixed
    if family == "missing":
        return mixed, head
    certain = np.zeros((2, vocab_size))
    certain[0, 0], certain[1, -1] = 1.0, 1.0
    drafts = {
        "equal": zipf,
        "likeliest token": certain[0],
        "least likely token": certain[1],
        "reversed": zipf[::-1].copy(),
        "uniform": np.full(vocab_size, 1.0 / vocab_size),
    }
    if family == "disjoint":
        return head, tail
    if family not in drafts:
        raise ValueError(
            f"family: got {family!r}, expected one of the families of draft_quality.py"
        )
    return zipf, drafts[family]


@cache
def settings() -> Settings:
    """What is measured."""
    counts = range(1, MOST_DRAFTS + 1)
    processing = [otmd.Processing()]
    return make_settings(DEFAULT_LAWS, DEFAULT_VERIFIERS, counts, processing, TOLERANCE)


def rates(
    rng: np.random.Generator, family: str, quality: float, vocab_size: int, draw: int
) -> Iterator[dict[str, Any]]:
    """Rows of one pair; ``draw`` tells the pairs of random noise apart."""
    target, draft = pair_of(rng, family, quality, vocab_size)
    total_variation = float(0.5 * np.abs(target - draft).sum())
    for row in position_rows(target, draft, settings()):
        kept = ("law", "num_drafts", "verifier", "optimal", "rate_low", "rate_high", "status")
        yield {"total_variation": total_variation, **{name: row.get(name) for name in kept}}


def main(arguments: list[str] | None = None) -> pl.DataFrame:
    """Run the sweep and print the rates with four drafts."""
    table = sweep_script.run(rates, __doc__ or "", 0.3, arguments)
    most = table.filter(pl.col("num_drafts") == MOST_DRAFTS, pl.col("verifier") != "TargetOnly")
    by = ("family", "vocab_size", "quality")
    rules = most.group_by(*by, name=pl.col("verifier") + ", " + pl.col("law"), maintain_order=True)
    with pl.Config(tbl_rows=-1, tbl_cols=-1, float_precision=4, tbl_hide_dataframe_shape=True):
        print(rules.agg(pl.col("rate_low").mean()).pivot("name", index=by, values="rate_low"))
    return table


if __name__ == "__main__":
    main()
