"""SpecHub's experiment: tokens per step with binary trees by depth and temperature, on a real pair.

    python -m experiments spechub_depths
    python -m experiments spechub_depths --prompts 2 --length 24 --output runs/quick.parquet

All rules are measured along the same texts of the target, ``--prompts`` of each of the ``--sources``, at most
``--length`` tokens long. Trees have up to ``--depth`` levels.
"""

from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import polars as pl

import otmd
from experiments.estimates import cell_text, summarise
from experiments.runner import markdown, require
from experiments.texts import Pair, Text, along_texts, run_prompts
from experiments.trees.steps import OPTIMAL, decoded, emission_and_rate, token_level_starts

DRAFTS = 2
RULES = {
    "RRS": (otmd.RecursiveRejection(), otmd.WithReplacement),
    "RRSw": (otmd.RecursiveRejection(), otmd.WithoutReplacement),
    "SpecHub": (otmd.SpecHub(), otmd.Hub),
    "optimal, with replacement": (OPTIMAL, otmd.WithReplacement),
    "optimal, without": (OPTIMAL, otmd.WithoutReplacement),
}
REFERENCE = "RRS"

PUBLISHED = {1: (1.554, 1.600, 1.616), 4: (2.139, 2.315, 2.403)}
"""RRS, RRSw and SpecHub by depth in Sun et al. (2024): JackFram-68m for Llama-2-7b-chat, CNN, T = 0.6."""


def measure(depth: int, _: Pair, text: Text, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Tokens and steps of every rule and depth along one text."""
    target, draft = text.probs()
    # Every depth is measured over steps that begin at the same tokens.
    starts = max(len(text.tokens) - depth + 1, 0)
    for rule, (verifier, law) in RULES.items():
        pairs = [
            emission_and_rate(verifier, p, law(q, DRAFTS), token, rng)
            for p, q, token in zip(target, draft, text.tokens, strict=True)
        ]
        passing = np.array([emission.sum() for emission, _ in pairs])
        rates = np.array([rate for _, rate in pairs])
        for size in range(1, depth + 1):
            steps_of = token_level_starts(passing[:, None, None], rates[:, None], 0, size)
            tokens, steps = decoded(steps_of, starts)
            yield {"rule": rule, "depth": size, "tokens": tokens, "steps": steps}


def rows(
    rng: np.random.Generator, domain: str, prompt: str, settings: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Rows of one prompt."""
    temperatures = sorted(set(settings["temperatures"]))
    return along_texts(partial(measure, settings["depth"]), prompt, temperatures, settings)


def as_table(summary: pl.DataFrame) -> str:
    """Tokens a step, and in brackets how many more than recursive rejection, as Markdown."""
    lines = []
    for temperature, depth in summary.select("temperature", "depth").unique().sort(pl.all()).rows():
        part = summary.filter(temperature=temperature, depth=depth)
        cells = [cell_text(part.filter(rule=rule)) for rule in RULES]
        lines.append([f"{temperature:g}", depth, *cells])
    for depth, values in PUBLISHED.items():
        cells = [f"{value:.3f}" for value in values] + [""] * (len(RULES) - len(values))
        lines.append(["*0.6, SpecHub's table, other models*", depth, *cells])
    return markdown(["T", "depth", *RULES], lines)


def check(chosen: Namespace) -> None:
    """End with a message for options that make no sense."""
    expected = f"1 to --length, {chosen.length}"
    require(1 <= chosen.depth <= chosen.length, "depth", chosen.depth, expected)
    require(min(chosen.temperatures) > 0, "temperatures", chosen.temperatures, "numbers above 0")


def main(arguments: list[str]) -> pl.DataFrame:
    """Run, or continue, the experiment; print its table and return it."""
    keys = ["temperature", "depth"]
    compare = partial(summarise, settings=keys, rule="rule", reference=REFERENCE)
    grid: dict[str, Any] = {"depth": 5, "temperatures": (0.3, 0.6, 1.0, 1.5, 2.0)}
    summary = run_prompts(rows, arguments, 18.0, compare, check, **grid)
    print(as_table(summary))
    return summary
