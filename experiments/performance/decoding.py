"""Time of verifying a draft tree compared with the target's forward pass of that tree.

    python -m experiments decoding
    python -m experiments decoding --texts 1 --tokens 8 --output runs/decoding.parquet

Trees of at most 64 tokens are drafted along a text, checked by the target in one call, and decided on. The
ways to do so take turns, text by text, and their times a step are compared. ``--threads`` are torch's, 0 for
as many as it takes by itself.
"""

from functools import partial
from typing import Any

import polars as pl

import otmd
from experiments.runner import RESULTS, markdown, options, save
from experiments.texts import held_out_corpus, prompt_tokens
from otmd.models import (
    Speculation,
    decode_in_turn,
    load_draft,
    load_prompts,
    load_target,
    pack_weights,
)
from otmd.trees import IIDPaths, TokenLevel, TokenTree

DRAFT = "ngram+context"
TEMPERATURES = (0.7, 1.0)
PATHS = partial(IIDPaths, num_paths=16, depth=4)
WAYS = {
    "recursive rejection, 16 paths of 4": (PATHS, otmd.RecursiveRejection()),
    "recursive rejection, tree 4×15": (
        partial(TokenTree, branching=(4, 15)),
        otmd.RecursiveRejection(),
    ),
    "K-SEQ, 16 paths of 4": (PATHS, otmd.KSequential()),
    # Tokens that are drafted twice are one node.
    "K-SEQ, tree 8×24": (
        partial(TokenTree, branching=(8, 24), law=otmd.WithReplacement),
        otmd.KSequential(),
    ),
}


def measure(texts: int, tokens: int) -> pl.DataFrame:
    """A row for each text, temperature and way: its steps, nodes, and seconds of each stage."""
    target = pack_weights(load_target(device="cpu", progress=False))
    prompts = load_prompts(["code"], texts, progress=False)
    draft = load_draft(DRAFT, target, held_out_corpus(DRAFT, target, prompts, progress=False))
    ways = {name: Speculation(draft, law, TokenLevel(verifier)) for name, (law, verifier) in WAYS.items()}
    starts = [prompt_tokens(target.tokenizer, prompt) for prompt in prompts]
    rows: list[dict[str, Any]] = []
    for temperature in TEMPERATURES:
        step = otmd.Processing(temperature)
        for prompt, of in zip(prompts, decode_in_turn(target, starts, ways, tokens, step), strict=True):
            for way, text in of.items():
                about = {"prompt": prompt.id, "temperature": temperature, "way": way}
                nodes = sum(drafted for _, drafted in text.steps)
                stages = {f"{stage}_seconds": time for stage, time in text.seconds.items()}
                rows.append(about | {"steps": len(text.steps), "nodes": nodes} | stages)
    return pl.DataFrame(rows)


def as_table(table: pl.DataFrame) -> str:
    """Means a step by way and temperature, as Markdown."""
    lines = []
    columns = pl.col("nodes", "target_seconds", "verification_seconds").sum() / pl.col("steps").sum()
    means = table.group_by("way", "temperature", maintain_order=True).agg(columns)
    for way, temperature, nodes, target, verification in means.rows():
        times = [f"{1e3 * target:.1f}", f"{1e3 * verification:.2f}"]
        lines.append([way, temperature, f"{nodes:.0f}", *times, f"{verification / target:.1%}"])
    return markdown(["way", "T", "nodes", "target, ms", "verification, ms", "ratio"], lines)


def main(arguments: list[str]) -> pl.DataFrame:
    """Measure, print the table, write the rows and return them."""
    output = RESULTS / "decoding.parquet"
    chosen = options(__name__, arguments, texts=3, tokens=32, threads=0, output=output)
    if chosen.threads:
        import torch

        torch.set_num_threads(chosen.threads)
    table = measure(chosen.texts, chosen.tokens)
    print(as_table(table))
    save(chosen.output, table, chosen)
    return table
