"""Run target and draft over prompts and store their raw logits, resumably."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .dataset import Dataset, open_dataset
from .drafts import Draft, common_vocabulary, load_draft
from .errors import DatasetError
from .files import write_atomically
from .lock import folder_lock
from .manifest import write_manifest
from .models import LanguageModel, load_target
from .progress import progress_bar
from .prompts import Prompt, check_unique
from .run_settings import RunSettings, check_same_settings, describe_run, held_out_corpus
from .sequences import TokenSequence, chosen_positions, with_answers, with_samples
from .shards import Row, Shard, find_shards, read_shard, write_shard


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
    progress: bool = True,
) -> Dataset:
    """Store the next-token logits of two models at chosen positions of the prompts' answers.

    One shard is written for each batch of prompts. A run that was interrupted goes on where it
    stopped when it is called again in the same folder; a shard that is torn or altered is made
    anew. On a finished folder nothing is computed.

    Parameters
    ----------
    target : str or LanguageModel
        A model, or its name as ``load_target`` takes it ("default" needs no hub).
    draft : str or Draft
        A draft, or its name as ``load_draft`` takes it ("skip:13,15,17"). "ngram" without a file
        is fitted on those built-in prompts and their answers that are not among ``prompts``.
    prompts : sequence of Prompt
        What is asked; ids are unique.
    folder : str or Path
        Where the data set goes; created where it is missing.
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
    progress : bool
        Show a bar.

    Returns
    -------
    Dataset

    Raises
    ------
    ValueError
        If an argument is out of range, the folder was begun with other settings, the two
        vocabularies differ, or a prompt with its answer is too long for a model.
    FolderLocked
        If another process is collecting into the folder.
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
    folder = Path(folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    metadata = describe_run(target, draft, prompts, settings)
    with folder_lock(folder):
        check_same_settings(folder, metadata)
        write_atomically(folder / "collect.json", json.dumps(metadata, indent=1).encode() + b"\n")
        shards = _collect_shards(target, draft, prompts, folder, settings, progress)
        write_manifest(folder, shards, metadata)
    return open_dataset(folder, verify=False)


def _collect_shards(
    target: LanguageModel,
    draft: Draft,
    prompts: list[Prompt],
    folder: Path,
    settings: RunSettings,
    progress: bool,
) -> list[Shard]:
    size = settings.batch_size
    batches = [prompts[i : i + size] for i in range(0, len(prompts), size)]
    shards = []
    with progress_bar(f"Collecting {target.name} | {draft.name}", len(prompts), progress) as update:
        for number, batch in enumerate(batches):
            update(number * size, f"{batch[0].domain}: {settings.mode}")
            shard = _finished_shard(folder, number)
            if shard is None:
                sequences = _sequences(target, batch, settings)
                update(number * size + len(batch) / 2, f"{batch[0].domain}: logits")
                shard = read_shard(_store(target, draft, sequences, folder, number, settings))
            shards.append(shard)
        update(len(prompts), "")
    return shards


def _finished_shard(folder: Path, number: int) -> Shard | None:
    """Find the whole shard of this number; what is torn is removed."""
    whole = None
    for path in find_shards(folder).get(number, []):
        try:
            whole = read_shard(path)
        except DatasetError:
            path.unlink()
    return whole


def _sequences(
    target: LanguageModel, batch: list[Prompt], settings: RunSettings
) -> list[TokenSequence]:
    if settings.mode == "text":
        return with_answers(target, batch, settings.max_new_tokens)
    return with_samples(target, batch, settings.max_new_tokens, settings.temperature, settings.seed)


def _store(
    target: LanguageModel,
    draft: Draft,
    sequences: list[TokenSequence],
    folder: Path,
    number: int,
    settings: RunSettings,
) -> Path:
    vocab_size, _ = common_vocabulary(target, draft)
    rows: list[Row] = []
    columns: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for sequence in sequences:
        places = chosen_positions(sequence, settings.positions_per_prompt)
        prompt = sequence.prompt
        rows += [Row(prompt.id, prompt.domain, t, sequence.tokens[t]) for t in places]
        for model, column in zip((target, draft), columns, strict=True):
            logits = model.logits(sequence.tokens[:-1], rows=[t - 1 for t in places])
            column.append(_storable(logits[:, :vocab_size], settings.dtype, model.name, prompt))
    texts: list[dict[str, Any]] = [
        {"prompt_id": s.prompt.id, "tokens": s.tokens, "start": s.start} for s in sequences
    ]
    target_logits, draft_logits = map(np.concatenate, columns)
    return write_shard(folder, number, target_logits, draft_logits, rows, texts)


def _storable(logits: np.ndarray, dtype: str, name: str, prompt: Prompt) -> np.ndarray:
    if np.isnan(logits).any() or np.isposinf(logits).any():
        raise DatasetError(
            f"{name} gave logits that are not numbers on {prompt.id!r}; try another model_dtype"
        )
    limit = np.finfo(dtype).max
    if (np.abs(logits[np.isfinite(logits)]) > limit).any():
        raise ValueError(f"dtype: {name} gave logits beyond {limit:g}, wanted dtype='float32'")
    return logits.astype(dtype)
