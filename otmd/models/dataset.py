"""Stored next-token distributions of two models: folders that ``collect`` makes, and dumps from elsewhere.

A shard of a folder is ``NUMBER-HASH.safetensors``. HASH is the first 16 hexadecimal digits of the file's
SHA-256, so a torn or altered shard does not fit its name. The manifest, a table of all rows, is written last:
a folder without it is unfinished. otmd reads only the manifest's metadata: the description of the run, and
the name, size and SHA-256 of every shard.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from otmd.storage.arrays import StoredArray, read_npz, read_safetensors
from otmd.storage.files import (
    DatasetError,
    one_line,
    parse_json,
    sha256_of,
    shortened,
    write_atomically,
)
from otmd.storage.files import FolderLockedError as FolderLockedError
from otmd.storage.parquet import read_metadata
from otmd.storage.store import Layout, Store

RECORD, MANIFEST = "collect.json", "manifest.parquet"
_LABELS = ("prompt_id", "domain", "position", "token")
_NAME = re.compile(r"(\d{6})-([0-9a-f]{16})\.safetensors")


@dataclass(frozen=True)
class Position:
    """Where a row of a data set comes from.

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


@dataclass(frozen=True, eq=False)
class Dataset:
    """Distributions of target and draft at a number of positions.

    Attributes
    ----------
    path : Path
        The folder or file. Only the path is pickled: another process opens the data set again.
    kind, vocab_size : {"logits", "probs"}, int
        What the arrays (N, V) hold, and V.
    metadata : dict
        How the data set was made: models, revisions, tokenizer, backend, dtype, temperature, …
    positions : list of Position
        One for each row.
    """

    path: Path
    kind: str
    metadata: dict[str, Any]
    positions: list[Position]
    vocab_size: int
    _tables: list[tuple[StoredArray, StoredArray, StoredArray | None]]

    def __len__(self) -> int:
        return len(self.positions)

    def __repr__(self) -> str:
        return f"<Dataset {self.path}: {self.kind} of {len(self)} positions, V = {self.vocab_size}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return open_dataset, (self.path, False)

    def arrays(self, indices: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read the target's and the draft's rows (k, V) of k positions, and no others.

        The rows keep the type they are stored in, but bfloat16 becomes float32. The indices may be in any
        order; ValueError if one is outside [0, len(dataset)), and for NaN and +inf.
        """
        return self._numbers(indices, "target"), self._numbers(indices, "draft")

    def paths(self, indices: Sequence[int] | np.ndarray) -> np.ndarray | None:
        """Read the trees (k, M, 2) that :func:`otmd.models.continuations.likeliest_along` made, or None."""
        return None if self._tables[0][2] is None else self._rows(indices, 2)

    def _numbers(self, indices: Sequence[int] | np.ndarray, side: str) -> np.ndarray:
        numbers = self._rows(indices, ("target", "draft").index(side)).reshape(-1, self.vocab_size)
        if (bad := ~(numbers < np.inf)).any():
            row, token = np.argwhere(bad)[0]
            at = self.positions[np.asarray(indices).ravel()[row]]
            raise ValueError(
                f"dataset: position {at.index} (prompt {at.prompt_id}, position {at.position}): "
                f"{self.path.name}: {side}_{self.kind}: got {numbers[row, token]} for token {token}, "
                "expected numbers below +inf"
            )
        return numbers

    def _rows(self, indices: Sequence[int] | np.ndarray, part: int) -> np.ndarray:
        wanted = np.asarray(indices, dtype=np.int64).reshape(-1)
        if wanted.size and not (wanted.min() >= 0 and wanted.max() < len(self)):
            raise ValueError(f"indices must lie in [0, {len(self)}), got {list(indices)}")
        starts = np.cumsum([0, *(len(target.raw) for target, *_ in self._tables)])
        numbers = np.searchsorted(starts, wanted, side="right") - 1
        places = zip(numbers, wanted - starts[numbers], strict=True)
        return np.array([self._tables[number][part].rows(row) for number, row in places])


def open_dataset(path: str | Path, verify: bool = True) -> Dataset:
    """Open a folder made by ``collect``, or a dump from elsewhere.

    Parameters
    ----------
    path : str or Path
        A folder, or an ``.npz`` or ``.safetensors`` file with ``target_logits`` and ``draft_logits`` or
        ``target_probs`` and ``draft_probs``, each (N, V), and optionally ``draft_paths`` (N, M, 2),
        ``prompt_id``, ``domain``, ``position`` and ``token``, each (N,), and ``metadata``, a JSON object. A
        safetensors file, which holds no texts, may have the last five in its metadata, as JSON. By default
        every row is a prompt of its own, of the domain "dump", and its position is its number.
    verify : bool
        Compare every shard's SHA-256 with the manifest's, which reads all of it once; sizes are
        compared in any case.

    Raises
    ------
    ValueError
        If the file or folder does not exist, or has another form.
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
    entries, metadata = _read_manifest(folder)
    shards = []
    for entry in entries:
        path = folder / entry["name"]
        if path.is_file() and path.stat().st_size != entry["bytes"]:
            raise DatasetError(
                f"the shard {path} is torn: {path.stat().st_size} bytes instead of {entry['bytes']}; "
                "call collect again to make it anew"
            )
        shards.append(read_shard(path, None if verify else entry["sha256"]))
        if shards[-1].sha256 != entry["sha256"]:
            raise DatasetError(f"the shard {path} is not the one that the manifest names")
    rows = [row for shard in shards for row in shard.rows]
    positions = [replace(row, index=index) for index, row in enumerate(rows)]
    tables = [(shard.target, shard.draft, shard.paths) for shard in shards]
    vocab_size = tables[0][0].raw.shape[1]
    if len({(s.target.raw.shape[1], s.paths and s.paths.raw.shape[1]) for s in shards}) > 1:
        raise DatasetError(
            f"{folder} has shards of several vocabularies or paths; call collect anew"
        )
    return Dataset(folder, "logits", metadata, positions, vocab_size, tables)


@dataclass(frozen=True)
class Shard:
    """A shard that has been read: its rows are in the order of the arrays' first axis.

    ``texts`` are the rows' token sequences: dicts of ``prompt_id``, ``tokens`` and ``start``.
    """

    path: Path
    sha256: str
    rows: list[Position]
    texts: list[dict[str, Any]]
    target: StoredArray
    draft: StoredArray
    paths: StoredArray | None = None


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
    about = json.dumps({"rows": [_labels_of(row) for row in rows], "texts": texts})
    data = save({k: np.ascontiguousarray(v) for k, v in arrays.items()}, {"otmd": about})
    name = f"{number:06}-{hashlib.sha256(data).hexdigest()[:16]}"
    store.write(name, data)
    return store.path(name)


def _labels_of(row: Position) -> dict[str, Any]:
    return {name: value for name, value in asdict(row).items() if name != "index"}


def read_shard(path: Path, sha256: str | None = None) -> Shard:
    """Open a shard; DatasetError if it is torn. Its hash is computed and checked unless it is given."""
    if not path.is_file():
        raise DatasetError(f"the shard {path} is missing; call collect again to make it anew")
    if sha256 is None:
        sha256 = sha256_of(path)
        match = _NAME.fullmatch(path.name)
        if match is None or match[2] != sha256[:16]:
            raise DatasetError(
                f"the shard {path} is torn or was altered: its sha256 is {sha256}; "
                "call collect again to make it anew"
            )
    arrays, metadata = read_safetensors(path)
    try:
        about = json.loads(metadata["otmd"])
        rows = [Position(index, **row) for index, row in enumerate(about["rows"])]
        logits = arrays["target_logits"], arrays["draft_logits"]
        paths = _paths(path, arrays, len(rows))
        shard = Shard(path, sha256, rows, about["texts"], *logits, paths)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DatasetError(f"{path} is no shard of otmd ({error!r})") from error
    shape, other = shard.target.raw.shape, shard.draft.raw.shape
    if len(shape) != 2 or shape[0] != len(rows) or other != shape:
        raise DatasetError(
            f"{path} is no shard of otmd: it has logits of shapes {shape} and {other} for "
            f"{len(rows)} rows"
        )
    return shard


SHARDS = Layout(
    read_shard, ".safetensors", r"\d{6}-[0-9a-f]{16}", RECORD, MANIFEST, argument="folder"
)


def write_manifest(folder: Path, shards: Sequence[Shard], metadata: dict[str, Any]) -> None:
    """Derive the manifest from the shards and write it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {**_labels_of(row), "shard": shard.path.name, "row": row.index}
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
    """The shards of a folder, and how the data set was made; DatasetError if the manifest is torn."""
    path, kinds = folder / MANIFEST, {"name": str, "bytes": int, "sha256": str}
    try:
        about = json.loads(read_metadata(path)[b"otmd"])
        shards = about["shards"]
        for shard in shards:
            sound = all(isinstance(shard[key], kind) for key, kind in kinds.items())
            # A name must not lead out of the folder.
            if not sound or _NAME.fullmatch(shard["name"]) is None:
                raise ValueError(f"no entry of a shard: {shard!s:.80}")
        if not shards:
            raise ValueError("it has no shards")
        return shards, dict(about["metadata"])
    except (KeyError, TypeError, ValueError, OSError, RecursionError) as error:
        raise DatasetError(
            f"{path} is torn or was not written by otmd ({one_line(error)}); call collect again, which "
            "makes it anew from the shards"
        ) from error


def _open_dump(path: Path) -> Dataset:
    if path.suffix == ".npz":
        arrays = {name: StoredArray(array) for name, array in read_npz(path).items()}
        about = arrays.pop("metadata", None)
        texts = {"metadata": str(about.raw)} if about else {}
    elif path.suffix == ".safetensors":
        arrays, texts = read_safetensors(path)
    else:
        raise ValueError(f"{path}: dumps are read from .npz or .safetensors files")
    _refuse_unknown(path, arrays, texts)
    kind = _kind(path, arrays)
    target, draft = arrays[f"target_{kind}"], arrays[f"draft_{kind}"]
    count, vocab_size = target.raw.shape
    labels = {name: _labels(path, name, arrays, texts, count) for name in _LABELS}
    prompts = labels["prompt_id"] or range(count)
    domains = labels["domain"] or ["dump"] * count
    places = labels["position"] or range(count)
    tokens = labels["token"] or [None] * count
    positions = [
        Position(row, str(prompts[row]), str(domains[row]), places[row], tokens[row])
        for row in range(count)
    ]
    metadata = _json(path, "metadata", texts.get("metadata", "{}"), dict)
    metadata |= {"source": path.name, "dtype": {"target": target.dtype, "draft": draft.dtype}}
    tables = [(target, draft, _paths(path, arrays, count))]
    return Dataset(path, kind, metadata, positions, vocab_size, tables)


def _refuse_unknown(path: Path, arrays: Iterable[str], texts: Iterable[str]) -> None:
    """ValueError for an array of an unknown name, or for a text whose name resembles a label's."""
    known = [f"{side}_{kind}" for side in ("target", "draft") for kind in ("logits", "probs")]
    known += ["draft_paths", "metadata", *_LABELS]
    for name in [*arrays, *texts]:
        meant = get_close_matches(name, known, 1)
        # Other programs keep texts of their own beside the arrays.
        if name not in known and (meant or name in arrays):
            hint = f"did you mean {meant[0]}?" if meant else f"expected some of {', '.join(known)}"
            raise ValueError(f"{path}: unknown array {shortened(name)}; {hint}")


def _paths(path: Path, arrays: dict[str, StoredArray], count: int) -> StoredArray | None:
    """The draft's likeliest paths, if a file has them."""
    found = arrays.get("draft_paths")
    if found is not None:
        raw = found.raw
        sound = raw.dtype.kind == "i" and raw.ndim == 3 and raw.shape[::2] == (count, 2)
        if not (sound and ((raw[..., 0] >= -1) & (raw[..., 0] < np.arange(raw.shape[1]))).all()):
            raise ValueError(
                f"{path}: draft_paths is {found.dtype} {raw.shape}, expected whole numbers ({count}, M, 2), "
                "parents before their children"
            )
    return found


def _kind(path: Path, arrays: dict[str, StoredArray]) -> str:
    """Whether a file holds logits or probabilities; ValueError for neither, or if the two do not fit."""
    kinds = [k for k in ("logits", "probs") if {f"target_{k}", f"draft_{k}"} <= arrays.keys()]
    if len(kinds) != 1:
        raise ValueError(
            f"{path}: expected either target_logits and draft_logits or target_probs and "
            f"draft_probs, found {sorted(arrays)}"
        )
    target, draft = f"target_{kinds[0]}", f"draft_{kinds[0]}"
    for name in (target, draft):
        array = arrays[name]
        if array.raw.ndim != 2 or 0 in array.raw.shape:
            raise ValueError(f"{path}: {name} has shape {array.raw.shape}, expected (N, V)")
        if array.raw.dtype.kind != "f" and not array.bfloat16:
            raise ValueError(f"{path}: {name} is {array.dtype}, expected a floating type")
    shape, other = arrays[target].raw.shape, arrays[draft].raw.shape
    if shape != other:
        raise ValueError(
            f"{path}: {target} has shape {shape} and {draft} {other}, expected the same"
        )
    return kinds[0]


def _labels(
    path: Path, name: str, arrays: dict[str, StoredArray], texts: dict[str, str], count: int
) -> list[Any]:
    """A label's entries, one for each row; an empty list if the file does not have the label."""
    whole = name in ("position", "token")
    wanted = "whole numbers" if whole else "texts or numbers"
    said = f"{path}: {name} must hold {wanted}, one for each of the {count} rows"
    if name in arrays:
        found, shape = arrays[name].raw.tolist(), arrays[name].raw.shape
    elif name in texts:
        found = _json(path, name, texts[name], list)
        shape = (len(found),)
    else:
        return []
    if shape != (count,):
        raise ValueError(f"{said}, got shape {shape}")
    if not whole:
        return found
    if broken := [entry for entry in found if isinstance(entry, float) and not entry.is_integer()]:
        raise ValueError(f"{said}, got {broken[0]}")
    try:
        return [int(entry) for entry in found]
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
