"""Stored next-token distributions of two models, read a few rows at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from otmd.harness.dumps import Position, read_dump
from otmd.harness.errors import DatasetError
from otmd.harness.manifest import FILE, read_manifest
from otmd.harness.shards import read_shard
from otmd.harness.stored_arrays import StoredArray

__all__ = ["Dataset", "Position", "open_dataset"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Distributions of target and draft at a number of positions.

    Attributes
    ----------
    path : Path
        The folder or file; another process opens it again by this.
    kind : {"logits", "probs"}
        What the arrays hold.
    metadata : dict
        How the data set was made: models, revisions, tokenizer, backend, dtype, temperature, …
    positions : list of Position
        One for each row, without arrays.
    vocab_size : int
        V.
    """

    path: Path
    kind: str
    metadata: dict[str, Any]
    positions: list[Position]
    vocab_size: int
    _tables: list[tuple[StoredArray, StoredArray]]
    _places: np.ndarray

    def __len__(self) -> int:
        return len(self.positions)

    def __reduce__(self) -> tuple[Any, ...]:
        return open_dataset, (self.path, False)

    def arrays(self, indices: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read the rows of some positions, and no others.

        Parameters
        ----------
        indices : (k,) integers
            Which positions, in any order.

        Returns
        -------
        target, draft : (k, V) float arrays
            In the type they are stored in; bfloat16 comes as float32.

        Raises
        ------
        ValueError
            If an index is not in [0, len(dataset)).
        """
        wanted = np.asarray(indices, dtype=np.int64).reshape(-1)
        if wanted.size and not (wanted.min() >= 0 and wanted.max() < len(self)):
            raise ValueError(f"indices must lie in [0, {len(self)}), got {list(indices)}")
        numbers, rows = self._places[wanted].T
        target, draft = (
            np.empty((len(wanted), self.vocab_size), np.result_type(*map(_row_dtype, column)))
            for column in zip(*self._tables, strict=True)
        )
        for number in np.unique(numbers):
            here = numbers == number
            target[here] = self._tables[number][0].rows(rows[here])
            draft[here] = self._tables[number][1].rows(rows[here])
        return target, draft


def open_dataset(path: str | Path, verify: bool = True) -> Dataset:
    """Open a folder made by ``collect``, or a dump from elsewhere.

    Parameters
    ----------
    path : str or Path
        A folder, or an ``.npz`` or ``.safetensors`` file with ``target_logits`` and
        ``draft_logits`` or ``target_probs`` and ``draft_probs``, each (N, V), and optionally
        ``prompt_id``, ``domain`` and ``position``, each (N,).
    verify : bool
        Compare every shard's SHA-256 with the manifest's, which reads all of it once; sizes are
        compared in any case.

    Returns
    -------
    Dataset

    Raises
    ------
    ValueError
        If there is no such file or folder, or what it holds is of another form.
    DatasetError
        If the data set is unfinished, torn or altered.
    """
    path = Path(path).absolute()
    if path.is_dir():
        return _open_folder(path, verify)
    if not path.is_file():
        raise ValueError(f"path: there is no data set {path}")
    dump = read_dump(path)
    places = np.stack([np.zeros(len(dump.positions), np.int64), np.arange(len(dump.positions))], 1)
    vocab_size = dump.target.raw.shape[1]
    tables = [(dump.target, dump.draft)]
    return Dataset(path, dump.kind, dump.metadata, dump.positions, vocab_size, tables, places)


def _open_folder(folder: Path, verify: bool) -> Dataset:
    if not (folder / FILE).is_file():
        if not (folder / "collect.json").is_file():
            raise ValueError(f"path: {folder} is no folder made by collect")
        raise DatasetError(f"{folder} is unfinished; call collect again to go on where it stopped")
    manifest = read_manifest(folder)
    tables = []
    for entry in manifest.shards:
        shard_path = folder / entry["name"]
        if shard_path.is_file() and shard_path.stat().st_size != entry["bytes"]:
            raise DatasetError(
                f"the shard {shard_path} is torn: {shard_path.stat().st_size} bytes instead of "
                f"{entry['bytes']}; call collect again to make it anew"
            )
        shard = read_shard(shard_path, None if verify else entry["sha256"])
        if shard.sha256 != entry["sha256"]:
            raise DatasetError(f"the shard {shard_path} is not the one the manifest means")
        tables.append((shard.target, shard.draft))
    positions = [
        Position(index, row.prompt_id, row.domain, row.position)
        for index, row in enumerate(manifest.rows)
    ]
    vocab_size = tables[0][0].raw.shape[1]
    if any(target.raw.shape[1] != vocab_size for target, _ in tables):
        raise DatasetError(f"{folder} has shards of several vocabularies; call collect anew")
    if any(row >= len(tables[number][0].raw) for number, row in manifest.places):
        raise DatasetError(f"{folder} has a manifest with rows that its shards lack")
    places = np.array(manifest.places, dtype=np.int64).reshape(-1, 2)
    return Dataset(folder, "logits", manifest.metadata, positions, vocab_size, tables, places)


def _row_dtype(array: StoredArray) -> np.dtype[Any]:
    return np.dtype(np.float32) if array.bfloat16 else array.raw.dtype
