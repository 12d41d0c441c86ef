"""Texts that the target samples, and what both models say along them.

A lossless rule writes the target's own texts, whatever it drafts. So all rules are measured along the same
texts. The texts of one prompt are sampled together, as branches of one tree: a call yields one token of each.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from otmd import Processing
from otmd.models import Draft, LanguageModel, Prompt
from otmd.models.continuations import continuations
from otmd.models.language_models import sample_token
from otmd.models.prompts import prompt_tokens
from otmd.probabilities import FloatArray
from otmd.trees.base import Prefix


@dataclass(frozen=True)
class Pair:
    """A target, and a draft over the target's tokens."""

    target: LanguageModel
    draft: Draft


@dataclass(frozen=True, eq=False)
class Text:
    """A continuation of a prompt that the target sampled.

    Attributes
    ----------
    before, tokens : list of int
        The prompt, and the N tokens that were sampled. The last one may be a token that ends a text.
    temperature : float
        The temperature of the sampling, and of both models in measurements.
    target_logits, draft_logits : ndarray of float32, shape (N, V)
        The logits of each token, given all tokens before it.
    """

    before: list[int]
    tokens: list[int]
    temperature: float
    target_logits: np.ndarray
    draft_logits: np.ndarray


@dataclass(frozen=True, eq=False)
class Laws:
    """N tokens of a text, and both models' distributions (N, V) of each, given all tokens before it."""

    tokens: list[int]
    target: FloatArray
    draft: FloatArray


def sample_texts(
    pair: Pair, prompt: Prompt, length: int, temperatures: Sequence[float], seed: int
) -> list[Text]:
    """Sample a text of at most ``length`` tokens at each temperature, all with the same random numbers."""
    before = prompt_tokens(pair.target.tokenizer, prompt)
    size, stops = pair.target.token_count, pair.target.stop_tokens
    target = continuations(pair.target, before)
    rngs = [np.random.default_rng([seed, zlib.crc32(prompt.id.encode())]) for _ in temperatures]
    paths: list[Prefix] = [() for _ in temperatures]
    for _ in range(length):
        growing = [i for i, path in enumerate(paths) if not (path and path[-1] in stops)]
        if not growing:
            break
        found = target.logits([paths[i] for i in growing])
        for i, logits in zip(growing, found, strict=True):
            paths[i] += (sample_token(logits[:size], temperatures[i], rngs[i]),)
    texts = []
    every = [[path[:i] for i in range(len(path))] for path in paths]
    draft = continuations(pair.draft, before)
    # One call for all of them.
    draft.logits([prefix for prefixes in every for prefix in prefixes])
    for path, prefixes, temperature in zip(paths, every, temperatures, strict=True):
        own = [np.stack(model.logits(prefixes))[:, :size] for model in (target, draft)]
        texts.append(Text(before, list(path), temperature, *own))
    return texts


def laws_along(text: Text) -> Laws:
    """Both models' distributions at every token of a text."""
    processing = Processing(text.temperature)
    return Laws(text.tokens, processing(text.target_logits), processing(text.draft_logits))
