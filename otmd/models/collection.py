"""Run target and draft over prompts and store their raw logits, resumably."""

from __future__ import annotations

import hashlib
import json
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from otmd.models.dataset import SHARDS, Dataset, open_dataset, write_shard
from otmd.models.drafts import Draft, check_draft, common_vocabulary, load_draft
from otmd.models.language_models import LanguageModel, load_target
from otmd.models.progress import progress_bar
from otmd.models.prompts import Prompt, check_unique, load_prompts, prompt_tokens
from otmd.models.wheels import HarnessError
from otmd.probabilities import Processing, validate_count, wrong
from otmd.storage.store import Store

# A prompt, its tokens, and those of its answer: none yet if the target is to write it.
Text = tuple[Prompt, list[int], list[int]]


def collect(
    target: str | LanguageModel,
    draft: str | Draft,
    prompts: Sequence[Prompt],
    folder: str | Path,
    *,
    positions_per_prompt: int = 6,
    mode: str = "samples",
    temperature: float = 1.0,
    max_new_tokens: int = 32,
    dtype: str = "float32",
    seed: int = 0,
    batch_size: int = 8,
    device: str | None = None,
    model_dtype: str | None = None,
    workers: int = 1,
    overwrite: bool = False,
    progress: bool = True,
) -> Dataset:
    """Store the next-token logits of two models at chosen positions of the prompts' answers.

    Each batch of prompts becomes one shard. A second call with the same folder continues an interrupted run,
    makes torn or altered shards anew, and runs no model if the folder is finished.

    Parameters
    ----------
    target, draft : str, LanguageModel or Draft
        Models, or their names as ``load_target`` and ``load_draft`` take them. "ngram" without a file is
        fitted on the built-in prompts that are not among ``prompts``, with their answers.
    prompts : sequence of Prompt
        No two may share an id.
    folder : str or Path
        A new or empty folder, or one that an equal run began.
    positions_per_prompt : int
        The number of positions of each answer that are stored, spread evenly over the answer.
    mode : {"samples", "text"}
        Take the positions from answers that the target samples, or from the prompts' own answers.
    temperature : float
        For the answers that the target samples; 0 is greedy. The stored logits are always raw.
    max_new_tokens : int
        After how many tokens an answer is cut.
    dtype : {"float32", "float16"}
        The type in which the logits are stored.
    seed : int
        For the answers that the target samples.
    batch_size : int
        The number of prompts that the target answers together; one shard stores them.
    device, model_dtype : str, optional
        For models that are given by name; see ``load_target``.
    workers : int
        The number of batches that are computed at a time. They share torch's threads, which help each other
        badly on few CPUs.
    overwrite, progress : bool
        Remove a run with other settings from the folder, instead of raising an error; show a progress bar.

    Raises
    ------
    ValueError
        If an argument is out of range, the folder was begun with other settings or holds other files,
        the two vocabularies differ, or a prompt with its answer is too long for a model.
    HarnessError
        If a model gives logits that are not numbers.
    FolderLockedError
        If another process is collecting into the folder.
    OSError
        If the disk is full or the folder cannot be written to; finished shards are kept.
    """
    settings = {
        "positions_per_prompt": positions_per_prompt,
        "mode": mode,
        "temperature": temperature,
        "max_new_tokens": max_new_tokens,
        "dtype": dtype,
        "seed": seed,
        "batch_size": batch_size,
    }
    for name, least in (("positions_per_prompt", 1), ("max_new_tokens", 1), ("batch_size", 1), ("seed", 0)):
        validate_count(name, settings[name], minimum=least)
    validate_count("workers", workers)
    Processing(temperature)  # refuses a bad temperature
    for name, choices in (("mode", ("samples", "text")), ("dtype", ("float32", "float16"))):
        if settings[name] not in choices:
            raise wrong(name, repr(settings[name]), f"one of {choices}")
    prompts = list(prompts)
    if not prompts:
        raise wrong("prompts", "none", "at least one")
    check_unique(prompts)
    if isinstance(draft, str):
        check_draft(draft)
    if isinstance(target, str):
        target = load_target(target, device, model_dtype, progress=progress)
    if isinstance(draft, str):
        corpus = held_out_corpus(draft, target, prompts, progress)
        draft = load_draft(draft, target, corpus, device, model_dtype)
    about = _describe_run(target, draft, prompts) | settings
    texts = [_tokenised(target, draft, about, prompt) for prompt in prompts]
    batches = [texts[start : start + batch_size] for start in range(0, len(texts), batch_size)]
    about["shards"] = len(batches)
    store = Store(Path(folder).absolute(), about, SHARDS, overwrite)
    title = f"Collecting {target.name} | {draft.name}"
    with store.held():
        for name in store.names():
            if store.read(name) is None:
                store.path(name).unlink()
        finished = {int(name[:6]) for name in store.names()}
        missing = [number for number in range(len(batches)) if number not in finished]
        write = partial(_write_shard, target, draft, store, about, batches)
        with progress_bar(title, len(texts), progress) as update, _threads(workers) as in_order:
            update(len(finished) * batch_size, "")
            for done, _ in enumerate(in_order(write, missing), len(finished) + 1):
                update(min(done * batch_size, len(texts)), "")
    return open_dataset(store.folder, verify=False)


