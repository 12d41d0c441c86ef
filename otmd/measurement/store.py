"""Measurements on disk: one Parquet part a chunk while a run goes on, one file when it is done.

A folder holds ``measurement.json`` (what is measured, and on which dataset), ``parts/`` while the run is
unfinished, and ``results.parquet`` afterwards.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from otmd.measurement.rows import SCHEMA
from otmd.storage import store
from otmd.storage.parquet import parquet_bytes, read_parquet, write_parquet

RESULTS = "results.parquet"
LAYOUT = store.Layout(
    read_parquet,
    pattern=r"part-\d+-\d+",
    record="measurement.json",
    result=RESULTS,
    subfolder="parts",
)


class Store(store.Store[pl.DataFrame]):
    """The folder of one measurement; ``description`` says what is measured, and on which dataset."""

    def __init__(
        self, folder: Path, description: dict[str, Any] | None, overwrite: bool = False
    ) -> None:
        super().__init__(folder, description, LAYOUT, overwrite)

    def done(self) -> set[int]:
        """Return the positions, counted along the dataset, whose part is stored whole; remove torn parts."""
        return _positions([name for name, _ in self.whole_parts()])

    def add(self, first: int, last: int, table: pl.DataFrame) -> None:
        """Store the rows of the positions from first to last."""
        self.write(f"part-{first:08d}-{last:08d}", parquet_bytes(table))

    def finish(self) -> None:
        """Store the whole table, and remove its parts."""
        if not self.finished():
            parts = [read_parquet(self.path(name)) for name in self.names()]
            write_parquet(self.folder / RESULTS, pl.concat(parts))
        self.remove_parts()


def positions_stored(folder: str | Path) -> int:
    """How many positions an unfinished measurement's folder holds so far."""
    return len(_positions(Store(Path(folder), None).names()))


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
        if not (path / RESULTS).exists() and (path / LAYOUT.subfolder).exists():
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
        ours = path.name == RESULTS and (path.parent / LAYOUT.record).exists()
        again = "; delete it, and `otmd measure` with the same settings and output makes it anew"
        raise ValueError(f"{error}{again * ours}") from error
    missing = [name for name in SCHEMA if name not in table.columns]
    if missing:
        raise ValueError(f"{path}: no table of `otmd measure`, whose columns {missing} it lacks")
    return table


def _positions(parts: Iterable[str]) -> set[int]:
    ends = (map(int, name.split("-")[1:]) for name in parts)
    return {i for first, last in ends for i in range(first, last + 1)}
