"""A free n-gram path next to a model's chain, against a second path of the model; tokens per step.

    python -m experiments second_drafter_trees

At every eighth token of a text a tree of eight levels is drawn for each law. ``chain`` is one path of the
model, ``strata`` are two of its paths, which part at two strata of the first level. ``ngram`` is the
model's chain, with the same drafts, and a path of an n-gram model that also counts the text so far. This
path costs no call of a draft model. Where the two paths agree they are one, and may part later. Layer
verification decides; its estimate of the tokens per step is unbiased. Pairs, prompts and texts are those of
``whole_trees.py``; intervals are 95%, over prompts.
"""

import zlib
from collections.abc import Hashable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import polars as pl

import otmd
from experiments.claims.positions import LAYERS, chosen_prompts
from experiments.claims.whole_trees import (
    DEPTH,
    STARTS,
    TEMPERATURES,
    Reader,
    readers_along,
    sampled,
)
from experiments.estimates import interval
from experiments.runner import run, show
from experiments.texts import after_prompt, load_models
from otmd import Processing
from otmd.laws import DraftLaw
from otmd.laws.base import draw_tokens
from otmd.models import Draft, LanguageModel
from otmd.models.variants import pack_weights
from otmd.probabilities import FloatArray, IntArray
from otmd.study import jackknife
from otmd.trees import LayerVerification, TokenTree, TreeLaw
from otmd.trees.base import Context, Distribution, Model
from otmd.trees.estimates import expected_tokens
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


class SameTokens(Sampled):
    """Draws the same token wherever a draft has the same distribution, so that trees have it in common."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def drafts(self, law: DraftLaw) -> IntArray:
        """See :class:`otmd.trees.random_choices.RandomChoices`."""
        slots = law.position_structure().slots
        assert slots is not None
        return np.array([self._token(probs) for probs in slots.dense])

    def _token(self, probs: FloatArray) -> int:
        rng = np.random.default_rng([self._seed, zlib.crc32(probs.tobytes())])
        return int(draw_tokens(probs, rng, 1)[0])


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
        "chain": TokenTree(draft, (1,) * DEPTH, otmd.WithReplacement),
        "strata": TokenTree(draft, (2, *[1] * (DEPTH - 1)), otmd.Stratified),
        "ngram": TwoDrafters(draft, ngram, DEPTH),
    }
    choices = SameTokens(int(rng.integers(2**32)))
    tokens = {}
    for name, law in laws.items():
        context = Context(target, law)
        tree = law.draft_tree(context, choices)
        for level in tree.grow():
            draft.read(level)
        target.read(tree.prefixes())
        tokens[name] = expected_tokens(LayerVerification(), context, tree)
    return tokens


def prompt_rows(rng: np.random.Generator, prompt: int, draft: str) -> Iterator[dict[str, Any]]:
    """Means over the positions of a prompt's texts."""
    models = loaded(draft)
    target = models[0]
    chosen = chosen_prompts()[prompt]
    read = partial(after_prompt, target=target, prompt=chosen)
    texts = sampled(read(target), TEMPERATURES, STARTS[-1] + 1, rng)
    for temperature, text in zip(TEMPERATURES, texts, strict=True):
        following = [read(model) for model in models]
        steps = [Processing(temperature)] * len(models)
        along = readers_along(following, text, target.stop_tokens, steps, target.token_count)
        rows = [position_tokens(*readers, rng=rng) for _, readers in along]
        means = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        yield {"domain": chosen.domain, "temperature": temperature, **means}


def gains(table: pl.DataFrame) -> pl.DataFrame:
    """Mean tokens per step, and what the second path adds in per cent of the chain's, with 95% intervals."""
    rows = []
    keys = ("draft", "temperature")
    for cell, of_cell in table.group_by(*keys, maintain_order=True):
        row: dict[str, Any] = dict(zip(keys, cell, strict=True))
        chain = of_cell["chain"].to_numpy()
        row["chain"] = float(chain.mean())
        for law in ("strata", "ngram"):
            tokens = of_cell[law].to_numpy()
            gain = 100 * (float(tokens.sum() / chain.sum()) - 1)
            row[law] = interval(gain, 100 * (jackknife.left_out(tokens, chain) - 1), "+.1f")
        rows.append(row)
    return pl.DataFrame(rows)


def main(arguments: list[str]) -> pl.DataFrame:
    """Measure, and print what the second path adds."""
    table = run(prompt_rows, arguments, 20.0)
    show(gains(table))
    return table
