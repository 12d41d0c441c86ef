"""Stored next-token distributions of two models: folders that ``collect`` makes, and dumps from elsewhere.

``collect.json`` of a folder describes the run. The rest are shards ``NUMBER-SHA256.safetensors``: the logits
of both models, and the texts and positions that they belong to. A torn or altered shard does not fit its
name, and a folder without one of its numbers is unfinished.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from otmd.probabilities import wrong
from otmd.storage.arrays import BFLOAT16, as_numbers, read_npz, read_safetensors
from otmd.storage.files import DatasetError, one_line, parse_json, sha256_of, shortened
from otmd.storage.files import FolderLockedError as FolderLockedError
from otmd.storage.store import Layout, Store

RECORD = "collect.json"
# The arrays (N, V) of the target and the draft.
Pair = tuple[NDArray[Any], NDArray[Any]]
_DUMPED = ("target_logits", "draft_logits", "target_probs", "draft_probs", "prompt_id")


@dataclass(frozen=True)
class Position:
    """The origin of a row of a data set.

    Attributes
    ----------
    index, prompt_id, domain : int, str, str
        The row, its prompt, and the group that the prompt belongs to.
    position : int
        The row's distributions are those of token ``position``, given all tokens before it.
    """

    index: int
    prompt_id: str
    domain: str
    position: int


@dataclass(frozen=True, eq=False)
class Dataset:
    """Distributions of target and draft at a number of positions.

    Attributes
    ----------
    path : Path
        The folder or file. Only the path is pickled: another process opens the data set again.
    kind : {"logits", "probs"}
        The content of the arrays (N, V).
    metadata : dict
        The origin of the data set: models, revisions, tokenizer, backend, dtype, temperature, …
    positions : list of Position
        One for each row.
    texts : list of dict
        The texts that ``collect`` read: ``prompt_id``, ``domain``, ``tokens``, ``start``, where the answer
        starts, and the ``positions`` of rows.
    """

    path: Path
    kind: str
    metadata: dict[str, Any]
    positions: list[Position]
    # The arrays of each file, and its SHA-256.
    _files: Sequence[Pair]
    _hashes: Sequence[str] = ()
    texts: Sequence[dict[str, Any]] = ()

    @property
    def vocab_size(self) -> int:
        """V."""
        return self._files[0][0].shape[1]

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
        rows = np.asarray(indices, dtype=np.int64).reshape(-1)
        if rows.size and not (rows.min() >= 0 and rows.max() < len(self)):
            raise wrong("indices", rows.tolist(), f"integers in [0, {len(self)})")
        starts = np.cumsum([0, *(len(target) for target, _ in self._files)])
        files = np.searchsorted(starts, rows, side="right") - 1
        located = list(zip(files, rows - starts[files], strict=True))
        read = []
        for side, name in enumerate(("target", "draft")):
            listed = [as_numbers(self._files[file][side][row]) for file, row in located]
            numbers = np.array(listed).reshape(-1, self.vocab_size)
            if (bad := ~(numbers < np.inf)).any():
                row, token = np.argwhere(bad)[0]
                at = self.positions[rows[row]]
                raise ValueError(
                    f"dataset: position {at.index} (prompt {at.prompt_id}, position {at.position}): "
                    f"{self.path.name}: {name}_{self.kind}: got {numbers[row, token]} for token {token}, "
                    "expected numbers below +inf"
                )
            read.append(numbers)
        return read[0], read[1]


def open_dataset(path: str | Path, verify: bool = True) -> Dataset:
    """Open a folder made by ``collect``, or a dump from elsewhere; rows are read when they are asked for.

    Parameters
    ----------
    path : str or Path
        A folder, or an ``.npz`` or ``.safetensors`` file with ``target_logits`` and ``draft_logits`` or
        ``target_probs`` and ``draft_probs``, each (N, V), and optionally ``prompt_id`` (N,), numbers or
        texts; without it every row is a prompt of its own. Rows of a file are of the domain "dump".
    verify : bool
        Compare every shard's SHA-256 with its name, which reads all of it once.

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
    record = folder / RECORD
    if not record.is_file():
        inside = min(folder.glob(f"*/{RECORD}"), default=None)
        hint = f"; {inside.parent} is one" if inside else ""
        raise ValueError(f"path: {folder} is no folder made by collect{hint}")
    try:
        metadata = dict(parse_json(record.read_text("utf-8")))
        count = metadata["shards"]
        if type(count) is not int or count < 1:
            raise TypeError(f"shards: {count!r:.40}")
    except (KeyError, TypeError, ValueError) as error:
        reason = f"torn, or not of this version of otmd ({one_line(error)})"
        raise DatasetError(f"{record} is {reason}; collect into another folder") from error
    store = Store(folder, None, SHARDS)
    names = store.names()
    numbers = [int(name[:6]) for name in names]
    if len(numbers) < count:
        raise DatasetError(f"{folder} is unfinished; call collect again to go on where it stopped")
    if numbers != [*range(count)]:
        raise DatasetError(f"{folder} holds {len(numbers)} shards, expected the {count} of its run")
    shards = [read_shard(store.path(name), verify) for name in names]
    if len({target.shape[1] for _, (target, _) in shards}) > 1:
        raise DatasetError(f"{folder} has shards of several vocabularies; call collect anew")
    texts = [text for listed, _ in shards for text in listed]
    rows = [(x["prompt_id"], x["domain"], at) for x in texts for at in x["positions"]]
    positions = [Position(index, *row) for index, row in enumerate(rows)]
    files = [pair for _, pair in shards]
    return Dataset(folder, "logits", metadata, positions, files, [x[7:] for x in names], texts)


