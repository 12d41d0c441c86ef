"""SpecTr's experiment: tokens a step with K independent paths of L tokens, on a real pair.

    python experiments/sequences/spectr_paths.py
    python experiments/sequences/spectr_paths.py --prompts 2 --length 24 --output runs/quick.parquet

All rules are measured along the same texts of the target. An interrupted run goes on where it stopped.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from estimates import cell_text, summarise
from prompt_runs import Rows, options, parse, run_prompts
from steps_along_text import Starts, block_starts, decoded, paths_emission, token_level_starts
from target_texts import Laws, Pair, Text, laws_along

import otmd
from otmd.storage.parquet import write_parquet

OUTPUT = Path("paper_figures/results/spectr_paths.parquet")
RULES = {
    "RRS": otmd.RecursiveRejection(),
    "K-SEQ": otmd.KSequential(),
    "optimal": otmd.Optimal(),
}
REFERENCE = "RRS"
BLOCK = "block verification"

PUBLISHED = {(1, 4): 2.4, (8, 4): 3.1, (1, 8): 2.9, (8, 8): 4.0}
"""K-SEQ by paths and depth in Sun et al. (2023): PaLM-2 on LM1B."""


def measure_laws(text: Laws, paths: list[int], depths: list[int]) -> Rows:
    """Tokens and steps of every rule, number of paths and depth along one text."""
    starts = max(len(text.tokens) - max(depths) + 1, 0)
    rows = []
    for name, verifier in RULES.items():
        pairs = [
            paths_emission(verifier, target, draft, token, max(paths))
            for target, draft, token in zip(text.target, text.draft, text.tokens, strict=True)
        ]
        passing, rates = (np.array(part) for part in zip(*pairs, strict=True))
        rows += [
            _row(name, count, depth, token_level_starts(passing, rates, count - 1, depth), starts)
            for count in paths
            for depth in depths
        ]
    if 1 in paths:
        rows += [_row(BLOCK, 1, depth, block_starts(text, depth), starts) for depth in depths]
    return rows


def _row(rule: str, paths: int, depth: int, found: Starts, starts: int) -> dict[str, Any]:
    # Every depth is measured over steps that begin at the same tokens.
    tokens, steps = decoded(Starts(found.reached[:starts], found.expected[:starts]))
    return {"rule": rule, "paths": paths, "depth": depth, "tokens": tokens, "steps": steps}


def as_table(summary: pl.DataFrame) -> str:
    """Tokens a step, and in brackets how many more than recursive rejection, as Markdown."""
    heads = ["L", "K", *RULES, BLOCK, "K-SEQ in SpecTr, other models"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for depth, paths in summary.select("depth", "paths").unique().sort(pl.all()).rows():
        rows = summary.filter(depth=depth, paths=paths)
        cells = [cell_text(rows.filter(rule=rule)) for rule in (*RULES, BLOCK)]
        published = str(PUBLISHED.get((paths, depth), ""))
        lines.append(f"| {depth} | {paths} | " + " | ".join([*cells, published]) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> pl.DataFrame:
    """Run, or go on with, the experiment; print its table and return it."""
    parser = options(
        "Tokens a step with K independent paths of L tokens.", OUTPUT, seconds_a_prompt=12
    )
    parser.add_argument("--paths", type=int, nargs="+", default=[1, 2, 4, 8], help="K")
    parser.add_argument("--depths", type=int, nargs="+", default=[4, 8], help="L")
    parser.add_argument("--temperature", type=float, default=1.0, help="of both models")
    chosen = parse(parser, arguments)
    _check(parser, chosen)
    paths, depths = sorted(set(chosen.paths)), sorted(set(chosen.depths))

    def measure(_: Pair, text: Text, __: np.random.Generator) -> Rows:
        return measure_laws(laws_along(text), paths, depths)

    rows = run_prompts(chosen, [chosen.temperature], f"{paths} {depths}", measure)
    summary = summarise(rows, ["paths", "depth"], "rule", REFERENCE)
    write_parquet(chosen.output, summary)
    print(as_table(summary))
    return summary


def _check(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    for name in ("paths", "depths"):
        if np.min(getattr(chosen, name)) < 1:
            parser.error(f"--{name}: got {getattr(chosen, name)}, expected numbers of at least 1")
    if chosen.temperature <= 0:
        parser.error(f"--temperature: got {chosen.temperature}, expected a number above 0")
    if chosen.length < max(chosen.depths):
        parser.error(
            f"--length: got {chosen.length}, expected at least the depth {max(chosen.depths)}"
        )


if __name__ == "__main__":
    main()
