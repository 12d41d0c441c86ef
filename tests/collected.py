"""Folders as ``collect`` writes them, of made-up logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from otmd.models.dataset import SHARDS, write_shard
from otmd.storage.store import Store


def write_folder(folder: Path, target_logits: np.ndarray, draft_logits: np.ndarray, **ids: Any) -> Path:
    """One shard of these logits; ``ids`` are columns of ``Position``."""
    count = len(target_logits)
    columns = {"prompt_id": np.arange(count).astype(str), "domain": ["toy"] * count}
    columns |= {"positions": np.arange(count)[:, None]} | ids
    rows = zip(*(np.asarray(column).tolist() for column in columns.values()), strict=True)
    texts = [dict(zip(columns, row, strict=True)) for row in rows]
    store = Store(folder, {"shards": 1}, SHARDS)
    with store.held():
        write_shard(store, 0, texts, target_logits, draft_logits)
    return folder
