"""A free n-gram path next to a model's chain, against a second path of the model; tokens per step.

    python -m experiments second_drafter_trees

At every eighth token of a text a tree of eight levels is drawn for each law. ``chain`` is one path of the
model, ``strata`` are two of its paths, which part at two strata of the first level. ``ngram`` is the model's
chain and a path of an n-gram model that also counts the text so far. The second path costs no call of a draft
model. Where the two paths agree they are one, and may part later. Layer verification decides; its estimate of
the tokens per step is unbiased. Pairs, prompts and texts are those of ``whole_trees.py``; intervals are 95%,
over prompts.
"""

from collections.abc import Hashable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import polars as pl
from scipy.stats import t as student_t

import otmd
from experiments.claims.positions import LAYERS, chosen_prompts
from experiments.claims.tree_estimates import expected_tokens
from experiments.claims.whole_trees import (
    APART,
    DEPTH,
    STARTS,
    TEMPERATURES,
    Reader,
    sampled,
)
from experiments.runner import run, show
from experiments.texts import after_prompt, load_models
from otmd import Processing
from otmd.laws import DraftLaw
from otmd.models import Draft, LanguageModel
from otmd.models.variants import pack_weights
from otmd.probabilities import FloatArray, IntArray
from otmd.trees import LayerVerification, TokenTree, TreeLaw
from otmd.trees.base import Context, Distribution, Model
from otmd.trees.random_choices import Sampled

NGRAM = "ngram:3+context"


class TwoDrafters(TreeLaw):
    """A path of one model and a path of another, which part where their tokens differ.

    The state of a node is the drafters that draft there, and its prefix.
    """

    def __init__(self, first: Model, second: Model, depth: int) -> None:
        self.draft_model = first
        self.second = second
        self.depth = depth

    def root(self, draft: Distribution) -> Hashable:
        """Both drafters, at the empty prefix."""
        return (0, 1), ()

    def node_law(self, draft_probs: FloatArray, state: Any) -> DraftLaw:
        """One draft of each drafter of the node."""
        drafters, prefix = state
        probs = [np.asarray(self.second(prefix)) if j else draft_probs for j in drafters]
        return otmd.Independent(probs)

    def child(self, state: Any, tokens: IntArray, token: int) -> Hashable:
        """The drafters that drew the token, at the longer prefix."""
        drafters, prefix = state
        pairs = zip(drafters, tokens.tolist(), strict=True)
        return tuple(j for j, drawn in pairs if drawn == token), (*prefix, token)


@cache
def loaded(draft: str) -> tuple[LanguageModel, Draft, Draft]:
    """The target, the draft model and the n-gram."""
    target, [model, ngram] = load_models(LAYERS.target, [draft, NGRAM], chosen_prompts())
    assert isinstance(model, LanguageModel)
    return pack_weights(target), pack_weights(model), ngram


def position_tokens(
    target: Reader, draft: Reader, ngram: Reader, rng: np.random.Generator
) -> dict[str, float]:
    """An estimate of the tokens per step of each law at one position."""
    laws: dict[str, TreeLaw] = {
        "chain": TokenTree(draft, (1,) * DEPTH, otmd.Stratified),
        "strata": TokenTree(draft, (2, *[1] * (DEPTH - 1)), otmd.Stratified),
        "ngram": TwoDrafters(draft, ngram, DEPTH),
    }
    tokens = {}
    for name, law in laws.items():
        context = Context(target, law)
        tree = law.draft_tree(context, Sampled(rng))
        for level in tree.grow():
            draft.read(level)
        target.read(tree.prefixes())
        tokens[name] = expected_tokens(LayerVerification(), context, tree)
    return tokens


def prompt_rows(rng: np.random.Generator, prompt: int, draft: str) -> Iterator[dict[str, Any]]:
    """Means over the positions of a prompt's texts."""
    models = loaded(draft)
    chosen = chosen_prompts()[prompt]
    read = partial(after_prompt, target=models[0], prompt=chosen)
    texts = sampled(read(models[0]), TEMPERATURES, STARTS[-1] + 1, rng)
    for temperature, text in zip(TEMPERATURES, texts, strict=True):
        step = Processing(temperature)
        ends = [i for i, token in enumerate(text) if token in models[0].stop_tokens]
        starts = [start for start in STARTS if start <= min(ends, default=len(text))]
        following = [read(model) for model in models]
        rows = []
        for start in starts:
            if start:
                for model in following:
                    model.extend(text[start - APART : start])
            readers = [Reader(model, step, models[0].token_count) for model in following]
            rows.append(position_tokens(readers[0], readers[1], readers[2], rng))
        means = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        yield {"domain": chosen.domain, "temperature": temperature, **means}


def gains(table: pl.DataFrame) -> pl.DataFrame:
    """Mean tokens per step, and what the second path adds to the chain's in per cent, with 95% intervals."""
    rows = []
    keys = ("draft", "temperature")
    for cell, of_cell in table.group_by(*keys, maintain_order=True):
        row: dict[str, Any] = dict(zip(keys, cell, strict=True))
        chain = of_cell["chain"].to_numpy()
        row["chain"] = float(chain.mean())
        for law in ("strata", "ngram"):
            ratio = float(of_cell[law].to_numpy().mean() / chain.mean())
            # The ratio of two means, linearised at each prompt.
            left = (of_cell[law].to_numpy() - ratio * chain) / chain.mean()
            margin = student_t.ppf(0.975, left.size - 1) * left.std(ddof=1) / left.size**0.5
            row[law] = f"{100 * (ratio - 1):+.1f}% ± {100 * margin:.1f}"
        rows.append(row)
    return pl.DataFrame(rows)


def main(arguments: list[str]) -> pl.DataFrame:
    """Measure, and print what the second path adds."""
    table = run(prompt_rows, arguments, 20.0)
    show(gains(table))
    return table
