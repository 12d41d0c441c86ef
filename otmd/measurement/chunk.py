"""A chunk of positions with its arrays: what travels to a worker, and what the worker does."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from otmd import __version__
from otmd.harness.dataset import Dataset, Position
from otmd.measurement.rows import SCHEMA, position_rows, process
from otmd.measurement.settings import Settings

CHUNK_SIZE = 8


@dataclass(frozen=True)
class Chunk:
    """Consecutive positions of a dataset.

    Attributes
    ----------
    numbers : range
        Which positions these are, counted along the dataset.
    positions : list of Position
    target, draft : ndarray, shape (k, V)
        As stored: logits or probabilities, in the dataset's dtype.
    kind : {"logits", "probs"}
    """

    numbers: range
    positions: list[Position]
    target: np.ndarray
    draft: np.ndarray
    kind: str


def read_chunks(dataset: Dataset, numbers: Sequence[int]) -> Iterator[Chunk]:
    """Read these positions chunk by chunk; the arrays are read when a chunk is asked for."""
    for run in consecutive_runs(numbers):
        target, draft = dataset.arrays(list(run))
        positions = [dataset.positions[i] for i in run]
        yield Chunk(run, positions, np.asarray(target), np.asarray(draft), dataset.kind)


def consecutive_runs(numbers: Sequence[int]) -> Iterator[range]:
    """Split ascending numbers into runs without a hole, no longer than a chunk."""
    start = 0
    for end in range(1, len(numbers) + 1):
        full = end - start == CHUNK_SIZE
        if full or end == len(numbers) or numbers[end] != numbers[end - 1] + 1:
            yield range(numbers[start], numbers[end - 1] + 1)
            start = end


def measure_chunk(settings: Settings, chunk: Chunk) -> pl.DataFrame:
    """Measure a chunk's positions one after another, in whichever process this is called.

    Raises
    ------
    ValueError
        If a position's values are no distribution; the message says which position.
    """
    rows: list[dict[str, Any]] = []
    for place, target, draft in zip(chunk.positions, chunk.target, chunk.draft, strict=True):
        at = {
            "index": place.index,
            "prompt_id": place.prompt_id,
            "domain": place.domain,
            "position": place.position,
        }
        for step in settings.processing:
            try:
                target_probs = process("target_probs", target, chunk.kind, step)
                draft_probs = process("draft_probs", draft, chunk.kind, step)
                found = list(position_rows(target_probs, draft_probs, settings))
            except ValueError as error:
                raise ValueError(
                    f"dataset: position {place.index} (prompt {place.prompt_id}, "
                    f"position {place.position}): {error}"
                ) from error
            common = at | asdict(step)
            rows += [common | row for row in found]
    return pl.DataFrame(rows, schema=SCHEMA)


def describe_dataset(dataset: Dataset) -> dict[str, Any]:
    """Identify a dataset by its size, metadata, positions and values.

    Returns
    -------
    dict
        In JSON's types; another dataset has another description.
    """
    digest = hashlib.sha256(json.dumps(dataset.metadata, sort_keys=True, default=str).encode())
    for place in dataset.positions:
        named = (place.index, place.prompt_id, place.domain, place.position)
        digest.update(repr(named).encode())
    for run in consecutive_runs(range(len(dataset))):
        for values in dataset.arrays(list(run)):
            digest.update(np.ascontiguousarray(values).tobytes())
    return {
        "positions": len(dataset),
        "vocab_size": dataset.vocab_size,
        "kind": dataset.kind,
        "dataset": digest.hexdigest()[:16],
        "otmd": __version__,
    }
