"""Distance of rules for draft trees to the sequence-level optimum, on real models made small.

    python -m experiments sequence_optimum
    python -m experiments sequence_optimum --prompts 2 --positions 2 --output runs/quick.parquet

Every number is exact for the small models: rules by enumeration, the optimum by its linear program with a
certificate. ``--positions`` of each text are taken.

At every prefix the V − 1 tokens with the largest sum of target and draft probability are kept, and the rest
is merged into one. After the merged token the models continue as after one of the merged tokens, drawn from
the target. So every distribution of the small models is a real one with tokens merged, at a prefix that the
target may write. Merging can hide differences between the two models, and adds none.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import polars as pl

import otmd
from experiments.estimates import summarise
from experiments.runner import markdown, require
from experiments.texts import Pair, Prefix, Text, along_texts, continuations, run_prompts
from otmd.probabilities import FloatArray
from otmd.transport import SolverError
from otmd.trees import (
    BlockVerification,
    IIDPaths,
    TableModel,
    TokenLevel,
    TokenTree,
    Traversal,
    TreeLaw,
    optimal_block_efficiency,
    tokens_per_step,
)

# The program's own tolerance.
SLACK = 1e-7
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


def reduced_models(
    models: Sequence[Any],
    probs: Callable[[np.ndarray], FloatArray],
    vocab_size: int,
    depth: int,
    rng: np.random.Generator,
) -> tuple[TableModel, TableModel]:
    """Target and draft over V tokens, from the end of a text on.

    Parameters
    ----------
    models : sequence of Continuations
        Target and draft at the end of the text.
    probs : callable
        From logits to probabilities.
    vocab_size, depth : int
        V, at least 2; prefixes of up to ``depth`` tokens are read.
    rng : numpy.random.Generator
        Draws the token that stands for the merged ones. Equal seeds give equal models.
    """
    written: dict[Prefix, Prefix] = {(): ()}
    tables: list[FloatArray] = []
    for length in range(depth + 1):
        prefixes = list(product(range(vocab_size), repeat=length))
        real_prefixes = [written[prefix] for prefix in prefixes]
        logits = zip(*(model.logits(real_prefixes) for model in models), strict=True)
        rows = []
        for prefix, pair in zip(prefixes, logits, strict=True):
            target, draft = map(probs, pair)
            kept, reduced = merge_rest(target, draft, vocab_size)
            rest = target.copy()
            rest[kept] = 0.0
            cumulative = rest.cumsum()
            drawn = np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right")
            tokens = [*kept.tolist(), min(int(drawn), rest.size - 1)]
            written |= {(*prefix, i): (*written[prefix], t) for i, t in enumerate(tokens)}
            rows.append(reduced)
        shape = (2, *(vocab_size,) * (length + 1))
        tables.append(np.moveaxis(np.array(rows), 1, 0).reshape(shape))
    return TableModel([table[0] for table in tables]), TableModel([table[1] for table in tables])


def merge_rest(target: FloatArray, draft: FloatArray, vocab_size: int) -> tuple[np.ndarray, FloatArray]:
    """The V − 1 tokens with the largest sum, and both distributions (2, V) with the rest merged."""
    kept = np.argsort(-(target + draft), kind="stable")[: vocab_size - 1]
    both = np.stack([target, draft])
    rest = np.delete(both, kept, axis=1).sum(axis=1)
    reduced = np.column_stack([both[:, kept], rest])
    return kept, reduced / reduced.sum(axis=1, keepdims=True)


def measure_models(target: TableModel, draft: TableModel, depth: int, name: str) -> dict[str, float | None]:
    """Tokens a step of each rule that serves a law of trees, and the most that any could emit.

    If the solver gives up, the distance to the optimum is unknown, and all values are None.
    """
    law, rules = LAWS[name]
    trees = law(draft, depth)
    try:
        best = optimal_block_efficiency(target, trees).value
    except SolverError:
        return dict.fromkeys((*rules, OPTIMUM))
    values = {rule: tokens_per_step(RULES[rule], target, trees).value for rule in rules}
    if max(values.values()) > best + SLACK:
        raise RuntimeError(f"{trees}: rules emit {values}, expected at most the optimum {best}")
    return {**values, OPTIMUM: best}


def measure(positions: int, pair: Pair, text: Text, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Tokens a step at positions spread evenly over a text, for every size, law and rule."""
    step = otmd.Processing(text.temperature)
    size = pair.target.token_count
    models = [continuations(model, text.before) for model in (pair.target, pair.draft)]
    count = min(positions, len(text.tokens))
    read = 0
    for position in np.linspace(0, len(text.tokens) - 1, count).astype(int).tolist():
        for model in models:
            model.extend(text.tokens[read:position])
        read = position
        for (vocab_size, depth), laws in SIZES.items():
            target, draft = reduced_models(models, lambda logits: step(logits[:size]), vocab_size, depth, rng)
            for law in laws:
                at = {"position": position, "vocab_size": vocab_size, "depth": depth, "law": law}
                for rule, tokens in measure_models(target, draft, depth, law).items():
                    yield {**at, "rule": rule, "tokens": tokens}


