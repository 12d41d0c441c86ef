"""SpecHub's experiment: tokens a step with binary trees by depth and temperature, on a real pair.

    python experiments/sequences/spechub_depths.py
    python experiments/sequences/spechub_depths.py --prompts 2 --length 24 --output runs/quick.parquet

All rules are measured along the same texts of the target. An interrupted run goes on where it stopped.
"""

from pathlib import Path

import numpy as np
import polars as pl
from estimates import cell_text, summarise
from prompt_runs import Rows, options, parse, run_prompts
from steps_along_text import Starts, decoded, emission_and_rate, token_level_starts
from target_texts import Laws, Pair, Text, laws_along

import otmd
from otmd.storage.parquet import write_parquet

OUTPUT = Path("paper_figures/results/spechub_depths.parquet")
DRAFTS = 2
RULES = {
    "RRS": (otmd.RecursiveRejection(), otmd.WithReplacement),
    "RRSw": (otmd.RecursiveRejection(), otmd.WithoutReplacement),
    "SpecHub": (otmd.SpecHub(), otmd.Hub),
    "optimal, with replacement": (otmd.Optimal(), otmd.WithReplacement),
    "optimal, without": (otmd.Optimal(), otmd.WithoutReplacement),
}
REFERENCE = "RRS"

PUBLISHED = {1: (1.554, 1.600, 1.616), 4: (2.139, 2.315, 2.403)}
"""RRS, RRSw and SpecHub by depth in Sun et al. (2024): JackFram-68m for Llama-2-7b-chat, CNN, T = 0.6."""


def measure_laws(text: Laws, depth: int, rng: np.random.Generator) -> Rows:
    """Tokens and steps of every rule and depth along one text."""
    starts = max(len(text.tokens) - depth + 1, 0)
    rows = []
    for name, (verifier, law) in RULES.items():
        pairs = [
            emission_and_rate(verifier, target, law(draft, DRAFTS), token, rng)
            for target, draft, token in zip(text.target, text.draft, text.tokens, strict=True)
        ]
        passing = np.array([emission.sum() for emission, _ in pairs])
        rates = np.array([rate for _, rate in pairs])
        for size in range(1, depth + 1):
            found = token_level_starts(passing[:, None, None], rates[:, None], 0, size)
            # Every depth is measured over steps that begin at the same tokens.
            tokens, steps = decoded(Starts(found.reached[:starts], found.expected[:starts]))
            rows.append({"rule": name, "depth": size, "tokens": tokens, "steps": steps})
    return rows


def as_table(summary: pl.DataFrame) -> str:
    """Tokens a step, and in brackets how many more than recursive rejection, as Markdown."""
    lines = ["| T | depth | " + " | ".join(RULES) + " |", "|---" * (len(RULES) + 2) + "|"]
    for temperature, depth in summary.select("temperature", "depth").unique().sort(pl.all()).rows():
        rows = summary.filter(temperature=temperature, depth=depth)
        cells = [cell_text(rows.filter(rule=rule)) for rule in RULES]
        lines.append(f"| {temperature:g} | {depth} | " + " | ".join(cells) + " |")
    for depth, values in PUBLISHED.items():
        cells = [f"{value:.3f}" for value in values] + [""] * (len(RULES) - len(values))
        lines.append(f"| *0.6, SpecHub's table, other models* | {depth} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> pl.DataFrame:
    """Run, or go on with, the experiment; print its table and return it."""
    parser = options("Tokens a step with binary trees.", OUTPUT, seconds_a_prompt=18)
    parser.add_argument("--depth", type=int, default=5, help="the deepest tree")
    parser.add_argument(
        "--temperatures", type=float, nargs="+", default=[0.3, 0.6, 1.0, 1.5, 2.0], help="of both"
    )
    chosen = parse(parser, arguments)
    if not 1 <= chosen.depth <= chosen.length:
        parser.error(f"--depth: got {chosen.depth}, expected 1 to --length, {chosen.length}")
    if min(chosen.temperatures) <= 0:
        parser.error(f"--temperatures: got {chosen.temperatures}, expected numbers above 0")

    def measure(_: Pair, text: Text, rng: np.random.Generator) -> Rows:
        return measure_laws(laws_along(text), chosen.depth, rng)

    rows = run_prompts(chosen, sorted(set(chosen.temperatures)), f"{chosen.depth}", measure)
    summary = summarise(rows, ["temperature", "depth"], "rule", REFERENCE)
    write_parquet(chosen.output, summary)
    print(as_table(summary))
    return summary


if __name__ == "__main__":
    main()
