"""Making shards from batches of prompts, one after another."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from otmd.harness.drafts import Draft
from otmd.harness.errors import DatasetError, HarnessError
from otmd.harness.models import LanguageModel
from otmd.harness.progress import progress_bar
from otmd.harness.prompts import Prompt
from otmd.harness.sequences import TokenSequence, chosen_positions, with_answers, with_samples
from otmd.harness.settings import RunSettings
from otmd.harness.shards import Row, Shard, find_shards, read_shard, write_shard


@dataclass(frozen=True)
class Run:
    """Everything a shard is made from, but its prompts."""

    target: LanguageModel
    draft: Draft
    folder: Path
    settings: RunSettings
    vocab_size: int


def collect_shards(run: Run, prompts: list[Prompt], progress: bool) -> list[Shard]:
    """Make every shard that is not there yet, one for each batch of prompts, and open all."""
    size = run.settings.batch_size
    label = f"Collecting {run.target.name} | {run.draft.name}"
    shards, existing = [], find_shards(run.folder)
    with progress_bar(label, len(prompts), progress) as update:
        for number, start in enumerate(range(0, len(prompts), size)):
            batch = prompts[start : start + size]
            update(start, f"{batch[0].domain}: {run.settings.mode}")
            shard = _whole_shard(existing.get(number, []))
            if shard is None:
                sequences = _sequences(run, batch)
                update(start + len(batch) / 2, f"{batch[0].domain}: logits")
                shard = read_shard(_store(run, sequences, number))
            shards.append(shard)
        update(len(prompts), "")
    return shards


def _whole_shard(paths: list[Path]) -> Shard | None:
    """Open the one of these that is whole; what is torn is removed."""
    whole = None
    for path in paths:
        try:
            whole = read_shard(path)
        except DatasetError:
            path.unlink()
    return whole


def _sequences(run: Run, batch: list[Prompt]) -> list[TokenSequence]:
    settings = run.settings
    if settings.mode == "text":
        return with_answers(run.target, batch, settings.max_new_tokens)
    return with_samples(
        run.target, batch, settings.max_new_tokens, settings.temperature, settings.seed
    )


def _store(run: Run, sequences: list[TokenSequence], number: int) -> Path:
    rows: list[Row] = []
    columns: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for sequence in sequences:
        places = chosen_positions(sequence, run.settings.positions_per_prompt)
        prompt = sequence.prompt
        rows += [Row(prompt.id, prompt.domain, t, sequence.tokens[t]) for t in places]
        for model, column in zip((run.target, run.draft), columns, strict=True):
            logits = model.logits(sequence.tokens[:-1], rows=[t - 1 for t in places])
            logits = logits[:, : run.vocab_size]
            column.append(_storable(logits, run.settings.dtype, model.name, prompt))
    texts: list[dict[str, Any]] = [
        {"prompt_id": s.prompt.id, "tokens": s.tokens, "start": s.start} for s in sequences
    ]
    target_logits, draft_logits = map(np.concatenate, columns)
    return write_shard(run.folder, number, target_logits, draft_logits, rows, texts)


def _storable(logits: np.ndarray, dtype: str, name: str, prompt: Prompt) -> np.ndarray:
    if np.isnan(logits).any() or np.isposinf(logits).any():
        raise HarnessError(
            f"{name} gave logits that are not numbers on {prompt.id!r}; try another model_dtype"
        )
    limit = np.finfo(dtype).max
    if (np.abs(logits[np.isfinite(logits)]) > limit).any():
        raise ValueError(f"dtype: {name} gave logits beyond {limit:g}, wanted dtype='float32'")
    return logits.astype(dtype)
