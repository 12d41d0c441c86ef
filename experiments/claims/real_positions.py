"""Every law, number of drafts and verifier at positions of real models, for several claims.

    python experiments/claims/real_positions.py

Collects the pairs that are not there yet under runs/pairs (the target is SmolLM2-135M-Instruct, the drafts
are the same model with layers left out), and measures each domain at each temperature. Stores a row for each
position, law, number of drafts and verifier, with the target's entropy, the draft's largest probability, and
the total variation between the two.
"""

import re
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import sweep_script

import otmd
from otmd.models import collect, load_prompts, open_dataset
from otmd.study.rows import DEFAULT_VERIFIERS, Settings, make_settings, position_rows
from otmd.study.run import describe_dataset

PAIRS = Path("runs/pairs")
DOMAINS = ("code", "maths", "chat", "prose")
PER_DOMAIN, PER_PROMPT = 16, 6
MOST_DRAFTS = 4
TOLERANCE = 1e-3


def top_then(draft_probs: np.ndarray, num_drafts: int, top: int, rest: type[Any]) -> otmd.TopThen:
    """The likeliest tokens, then others."""
    return otmd.TopThen(draft_probs, num_drafts, top, rest)


LAWS = [
    otmd.WithReplacement,
    otmd.WithoutReplacement,
    otmd.ConditionalPoisson,
    otmd.Greedy,
    otmd.Hub,
    *(
        (f"{top} likeliest, then {rest.__name__}", partial(top_then, top=top, rest=rest))
        for top, rest in (
            (1, otmd.WithReplacement),
            (2, otmd.WithReplacement),
            (1, otmd.WithoutReplacement),
            (2, otmd.WithoutReplacement),
            (4, otmd.WithoutReplacement),
        )
    ),
]


@cache
def settings() -> Settings:
    """What is measured."""
    counts = range(1, MOST_DRAFTS + 1)
    return make_settings(LAWS, DEFAULT_VERIFIERS, counts, [otmd.Processing()], TOLERANCE)


def folder_of(draft: str) -> Path:
    """Where the pair with this draft is collected."""
    return PAIRS / re.sub(r"[^0-9A-Za-z]+", "-", draft)


def collected(draft: str) -> str:
    """Collect the pair with this draft, unless it is there; return a string that identifies its data."""
    prompts = load_prompts(list(DOMAINS), PER_DOMAIN, 0, progress=True)
    path = folder_of(draft)
    collect("default", draft, prompts, path, positions_per_prompt=PER_PROMPT, progress=True)
    return str(describe_dataset(open_dataset(path))["dataset"])


def positions(
    rng: np.random.Generator, draft: str, domain: str, temperature: float
) -> Iterator[dict[str, Any]]:
    """All rows of one domain."""
    dataset, step = open_dataset(folder_of(draft)), otmd.Processing(temperature)
    for number, place in enumerate(dataset.positions):
        if place.domain != domain:
            continue
        target, drafted = (step(logits[0]) for logits in dataset.arrays([number]))
        likely = target[target > 0]
        at = {
            "index": place.index,
            "prompt_id": place.prompt_id,
            "entropy": float(-(likely * np.log(likely)).sum()),
            "top_draft": float(drafted.max()),
            "total_variation": float(0.5 * np.abs(target - drafted).sum()),
        }
        for row in position_rows(target, drafted, settings()):
            kept = ("law", "num_drafts", "verifier", "optimal", "rate_low", "rate_high", "status")
            yield at | {name: row.get(name) for name in kept}


def main(arguments: list[str] | None = None) -> pl.DataFrame:
    """Collect, measure, and print mean α* by law, number of drafts and temperature."""
    table = sweep_script.run(
        positions,
        __doc__ or "",
        9.0,
        arguments,
        lambda tasks: "".join(collected(draft) for draft in sorted({t["draft"] for t in tasks})),
    )
    best = table.unique(["draft", "temperature", "law", "num_drafts", "index"])
    means = best.group_by("draft", "law", "num_drafts", "temperature").agg(pl.col("optimal").mean())
    with pl.Config(tbl_rows=-1, tbl_cols=-1, float_precision=4, tbl_hide_dataframe_shape=True):
        wide = means.sort("temperature").pivot("temperature", values="optimal")
        print(wide.sort("draft", "law", "num_drafts"))
    return table


if __name__ == "__main__":
    main()
