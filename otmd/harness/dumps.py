"""Dumps of distributions that were made elsewhere, by an inference engine for instance."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from otmd.harness.stored_arrays import StoredArray, read_npz, read_safetensors

LABELS = ("prompt_id", "domain", "position")


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
    """

    index: int
    prompt_id: str
    domain: str
    position: int


@dataclass(frozen=True)
class Dump:
    """What a dump holds; ``kind`` is "logits" or "probs"."""

    kind: str
    target: StoredArray
    draft: StoredArray
    positions: list[Position]
    metadata: dict[str, Any]


def read_dump(path: Path) -> Dump:
    """Read an ``.npz`` or ``.safetensors`` file; see ``open_dataset`` for the names in it.

    Without ``prompt_id`` every row counts as a prompt of its own; without ``domain`` all are of
    the domain "dump"; without ``position`` that is the row's number. In a safetensors file, which
    holds no texts, these three may also stand in the metadata, as JSON lists. ``metadata`` (an
    array of one text in npz, an entry of the metadata in safetensors) may hold a JSON object.

    Raises
    ------
    ValueError
        If the file's ending, its names, shapes or types are others.
    DatasetError
        If it is cut short.
    """
    if path.suffix == ".npz":
        arrays, texts = read_npz(path), {}
        if "metadata" in arrays:
            texts["metadata"] = str(arrays.pop("metadata").raw)
    elif path.suffix == ".safetensors":
        arrays, texts = read_safetensors(path)
    else:
        raise ValueError(f"{path}: dumps are read from .npz or .safetensors files")
    kind = _kind(path, arrays)
    target, draft = arrays[f"target_{kind}"], arrays[f"draft_{kind}"]
    _check_shapes(path, kind, target, draft)
    labels = {name: _labels(path, name, arrays, texts, len(target.raw)) for name in LABELS}
    positions = [
        Position(
            row,
            str(labels["prompt_id"][row]) if labels["prompt_id"] else str(row),
            str(labels["domain"][row]) if labels["domain"] else "dump",
            labels["position"][row] if labels["position"] else row,
        )
        for row in range(len(target.raw))
    ]
    about = _json(path, "metadata", texts.get("metadata", "{}"), dict)
    stored = {"source": path.name, "dtype": {"target": target.dtype, "draft": draft.dtype}}
    return Dump(kind, target, draft, positions, {**about, **stored})


def _kind(path: Path, arrays: dict[str, StoredArray]) -> str:
    kinds = [k for k in ("logits", "probs") if {f"target_{k}", f"draft_{k}"} <= arrays.keys()]
    if len(kinds) != 1:
        raise ValueError(
            f"{path}: wanted either target_logits and draft_logits or target_probs and "
            f"draft_probs, found {sorted(arrays)}"
        )
    return kinds[0]


def _check_shapes(path: Path, kind: str, target: StoredArray, draft: StoredArray) -> None:
    for role, array in (("target", target), ("draft", draft)):
        if array.raw.ndim != 2 or 0 in array.raw.shape:
            raise ValueError(f"{path}: {role}_{kind} has shape {array.raw.shape}, wanted (N, V)")
        if array.raw.dtype.kind != "f" and not array.bfloat16:
            raise ValueError(f"{path}: {role}_{kind} is {array.dtype}, wanted a floating type")
    if target.raw.shape != draft.raw.shape:
        raise ValueError(
            f"{path}: target_{kind} has shape {target.raw.shape} and draft_{kind} "
            f"{draft.raw.shape}, wanted the same"
        )


def _labels(
    path: Path, name: str, arrays: dict[str, StoredArray], texts: dict[str, str], count: int
) -> list[Any]:
    wanted = "whole numbers" if name == "position" else "texts or numbers"
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
        return [int(entry) for entry in found] if name == "position" else found
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{said} ({error})") from error


def _json(path: Path, name: str, text: str, wanted: type) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {name} is not JSON ({error})") from error
    if not isinstance(found, wanted):
        raise ValueError(f"{path}: {name} must be a JSON {wanted.__name__}, got {text[:40]!r}")
    return found
