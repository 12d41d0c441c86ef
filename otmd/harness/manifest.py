"""The manifest of a collected folder: a Parquet file with one row a position.

It is written last, so a folder without one is unfinished. Its key-value metadata holds, as JSON
under ``otmd``, the description of the run and the size and SHA-256 of every shard.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from otmd.harness.errors import DatasetError
from otmd.harness.files import write_atomically
from otmd.harness.shards import NAME, Row, Shard
from otmd.storage.errors import one_line
from otmd.storage.parquet import ROWS_AT_ONCE, open_parquet

FILE = "manifest.parquet"
COLUMNS = {"prompt_id": str, "domain": str, "position": int, "token": int, "shard": str, "row": int}
_LONGEST_TEXT = 100_000


@dataclass(frozen=True)
class Manifest:
    """What a manifest says.

    Attributes
    ----------
    rows : list of Row
        One a position.
    places : list of (int, int)
        For each row the number of its shard in ``shards`` and its row there.
    shards : list of dict
        ``name``, ``bytes`` and ``sha256`` of each shard.
    metadata : dict
        How the data set was made.
    """

    rows: list[Row]
    places: list[tuple[int, int]]
    shards: list[dict[str, Any]]
    metadata: dict[str, Any]


def write_manifest(folder: Path, shards: list[Shard], metadata: dict[str, Any]) -> None:
    """Derive the manifest from the shards and write it atomically."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    flat = [
        (number, index) for number, shard in enumerate(shards) for index in range(len(shard.rows))
    ]
    rows = [shards[number].rows[index] for number, index in flat]
    about = {
        "metadata": metadata,
        "shards": [
            {"name": s.path.name, "bytes": s.path.stat().st_size, "sha256": s.sha256}
            for s in shards
        ],
    }
    table = pa.table(
        {
            "prompt_id": pa.array([row.prompt_id for row in rows], pa.string()),
            "domain": pa.array([row.domain for row in rows], pa.string()),
            "position": pa.array([row.position for row in rows], pa.int64()),
            "token": pa.array([row.token for row in rows], pa.int64()),
            "shard": pa.array([shards[number].path.name for number, _ in flat], pa.string()),
            "row": pa.array([index for _, index in flat], pa.int64()),
        }
    ).replace_schema_metadata({"otmd": json.dumps(about)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    write_atomically(folder / FILE, sink.getvalue().to_pybytes())


def read_manifest(folder: Path) -> Manifest:
    """Read a folder's manifest.

    Raises
    ------
    DatasetError
        If the file is torn or was not written by otmd.
    """
    import pyarrow as pa

    try:
        with open_parquet(folder / FILE) as stored:
            about = json.loads((stored.schema_arrow.metadata or {})[b"otmd"])
            shards, metadata = _check_shards(about["shards"]), dict(about["metadata"])
            number = {shard["name"]: index for index, shard in enumerate(shards)}
            rows, places = [], []
            for batch in stored.iter_batches(batch_size=ROWS_AT_ONCE, columns=list(COLUMNS)):
                for values in zip(
                    *(batch.column(name).to_pylist() for name in COLUMNS), strict=True
                ):
                    *row, shard, place = values
                    _check_row(values)
                    rows.append(Row(*row))
                    places.append((number[shard], place))
    except (
        pa.ArrowException,
        KeyError,
        TypeError,
        ValueError,
        OSError,
        RecursionError,
    ) as error:
        raise DatasetError(
            f"{folder / FILE} is torn or was not written by otmd ({one_line(error)}); call collect again, "
            "which makes it anew from the shards"
        ) from error
    return Manifest(rows, places, shards, metadata)


def _check_shards(shards: Any) -> list[dict[str, Any]]:
    """Return the entries, or raise ValueError; a name leads out of no folder."""
    kinds = {"name": str, "bytes": int, "sha256": str}
    if not isinstance(shards, list) or not shards:
        raise ValueError("it has no shards")
    for shard in shards:
        sound = isinstance(shard, dict) and all(
            isinstance(shard.get(key), kind) for key, kind in kinds.items()
        )
        if not sound or NAME.fullmatch(shard["name"]) is None:
            raise ValueError(f"no entry of a shard: {shard!s:.80}")
    return shards


def _check_row(values: tuple[Any, ...]) -> None:
    sound = all(isinstance(own, kind) for own, kind in zip(values, COLUMNS.values(), strict=True))
    texts = (own for own in values if isinstance(own, str))
    if not sound or values[-1] < 0 or max(map(len, texts)) > _LONGEST_TEXT:
        raise ValueError(f"no row of a manifest: {values!s:.80}")
