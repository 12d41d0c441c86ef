r"""Tokens per step: estimated along texts, measured by decoding, and as the product of mean rates.

    otmd collect runs/more-skip --consecutive 48 --per-domain 12 --draft skip:13,15,17
    otmd collect runs/more-ngram --consecutive 48 --per-domain 12 --draft ngram
    python -m experiments plan_against_decoding --datasets runs/more-skip runs/more-ngram --repeats 1

The estimates are those of ``otmd plan``. The same prompts are decoded with the same trees, ``--repeats``
times, by each of the ``--rules``, names of the plan's candidates. A decoded step counts only if it begins
where the estimate counts steps. Prints a table for each dataset, with 95% intervals over prompts.
"""

import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

import otmd
from experiments.runner import markdown, run
from experiments.texts import load_models, prompt_tokens
from otmd.models import Speculation, decode, load_prompts, open_dataset
from otmd.probabilities import FloatArray
from otmd.study import jackknife
from otmd.study.planning import (
    CANDIDATES,
    Evidence,
    Settings,
    ceilings,
    longest_text,
    probs_table,
    read_texts,
)
from otmd.study.planning.ranking import Choice
from otmd.study.planning.tree_choices import most_likely_trees
from otmd.trees import IIDPaths, MostLikelyTree, TokenLevel, TokenTree, TreeLaw

