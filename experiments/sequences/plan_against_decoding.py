"""Tokens per step: estimated along texts, measured by decoding, and as the product of mean rates.

    otmd collect runs/more-skip --consecutive 48 --per-domain 12 --draft skip:13,15,17
    otmd collect runs/more-ngram --consecutive 48 --per-domain 12 --draft ngram
    python experiments/sequences/plan_against_decoding.py runs/more-skip runs/more-ngram --repeats 1
    python experiments/sequences/plan_against_decoding.py runs/more-skip runs/more-ngram --repeats 1 \
        --rules rrs k-seq-paths preference-paths
    otmd collect runs/texts-paths --consecutive 48 --per-domain 4 --draft skip:13,15,17 --paths 10
    python experiments/sequences/plan_against_decoding.py runs/texts-paths --rules most-likely

The estimates are those of ``otmd plan``. The same prompts are decoded with the same trees. A decoded step
counts only if it begins where the estimate counts steps. Prints a table for each dataset, with 95% intervals
over prompts. Finished prompts are kept beside the dataset's parts.
"""

import argparse
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

import otmd
from otmd.models import Speculation, decode, load_draft, load_prompts, load_target, open_dataset
from otmd.models.collection import held_out_corpus
from otmd.models.prompts import prompt_tokens
from otmd.probabilities import FloatArray
from otmd.storage.parquet import read_parquet, write_parquet
from otmd.study import jackknife
from otmd.study.planning.candidates import CANDIDATES
from otmd.study.planning.ceiling import ceilings
from otmd.study.planning.ranking import Choice, Evidence
from otmd.study.planning.texts import longest_text, read_texts
from otmd.study.planning.token_table import Settings, probs_table
from otmd.study.planning.tree_choices import most_likely_trees
from otmd.trees import IIDPaths, MostLikelyTree, TokenLevel, TokenTree, TreeLaw

