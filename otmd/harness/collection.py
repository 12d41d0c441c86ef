"""Run target and draft over prompts and store their raw logits, resumably."""

import hashlib
import json
import re
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from otmd.harness.dataset import (
    SHARDS,
    Dataset,
    Position,
    Shard,
    open_dataset,
    read_shard,
    write_manifest,
    write_shard,
)
from otmd.harness.draft_models import Draft, common_vocabulary, load_draft
from otmd.harness.models import LanguageModel, load_target
from otmd.harness.progress import progress_bar
from otmd.harness.prompts import Prompt, check_unique, load_prompts, prompt_tokens
from otmd.harness.wheels import HarnessError
from otmd.probabilities import Processing, validate_count
from otmd.storage.store import Store

FORMAT = 1


@dataclass(frozen=True)
class RunSettings:
    """The settings of :func:`collect`, checked; see there."""

    positions_per_prompt: int
    mode: str
    temperature: float
    max_new_tokens: int
    dtype: str
    seed: int
    batch_size: int

    def __post_init__(self):
        for name in ("positions_per_prompt", "max_new_tokens", "batch_size"):
            validate_count(name, getattr(self, name))
        validate_count("seed", self.seed, minimum=0)
        Processing(self.temperature)  # refuses a bad temperature
        for name, known in (("mode", ("samples", "text")), ("dtype", ("float32", "float16"))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}: got {getattr(self, name)!r}, wanted one of {known}")


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
    overwrite: bool = False,
    progress: bool = True,
) -> Dataset:
    """Store the next-token logits of two models at chosen positions of the prompts' answers.

    One shard is written for each batch of prompts. An interrupted run goes on where it stopped when it is
    called again with the same folder; a torn or altered shard is made anew. On a finished folder nothing is
    computed.

    Parameters
    ----------
    target : str or LanguageModel
        A model, or its name as ``load_target`` takes it ("default" needs no hub).
    draft : str or Draft
        A draft, or its name as ``load_draft`` takes it ("skip:13,15,17"). "ngram" without a file is
        fitted on the built-in prompts, with their answers, that are not among ``prompts``.
    prompts : sequence of Prompt
        What is asked; ids are unique.
    folder : str or Path
        Where the data set goes; a new or empty folder, or one that an equal run began.
    positions_per_prompt : int
        How many positions of each answer are stored, spread evenly over it.
    mode : {"samples", "text"}
        Positions on what the target samples itself, or on the prompts' own answers.
    temperature : float
        Of that sampling; 0 is greedy. The logits stored are raw in any case.
    max_new_tokens : int
        How long an answer may be; longer ones are cut.
    dtype : {"float32", "float16"}
        What the logits are stored in.
    seed : int
        Of the sampling.
    batch_size : int
        Prompts sampled from together, and stored in one shard.
    device, model_dtype : str, optional
        For models that are given by name; see ``load_target``.
    overwrite : bool
        Remove a run with other settings from the folder, instead of raising an error.
    progress : bool
        Show a bar.

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
        If the disk is full or the folder cannot be written to; what was finished is kept.
    """
    settings = RunSettings(
        positions_per_prompt, mode, temperature, max_new_tokens, dtype, seed, batch_size
    )
    prompts = list(prompts)
    if not prompts:
        raise ValueError("prompts: wanted at least one")
    check_unique(prompts)
    if isinstance(target, str):
        target = load_target(target, device, model_dtype, progress=progress)
    if isinstance(draft, str):
        corpus = held_out_corpus(draft, target, prompts, progress)
        draft = load_draft(draft, target, corpus, device, model_dtype)
    metadata = _describe_run(target, draft, prompts, settings)
    lengths = [model.max_length for model in (target, draft) if model.max_length is not None]
    _check_prompts(target.tokenizer, prompts, min(lengths, default=None), settings)
    store = Store(Path(folder).absolute(), metadata, SHARDS, overwrite)
    with store.held():
        run = _Run(target, draft, store, settings, metadata["vocab_size"])
        write_manifest(store.folder, _collect_shards(run, prompts, progress), metadata)
    return open_dataset(store.folder, verify=False)


def held_out_corpus(
    spec: str, target: LanguageModel, prompts: Sequence[Prompt], progress: bool
) -> list[list[int]] | None:
    """Tokens of the built-in prompts that are not among ``prompts``, for an n-gram draft; else None."""
    if not re.fullmatch(r"ngram(:\d+)?(\+context)?", spec):
        return None
    used = {prompt.text for prompt in prompts}
    others = [p for p in load_prompts(per_domain=None, progress=progress) if p.text not in used]
    tokenizer = target.tokenizer
    return [
        prompt_tokens(tokenizer, prompt)
        + tokenizer(prompt.answer or "", add_special_tokens=False).input_ids
        for prompt in others
    ]


def _describe_run(
    target: LanguageModel, draft: Draft, prompts: Sequence[Prompt], settings: RunSettings
) -> dict[str, Any]:
    """Everything that decides what a run stores, for JSON; warns where padding rows are cut."""
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
        "format": FORMAT,
        "otmd": version("otmd"),
        "target": target.describe(),
        "draft": draft.describe(),
        "vocab_size": vocab_size,
        "padding_rows_cut": padding,
        "prompts": {"count": len(prompts), "sha256": hashlib.sha256(texts).hexdigest()},
        "chat_template": bool(target.tokenizer.chat_template),
        **asdict(settings),
    }


