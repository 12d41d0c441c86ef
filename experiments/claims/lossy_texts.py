"""The divergence of lossy rules over texts that the rules write themselves.

    python -m experiments lossy_texts

Each rule of ``lossy_rules.py`` writes a text for each prompt: target and draft model read what it wrote, the
rule's exact output distribution is computed, and the next token is drawn from it. By the chain rule, the KL
divergence of the text's distribution from the target's is the expected sum of the divergences at its
positions. Stores a row for each prompt and rule.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

import otmd
from experiments.claims import lossy_rules
from experiments.claims.lossy_rules import Way, certain_ways, sampled_ways
from experiments.claims.positions import chosen_prompts
from experiments.runner import run, show
from experiments.texts import Continuations, Prefix, after_prompt, load_pair
from otmd.engines.catalogue import distances
from otmd.optimum import LossyFrontier
from otmd.probabilities import FloatArray
from otmd.study.estimate import Estimate, ratios

NUM_DRAFTS = 4
MEASURED = ("rate", "lossless", "total_variation", "kl", "least_kl", "strata_least_kl", "log_ratio")


class Models(NamedTuple):
    """Both models after a text, and the tokens that end a text."""

    target: Continuations
    draft: Continuations
    stops: frozenset[int]


class Text(NamedTuple):
    """Tokens that a rule wrote, and the measured numbers of each token (N, 7), in the order of MEASURED."""

    tokens: Prefix
    measured: FloatArray


class Place:
    """p and q after one text. Frontiers are computed once for all rules with the same drafts."""

    def __init__(self, target: FloatArray, draft: FloatArray) -> None:
        self.target, self.draft = target, draft
        self._frontiers: dict[tuple[str, int], list[LossyFrontier]] = {}

    def frontiers(self, way: Way) -> list[LossyFrontier]:
        """The frontiers of KL for the drafts of a rule, and for as many from strata."""
        key = way.drafts, way.num_drafts
        if key not in self._frontiers:
            # One sampled draft is the draft of a single stratum.
            strata = way.law if key == ("sampled", 1) else stratified(way.num_drafts)
            laws = dict.fromkeys((way.law, strata))
            made = [otmd.lossy_frontier(self.target, law(self.draft), "kl") for law in laws]
            self._frontiers[key] = [made[0], made[-1]]
        return self._frontiers[key]


def stratified(num_drafts: int) -> Callable[[FloatArray], otmd.DraftLaw]:
    """The law of as many drafts from strata, as a function of q."""
    return partial(otmd.Stratified, num_drafts=num_drafts)


def models_after(prompt: int, draft: str) -> Models:
    """Both models after a prompt."""
    pair = load_pair("default", draft)
    text = chosen_prompts()[prompt]
    target, drafting = (after_prompt(m, pair.target, text) for m in (pair.target, pair.draft))
    return Models(target, drafting, frozenset(pair.target.stop_tokens))


def written(
    models: Models,
    ways: Sequence[Way],
    step: otmd.Processing,
    length: int,
    rng: np.random.Generator,
) -> list[Text]:
    """A text by each rule, all with the same random numbers, as branches of one tree."""
    paths: list[Prefix] = [() for _ in ways]
    measured: list[list[list[float]]] = [[] for _ in ways]
    for _ in range(length):
        growing = [i for i, path in enumerate(paths) if not set(path[-1:]) & models.stops]
        # Rules that wrote the same so far share their distributions.
        prefixes = list(dict.fromkeys(paths[i] for i in growing))
        logits = zip(models.target.logits(prefixes), models.draft.logits(prefixes), strict=True)
        pairs = (Place(step(p), step(q)) for p, q in logits)
        after = dict(zip(prefixes, pairs, strict=True))
        uniform = rng.random()
        for i in growing:
            token, numbers = next_token(after[paths[i]], ways[i], uniform)
            paths[i] += (token,)
            measured[i].append(numbers)
    return [Text(path, np.array(rows)) for path, rows in zip(paths, measured, strict=True)]


def next_token(place: Place, way: Way, uniform: float) -> tuple[int, list[float]]:
    """A token from the rule's output distribution, and the numbers of MEASURED."""
    p = place.target
    frontiers = place.frontiers(way)
    output, rate = way.output(p, place.draft)
    cumulative = output.cumsum()
    token = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    least = [frontier.divergence_at(min(rate, 1.0)) for frontier in frontiers]
    ratio = np.log(output[token]) - np.log(p[token])
    numbers = [rate, frontiers[0].lossless_rate, *distances(output, p), *least, ratio]
    return token, [float(number) for number in numbers]


def lossy_texts(
    rng: np.random.Generator, prompt: int, draft: str, temperature: float, length: int
) -> Iterator[dict[str, Any]]:
    """One row a rule: sums over the tokens of its text."""
    ways = [*sampled_ways(), *certain_ways(NUM_DRAFTS)]
    models = models_after(prompt, draft)
    step = otmd.Processing(temperature)
    for way, text in zip(ways, written(models, ways, step, length, rng), strict=True):
        sums = dict(zip(MEASURED, text.measured.sum(axis=0).tolist(), strict=True))
        about = {"rule": way.rule, "drafts": way.drafts, "num_drafts": way.num_drafts}
        yield {**about, "tokens": len(text.tokens), **sums}


def rules_of(tasks: Sequence[dict[str, Any]]) -> str:
    """A string that identifies the rules and the prompts, which are in other files."""
    rules = Path(lossy_rules.__file__).read_bytes()
    # All prompts count, so that a sweep over more of them knows what is done.
    names = [prompt.id for prompt in chosen_prompts()]
    return hashlib.sha256(rules + repr(names).encode()).hexdigest()


def summary(table: pl.DataFrame) -> pl.DataFrame:
    """Means by rule over prompts, KL with a 95% interval over prompts.

    The total variation of the texts' distributions is E(1 − p/p′)₊ over texts from p′: ``text_variation``.
    """
    rows = []
    by = ["drafts", "num_drafts", "rule"]
    for key, of in table.group_by(by, maintain_order=True):
        kl = of["kl"].to_numpy()
        estimate = Estimate.of(ratios(kl, np.ones(kl.size)))
        sums = of.select(pl.col("tokens", *MEASURED).mean()).row(0, named=True)
        apart = float(np.maximum(-np.expm1(-of["log_ratio"].to_numpy()), 0.0).mean())
        row = dict(zip(by, key, strict=True)) | {"tokens": sums["tokens"]}
        row |= {name: sums[name] / sums["tokens"] for name in ("rate", "lossless")}
        row |= estimate.columns("kl") | {"least_kl": sums["least_kl"]}
        row |= {"strata_least_kl": sums["strata_least_kl"]}
        row |= {"kl_a_token": sums["kl"] / sums["tokens"], "sum_of_tv": sums["total_variation"]}
        rows.append(row | {"text_variation": apart})
    return pl.DataFrame(rows)


def main(arguments: list[str]) -> pl.DataFrame:
    """Write and measure, and print means by rule."""
    table = run(lossy_texts, arguments, 25.0, data=rules_of)
    show(summary(table))
    return table