def write_shard(
    store: Store[Any],
    number: int,
    texts: list[dict[str, Any]],
    target_logits: np.ndarray,
    draft_logits: np.ndarray,
) -> Path:
    """Write the logits (N, V) of the positions of some texts, in this order, and return the file."""
    from safetensors.numpy import save

    arrays = {"target_logits": target_logits, "draft_logits": draft_logits}
    # Equal content must give equal bytes, and safetensors writes several metadata entries in no fixed order.
    # So only one is written.
    about = {"otmd": json.dumps(texts)}
    data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, about)
    name = f"{number:06}-{hashlib.sha256(data).hexdigest()}"
    store.write(name, data)
    return store.path(name)


def read_shard(path: Path, verify: bool = True) -> tuple[list[dict[str, Any]], Pair]:
    """Texts and arrays of a shard; DatasetError if it is torn or, with ``verify``, does not fit its name."""
    if verify and path.stem[7:] != sha256_of(path):
        again = "call collect again to make it anew"
        raise DatasetError(f"the shard {path} is torn or was altered; {again}")
    arrays, metadata = read_safetensors(path)
    try:
        texts = parse_json(metadata["otmd"])
        rows = [(x["prompt_id"], x["domain"], at) for x in texts for at in x["positions"]]
        if not all([*map(type, row)] == [str, str, int] for row in rows):
            raise TypeError("prompt_id, domain and position must be texts and a whole number")
        kind, pair = _checked_pair(arrays)
        if kind != "logits" or len(pair[0]) != len(rows):
            raise ValueError(f"it has {len(pair[0])} {kind} for {len(rows)} positions")
    except (KeyError, TypeError, ValueError) as error:
        raise DatasetError(f"{path} is no shard of otmd ({one_line(error)})") from error
    return texts, pair


SHARDS = Layout(read_shard, ".safetensors", r"\d{6}-[0-9a-f]{64}", RECORD, argument="folder")


def _open_dump(path: Path) -> Dataset:
    if path.suffix not in (".npz", ".safetensors"):
        raise ValueError(f"{path}: dumps are read from .npz or .safetensors files")
    arrays, texts = (read_npz(path), {}) if path.suffix == ".npz" else read_safetensors(path)
    try:
        # Other programs keep texts of their own with the arrays, but a prompt_id there would go unread.
        if unread := sorted(arrays.keys() - set(_DUMPED)) + sorted(texts.keys() & set(_DUMPED)):
            raise wrong("array", shortened(unread[0]), f"arrays named {', '.join(_DUMPED)}")
        kind, pair = _checked_pair(arrays)
        count = len(pair[0])
        prompts = as_numbers(arrays.get("prompt_id", np.arange(count)))
        if prompts.shape != (count,):
            raise wrong("prompt_id", f"shape {prompts.shape}", f"({count},), an entry for each row")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    positions = [Position(i, str(name), "dump", i) for i, name in enumerate(prompts.tolist())]
    dtypes = ["bfloat16" if array.dtype == BFLOAT16 else str(array.dtype) for array in pair]
    metadata = {"source": path.name, "dtype": dict(zip(("target", "draft"), dtypes, strict=True))}
    return Dataset(path, kind, metadata, positions, [pair])


def _checked_pair(arrays: Mapping[str, np.ndarray]) -> tuple[str, Pair]:
    """``"logits"`` or ``"probs"``, and the arrays of both models; ValueError for others."""
    given = {name for name in arrays if name.endswith(("_logits", "_probs"))}
    kinds = [k for k in ("logits", "probs") if given == {f"target_{k}", f"draft_{k}"}]
    if len(kinds) != 1:
        raise ValueError(
            "expected either target_logits and draft_logits or target_probs and draft_probs, "
            f"got {sorted(arrays)}"
        )
    names = [f"target_{kinds[0]}", f"draft_{kinds[0]}"]
    target, draft = (arrays[name] for name in names)
    for name, array in zip(names, (target, draft), strict=True):
        if array.ndim != 2 or 0 in array.shape:
            raise wrong(name, f"shape {array.shape}", "(N, V)")
        if array.dtype.kind != "f" and array.dtype != BFLOAT16:
            raise wrong(name, array.dtype, "a floating type")
    if target.shape != draft.shape:
        shapes = f"shapes {target.shape} and {draft.shape}"
        raise wrong(" and ".join(names), shapes, "the same")
    return kinds[0], (target, draft)
