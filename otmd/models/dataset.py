"""Stored next-token distributions of two models: folders that ``collect`` makes, and dumps from elsewhere.

A shard of a folder is ``NUMBER-HASH.safetensors``. HASH is the first 16 hexadecimal digits of the file's
SHA-256, so a torn or altered shard does not fit its name. The manifest, a table of all rows, is written last:
a folder without it is unfinished. otmd reads only the manifest's metadata: the description of the run, and
the name, size and SHA-256 of every shard.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from otmd.probabilities import wrong
from otmd.storage.arrays import StoredArray, read_npz, read_safetensors
from otmd.storage.files import (
    DatasetError,
    one_line,
    sha256_of,
    shortened,
    write_atomically,
)
from otmd.storage.files import FolderLockedError as FolderLockedError
from otmd.storage.parquet import read_metadata
from otmd.storage.store import Layout, Store

RECORD, MANIFEST = "collect.json", "manifest.parquet"
_LABELS = ("prompt_id", "domain", "position", "token")
_DUMPED = ("target_logits", "draft_logits", "target_probs", "draft_probs", "prompt_id")
_NAME = re.compile(r"(\d{6})-([0-9a-f]{16})\.safetensors")
_AGAIN = "call collect again to make it anew"


@dataclass(frozen=True)
class Position:
    """The origin of a row of a data set.

    Attributes
    ----------
    index, prompt_id, domain : int, str, str
        The row, its prompt, and the group that the prompt belongs to.
    position : int
        The row's distributions are those of token ``position``, given all tokens before it.
    token : int, optional
        The token at ``position`` in the text; None if the data set does not say.
    """

    index: int
    prompt_id: str
    domain: str
    position: int
    token: int | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.prompt_id, str) and isinstance(self.domain, str)):
            raise TypeError("prompt_id and domain must be texts")
        if not (isinstance(self.position, int) and isinstance(self.token, int | None)):
            raise TypeError("position and token must be whole numbers")

    def labels(self) -> dict[str, Any]:
        """All but the index, for JSON."""
        return {name: getattr(self, name) for name in _LABELS}


class Arrays(NamedTuple):
    """The arrays of a file: numbers (N, V) of the target and the draft."""

    target: StoredArray
    draft: StoredArray


@dataclass(frozen=True, eq=False)
class Dataset:
    """Distributions of target and draft at a number of positions.

    Attributes
    ----------
    path : Path
        The folder or file. Only the path is pickled: another process opens the data set again.
    kind, vocab_size : {"logits", "probs"}, int
        The content of the arrays (N, V), and V.
    metadata : dict
        The origin of the data set: models, revisions, tokenizer, backend, dtype, temperature, …
    positions : list of Position
        One for each row.
    texts : list of dict
        The texts that ``collect`` read: ``prompt_id``, ``tokens``, and ``start``, where the answer starts.
    """

    path: Path
    kind: str
    metadata: dict[str, Any]
    positions: list[Position]
    vocab_size: int
    _files: list[Arrays]
    _hashes: tuple[str, ...] = ()
    texts: Sequence[dict[str, Any]] = ()

    def __len__(self) -> int:
        return len(self.positions)

    def __repr__(self) -> str:
        return f"<Dataset {self.path}: {self.kind} of {len(self)} positions, V = {self.vocab_size}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return open_dataset, (self.path, False)

    @cached_property
    def sha256(self) -> str:
        """The identity of the data set: a hash of its metadata and of the SHA-256 of its files."""
        hashes = self._hashes or (sha256_of(self.path),)
        text = json.dumps([self.metadata, hashes], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def arrays(self, indices: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Read the target's and the draft's rows (k, V) of k positions, and no others.

        The rows keep the type they are stored in, but bfloat16 becomes float32. The indices may be in any
        order; ValueError if one is outside [0, len(dataset)), and for NaN and +inf.
        """
        return self._numbers(indices, "target"), self._numbers(indices, "draft")

    def _numbers(self, indices: ArrayLike, side: str) -> np.ndarray:
        numbers = self._rows(indices, side).reshape(-1, self.vocab_size)
        if (bad := ~(numbers < np.inf)).any():
            row, token = np.argwhere(bad)[0]
            at = self.positions[np.asarray(indices).ravel()[row]]
            raise ValueError(
                f"dataset: position {at.index} (prompt {at.prompt_id}, position {at.position}): "
                f"{self.path.name}: {side}_{self.kind}: got {numbers[row, token]} for token {token}, "
                "expected numbers below +inf"
            )
        return numbers

    def _rows(self, indices: ArrayLike, name: str) -> np.ndarray:
        rows = np.asarray(indices, dtype=np.int64).reshape(-1)
        if rows.size and not (rows.min() >= 0 and rows.max() < len(self)):
            raise wrong("indices", rows.tolist(), f"integers in [0, {len(self)})")
        starts = np.cumsum([0, *(len(file.target.raw) for file in self._files)])
        numbers = np.searchsorted(starts, rows, side="right") - 1
        pairs = zip(numbers, rows - starts[numbers], strict=True)
        return np.array([getattr(self._files[number], name).rows(row) for number, row in pairs])


