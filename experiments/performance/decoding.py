"""What verifying a draft tree costs beside the target's forward pass of that tree.

    python experiments/performance/decoding.py
    python experiments/performance/decoding.py --texts 2 --threads 1 --output runs/decoding.parquet

A tree of at most 64 tokens is drafted at each place of a text, checked by the target in one call, and
decided on; both are timed in turn, round by round, and the medians are compared.
"""

import argparse
from pathlib import Path
from time import perf_counter

import numpy as np
import polars as pl

import otmd
from otmd.models import LanguageModel, load_draft, load_prompts, load_target, pack_weights
from otmd.models.collection import held_out_corpus
from otmd.models.continuations import CachedContinuations, continuations
from otmd.models.draft_models import Draft
from otmd.models.prompts import prompt_tokens
from otmd.storage.parquet import write_parquet
from otmd.trees import IIDPaths, TokenLevel, TokenTree
from otmd.trees.base import Context, DraftTree
from otmd.trees.random_choices import Sampled

OUTPUT = Path("paper_figures/results/decoding.parquet")
WAYS = {
    "recursive rejection, 16 paths of 4": (
        lambda model: IIDPaths(model, 16, 4),
        otmd.RecursiveRejection(),
    ),
    "recursive rejection, tree 4×15": (
        lambda model: TokenTree(model, (4, 15)),
        otmd.RecursiveRejection(),
    ),
    "K-SEQ, 16 paths of 4": (lambda model: IIDPaths(model, 16, 4), otmd.KSequential()),
    # Tokens that are drafted twice are one node.
    "K-SEQ, tree 8×24": (
        lambda model: TokenTree(model, (8, 24), otmd.WithReplacement),
        otmd.KSequential(),
    ),
}
TEMPERATURES = (0.7, 1.0)


def measure(target: LanguageModel, draft: Draft, text: list[int], steps: int) -> list[dict]:
    """Time every way at the end of a text, which then goes on with what was emitted."""
    rows = []
    for temperature in TEMPERATURES:
        processing = otmd.Processing(temperature)
        for way, (law_of, verifier) in WAYS.items():
            models = CachedContinuations(target, text), continuations(draft, text)
            models[0].logits([()])
            for step in range(steps):
                rng = np.random.default_rng(step)
                found = timed_step(*models, law_of, TokenLevel(verifier), processing, rng)
                rows.append({"way": way, "temperature": temperature, "step": step, **found})
    return rows


def timed_step(target, draft, law_of, rule, processing, rng) -> dict:
    """Draft a tree, check it, decide on it; seconds beside what came out."""
    law = law_of(lambda prefix: draft.probs(prefix, processing))
    context = Context(lambda prefix: target.probs(prefix, processing), law)
    choices = Sampled(rng)
    tree = DraftTree(context, choices)
    begun = perf_counter()
    prefixes = sorted(tree.prefixes())
    drafted = perf_counter()
    target.logits(prefixes)
    checked = perf_counter()
    emitted = rule.emit(context, tree, choices)
    decided = perf_counter()
    target.extend(emitted)
    draft.extend(emitted)
    return {
        "nodes": len(prefixes) - 1,
        "emitted": list(emitted),
        "draft_seconds": drafted - begun,
        "target_seconds": checked - drafted,
        "verification_seconds": decided - checked,
    }


def print_table(table: pl.DataFrame) -> None:
    """Print medians by way and temperature."""
    print(f"\n| way | T | nodes | target, ms | verification, ms | ratio |\n{'|---' * 6}|")
    # The first step of each compiles.
    for at, rows in table.filter(pl.col("step") > 0).group_by(
        "way", "temperature", maintain_order=True
    ):
        target, own = (
            1e3 * float(np.median(rows[f"{stage}_seconds"].to_numpy()))
            for stage in ("target", "verification")
        )
        nodes = f"{rows['nodes'].mean():.0f}"
        print(f"| {at[0]} | {at[1]} | {nodes} | {target:.1f} | {own:.2f} | {own / target:.1%} |")


def main(arguments: list[str] | None = None) -> pl.DataFrame:
    """Measure, print the table, write the rows and return them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--texts", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="trees of each way along a text")
    parser.add_argument("--threads", type=int, help="of torch")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    chosen = parser.parse_args(arguments)
    if chosen.threads is not None:
        import torch

        torch.set_num_threads(chosen.threads)
    target = pack_weights(load_target(device="cpu", progress=False))
    prompts = load_prompts(["code"], chosen.texts, progress=False)
    spec = "ngram+context"
    draft = load_draft(spec, target, held_out_corpus(spec, target, prompts, progress=False))
    rows = []
    for prompt in prompts:
        text = prompt_tokens(target.tokenizer, prompt)
        rows += [{"prompt": prompt.id} | row for row in measure(target, draft, text, chosen.steps)]
    table = pl.DataFrame(rows)
    print_table(table)
    write_parquet(chosen.output, table)
    return table


if __name__ == "__main__":
    main()