def held_out_corpus(
    spec: str, target: LanguageModel, prompts: Sequence[Prompt], progress: bool
) -> list[list[int]] | None:
    """Tokens of the built-in prompts not among ``prompts``, for an n-gram model without a file; else None."""
    ngram = check_draft(spec)
    if ngram is None or ngram["file"] is not None:
        return None
    used = {prompt.text for prompt in prompts}
    corpus = [p for p in load_prompts(per_domain=None, progress=progress) if p.text not in used]
    read = target.tokenizer
    return [
        prompt_tokens(read, prompt) + read(prompt.answer or "", add_special_tokens=False).input_ids
        for prompt in corpus
    ]


def _describe_run(target: LanguageModel, draft: Draft, prompts: list[Prompt]) -> dict[str, Any]:
    """All but the settings that the stored logits depend on, for JSON; warns if padding rows are cut."""
    vocab_size, padding = common_vocabulary(target, draft)
    for role, rows in padding.items():
        if rows:
            warnings.warn(
                f"{role}: the last {rows} rows of its logits stand for no token of its tokenizer "
                f"(padding); rows {vocab_size} to {vocab_size + rows - 1} are cut",
                stacklevel=3,
            )
    texts = json.dumps([asdict(prompt) for prompt in prompts]).encode()
    return {
        "format": 2,
        "otmd": version("otmd"),
        "target": target.describe(),
        "draft": draft.describe(),
        "vocab_size": vocab_size,
        "padding_rows_cut": padding,
        "prompts": {"count": len(prompts), "sha256": hashlib.sha256(texts).hexdigest()},
        "chat_template": bool(target.tokenizer.chat_template),
    }


def _tokenised(target: LanguageModel, draft: Draft, settings: dict[str, Any], prompt: Prompt) -> Text:
    """Tokenise; ValueError if a prompt is empty, too long with its answer, or lacks a needed answer."""
    longest = min(model.max_length or np.inf for model in (target, draft))
    most = settings["max_new_tokens"]
    tokens = prompt_tokens(target.tokenizer, prompt)
    answer: list[int] = []
    if not tokens:
        raise ValueError(f"prompts: {prompt.id!r} is empty")
    if len(tokens) + most > longest:
        raise ValueError(
            f"prompts: {prompt.id!r} has {len(tokens)} tokens, which with max_new_tokens={most} "
            f"is more than the {longest} the models take"
        )
    if settings["mode"] == "text":
        if prompt.answer is None:
            raise ValueError(
                f"prompts: {prompt.id!r} ({prompt.domain}) has no answer, which mode='text' needs; "
                "leave it out, or use mode='samples'"
            )
        answer = target.tokenizer(prompt.answer, add_special_tokens=False).input_ids[:most]
        if not answer:
            raise ValueError(f"prompts: the answer of {prompt.id!r} is empty")
    return prompt, tokens, answer


def _write_shard(
    target: LanguageModel,
    draft: Draft,
    store: Store[Any],
    about: dict[str, Any],
    batches: list[list[Text]],
    number: int,
) -> None:
    """Let the target answer a batch where it is to, and store the logits at the chosen positions."""
    prompts, befores, answers = zip(*batches[number], strict=True)
    sampled: list[list[np.ndarray]] = [[] for _ in prompts]
    if about["mode"] == "samples":
        seeds = [[about["seed"], zlib.crc32(prompt.id.encode())] for prompt in prompts]
        answers = target.generate(
            befores,
            about["max_new_tokens"],
            about["temperature"],
            rngs=[np.random.default_rng(seed) for seed in seeds],
            rows=sampled,
        )
    texts: list[dict[str, Any]] = []
    stored: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for prompt, before, answer, rows in zip(prompts, befores, answers, sampled, strict=True):
        tokens = before + answer
        start = len(before)
        # The middles of equal parts of the answer. Position t has the distribution of token t.
        count = min(len(answer), about["positions_per_prompt"])
        chosen = [start + (2 * i + 1) * len(answer) // (2 * count) for i in range(count)]
        text = {"prompt_id": prompt.id, "domain": prompt.domain, "tokens": tokens}
        texts.append(text | {"start": start, "positions": chosen})
        for side, model in enumerate((target, draft)):
            if side == 0 and rows:
                logits = np.stack([rows[t - start] for t in chosen])
            else:
                logits = model.logits(tokens[:-1], rows=[t - 1 for t in chosen])
            logits = logits[:, : about["vocab_size"]]
            stored[side].append(_storable(logits, about["dtype"], model.name, prompt))
    write_shard(store, number, texts, *map(np.concatenate, stored))


@contextmanager
def _threads(count: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """A ``map`` that works in so many threads; after an interrupt, each finishes what it has begun."""
    if count == 1:
        yield map
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(max(1, before // count))
    pool = ThreadPoolExecutor(count)
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)


def _storable(logits: np.ndarray, dtype: str, name: str, prompt: Prompt) -> np.ndarray:
    if np.isnan(logits).any() or np.isposinf(logits).any():
        raise HarnessError(
            f"{name} gave logits that are not numbers on {prompt.id!r}; try another model_dtype"
        )
    limit = np.finfo(dtype).max
    if (np.abs(logits[np.isfinite(logits)]) > limit).any():
        raise ValueError(f"dtype: {name} gave logits beyond {limit:g}, expected dtype='float32'")
    return logits.astype(dtype)