def open_dataset(path: str | Path, verify: bool = True) -> Dataset:
    """Open a folder made by ``collect``, or a dump from elsewhere.

    Parameters
    ----------
    path : str or Path
        A folder, or an ``.npz`` or ``.safetensors`` file with ``target_logits`` and ``draft_logits`` or
        ``target_probs`` and ``draft_probs``, each (N, V), and optionally ``prompt_id`` (N,), numbers or
        texts; without it every row is a prompt of its own. Rows of a file are of the domain "dump".
    verify : bool
        Compare every shard's SHA-256 with the manifest's, which reads all of it once; sizes are
        compared in any case.

    Returns
    -------
    Dataset
        Its rows are read when they are asked for.

    Raises
    ------
    ValueError
        If the file or folder does not exist, or has another form.
    DatasetError
        If the data set is unfinished, torn or altered.

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np
    >>> from otmd.models import open_dataset
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "dump.npz"
    ...     np.savez(path, target_logits=np.zeros((2, 3)), draft_logits=np.ones((2, 3)))
    ...     dataset = open_dataset(path)
    >>> len(dataset), dataset.vocab_size, dataset.kind
    (2, 3, 'logits')
    """
    path = Path(path).absolute()
    if path.is_dir():
        return _open_folder(path, verify)
    if not path.is_file():
        raise ValueError(f"path: there is no data set {path}")
    return _open_dump(path)


def _open_folder(folder: Path, verify: bool) -> Dataset:
    if not (folder / MANIFEST).is_file():
        if not (folder / RECORD).is_file():
            raise ValueError(f"path: {folder} is no folder made by collect")
        raise DatasetError(f"{folder} is unfinished; call collect again to go on where it stopped")
    entries, metadata = _read_manifest(folder)
    shards = []
    for entry in entries:
        path = folder / entry["name"]
        if path.is_file() and path.stat().st_size != entry["bytes"]:
            sizes = f"{path.stat().st_size} bytes instead of {entry['bytes']}"
            raise DatasetError(f"the shard {path} is torn: {sizes}; {_AGAIN}")
        shards.append(read_shard(path, None if verify else entry["sha256"]))
        if shards[-1].sha256 != entry["sha256"]:
            raise DatasetError(f"the shard {path} is not the one that the manifest names")
    files = [shard.arrays for shard in shards]
    if len({file.target.raw.shape[1] for file in files}) > 1:
        raise DatasetError(f"{folder} has shards of several vocabularies; call collect anew")
    rows = [row for shard in shards for row in shard.rows]
    positions = [replace(row, index=index) for index, row in enumerate(rows)]
    hashes = tuple(shard.sha256 for shard in shards)
    size = files[0].target.raw.shape[1]
    texts = [text for shard in shards for text in shard.texts]
    return Dataset(folder, "logits", metadata, positions, size, files, hashes, texts)


@dataclass(frozen=True)
class Shard:
    """A shard that has been read: its rows are in the order of the arrays' first axis.

    ``texts`` are the rows' token sequences: dicts of ``prompt_id``, ``tokens`` and ``start``.
    """

    path: Path
    sha256: str
    rows: list[Position]
    texts: list[dict[str, Any]]
    arrays: Arrays


def write_shard(
    store: Store[Shard],
    number: int,
    arrays: dict[str, np.ndarray],
    rows: list[Position],
    texts: list[dict[str, Any]],
) -> Path:
    """Write a shard and return its path: its N rows, their texts, and the arrays, named as in a dump."""
    from safetensors.numpy import save

    # Equal content must give equal bytes, and safetensors writes several metadata entries in no fixed order.
    # So only one is written.
    about = json.dumps({"rows": [row.labels() for row in rows], "texts": texts})
    data = save({k: np.ascontiguousarray(v) for k, v in arrays.items()}, {"otmd": about})
    name = f"{number:06}-{hashlib.sha256(data).hexdigest()[:16]}"
    store.write(name, data)
    return store.path(name)


def read_shard(path: Path, sha256: str | None = None) -> Shard:
    """Open a shard; DatasetError if it is torn. Its hash is computed and checked unless it is given."""
    if not path.is_file():
        raise DatasetError(f"the shard {path} is missing; {_AGAIN}")
    if sha256 is None:
        sha256 = sha256_of(path)
        match = _NAME.fullmatch(path.name)
        if match is None or match[2] != sha256[:16]:
            raise DatasetError(
                f"the shard {path} is torn or was altered: its sha256 is {sha256}; {_AGAIN}"
            )
    arrays, metadata = read_safetensors(path)
    try:
        about = json.loads(metadata["otmd"])
        rows = [Position(index, **row) for index, row in enumerate(about["rows"])]
        kind, checked = _checked_arrays(arrays, len(rows))
        if kind != "logits":
            raise ValueError(f"it has {kind}")
        return Shard(path, sha256, rows, about["texts"], checked)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DatasetError(f"{path} is no shard of otmd ({one_line(error)})") from error


