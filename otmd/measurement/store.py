"""Measurements on disk: one Parquet part a chunk while a run goes on, one file when it is done.

A folder holds ``measurement.json`` (what is measured, and on which dataset), ``parts/`` while the
run is unfinished, and ``results.parquet`` afterwards. A file appears whole or not at all. One process
at a time may measure into it: the lock lies among the parts, and goes with them.
"""

import io
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from otmd.harness.files import remove_leftovers, write_atomically
from otmd.harness.lock import folder_lock
from otmd.measurement.rows import SCHEMA

RESULTS, RECORD = "results.parquet", "measurement.json"


def write_parquet(path: Path, table: pl.DataFrame) -> None:
    """Write a table as Parquet, whole or not at all, with a checksum of each page."""
    buffer = io.BytesIO()
    texts = [name for name, kind in table.schema.items() if kind == pl.String]
    # By Arrow, since polars writes no checksums and reads none.
    pq.write_table(
        table.to_arrow(),
        buffer,
        compression="zstd",
        compression_level=9,
        # Rates hardly ever repeat. (The stubs know of all columns or none.)
        use_dictionary=texts,  # pyright: ignore[reportArgumentType]
        write_page_checksum=True,
    )
    write_atomically(path, buffer.getvalue())


def read_parquet(path: Path) -> pl.DataFrame:
    """Read what :func:`write_parquet` wrote, and compare the checksums.

    Raises
    ------
    ValueError
        If the file is torn, altered or no Parquet file.
    """
    # Read whole first: what the disk refuses is another error than what the bytes are.
    data = io.BytesIO(path.read_bytes())
    try:
        table = pl.from_arrow(pq.read_table(data, page_checksum_verification=True))
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        said = str(error).splitlines()[0]
        raise ValueError(f"{path}: torn, altered or no Parquet file ({said})") from error
    assert isinstance(table, pl.DataFrame)
    return table


class Store:
    """The folder of one measurement.

    Parameters
    ----------
    folder : Path
        Made when a measurement begins.
    description : dict
        What is measured; a folder begun with another description is refused.

    Raises
    ------
    ValueError
        If the folder holds a finished measurement with other settings or of another dataset.
    """

    def __init__(self, folder: Path, description: dict[str, Any]):
        self.folder = folder
        self.parts = folder / "parts"
        self._description = description
        if self.finished():
            _refuse_other(folder, description)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Begin the measurement, or take it up, and keep other processes from it meanwhile.

        Raises
        ------
        ValueError
            If the folder holds a measurement with other settings or of another dataset.
        FolderLockedError
            If another process is measuring into the folder.
        """
        with folder_lock(self.parts):
            remove_leftovers(self.folder)
            if not (self.finished() or _stored(self.folder)):
                # Nothing is measured yet: a run that failed at its first position binds nobody.
                text = json.dumps(self._description, indent=1, ensure_ascii=False)
                write_atomically(self.folder / RECORD, text.encode())
            _refuse_other(self.folder, self._description)
            yield

    def finished(self) -> bool:
        """Whether the whole table is there."""
        return (self.folder / RESULTS).exists()

    def done(self) -> set[int]:
        """Return the positions, counted along the dataset, whose part is stored.

        A part that cannot be read is removed, so that its positions are measured again.
        """
        for part in self.parts.glob("part-*.parquet"):
            try:
                read_parquet(part)
            except ValueError:
                part.unlink()
        return _stored(self.folder)

    def add(self, first: int, last: int, table: pl.DataFrame) -> None:
        """Store the rows of the positions from first to last."""
        write_parquet(self.parts / f"part-{first:08d}-{last:08d}.parquet", table)

    def union(self) -> pl.DataFrame:
        """Read all the parts there are."""
        return pl.concat(read_parquet(part) for part in sorted(self.parts.glob("part-*.parquet")))

    def finish(self) -> None:
        """Store the whole table, which then stands for its parts."""
        if not self.finished():
            write_parquet(self.folder / RESULTS, self.union())
        shutil.rmtree(self.parts, ignore_errors=True)


def positions_stored(folder: str | Path) -> int:
    """How many positions an unfinished measurement's folder holds so far."""
    return len(_stored(Path(folder)))


def load_results(path: str | Path) -> pl.DataFrame:
    """Read a finished measurement: its folder, or the Parquet file itself.

    Raises
    ------
    FileNotFoundError
        If there is nothing there.
    ValueError
        If the measurement is unfinished, or the file is no Parquet file or another table.
    """
    path = Path(path)
    if path.is_dir():
        if not (path / RESULTS).exists() and (path / "parts").exists():
            raise ValueError(
                f"{path}: the measurement is unfinished; `otmd measure` with the same settings "
                "and output takes it up where it stopped"
            )
        path = path / RESULTS
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file; `otmd measure` writes it")
    try:
        table = read_parquet(path)
    except ValueError as error:
        raise ValueError(
            f"{error}; delete it, and `otmd measure` with the same settings and output makes it anew"
        ) from error
    missing = [name for name in SCHEMA if name not in table.columns]
    if missing:
        raise ValueError(f"{path}: no table of `otmd measure`, whose columns {missing} it lacks")
    return table


def _stored(folder: Path) -> set[int]:
    found: set[int] = set()
    for part in (folder / "parts").glob("part-*.parquet"):
        first, last = part.stem.split("-")[1:]
        found.update(range(int(first), int(last) + 1))
    return found


def _refuse_other(folder: Path, description: dict[str, Any]) -> None:
    try:
        there = dict(json.loads((folder / RECORD).read_text("utf-8")))
    except FileNotFoundError:
        raise ValueError(
            f"output: {folder} holds results without their {RECORD}, wanted an empty folder or "
            "one that a measurement began"
        ) from None
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"output: {folder / RECORD} is torn or was not written by `otmd measure` ({error}); "
            "choose another folder, or delete this one to measure again"
        ) from error
    here = json.loads(json.dumps(description))
    differing = [key for key in {**there, **here} if there.get(key) != here.get(key)]
    if differing:
        what = "; ".join(f"{key} {there.get(key)} there, {here.get(key)} here" for key in differing)
        raise ValueError(
            f"output: {folder} holds a measurement with other settings ({what}); "
            "choose another folder, or delete this one to measure again"
        )
