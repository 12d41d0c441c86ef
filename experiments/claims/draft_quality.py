"""Rates by the draft's quality, by the vocabulary's size, and with hopeless drafts.

    python -m experiments draft_quality

The target is a Zipf distribution. "noise" adds normal noise of this standard deviation to the draft's logits;
"surplus" moves this share of the draft's mass to tokens that the target never emits. In "missing", the draft
never proposes tokens that hold this share of the target's mass. The others are drafts that nobody would use.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

import otmd
from experiments.runner import run, show
from otmd.study import DEFAULT_LAWS, DEFAULT_VERIFIERS

EXPONENT = 1.2
MOST_DRAFTS = 4
TOLERANCE = 1e-3
Pair = tuple[np.ndarray, np.ndarray]


def pair_of(rng: np.random.Generator, family: str, quality: float, vocab_size: int) -> Pair:
    """Target and draft of a family."""
    zipf = np.arange(1.0, vocab_size + 1.0) ** -EXPONENT
    zipf /= zipf.sum()
    head, tail = np.zeros((2, vocab_size))
    head[0::2] = zipf[0::2] / zipf[0::2].sum()
    tail[1::2] = zipf[1::2] / zipf[1::2].sum()
    mixed = (1.0 - quality) * head + quality * tail
    one_hot = np.eye(1, vocab_size)[0]
    pairs = {
        "surplus": (head, mixed),
        "missing": (mixed, head),
        "equal": (zipf, zipf),
        "most likely token": (zipf, one_hot),
        "least likely token": (zipf, one_hot[::-1].copy()),
        "disjoint": (head, tail),
        "reversed": (zipf, zipf[::-1].copy()),
        "uniform": (zipf, np.full(vocab_size, 1.0 / vocab_size)),
    }
    if family == "noise":
        noise = quality * rng.standard_normal(vocab_size)
        return zipf, otmd.probs_from_logits(np.log(zipf) + noise)
    if family not in pairs:
        raise ValueError(f"family: got {family!r}, expected noise, {', '.join(pairs)}")
    return pairs[family]


def rates(
    rng: np.random.Generator, family: str, quality: float, vocab_size: int, draw: int
) -> Iterator[dict[str, Any]]:
    """Rows of one pair; ``draw`` tells the pairs of random noise apart."""
    target, draft = pair_of(rng, family, quality, vocab_size)
    distance = float(0.5 * np.abs(target - draft).sum())
    how: dict[str, Any] = {"laws": DEFAULT_LAWS, "verifiers": DEFAULT_VERIFIERS}
    for row in otmd.compare(target, draft, range(1, MOST_DRAFTS + 1), **how, tol=TOLERANCE):
        half = 0.5 * row.bound_width
        yield {
            "total_variation": distance,
            "law": row.law,
            "num_drafts": row.num_drafts,
            "verifier": row.verifier,
            "optimal": row.optimal,
            "rate_low": row.rate - half,
            "rate_high": row.rate + half,
        }


def main(arguments: list[str]) -> pl.DataFrame:
    """Run the sweep and print the rates with four drafts."""
    table = run(rates, arguments, 0.3)
    most = table.filter(pl.col("num_drafts") == MOST_DRAFTS, pl.col("verifier") != "TargetOnly")
    by = ("family", "vocab_size", "quality")
    names = pl.col("verifier") + ", " + pl.col("law")
    means = most.group_by(*by, name=names, maintain_order=True).agg(pl.col("rate_low").mean())
    show(means.pivot("name", index=by, values="rate_low"))
    return table