DEPTH = 6
# The tree of the eight likeliest nodes is the same, however many more than eight were grown.
LIKELIEST = "most-likely", Choice("", 1.0, (8,) * DEPTH, 8)
Ways = Sequence[tuple[str, Choice]]
WAYS: Ways = (
    ("certain-tree", Choice("", 1.0, (4, 2, 1))),
    ("stratified", Choice("equal strata", 1.0, (2, 2, 1))),
    ("sequoia", Choice("", 1.0, (2, 2, 1))),
    ("rejection", Choice("", 1.0, (1,) * DEPTH)),
)
# A static tree, and three paths of four tokens. Paths are their own nodes.
NODES = ((0,), (1,), (2,), (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (0, 0, 0), (0, 0, 1), (1, 0, 0))
PATHS = Choice("", 1.0, (3,) * 4, 12, tuple((i, *(0,) * k) for i in range(3) for k in range(4)))
WITH_REPLACEMENT: Ways = (
    ("rrs", Choice("", 1.0, (3, 5, 3), 11, NODES)),
    ("k-seq-paths", PATHS),
    ("preference-paths", PATHS),
)


class Means(NamedTuple):
    """Tokens and steps of each prompt (prompts, 2), estimated and decoded; and :func:`level_rates`."""

    estimated: FloatArray
    decoded: FloatArray
    rates: FloatArray


def estimates(dataset, ways: Ways, workers: int) -> tuple[Evidence, int]:
    """What a plan finds for these ways, and the length of the texts."""
    texts = read_texts(dataset)
    rules = tuple(rule for rule, _ in ways if CANDIDATES[rule].variants)
    settings = Settings(rules, (1, 2, 4), otmd.Processing(), (otmd.Processing(),), 0)
    parts = dataset.path / "-".join(["plan", *rules])
    table = probs_table(dataset, texts, settings, parts, workers, True)
    cut_at = longest_text(dataset.metadata, texts)
    paths = most_likely_trees(dataset, texts, DEPTH)
    trees = {("most-likely", "", 1.0): paths} if paths else {}
    bounds = ceilings(dataset, texts, settings)
    return Evidence(table, bounds, texts, cut_at, DEPTH, trees), cut_at


def level_rates(evidence: Evidence, rule: str, choice: Choice) -> FloatArray:
    """Sums of each level's rates and numbers of positions, by prompt, shape (prompts, levels, 2)."""
    if choice.budget:
        # Levels have no rate of their own.
        return np.full((len(evidence.texts), DEPTH, 2), np.nan)
    column = evidence.columns[rule, choice.variant, choice.draft_temperature]
    of_prompts = [[np.minimum(rates, 1.0) for rates in column[n]] for n in choice.shape]
    return np.array([[(own.sum(), own.size) for own in level] for level in of_prompts]).swapaxes(
        0, 1
    )


def product(sums: FloatArray) -> FloatArray:
    """Tokens per step if positions were alike and independent, from sums over prompts (…, levels, 2)."""
    return 1.0 + np.cumprod(sums[..., 0] / sums[..., 1], axis=-1).sum(axis=-1)


def decoded(dataset, ways: Ways, cut_at: int, repeats: int) -> pl.DataFrame:
    """Tokens and steps of each prompt, way and repeat. Prompts stored on disk are not decoded again."""
    target = load_target(device="cpu", progress=False)
    texts = read_texts(dataset)
    domains = list(dict.fromkeys(text.domain for text in texts))
    prompts = {
        each.id: each for each in load_prompts(domains, len(texts) // len(domains), progress=False)
    }
    spec = dataset.metadata["draft"]["name"]
    draft = load_draft(spec, target, held_out_corpus(spec, target, [*prompts.values()], False))
    rows = []
    for text in texts:
        name = "-".join(
            [text.prompt_id.replace("/", "-"), str(repeats), *(rule for rule, _ in ways)]
        )
        part = dataset.path / "decoded" / f"{name}.parquet"
        if not part.exists():
            tokens = prompt_tokens(target.tokenizer, prompts[text.prompt_id])
            # Each prompt has random numbers of its own, or the errors of all texts would be alike.
            own = zlib.crc32(text.prompt_id.encode())
            found = [
                {"rule": rule, **counted(target, draft, tokens, rule, choice, cut_at, [seed, own])}
                for rule, choice in ways
                for seed in range(repeats)
            ]
            part.parent.mkdir(exist_ok=True)
            write_parquet(part, pl.DataFrame(found))
        rows.append(read_parquet(part).with_columns(prompt=pl.lit(text.prompt_id)))
        print(f"{text.prompt_id}: decoded", flush=True)
    return pl.concat(rows)


def nested(nodes: Sequence[tuple[int, ...]], node: tuple[int, ...] = ()) -> tuple:
    """The shape for a TokenTree: below a node, the tuple of the shapes below its drafts."""
    below = sorted(own for own in nodes if len(own) == len(node) + 1 and own[:-1] == node)
    return tuple(nested(nodes, own) for own in below)


def counted(target, draft, tokens, rule: str, choice: Choice, cut_at: int, seed: list[int]) -> dict:
    """Tokens and steps of one decoded text, over the steps that the estimate counts."""
    candidate = CANDIDATES[rule]

    def tree(model) -> TreeLaw:
        if candidate.paths:
            return IIDPaths(model, choice.shape[0], len(choice.shape))
        if choice.budget and not choice.nodes:
            return MostLikelyTree(model, choice.budget, DEPTH)
        shape = nested(choice.nodes) if choice.nodes else choice.shape
        return TokenTree(model, shape, candidate.variants[choice.variant])

    speculation = Speculation(draft, tree, TokenLevel(candidate.verifier))
    # The last step that counts may emit one token beyond the length of the texts.
    text = decode(target, tokens, cut_at + 1, speculation, rng=np.random.default_rng(seed))
    emitted = np.array([yielded for yielded, _ in text.steps])
    begins = emitted.cumsum() - emitted
    counts = begins < cut_at - DEPTH + 1
    return {"tokens": int(emitted[counts].sum()), "steps": int(counts.sum())}


def ratio(totals: FloatArray) -> tuple[float, FloatArray]:
    """Tokens per step over all prompts, and without each of them."""
    return totals[:, 0].sum() / totals[:, 1].sum(), jackknife.left_out(*totals.T)


def interval(value: float, without: FloatArray) -> str:
    """A value with its 95% interval."""
    low, high = jackknife.interval(value, without)
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def print_table(found: dict[str, Means]) -> None:
    """Print all three, and by how much the estimate and the product of mean rates exceed what was decoded.

    The product is also compared with the estimate, which is of the same texts.
    """
    heads = ("tree", "estimated", "decoded", "less decoded", "product of mean rates")
    heads += ("less estimated", "less decoded")
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for name, (along, own, rates) in found.items():
        (first, firsts), (second, seconds) = ratio(along), ratio(own)
        sums = rates.sum(axis=0)
        third, thirds = product(sums), product(sums - rates)
        cells = [
            interval(first, firsts),
            interval(second, seconds),
            interval(first - second, firsts - seconds),
            f"{third:.3f}",
            interval(third - first, thirds - firsts),
            interval(third - second, thirds - seconds),
        ]
        print("| " + " | ".join([name, *cells]) + " |")


def main(arguments: list[str] | None = None) -> None:
    """Estimate, decode, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("datasets", type=Path, nargs="+")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    known = {rule: (rule, choice) for rule, choice in [*WAYS, *WITH_REPLACEMENT, LIKELIEST]}
    parser.add_argument("--rules", nargs="+", choices=known, default=[rule for rule, _ in WAYS])
    chosen = parser.parse_args(arguments)
    ways = [known[rule] for rule in chosen.rules]
    for path in chosen.datasets:
        dataset = open_dataset(path)
        evidence, cut_at = estimates(dataset, ways, chosen.workers)
        table = decoded(dataset, ways, cut_at, chosen.repeats)
        found = {}
        for rule, choice in ways:
            tokens, steps, *_ = evidence.steps(rule, choice)
            sums = table.filter(rule=rule).group_by("prompt").agg(pl.col("tokens", "steps").sum())
            by_prompt = {name: (tokens, count) for name, tokens, count in sums.iter_rows()}
            own = np.array([by_prompt[text.prompt_id] for text in evidence.texts], dtype=float)
            along = np.stack([tokens, steps], axis=1)
            found[f"{rule} {choice.tree}"] = Means(along, own, level_rates(evidence, rule, choice))
        print(f"\n{path.name}\n")
        print_table(found)


if __name__ == "__main__":
    main()
