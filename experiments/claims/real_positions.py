"""Every law, number of drafts and verifier at positions of real models, for several claims.

    python -m experiments real_positions
    python -m experiments real_positions --per-domain 2 --per-prompt 1 --folder runs/quick \
        --output runs/quick.parquet

Collects the pairs that are not there yet under ``--folder`` (the target is SmolLM2-135M-Instruct, the drafts
are the same model with layers left out), and measures each at its temperatures. Stores a row for each
position, temperature, law, number of drafts and verifier, with the target's entropy, the draft's largest
probability, and the total variation between the two.
"""

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import otmd
from experiments.claims.positions import DOMAINS
from experiments.runner import RESULTS, options, save, show
from otmd.models import Dataset, collect, load_prompts
from otmd.study import DEFAULT_VERIFIERS, measure

FOLDER = Path("runs/pairs")
MOST_DRAFTS = 4
TOLERANCE = 1e-3
PER_DOMAIN, PER_PROMPT = 16, 6
TEMPERATURES = {
    "skip:13,15,17": (0.1, 0.3, 0.6, 0.7, 1.0, 1.5, 2.0, 3.0),
    "skip:15": (1.0,),
    "skip:3,15,27": (1.0,),
    "skip:27,28,29": (1.0,),
}
"""The pair of the README at every temperature, and a ladder of drafts at one."""


def top_then(draft_probs: np.ndarray, num_drafts: int, top: int, rest: type[Any]) -> otmd.TopThen:
    """The most likely tokens, then others."""
    return otmd.TopThen(draft_probs, num_drafts, top, rest)


TOPS = [
    (1, otmd.WithReplacement),
    (2, otmd.WithReplacement),
    (1, otmd.WithoutReplacement),
    (2, otmd.WithoutReplacement),
    (4, otmd.WithoutReplacement),
]
LAWS = [
    otmd.WithReplacement,
    otmd.WithoutReplacement,
    otmd.ConditionalPoisson,
    otmd.Greedy,
    otmd.Hub,
    *((f"top {m}, then {rest.__name__}", partial(top_then, top=m, rest=rest)) for m, rest in TOPS),
]


def collected(
    draft: str, folder: Path = FOLDER, per_domain: int = PER_DOMAIN, per_prompt: int = PER_PROMPT
) -> Dataset:
    """The dataset of the pair with this draft, collected unless it is there."""
    prompts = load_prompts(list(DOMAINS), per_domain, 0)
    path = folder / re.sub(r"[^0-9A-Za-z]+", "-", draft)
    return collect("default", draft, prompts, path, positions_per_prompt=per_prompt)


def about_positions(dataset: Dataset, temperature: float) -> Iterator[dict[str, float]]:
    """Entropy of the target, largest probability of the draft, and total variation, at each position."""
    step = otmd.Processing(temperature)
    for number, position in enumerate(dataset.positions):
        target, draft = (step(logits[0]) for logits in dataset.arrays([number]))
        positive = target[target > 0]
        yield {
            "index": position.index,
            "temperature": temperature,
            "entropy": float(-(positive * np.log(positive)).sum()),
            "top_draft": float(draft.max()),
            "total_variation": float(0.5 * np.abs(target - draft).sum()),
        }


def measured(dataset: Dataset, draft: str, output: Path, workers: int) -> pl.DataFrame:
    """Rows of one pair; finished positions are kept in the folder ``output``."""
    temperatures = TEMPERATURES[draft]
    rates = measure(
        dataset,
        LAWS,
        DEFAULT_VERIFIERS,
        range(1, MOST_DRAFTS + 1),
        [otmd.Processing(temperature) for temperature in temperatures],
        TOLERANCE,
        workers,
        progress=True,
        output=output,
    )
    about = pl.DataFrame([row for t in temperatures for row in about_positions(dataset, t)])
    keys = ["index", "temperature"]
    columns = [*keys, "prompt_id", "domain", "law", "num_drafts", "verifier", "optimal"]
    kept = rates.select(*columns, "rate_low", "rate_high", "status")
    joined = kept.join(about, on=keys, maintain_order="left")
    return joined.with_columns(draft=pl.lit(draft))


def main(arguments: list[str]) -> pl.DataFrame:
    """Collect, measure, and print mean α* by law, number of drafts and temperature."""
    defaults: dict[str, Any] = {"folder": FOLDER, "output": RESULTS / "real_positions.parquet"}
    defaults |= {"per_domain": PER_DOMAIN, "per_prompt": PER_PROMPT, "workers": os.cpu_count() or 1}
    chosen = options(__name__, arguments, **defaults)
    tables = []
    for draft in TEMPERATURES:
        dataset = collected(draft, chosen.folder, chosen.per_domain, chosen.per_prompt)
        rows = chosen.folder / "measured" / dataset.path.name
        tables.append(measured(dataset, draft, rows, chosen.workers))
    table = pl.concat(tables)
    save(chosen.output, table, chosen)
    best = table.unique(["draft", "temperature", "law", "num_drafts", "index"])
    means = best.group_by("draft", "law", "num_drafts", "temperature").agg(pl.col("optimal").mean())
    wide = means.sort("temperature").pivot("temperature", values="optimal")
    show(wide.sort("draft", "law", "num_drafts"))
    return table
