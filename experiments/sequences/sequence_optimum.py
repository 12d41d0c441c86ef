"""How far rules for draft trees are from the sequence-level optimum, on real models made small.

    python experiments/sequences/sequence_optimum.py
    python experiments/sequences/sequence_optimum.py --prompts 2 --positions 2 --output runs/quick.parquet

Every number is exact for the small models (see reduced_models.py): rules by enumeration, the optimum by its
linear program with a certificate. An interrupted run goes on where it stopped.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
from estimates import summarise
from prompt_runs import Rows, options, parse, run_prompts
from reduced_models import reduced_models
from target_texts import Pair, Text

import otmd
from otmd import Processing
from otmd.models.continuations import continuations
from otmd.storage.parquet import write_parquet
from otmd.transport import SolverError
from otmd.trees import (
    BlockVerification,
    IIDPaths,
    TableModel,
    TokenLevel,
    TokenTree,
    Traversal,
    TreeLaw,
    block_efficiency,
    optimal_block_efficiency,
)

# The program's own tolerance.
SLACK = 1e-7
OUTPUT = Path("paper_figures/results/sequence_optimum.parquet")
RRS = TokenLevel(otmd.RecursiveRejection())
RULES = {
    "RRS": RRS,
    "RRSw": RRS,
    "K-SEQ": TokenLevel(otmd.KSequential()),
    "SpecHub": TokenLevel(otmd.SpecHub()),
    "optimal at each token": TokenLevel(otmd.Optimal()),
    "block verification": BlockVerification(),
    "Traversal": Traversal(),
}
OPTIMUM = "sequence-level optimum"

Law = Callable[[TableModel, int], TreeLaw]
LAWS: dict[str, tuple[Law, tuple[str, ...]]] = {
    "one path": (
        lambda draft, depth: IIDPaths(draft, 1, depth),
        ("RRS", "block verification"),
    ),
    "two paths": (
        lambda draft, depth: IIDPaths(draft, 2, depth),
        ("RRS", "K-SEQ", "optimal at each token"),
    ),
    "two distinct paths": (
        lambda draft, depth: TokenTree(draft, (2,) + (1,) * (depth - 1)),
        ("RRSw", "optimal at each token", "Traversal"),
    ),
    "binary tree": (
        lambda draft, depth: TokenTree(draft, (2,) * depth),
        ("RRSw", "optimal at each token", "Traversal"),
    ),
    "binary hub tree": (
        lambda draft, depth: TokenTree(draft, (2,) * depth, otmd.Hub),
        ("SpecHub", "optimal at each token"),
    ),
}
"""The law of trees for a draft model and a depth, and the rules that serve it."""

SIZES = {
    (4, 2): tuple(LAWS),
    (3, 3): ("one path", "two paths", "two distinct paths"),
}
"""Laws for each vocabulary and depth; a binary tree of depth 3 has a program too large for many positions."""


def measure_models(
    target: TableModel, draft: TableModel, depth: int, name: str
) -> dict[str, float | None]:
    """Tokens a step of each rule that serves a law of trees, and the most that any could emit.

    If the solver gives up, the distance to the optimum is unknown, and all values are None.
    """
    law, rules = LAWS[name]
    trees = law(draft, depth)
    try:
        best = optimal_block_efficiency(target, trees).value
    except SolverError:
        return dict.fromkeys((*rules, OPTIMUM))
    values = {rule: block_efficiency(RULES[rule], target, trees).value for rule in rules}
    if max(values.values()) > best + SLACK:
        raise RuntimeError(f"{trees}: rules emit {values}, expected at most the optimum {best}")
    return {**values, OPTIMUM: best}


def measure_text(pair: Pair, text: Text, rng: np.random.Generator, positions: int) -> Rows:
    """Tokens a step at positions spread evenly over a text, for every size, law and rule."""
    processing, size = Processing(text.temperature), pair.target.token_count
    models = [continuations(model, text.before) for model in (pair.target, pair.draft)]
    count, read, rows = min(positions, len(text.tokens)), 0, []
    for position in np.linspace(0, len(text.tokens) - 1, count).astype(int).tolist():
        for model in models:
            model.extend(text.tokens[read:position])
        read = position
        for (vocab_size, depth), names in SIZES.items():
            target, draft = reduced_models(
                models, lambda logits: processing(logits[:size]), vocab_size, depth, rng
            )
            for name in names:
                about = {
                    "position": position,
                    "vocab_size": vocab_size,
                    "depth": depth,
                    "law": name,
                }
                found = measure_models(target, draft, depth, name)
                rows += [{**about, "rule": rule, "tokens": v} for rule, v in found.items()]
    return rows


def summarise_gaps(rows: pl.DataFrame) -> pl.DataFrame:
    """Mean tokens a step and distance to the optimum, with errors, and the largest distance of all.

    Positions whose program was not solved count for no rule; ``unsolved`` says how many they are.
    """
    cell = ["vocab_size", "depth", "law"]
    by_prompt = rows.group_by("domain", "prompt", *cell, "rule", maintain_order=True).agg(
        pl.col("tokens").sum(), pl.col("tokens").count().cast(pl.Float64).alias("steps")
    )
    where = ["prompt", "position", *cell]
    best = rows.filter(rule=OPTIMUM).select(*where, best="tokens")
    gap = pl.col("best") - pl.col("tokens")
    most = rows.join(best, on=where).group_by(*cell, "rule")
    about = most.agg(largest_gap=gap.max(), unsolved=pl.col("tokens").null_count())
    return summarise(by_prompt, cell, "rule", OPTIMUM).join(about, on=[*cell, "rule"], how="left")


def as_table(summary: pl.DataFrame) -> str:
    """Tokens a step and the distance to the optimum, as Markdown."""
    heads = (
        "V",
        "depth",
        "drafts",
        "rule",
        "tokens a step",
        "short of the optimum",
        "at most",
        "positions",
    )
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in summary.to_dicts():
        where = f"| {row['vocab_size']} | {row['depth']} | {row['law']} | {row['rule']} | "
        value = f"{row['value']:.3f} ± {row['error']:.3f}"
        counted = f"{row['steps']:.0f}"
        if row["rule"] == OPTIMUM:
            left_out = f", {row['unsolved']} unsolved" if row["unsolved"] else ""
            lines.append(f"{where}{value} | | | {counted}{left_out} |")
            continue
        short = f"{-row['difference']:.4f} ± {row['difference_error']:.4f}"
        lines.append(f"{where}{value} | {short} | {row['largest_gap']:.3f} | |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> pl.DataFrame:
    """Run, or go on with, the experiment; print its table and return it."""
    parser = options(
        "Distance of rules to the sequence-level optimum.", OUTPUT, seconds_a_prompt=15
    )
    parser.set_defaults(length=40)
    parser.add_argument("--positions", type=int, default=3, help="of each text")
    parser.add_argument("--temperature", type=float, default=1.0, help="of both models")
    chosen = parse(parser, arguments)
    if chosen.positions < 1:
        parser.error(f"--positions: got {chosen.positions}, expected at least 1")
    if chosen.temperature <= 0:
        parser.error(f"--temperature: got {chosen.temperature}, expected a number above 0")

    def measure(pair: Pair, text: Text, rng: np.random.Generator) -> Rows:
        return measure_text(pair, text, rng, chosen.positions)

    rows = run_prompts(chosen, [chosen.temperature], f"optimum {chosen.positions}", measure)
    summary = summarise_gaps(rows)
    write_parquet(chosen.output, summary)
    print(as_table(summary))
    return summary


if __name__ == "__main__":
    main()
