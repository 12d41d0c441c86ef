"""Shards: files of logits that describe themselves and are named after their own content.

A shard is ``NUMBER-HASH.safetensors``, HASH being the first 16 hexadecimal digits of the file's
SHA-256. So a torn or altered shard is known by its name, and the manifest, which is derived from
the shards alone, can be made again at any time.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from otmd.harness.errors import DatasetError
from otmd.harness.files import sha256_of, write_atomically
from otmd.harness.stored_arrays import StoredArray, read_safetensors

NAME = re.compile(r"(\d{6})-([0-9a-f]{16})\.safetensors")


@dataclass(frozen=True)
class Row:
    """One position of a shard: ``token`` is what came there in the text."""

    prompt_id: str
    domain: str
    position: int
    token: int


@dataclass(frozen=True)
class Shard:
    """A shard that has been read: its rows are in the order of the arrays' first axis."""

    path: Path
    sha256: str
    rows: list[Row]
    target: StoredArray
    draft: StoredArray


def write_shard(
    folder: Path,
    number: int,
    target_logits: np.ndarray,
    draft_logits: np.ndarray,
    rows: list[Row],
    texts: list[dict[str, Any]],
) -> Path:
    """Write a shard atomically.

    Parameters
    ----------
    folder : Path
        Where.
    number : int
        Its place among the shards.
    target_logits, draft_logits : (N, V) arrays
        Raw logits.
    rows : list of Row
        One for each of the N.
    texts : list of dict
        The token sequences the rows are positions of, kept so that they can be read again.

    Returns
    -------
    Path
        The file.
    """
    from safetensors.numpy import save

    # One metadata entry alone: safetensors writes several in no fixed order, and equal content
    # is to give equal bytes.
    about = json.dumps({"rows": [asdict(row) for row in rows], "texts": texts})
    arrays = {"target_logits": target_logits, "draft_logits": draft_logits}
    data = save({k: np.ascontiguousarray(v) for k, v in arrays.items()}, {"otmd": about})
    path = folder / f"{number:06}-{hashlib.sha256(data).hexdigest()[:16]}.safetensors"
    write_atomically(path, data)
    return path


def find_shards(folder: Path) -> dict[int, list[Path]]:
    """Files in the folder that are named as shards, by number."""
    found: dict[int, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        match = NAME.fullmatch(path.name)
        if match:
            found.setdefault(int(match[1]), []).append(path)
    return found


def read_shard(path: Path, sha256: str | None = None) -> Shard:
    """Open a shard.

    Parameters
    ----------
    path : Path
        The file.
    sha256 : str, optional
        Its hash where that is known and was checked before; otherwise it is computed, and
        compared with the name.

    Raises
    ------
    DatasetError
        If the shard is missing, torn or altered.
    """
    if not path.is_file():
        raise DatasetError(f"the shard {path} is missing; call collect again to make it anew")
    if sha256 is None:
        sha256 = sha256_of(path)
        match = NAME.fullmatch(path.name)
        if match is None or match[2] != sha256[:16]:
            raise DatasetError(
                f"the shard {path} is torn or was altered: its sha256 is {sha256}; "
                "call collect again to make it anew"
            )
    arrays, metadata = read_safetensors(path)
    try:
        rows = [Row(**row) for row in json.loads(metadata["otmd"])["rows"]]
        target, draft = arrays["target_logits"], arrays["draft_logits"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DatasetError(f"{path} is no shard of otmd ({error!r})") from error
    shape = target.raw.shape
    if len(shape) != 2 or shape[0] != len(rows) or draft.raw.shape != shape:
        raise DatasetError(
            f"{path} is no shard of otmd: it has logits of shapes {shape} and {draft.raw.shape} for "
            f"{len(rows)} rows"
        )
    return Shard(path, sha256, rows, target, draft)


def read_texts(path: Path) -> list[dict[str, Any]]:
    """Token sequences of a shard: dicts of ``prompt_id``, ``tokens`` and ``start``.

    Raises
    ------
    DatasetError
        If the shard is torn, or was not written by otmd.
    """
    try:
        return json.loads(read_safetensors(path)[1]["otmd"])["texts"]
    except (KeyError, TypeError, json.JSONDecodeError, RecursionError) as error:
        raise DatasetError(f"{path} is no shard of otmd ({error!r})") from error