def rows(
    rng: np.random.Generator, domain: str, prompt: str, settings: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Rows of one prompt."""
    of_text = partial(measure, settings["positions"])
    return along_texts(of_text, prompt, [settings["temperature"]], settings)


def summarise_gaps(rows: pl.DataFrame) -> pl.DataFrame:
    """Mean tokens per step and distance to the optimum, with errors, and the largest distance of all.

    Positions whose program was not solved count for no rule; ``unsolved`` says how many they are.
    """
    cell = ["vocab_size", "depth", "law"]
    by_prompt = rows.group_by("domain", "prompt", *cell, "rule", maintain_order=True).agg(
        pl.col("tokens").sum(), pl.col("tokens").count().cast(pl.Float64).alias("steps")
    )
    at = ["prompt", "position", *cell]
    best = rows.filter(rule=OPTIMUM).select(*at, best="tokens")
    gap = pl.col("best") - pl.col("tokens")
    grouped = rows.join(best, on=at).group_by(*cell, "rule")
    largest = grouped.agg(largest_gap=gap.max(), unsolved=pl.col("tokens").null_count())
    summary = summarise(by_prompt, cell, "rule", OPTIMUM)
    return summary.join(largest, on=[*cell, "rule"], how="left", maintain_order="left")


def as_table(summary: pl.DataFrame) -> str:
    """Tokens a step and the distance to the optimum, as Markdown."""
    heads = ("V", "depth", "drafts", "rule", "tokens per step")
    lines = []
    for row in summary.to_dicts():
        cell = [row[name] for name in ("vocab_size", "depth", "law", "rule")]
        value = f"{row['value']:.3f} ± {row['error']:.3f}"
        if row["rule"] == OPTIMUM:
            unsolved = f", {row['unsolved']} unsolved" if row["unsolved"] else ""
            lines.append([*cell, value, "", "", f"{row['steps']:.0f}{unsolved}"])
        else:
            short = f"{-row['difference']:.4f} ± {row['difference_error']:.4f}"
            lines.append([*cell, value, short, f"{row['largest_gap']:.3f}", ""])
    return markdown([*heads, "short of the optimum", "at most", "positions"], lines)


def check(chosen: Namespace) -> None:
    """End with a message for options that make no sense."""
    require(chosen.positions >= 1, "positions", chosen.positions, "at least 1")
    require(chosen.temperature > 0, "temperature", chosen.temperature, "a number above 0")


def main(arguments: list[str]) -> pl.DataFrame:
    """Run, or continue, the experiment; print its table and return it."""
    options: dict[str, Any] = {"length": 40, "positions": 3, "temperature": 1.0}
    summary = run_prompts(rows, arguments, 15.0, summarise_gaps, check, **options)
    print(as_table(summary))
    return summary
