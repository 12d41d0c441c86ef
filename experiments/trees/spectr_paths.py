"""SpecTr's experiment: tokens per step with K independent paths of L tokens, on a real pair.

    python -m experiments spectr_paths
    python -m experiments spectr_paths --prompts 2 --length 24 --output runs/quick.parquet

All rules are measured along the same texts of the target, ``--prompts`` of each of the ``--sources``, at most
``--length`` tokens long. ``--paths`` are the K and ``--depths`` the L.
"""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import polars as pl

import otmd
from experiments.estimates import cell_text, summarise
from experiments.runner import markdown, require
from experiments.texts import Pair, Text, along_texts, run_prompts
from experiments.trees.steps import (
    OPTIMAL,
    block_starts,
    decoded,
    paths_emission,
    token_level_starts,
)

RULES = {"RRS": otmd.RecursiveRejection(), "K-SEQ": otmd.KSequential(), "optimal": OPTIMAL}
REFERENCE = "RRS"
BLOCK = "block verification"

PUBLISHED = {(1, 4): 2.4, (8, 4): 3.1, (1, 8): 2.9, (8, 8): 4.0}
"""K-SEQ by paths and depth in Sun et al. (2023): PaLM-2 on LM1B."""


def measure(
    paths: Sequence[int], depths: Sequence[int], _: Pair, text: Text, rng: np.random.Generator
) -> Iterator[dict[str, Any]]:
    """Tokens and steps of every rule, number of paths and depth along one text."""
    target, draft = text.probs()
    # Every depth is measured over steps that begin at the same tokens.
    starts = max(len(text.tokens) - max(depths) + 1, 0)
    for rule, verifier in RULES.items():
        pairs = [
            paths_emission(verifier, p, q, token, max(paths), rng)
            for p, q, token in zip(target, draft, text.tokens, strict=True)
        ]
        passing, rates = (np.array(part) for part in zip(*pairs, strict=True))
        for count in paths:
            for depth in depths:
                steps_of = token_level_starts(passing, rates, count - 1, depth)
                tokens, steps = decoded(steps_of, starts)
                yield {
                    "rule": rule, "paths": count, "depth": depth, "tokens": tokens, "steps": steps
                }  # fmt: skip
    for depth in depths if 1 in paths else ():
        tokens, steps = decoded(block_starts(target, draft, text.tokens, depth), starts)
        yield {"rule": BLOCK, "paths": 1, "depth": depth, "tokens": tokens, "steps": steps}


def rows(
    rng: np.random.Generator, domain: str, prompt: str, settings: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Rows of one prompt."""
    paths, depths = (sorted(set(settings[name])) for name in ("paths", "depths"))
    of_text = partial(measure, paths, depths)
    return along_texts(of_text, prompt, [settings["temperature"]], settings)


def as_table(summary: pl.DataFrame) -> str:
    """Tokens a step, and in brackets how many more than recursive rejection, as Markdown."""
    lines = []
    for depth, paths in summary.select("depth", "paths").unique().sort(pl.all()).rows():
        part = summary.filter(depth=depth, paths=paths)
        cells = [cell_text(part.filter(rule=rule)) for rule in (*RULES, BLOCK)]
        lines.append([depth, paths, *cells, PUBLISHED.get((paths, depth), "")])
    return markdown(["L", "K", *RULES, BLOCK, "K-SEQ in SpecTr, other models"], lines)


def check(chosen: Namespace) -> None:
    """End with a message for options that make no sense."""
    for name in ("paths", "depths"):
        value = getattr(chosen, name)
        require(min(value) >= 1, name, value, "numbers of at least 1")
    require(chosen.temperature > 0, "temperature", chosen.temperature, "a number above 0")
    deepest = max(chosen.depths)
    require(chosen.length >= deepest, "length", chosen.length, f"at least the depth {deepest}")


def main(arguments: list[str]) -> pl.DataFrame:
    """Run, or continue, the experiment; print its table and return it."""
    compare = partial(summarise, settings=["paths", "depth"], rule="rule", reference=REFERENCE)
    grid: dict[str, Any] = {"paths": (1, 2, 4, 8), "depths": (4, 8), "temperature": 1.0}
    summary = run_prompts(rows, arguments, 12.0, compare, check, **grid)
    print(as_table(summary))
    return summary
