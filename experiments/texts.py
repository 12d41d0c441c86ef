"""Texts that a target samples, and the logits of target and draft along them.

A lossless rule writes the target's own texts, whatever it drafts. So all rules are measured along the same
texts. The texts of one prompt are sampled together, as branches of one tree: a call yields one token of each.
"""

import hashlib
import zlib
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import polars as pl

from experiments.runner import Task, require, run
from otmd import Processing
from otmd.models import (
    DEFAULT_DRAFT,
    DOMAINS,
    Draft,
    LanguageModel,
    Prompt,
    load_draft,
    load_prompts,
    load_target,
)
from otmd.models.collection import held_out_corpus
from otmd.models.continuations import Continuations, continuations
from otmd.models.language_models import sample_token
from otmd.models.prompts import prompt_tokens

Prefix = tuple[int, ...]
Rows = Iterable[Mapping[str, Any]]
NOT_SETTINGS = {"command", "output", "parts", "prompts", "quiet", "scheduler", "workers"}


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

    def probs(self) -> tuple[np.ndarray, np.ndarray]:
        """Distributions of target and draft at every token, shape (N, V) each."""
        step = Processing(self.temperature)
        return step(self.target_logits), step(self.draft_logits)


def load_models(
    target: str, drafts: Iterable[str], prompts: Sequence[Prompt] = ()
) -> tuple[LanguageModel, list[Draft]]:
    """Load a target and drafts, on the CPU and in one thread, so that texts depend on no machine's GPU.

    n-gram drafts are fitted on the built-in texts that are not among the prompts.
    """
    import torch

    torch.set_num_threads(1)
    model = load_target(target, device="cpu", progress=False)
    corpora = {spec: held_out_corpus(spec, model, prompts, progress=False) for spec in drafts}
    return model, [load_draft(spec, model, corpus) for spec, corpus in corpora.items()]


@cache
def load_pair(target: str, draft: str) -> Pair:
    """Load a target and a draft; a process loads them once."""
    model, [drafting] = load_models(target, [draft])
    return Pair(model, drafting)


def after_prompt(model: Draft, target: LanguageModel, prompt: Prompt) -> Continuations:
    """A model's distributions after a prompt and after texts that continue it."""
    return continuations(model, prompt_tokens(target.tokenizer, prompt))


def sample_paths(
    target: LanguageModel,
    model: Continuations,
    prompt: Prompt,
    length: int,
    temperatures: Sequence[float],
    seed: int,
) -> list[Prefix]:
    """Sample a text of at most ``length`` tokens at each temperature, all with the same random numbers."""
    rngs = [np.random.default_rng([seed, zlib.crc32(prompt.id.encode())]) for _ in temperatures]
    paths: list[Prefix] = [() for _ in temperatures]
    for _ in range(length):
        growing = [i for i, path in enumerate(paths) if not set(path[-1:]) & target.stop_tokens]
        for i, logits in zip(growing, model.logits([paths[i] for i in growing]), strict=True):
            paths[i] += (sample_token(logits[: target.token_count], temperatures[i], rngs[i]),)
    return paths


def sample_texts(
    pair: Pair, prompt: Prompt, length: int, temperatures: Sequence[float], seed: int
) -> list[Text]:
    """Sample a text at each temperature, see :func:`sample_paths`, with the logits of both models."""
    target, draft = (after_prompt(model, pair.target, prompt) for model in (pair.target, pair.draft))
    paths = sample_paths(pair.target, target, prompt, length, temperatures, seed)
    prefixes = [[path[:i] for i in range(len(path))] for path in paths]
    # One call for all texts.
    draft.logits([prefix for listed in prefixes for prefix in listed])
    before = prompt_tokens(pair.target.tokenizer, prompt)
    texts = []
    for path, listed, temperature in zip(paths, prefixes, temperatures, strict=True):
        logits = (np.stack(model.logits(listed)) for model in (target, draft))
        cut = [values[:, : pair.target.token_count] for values in logits]
        texts.append(Text(before, list(path), temperature, *cut))
    return texts


@cache
def all_prompts(sources: tuple[str, ...], seed: int) -> dict[str, Prompt]:
    """All prompts of some domains or files, by their ids."""
    prompts = load_prompts(list(sources), per_domain=None, seed=seed, progress=False)
    return {prompt.id: prompt for prompt in prompts}


def along_texts(
    measure: Callable[[Pair, Text, np.random.Generator], Rows],
    prompt: str,
    temperatures: Sequence[float],
    settings: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    """Rows of a prompt's texts, one text at each temperature."""
    pair = load_pair(settings["target"], settings["draft"])
    seed = settings["seed"]
    of = all_prompts(tuple(settings["sources"]), seed)[prompt]
    for text in sample_texts(pair, of, settings["length"], temperatures, seed):
        for row in measure(pair, text, np.random.default_rng([seed, *text.tokens])):
            yield {"temperature": text.temperature, **row}


def run_prompts(
    function: Callable[..., Rows],
    arguments: Sequence[str],
    seconds_a_prompt: float,
    summarise: Callable[[pl.DataFrame], pl.DataFrame],
    check: Callable[[Namespace], None],
    **defaults: Any,
) -> pl.DataFrame:
    """Run ``function(rng, domain, prompt, settings)`` for each prompt; see :func:`experiments.runner.run`.

    The settings are the options, without those that say where and how to run.
    """
    common = {"prompts": 8, "sources": tuple(DOMAINS), "length": 72, "target": "default"}
    common |= {"draft": DEFAULT_DRAFT, "seed": 0, "workers": 1}
    return run(
        function,
        arguments,
        seconds_a_prompt,
        partial(_tasks, check),
        _identify,
        lambda rows: summarise(rows.drop("settings")),
        **(common | defaults),
    )


def _tasks(check: Callable[[Namespace], None], chosen: Namespace) -> list[Task]:
    for option, least in (("prompts", 2), ("length", 1)):
        value = getattr(chosen, option)
        require(value >= least, option, value, f"at least {least}")
    check(chosen)
    settings = {name: value for name, value in vars(chosen).items() if name not in NOT_SETTINGS}
    prompts = load_prompts(chosen.sources, per_domain=chosen.prompts, seed=chosen.seed)
    return [{"domain": p.domain, "prompt": p.id, "settings": settings} for p in prompts]


def _identify(tasks: list[Task]) -> str:
    """A hash of all prompts of the sources, so that a run of more of them knows what is done."""
    settings = tasks[0]["settings"]
    prompts = all_prompts(tuple(settings["sources"]), settings["seed"])
    return hashlib.sha256(repr(sorted(prompts.items())).encode()).hexdigest()
