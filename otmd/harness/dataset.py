"""Stored next-token distributions of two models, read a few rows at a time."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from otmd.harness.shards import MANIFEST, RECORD, read_manifest, read_shard
from otmd.storage.arrays import StoredArray, read_npz, read_safetensors
from otmd.storage.errors import DatasetError, parse_json


@dataclass(frozen=True)
class Position:
    """Where a row of a data set comes from.

    Attributes
    ----------
    index : int
        The row.
    prompt_id, domain : str
        The prompt, and the group it belongs to.
    position : int
        The row's distributions are those of token ``position``, given all tokens before it.
    token : int, optional
        What came there in the text; None where the data set does not say.
    """

    index: int
    prompt_id: str
    domain: str
    position: int
    token: int | None = None


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

    def __len__(self) -> int:
        return len(self.positions)

    def __reduce__(self) -> tuple[Any, ...]:
        return open_dataset, (self.path, False)

    def arrays(self, indices: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read the rows of some positions, and no others.

        Parameters
        ----------
        indices : (k,) integers
            Which positions, in any order; ValueError for one outside [0, len(dataset)).

        Returns
        -------
        target, draft : (k, V) float arrays
            In the type they are stored in; bfloat16 comes as float32.
        """
        wanted = np.asarray(indices, dtype=np.int64).reshape(-1)
        if wanted.size and not (wanted.min() >= 0 and wanted.max() < len(self)):
            raise ValueError(f"indices must lie in [0, {len(self)}), got {list(indices)}")
        starts = np.cumsum([0, *(len(target.raw) for target, _ in self._tables)])
        numbers = np.searchsorted(starts, wanted, side="right") - 1
        rows = wanted - starts[numbers]
        target, draft = (
            np.empty(
                (len(wanted), self.vocab_size),
                np.result_type(*(own.rows(np.arange(0)).dtype for own in column)),
            )
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
        A folder, or an ``.npz`` or ``.safetensors`` file with ``target_logits`` and ``draft_logits`` or
        ``target_probs`` and ``draft_probs``, each (N, V), and optionally ``prompt_id``, ``domain``,
        ``position`` and ``token``, each (N,), and ``metadata``, a JSON object. A safetensors file, which
        holds no texts, may have the last five in its metadata, as JSON. By default every row is a prompt
        of its own, of the domain "dump", and its position is its number.
    verify : bool
        Compare every shard's SHA-256 with the manifest's, which reads all of it once; sizes are
        compared in any case.

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
    return _open_dump(path)


def _open_folder(folder: Path, verify: bool) -> Dataset:
    if not (folder / MANIFEST).is_file():
        if not (folder / RECORD).is_file():
            raise ValueError(f"path: {folder} is no folder made by collect")
        raise DatasetError(f"{folder} is unfinished; call collect again to go on where it stopped")
    entries, metadata = read_manifest(folder)
    shards = []
    for entry in entries:
        shard_path = folder / entry["name"]
        if shard_path.is_file() and shard_path.stat().st_size != entry["bytes"]:
            raise DatasetError(
                f"the shard {shard_path} is torn: {shard_path.stat().st_size} bytes instead of "
                f"{entry['bytes']}; call collect again to make it anew"
            )
        shard = read_shard(shard_path, None if verify else entry["sha256"])
        if shard.sha256 != entry["sha256"]:
            raise DatasetError(f"the shard {shard_path} is not the one the manifest means")
        shards.append(shard)
    rows = [row for shard in shards for row in shard.rows]
    positions = [Position(index, **asdict(row)) for index, row in enumerate(rows)]
    tables = [(shard.target, shard.draft) for shard in shards]
    vocab_size = tables[0][0].raw.shape[1]
    if any(target.raw.shape[1] != vocab_size for target, _ in tables):
        raise DatasetError(f"{folder} has shards of several vocabularies; call collect anew")
    return Dataset(folder, "logits", metadata, positions, vocab_size, tables)


def _open_dump(path: Path) -> Dataset:
    if path.suffix == ".npz":
        arrays = {name: StoredArray(array) for name, array in read_npz(path).items()}
        texts = {}
        if "metadata" in arrays:
            texts["metadata"] = str(arrays.pop("metadata").raw)
    elif path.suffix == ".safetensors":
        arrays, texts = read_safetensors(path)
    else:
        raise ValueError(f"{path}: dumps are read from .npz or .safetensors files")
    kind = _kind(path, arrays)
    target, draft = arrays[f"target_{kind}"], arrays[f"draft_{kind}"]
    count, vocab_size = target.raw.shape
    prompts = _labels(path, "prompt_id", arrays, texts, count) or range(count)
    domains = _labels(path, "domain", arrays, texts, count) or ["dump"] * count
    places = _labels(path, "position", arrays, texts, count) or range(count)
    tokens = _labels(path, "token", arrays, texts, count) or [None] * count
    positions = [
        Position(row, str(prompts[row]), str(domains[row]), places[row], tokens[row])
        for row in range(count)
    ]
    metadata = _json(path, "metadata", texts.get("metadata", "{}"), dict)
    metadata |= {"source": path.name, "dtype": {"target": target.dtype, "draft": draft.dtype}}
    return Dataset(path, kind, metadata, positions, vocab_size, [(target, draft)])


def _kind(path: Path, arrays: dict[str, StoredArray]) -> str:
    """What the file holds, logits or probabilities, or ValueError if they do not fit each other."""
    kinds = [k for k in ("logits", "probs") if {f"target_{k}", f"draft_{k}"} <= arrays.keys()]
    if len(kinds) != 1:
        raise ValueError(
            f"{path}: wanted either target_logits and draft_logits or target_probs and "
            f"draft_probs, found {sorted(arrays)}"
        )
    target, draft = names = f"target_{kinds[0]}", f"draft_{kinds[0]}"
    for name in names:
        array = arrays[name]
        if array.raw.ndim != 2 or 0 in array.raw.shape:
            raise ValueError(f"{path}: {name} has shape {array.raw.shape}, wanted (N, V)")
        if array.raw.dtype.kind != "f" and not array.bfloat16:
            raise ValueError(f"{path}: {name} is {array.dtype}, wanted a floating type")
    shapes = arrays[target].raw.shape, arrays[draft].raw.shape
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"{path}: {target} has shape {shapes[0]} and {draft} {shapes[1]}, wanted the same"
        )
    return kinds[0]


def _labels(
    path: Path, name: str, arrays: dict[str, StoredArray], texts: dict[str, str], count: int
) -> list[Any]:
    """The entries of a label for all rows; none where the file does not have it."""
    whole = name in ("position", "token")
    wanted = "whole numbers" if whole else "texts or numbers"
    said = f"{path}: {name} must hold {wanted}, one for each of the {count} rows"
    if name in arrays:
        if arrays[name].raw.shape != (count,):
            raise ValueError(f"{said}, got shape {arrays[name].raw.shape}")
        found = arrays[name].raw.tolist()
    elif name in texts:
        found = _json(path, name, texts[name], list)
    else:
        return []
    if len(found) != count:
        raise ValueError(f"{said}, got {len(found)}")
    try:
        return [int(entry) for entry in found] if whole else found
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{said} ({error})") from error


def _json(path: Path, name: str, text: str, wanted: type) -> Any:
    try:
        found = parse_json(text)
    except ValueError as error:
        raise ValueError(f"{path}: {name} is not JSON ({error})") from error
    if not isinstance(found, wanted):
        raise ValueError(f"{path}: {name} must be a JSON {wanted.__name__}, got {text[:40]!r}")
    return found
