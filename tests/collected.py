"""Folders as ``collect`` writes them, of made-up logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from otmd.models.dataset import SHARDS, Position, read_shard, write_manifest, write_shard
from otmd.storage.store import Store


def write_folder(
    folder: Path, metadata: dict[str, Any] | None = None, token=None, **columns: Any
) -> Path:
    """One shard of these columns: arrays of the models, and labels of the rows, as in ``Position``."""
    count = len(columns["target_logits"])
    labels = {
        "prompt_id": np.arange(count).astype(str),
        "domain": ["toy"] * count,
        "position": np.arange(count),
        "token": [None] * count if token is None else token,
    }
    labels |= {name: columns.pop(name) for name in labels.keys() & columns.keys()}
    values = [np.asarray(column, object).tolist() for column in labels.values()]
    rows = [Position(index, *row) for index, row in enumerate(zip(*values, strict=True))]
    arrays = {name: array for name, array in columns.items() if array is not None}
    path = write_shard(Store(folder, {}, SHARDS), 0, arrays, rows, [])
    write_manifest(folder, [read_shard(path)], metadata or {})
    return folder