SHARDS = Layout(
    read_shard, ".safetensors", r"\d{6}-[0-9a-f]{16}", RECORD, MANIFEST, argument="folder"
)


def write_manifest(folder: Path, shards: Sequence[Shard], metadata: dict[str, Any]) -> None:
    """Derive the manifest from the shards and write it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {**row.labels(), "shard": shard.path.name, "row": row.index}
        for shard in shards
        for row in shard.rows
    ]
    entries = [
        {"name": s.path.name, "bytes": s.path.stat().st_size, "sha256": s.sha256} for s in shards
    ]
    about = json.dumps({"metadata": metadata, "shards": entries})
    table = pa.Table.from_pylist(rows).replace_schema_metadata({"otmd": about})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    write_atomically(folder / MANIFEST, sink.getvalue().to_pybytes())


def _read_manifest(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The shards of a folder, and the description of the run; DatasetError if the manifest is torn."""
    path = folder / MANIFEST
    try:
        about = json.loads(read_metadata(path)[b"otmd"])
        shards = about["shards"]
        for shard in shards:
            # A name must not lead out of the folder.
            if not {"bytes", "sha256"} <= shard.keys() or not _NAME.fullmatch(shard["name"]):
                raise ValueError(f"no entry of a shard: {shard!s:.80}")
        if not shards:
            raise ValueError("it has no shards")
        return shards, dict(about["metadata"])
    except (KeyError, TypeError, AttributeError, ValueError, OSError, RecursionError) as error:
        raise DatasetError(
            f"{path} is torn or was not written by otmd ({one_line(error)}); call collect again, which "
            "makes it anew from the shards"
        ) from error


def _open_dump(path: Path) -> Dataset:
    if path.suffix == ".npz":
        arrays = {name: StoredArray(array) for name, array in read_npz(path).items()}
        texts: dict[str, str] = {}
    elif path.suffix == ".safetensors":
        arrays, texts = read_safetensors(path)
    else:
        raise ValueError(f"{path}: dumps are read from .npz or .safetensors files")
    try:
        # Other programs keep texts of their own with the arrays, but a prompt_id there would go unread.
        if unread := sorted(arrays.keys() - set(_DUMPED)) + sorted(texts.keys() & set(_DUMPED)):
            raise wrong("array", shortened(unread[0]), f"arrays named {', '.join(_DUMPED)}")
        kind, checked = _checked_arrays(arrays)
        count, vocab_size = checked.target.raw.shape
        prompts = arrays["prompt_id"].raw if "prompt_id" in arrays else np.arange(count)
        if prompts.shape != (count,):
            raise wrong("prompt_id", f"shape {prompts.shape}", f"({count},), an entry for each row")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    positions = [Position(i, str(name), "dump", i) for i, name in enumerate(prompts.tolist())]
    dtypes = {"target": checked.target.dtype, "draft": checked.draft.dtype}
    metadata = {"source": path.name, "dtype": dtypes}
    return Dataset(path, kind, metadata, positions, vocab_size, [checked])


def _checked_arrays(
    arrays: Mapping[str, StoredArray], count: int | None = None
) -> tuple[str, Arrays]:
    """``"logits"`` or ``"probs"``, and the arrays of a file with ``count`` rows; ValueError for others."""
    given = {name for name in arrays if name.endswith(("_logits", "_probs"))}
    kinds = [k for k in ("logits", "probs") if given == {f"target_{k}", f"draft_{k}"}]
    if len(kinds) != 1:
        raise ValueError(
            "expected either target_logits and draft_logits or target_probs and draft_probs, "
            f"got {sorted(arrays)}"
        )
    target = f"target_{kinds[0]}"
    draft = f"draft_{kinds[0]}"
    for name in (target, draft):
        array = arrays[name]
        if array.raw.ndim != 2 or 0 in array.raw.shape:
            raise wrong(name, f"shape {array.raw.shape}", "(N, V)")
        if array.raw.dtype.kind != "f" and not array.bfloat16:
            raise wrong(name, array.dtype, "a floating type")
    shape = arrays[target].raw.shape
    if shape != arrays[draft].raw.shape or shape[0] != (count or shape[0]):
        rows = "" if count is None else f" for {count} rows"
        shapes = f"{shape} and {arrays[draft].raw.shape}{rows}"
        raise wrong(f"{target} and {draft}", f"shapes {shapes}", "the same")
    return kinds[0], Arrays(arrays[target], arrays[draft])
