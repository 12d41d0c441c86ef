"""Results of a long run, kept part by part: an interruption loses nothing, a rerun goes on."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from otmd.harness.lock import folder_lock
from otmd.measurement.store import read_parquet, write_parquet


class ProgressStore:
    """Named parts of one table; a part that is there is not made again.

    Unlike those of ``otmd.measurement.run_sweep``, parts are called by what they hold and not by the code
    that made them, and what is made next may depend on one. The table that results is also the record of
    what need not be made: a rerun on stored results prints them.

    Parameters
    ----------
    path : Path
        The Parquet file of the whole table. Its parts lie beside it until :meth:`finish`.

    Raises
    ------
    ValueError
        If the whole table cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parts = _parts_of(path)
        self._done: dict[str, pl.DataFrame] = {}
        for part in sorted(self._parts.glob("*.parquet")):
            try:
                self._done[part.stem] = read_parquet(part)
            except ValueError:
                # Torn: its rows are made again.
                part.unlink()
        if path.exists():
            try:
                whole = read_parquet(path)
            except ValueError as error:
                raise ValueError(f"output: {error}; delete it to measure again") from error
            self._done |= {str(name): rows for (name,), rows in whole.group_by("part")}

    def __contains__(self, name: str) -> bool:
        return name in self._done

    def keep(self, name: str, make: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Return the rows of a part, made now unless they are stored."""
        if name not in self._done:
            rows = pl.DataFrame([{"part": name, **row} for row in make()])
            write_parquet(self._parts / f"{name}.parquet", rows)
            self._done[name] = rows
        return self._done[name].to_dicts()

    def finish(self) -> pl.DataFrame:
        """Write the whole table, parts of other runs included, remove the parts, and return it."""
        tables = [self._done[name] for name in sorted(self._done)]
        whole = pl.concat(tables, how="diagonal_relaxed")
        write_parquet(self.path, whole)
        shutil.rmtree(self._parts, ignore_errors=True)
        return whole


@contextmanager
def progress_store(path: Path) -> Iterator[ProgressStore]:
    """Open a store, and keep other processes from it meanwhile.

    Raises
    ------
    FolderLockedError
        If another process holds it.
    """
    with folder_lock(_parts_of(path)):
        yield ProgressStore(path)


def _parts_of(path: Path) -> Path:
    return path.with_suffix(".parts")