def _check_prompts(
    tokenizer: Any, prompts: Sequence[Prompt], max_length: int | None, settings: RunSettings
) -> None:
    """Raise ValueError if a prompt is empty, too long with its answer, or lacks an answer that is needed."""
    for prompt in prompts:
        length = len(prompt_tokens(tokenizer, prompt))
        if length == 0:
            raise ValueError(f"prompts: {prompt.id!r} is empty")
        if max_length is not None and length + settings.max_new_tokens > max_length:
            raise ValueError(
                f"prompts: {prompt.id!r} has {length} tokens, which with max_new_tokens="
                f"{settings.max_new_tokens} is more than the {max_length} the models take"
            )
        if settings.mode == "text" and not _answer_tokens(tokenizer, prompt):
            raise ValueError(f"prompts: the answer of {prompt.id!r} is empty")


def _answer_tokens(tokenizer: Any, prompt: Prompt) -> list[int]:
    if prompt.answer is None:
        raise ValueError(
            f"prompts: {prompt.id!r} ({prompt.domain}) has no answer, which mode='text' needs; "
            "leave it out, or use mode='samples'"
        )
    return tokenizer(prompt.answer, add_special_tokens=False).input_ids


class _Run(NamedTuple):
    """What all shards of a run are made with."""

    target: LanguageModel
    draft: Draft
    store: Store[Shard]
    settings: RunSettings
    vocab_size: int


def _collect_shards(run: _Run, prompts: list[Prompt], progress: bool) -> list[Shard]:
    """Make every shard that is not there yet, one for each batch of prompts, and open all."""
    size = run.settings.batch_size
    label = f"Collecting {run.target.name} | {run.draft.name}"
    existing = {int(name[:6]): shard for name, shard in run.store.whole_parts()}
    shards = []
    with progress_bar(label, len(prompts), progress) as update:
        for number, start in enumerate(range(0, len(prompts), size)):
            batch = prompts[start : start + size]
            update(start, f"{batch[0].domain}: {run.settings.mode}")
            shard = existing.get(number)
            if shard is None:
                sequences = _sequences(run, batch)
                update(start + len(batch) / 2, f"{batch[0].domain}: logits")
                shard = read_shard(_store(run, sequences, number))
            shards.append(shard)
        update(len(prompts), "")
    return shards


def _sequences(run: _Run, batch: list[Prompt]) -> list[tuple[Prompt, list[int], int]]:
    """Each prompt, its tokens followed by those of its answer, and where the answer begins."""
    settings, tokenizer = run.settings, run.target.tokenizer
    before = [prompt_tokens(tokenizer, prompt) for prompt in batch]
    if settings.mode == "text":
        after = [_answer_tokens(tokenizer, p)[: settings.max_new_tokens] for p in batch]
    else:
        seeds = [[settings.seed, zlib.crc32(prompt.id.encode())] for prompt in batch]
        rngs = [np.random.default_rng(seed) for seed in seeds]
        after = run.target.generate(
            before, settings.max_new_tokens, settings.temperature, rngs=rngs
        )
    return [(p, old + new, len(old)) for p, old, new in zip(batch, before, after, strict=True)]


def _store(run: _Run, sequences: list[tuple[Prompt, list[int], int]], number: int) -> Path:
    rows: list[Position] = []
    columns: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    texts: list[dict[str, Any]] = []
    for prompt, tokens, start in sequences:
        texts.append({"prompt_id": prompt.id, "tokens": tokens, "start": start})
        # Cut the answer into equal parts and take their middles. Position t: the distribution of token t.
        length, count = len(tokens) - start, run.settings.positions_per_prompt
        places = [start + (2 * i + 1) * length // (2 * count) for i in range(count)]
        places = places if length > count else list(range(start, len(tokens)))
        for t in places:
            rows.append(Position(len(rows), prompt.id, prompt.domain, t, tokens[t]))
        for model, column in zip((run.target, run.draft), columns, strict=True):
            logits = model.logits(tokens[:-1], rows=[t - 1 for t in places])
            logits = logits[:, : run.vocab_size]
            column.append(_storable(logits, run.settings.dtype, model.name, prompt))
    target_logits, draft_logits = map(np.concatenate, columns)
    return write_shard(run.store, number, target_logits, draft_logits, rows, texts)


def _storable(logits: np.ndarray, dtype: str, name: str, prompt: Prompt) -> np.ndarray:
    if np.isnan(logits).any() or np.isposinf(logits).any():
        raise HarnessError(
            f"{name} gave logits that are not numbers on {prompt.id!r}; try another model_dtype"
        )
    limit = np.finfo(dtype).max
    if (np.abs(logits[np.isfinite(logits)]) > limit).any():
        raise ValueError(f"dtype: {name} gave logits beyond {limit:g}, wanted dtype='float32'")
    return logits.astype(dtype)
