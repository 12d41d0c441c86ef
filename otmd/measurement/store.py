"""Measurements on disk: one Parquet part a chunk while a run goes on, one file when it is done.

A folder holds ``measurement.json`` (what is measured, and on which dataset), ``parts/`` while the
run is unfinished, and ``results.parquet`` afterwards. A file appears whole or not at all.
"""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl

from otmd.harness.files import write_atomically
from otmd.measurement.rows import SCHEMA

RESULTS = "results.parquet"


def write_parquet(path: Path, table: pl.DataFrame) -> None:
    """Write a table as Parquet, whole or not at all."""
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, buffer.getvalue())


class Store:
    """The folder of one measurement.

    Parameters
    ----------
    folder : Path
        Made if it is not there.
    description : dict
        What is measured; a folder begun with another description is refused.

    Raises
    ------
    ValueError
        If the folder holds a measurement with other settings or of another dataset.
    """

    def __init__(self, folder: Path, description: dict[str, Any]):
        self.folder = folder
        self.parts = folder / "parts"
        record = folder / "measurement.json"
        if not (self.finished() or _stored(folder)):
            # Nothing is measured yet: a run that failed at its first position binds nobody.
            folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps(description, indent=1, ensure_ascii=False)
            write_atomically(record, text.encode())
        elif not record.exists():
            raise ValueError(
                f"output: {folder} holds results without their measurement.json, wanted an "
                "empty folder or one that a measurement began"
            )
        _refuse_other(folder, json.loads(record.read_text("utf-8")), description)

    def finished(self) -> bool:
        """Whether the whole table is there."""
        return (self.folder / RESULTS).exists()

    def done(self) -> set[int]:
        """Return the positions, counted along the dataset, whose part is stored.

        A part that cannot be read is removed, so that its positions are measured again.
        """
        for part in self.parts.glob("part-*.parquet"):
            try:
                _read(part)
            except ValueError:
                part.unlink()
        return _stored(self.folder)

    def add(self, first: int, last: int, table: pl.DataFrame) -> None:
        """Store the rows of the positions from first to last."""
        write_parquet(self.parts / f"part-{first:08d}-{last:08d}.parquet", table)

    def union(self) -> pl.DataFrame:
        """Read all the parts there are."""
        return pl.concat(_read(part) for part in sorted(self.parts.glob("part-*.parquet")))

    def finish(self) -> None:
        """Store the whole table, which then stands for its parts.

        Another process that measured the same may have been first, and have removed parts: its
        table is whole, and what is left of the parts may not be.
        """
        if not self.finished():
            table = self.union()
            if not self.finished():
                write_parquet(self.folder / RESULTS, table)
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
    table = _read(path)
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


def _read(path: Path) -> pl.DataFrame:
    try:
        return pl.read_parquet(path)
    except pl.exceptions.PolarsError as error:
        raise ValueError(
            f"{path}: cannot be read as Parquet ({str(error).splitlines()[0]})"
        ) from error


def _refuse_other(folder: Path, there: dict[str, Any], here: dict[str, Any]) -> None:
    there, here = json.loads(json.dumps(there)), json.loads(json.dumps(here))
    differing = [key for key in {**there, **here} if there.get(key) != here.get(key)]
    if differing:
        what = "; ".join(f"{key} {there.get(key)} there, {here.get(key)} here" for key in differing)
        raise ValueError(
            f"output: {folder} holds a measurement with other settings ({what}); "
            "choose another folder, or delete this one to measure again"
        )