DEPTH = 6
# A static tree, and three paths of four tokens. Paths are their own nodes.
NODES = ((0,), (1,), (2,), (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (0, 0, 0), (0, 0, 1), (1, 0, 0))
PATHS = Choice("", 1.0, (3,) * 4, 12, tuple((i, *(0,) * k) for i in range(3) for k in range(4)))
WAYS = {
    "top-k-tree": Choice("", 1.0, (4, 2, 1)),
    "stratified": Choice("equal strata", 1.0, (2, 2, 1)),
    "sequoia": Choice("", 1.0, (2, 2, 1)),
    "rejection": Choice("", 1.0, (1,) * DEPTH),
    "rrs": Choice("", 1.0, (3, 5, 3), 11, NODES),
    "k-seq-paths": PATHS,
    "preference-paths": PATHS,
}
# The tree of the eight most likely nodes is the same, however many more than eight were grown.
MOST_LIKELY = Choice("", 1.0, (8,) * DEPTH, 8)


def choice_of(rule: str) -> Choice:
    """The tree of a rule; the rule of most likely trees has no entry in ``WAYS``."""
    return WAYS.get(rule, MOST_LIKELY)


class Means(NamedTuple):
    """Tokens and steps of each prompt (prompts, 2), estimated and decoded; and :func:`level_rates`."""

    estimated: FloatArray
    decoded: FloatArray
    rates: FloatArray


def estimates(dataset: Any, ways: list[str], workers: int) -> Evidence:
    """Evidence of a plan for these ways."""
    texts = read_texts(dataset)
    rules = tuple(rule for rule in ways if CANDIDATES[rule].variants)
    settings = Settings(rules, (1, 2, 4), otmd.Processing(), (otmd.Processing(),), 0)
    parts = dataset.path / "-".join(["plan", *rules])
    table = probs_table(dataset, texts, settings, parts, workers, True)
    paths = most_likely_trees(dataset, texts, DEPTH)
    trees = {(rule, "", 1.0): paths for rule in ways if rule not in WAYS} if paths else {}
    cut_at = longest_text(dataset.metadata, texts)
    return Evidence(table, ceilings(dataset, texts, settings), texts, cut_at, DEPTH, trees)


def level_rates(evidence: Evidence, rule: str) -> FloatArray:
    """Sums of each level's rates and numbers of positions, by prompt, shape (prompts, levels, 2)."""
    choice = choice_of(rule)
    if choice.budget:
        # Levels have no rate of their own.
        return np.full((len(evidence.texts), DEPTH, 2), np.nan)
    probs = evidence.levels[rule, choice.variant, choice.draft_temperature].probs
    of_prompts = [[np.minimum(rates, 1.0) for rates in probs[n]] for n in choice.shape]
    sums = np.array([[(rates.sum(), rates.size) for rates in level] for level in of_prompts])
    return sums.swapaxes(0, 1)


def product(sums: FloatArray) -> Any:
    """Tokens per step if positions were alike and independent, from sums over prompts (…, levels, 2)."""
    return 1.0 + np.cumprod(sums[..., 0] / sums[..., 1], axis=-1).sum(axis=-1)


@cache
def decoder(path: str) -> tuple[Any, Any, dict[str, Any], int]:
    """Target, draft and prompts of a dataset, and the length of its texts."""
    dataset = open_dataset(path)
    texts = read_texts(dataset)
    domains = list(dict.fromkeys(text.domain for text in texts))
    prompts = load_prompts(domains, len(texts) // len(domains), progress=False)
    target, [draft] = load_models("default", [dataset.metadata["draft"]["name"]], prompts)
    cut_at = longest_text(dataset.metadata, texts)
    return target, draft, {prompt.id: prompt for prompt in prompts}, cut_at


def decoded(
    rng: np.random.Generator, dataset: str, prompt: str, rule: str, seed: int
) -> Iterator[dict[str, int]]:
    """Tokens and steps of one decoded text, over the steps that the estimate counts."""
    target, draft, prompts, cut_at = decoder(dataset)
    speculation = Speculation(draft, tree_of(rule), TokenLevel(CANDIDATES[rule].verifier))
    # Each prompt has random numbers of its own, or the errors of all texts would be alike.
    seeds = np.random.default_rng([seed, zlib.crc32(prompt.encode())])
    tokens = prompt_tokens(target.tokenizer, prompts[prompt])
    # The last step that counts may emit one token beyond the length of the texts.
    text = decode(target, tokens, cut_at + 1, speculation, rng=seeds)
    emitted = np.array([count for count, _ in text.steps])
    begins = emitted.cumsum() - emitted
    counts = begins < cut_at - DEPTH + 1
    yield {"tokens": int(emitted[counts].sum()), "steps": int(counts.sum())}


def tree_of(rule: str) -> Callable[[Any], TreeLaw]:
    """The law of the trees of a rule, from the draft model."""
    candidate = CANDIDATES[rule]
    choice = choice_of(rule)
    if candidate.paths:
        return lambda model: IIDPaths(model, choice.shape[0], len(choice.shape))
    if choice.budget and not choice.nodes:
        return lambda model: MostLikelyTree(model, choice.budget, DEPTH)
    shape = nested(choice.nodes) if choice.nodes else choice.shape
    return lambda model: TokenTree(model, shape, candidate.variants[choice.variant])


def nested(nodes: tuple[tuple[int, ...], ...], node: tuple[int, ...] = ()) -> tuple[Any, ...]:
    """The shape for a TokenTree: below a node, the tuple of the shapes below its drafts."""
    below = sorted(child for child in nodes if len(child) > 0 and child[:-1] == node)
    return tuple(nested(nodes, child) for child in below)


def ratio(totals: FloatArray) -> tuple[float, FloatArray]:
    """Tokens per step over all prompts, and without each of them."""
    return totals[:, 0].sum() / totals[:, 1].sum(), jackknife.left_out(*totals.T)


def interval(value: float, without: FloatArray) -> str:
    """A value with its 95% interval."""
    low, high = jackknife.interval(value, without)
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def as_table(ways: dict[str, Means]) -> str:
    """All three, and by how much the estimate and the product of mean rates exceed what was decoded.

    The product is also compared with the estimate, which is of the same texts.
    """
    heads = ("tree", "estimated", "decoded", "less decoded", "product of mean rates")
    lines = []
    for name, means in ways.items():
        estimated, without = ratio(means.estimated)
        measured, measured_without = ratio(means.decoded)
        sums = means.rates.sum(axis=0)
        multiplied, multiplied_without = product(sums), product(sums - means.rates)
        lines.append([
            name,
            interval(estimated, without),
            interval(measured, measured_without),
            interval(estimated - measured, without - measured_without),
            f"{multiplied:.3f}",
            interval(multiplied - estimated, multiplied_without - without),
            interval(multiplied - measured, multiplied_without - measured_without),
        ])  # fmt: skip
    return markdown([*heads, "less estimated", "less decoded"], lines)


def main(arguments: list[str]) -> pl.DataFrame:
    """Estimate, decode, and print."""
    defaults: dict[str, Any] = {"datasets": ("runs/more-skip",), "rules": tuple(WAYS)[:4]}
    defaults |= {"repeats": 4, "workers": 1, "output": Path("runs/plan_against_decoding.parquet")}
    table = run(decoded, arguments, 10.0, tasks_of, **defaults)
    settings = table.select("dataset", "rule").unique(maintain_order=True)
    for (path,), part in settings.group_by("dataset", maintain_order=True):
        rules = part["rule"].to_list()
        dataset = open_dataset(str(path))
        evidence = estimates(dataset, rules, 1)
        ways = {}
        for rule in rules:
            tokens, steps, *_ = evidence.steps(rule, choice_of(rule))
            rows = table.filter(dataset=path, rule=rule)
            sums = rows.group_by("prompt").agg(pl.col("tokens", "steps").sum())
            by_prompt = {name: (tokens, count) for name, tokens, count in sums.iter_rows()}
            counted = np.array([by_prompt[text.prompt_id] for text in evidence.texts], dtype=float)
            along = np.stack([tokens, steps], axis=1)
            name = f"{rule} {choice_of(rule).tree}"
            ways[name] = Means(along, counted, level_rates(evidence, rule))
        print(f"\n{dataset.path.name}\n\n{as_table(ways)}")
    return table


def tasks_of(chosen: Any) -> list[dict[str, Any]]:
    """A task for each dataset, prompt, rule and repeat."""
    return [
        {"dataset": path, "prompt": text.prompt_id, "rule": rule, "seed": seed}
        for path in chosen.datasets
        for text in read_texts(open_dataset(path))
        for rule in chosen.rules
        for seed in range(chosen.repeats)
    ]
