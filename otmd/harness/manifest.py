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
from otmd.harness.shards import Row, Shard

FILE = "manifest.parquet"


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
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(folder / FILE)
        about = json.loads((table.schema.metadata or {})[b"otmd"])
        columns = table.to_pydict()
        number = {shard["name"]: index for index, shard in enumerate(about["shards"])}
        named = zip(
            *(columns[name] for name in ("prompt_id", "domain", "position", "token")), strict=True
        )
        places = zip((number[name] for name in columns["shard"]), columns["row"], strict=True)
        return Manifest(
            [Row(*values) for values in named], list(places), about["shards"], about["metadata"]
        )
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        raise DatasetError(
            f"{folder / FILE} is torn or was not written by otmd ({error}); call collect again, "
            "which makes it anew from the shards"
        ) from error
