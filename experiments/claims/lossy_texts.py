"""The divergence of lossy rules over texts that the rules write themselves.

    python experiments/claims/lossy_texts.py

Each rule of lossy_rules.py writes a text for each prompt: target and draft model read what it wrote, the
rule's exact output law is computed, and the next token is drawn from it. By the chain rule, the KL divergence
of the text's law from the target's is the expected sum of the divergences at its positions. Stores a row for
each prompt and rule.
"""

import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import lossy_rules
import numpy as np
import polars as pl
import sweep_script
from draft_laws import chosen_prompts
from lossy_rules import Way, certain_ways, sampled_ways

import otmd
from otmd.engines.catalogue import distances
from otmd.models import load_draft, load_target
from otmd.models.continuations import Continuations, continuations
from otmd.models.prompts import prompt_tokens
from otmd.optimum.lossy import LossyFrontier
from otmd.probabilities import FloatArray
from otmd.study import jackknife
from otmd.trees.base import Prefix

NUM_DRAFTS = 4
MEASURED = ("rate", "lossless", "total_variation", "kl", "least_kl", "strata_least_kl", "log_ratio")


class Models(NamedTuple):
    """Both models after a text, and the tokens that end a text."""

    target: Continuations
    draft: Continuations
    stops: frozenset[int]


class Text(NamedTuple):
    """What a rule wrote, and the measured numbers of each token (N, 7), in the order of MEASURED."""

    tokens: Prefix
    measured: FloatArray


class Place:
    """p and q after one text. Fronts are computed once for all rules with the same drafts."""

    def __init__(self, target: FloatArray, draft: FloatArray) -> None:
        self.target, self.draft = target, draft
        self._fronts: dict[tuple[str, int], tuple[LossyFrontier, LossyFrontier]] = {}

    def fronts(self, way: Way) -> tuple[LossyFrontier, LossyFrontier]:
        """The fronts of KL for the drafts of a rule, and for as many from strata."""
        key = way.drafts, way.num_drafts
        if key not in self._fronts:
            own = otmd.lossy_frontier(self.target, way.law(self.draft), "kl")
            # One sampled draft is the draft of a single stratum.
            strata = own
            if key != ("sampled", 1):
                law = otmd.Stratified(self.draft, way.num_drafts)
                strata = otmd.lossy_frontier(self.target, law, "kl")
            self._fronts[key] = own, strata
        return self._fronts[key]


@cache
def pair(draft: str) -> tuple[Any, Any]:
    """Target and draft, on the CPU, so that texts do not depend on the machine's GPU."""
    target = load_target("default", device="cpu", progress=False)
    return target, load_draft(draft, target)


def models_after(prompt: int, draft: str) -> Models:
    """Both models after a prompt."""
    target, drafting = pair(draft)
    before = prompt_tokens(target.tokenizer, chosen_prompts()[prompt])
    after = [continuations(model, before) for model in (target, drafting)]
    return Models(*after, frozenset(target.stop_tokens))


def written(
    models: Models,
    ways: Sequence[Way],
    step: otmd.Processing,
    length: int,
    rng: np.random.Generator,
) -> list[Text]:
    """A text by each rule, all with the same random numbers, as branches of one tree."""
    paths: list[Prefix] = [() for _ in ways]
    found: list[list[list[float]]] = [[] for _ in ways]
    for _ in range(length):
        growing = [i for i, path in enumerate(paths) if not set(path[-1:]) & models.stops]
        # Rules that wrote the same so far share a place.
        prefixes = list(dict.fromkeys(paths[i] for i in growing))
        said = zip(models.target.logits(prefixes), models.draft.logits(prefixes), strict=True)
        places = {at: Place(step(p), step(q)) for at, (p, q) in zip(prefixes, said, strict=True)}
        chance = rng.random()
        for i in growing:
            token, numbers = next_token(places[paths[i]], ways[i], chance)
            paths[i] += (token,)
            found[i].append(numbers)
    return [Text(path, np.array(own)) for path, own in zip(paths, found, strict=True)]


def next_token(place: Place, way: Way, chance: float) -> tuple[int, list[float]]:
    """A token from the rule's output law, and the numbers of MEASURED."""
    p, (own, strata) = place.target, place.fronts(way)
    output, rate = way.output(p, place.draft)
    cumulative = output.cumsum()
    token = int(np.searchsorted(cumulative, chance * cumulative[-1], side="right"))
    least = [front.divergence_at(min(rate, 1.0)) for front in (own, strata)]
    ratio = np.log(output[token]) - np.log(p[token])
    numbers = [rate, own.lossless_rate, *distances(output, p), *least, ratio]
    return token, [float(number) for number in numbers]


def lossy_texts(
    rng: np.random.Generator, prompt: int, draft: str, temperature: float, length: int
) -> Iterator[dict[str, Any]]:
    """One row a rule: sums over the tokens of its text."""
    ways = [*sampled_ways(), *certain_ways(NUM_DRAFTS)]
    models, step = models_after(prompt, draft), otmd.Processing(temperature)
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

    The total variation of the texts' laws is E(1 − p/p′)₊ over texts from p′: ``text_variation``.
    """
    rows = []
    by = ["drafts", "num_drafts", "rule"]
    for key, of in table.group_by(by, maintain_order=True):
        kl = of["kl"].to_numpy()
        low, high = jackknife.interval(kl.mean(), jackknife.left_out(kl, np.ones(kl.size)))
        sums = of.select(pl.col("tokens", *MEASURED).mean()).row(0, named=True)
        apart = float(np.maximum(-np.expm1(-of["log_ratio"].to_numpy()), 0.0).mean())
        row = dict(zip(by, key, strict=True)) | {"tokens": sums["tokens"]}
        row |= {name: sums[name] / sums["tokens"] for name in ("rate", "lossless")}
        row |= {"kl": sums["kl"], "low": low, "high": high, "least_kl": sums["least_kl"]}
        row |= {"strata_least_kl": sums["strata_least_kl"]}
        row |= {"kl_a_token": sums["kl"] / sums["tokens"], "sum_of_tv": sums["total_variation"]}
        rows.append(row | {"text_variation": apart})
    return pl.DataFrame(rows)


def main(arguments: list[str] | None = None) -> pl.DataFrame:
    """Write and measure, and print means by rule."""
    table = sweep_script.run(lossy_texts, __doc__ or "", 25.0, arguments, rules_of)
    with pl.Config(tbl_rows=-1, tbl_cols=-1, float_precision=3, tbl_width_chars=200):
        print(summary(table))
    return table


if __name__ == "__main__":
    main()
