"""Results of a long run, kept part by part: an interruption loses nothing, a rerun goes on."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from otmd.measurement.store import write_parquet


class ProgressStore:
    """Named parts of one table; a part that is there is not made again.

    Parameters
    ----------
    path : Path
        The Parquet file of the whole table. Its parts lie beside it until :meth:`finish`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parts = path.with_suffix(".parts")
        self._done: dict[str, pl.DataFrame] = {}
        if path.exists():
            whole = pl.read_parquet(path)
            self._done = {str(name): rows for (name,), rows in whole.group_by("part")}

    def keep(self, name: str, make: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Return the rows of a part, made now unless they are stored."""
        if name not in self._done:
            part = self._parts / f"{name}.parquet"
            if not part.exists():
                write_parquet(part, pl.DataFrame([{"part": name, **row} for row in make()]))
            self._done[name] = pl.read_parquet(part)
        return self._done[name].to_dicts()

    def finish(self) -> pl.DataFrame:
        """Write the whole table as one file, remove its parts, and return it."""
        tables = [self._done[name] for name in sorted(self._done)]
        whole = pl.concat(tables, how="diagonal_relaxed")
        write_parquet(self.path, whole)
        shutil.rmtree(self._parts, ignore_errors=True)
        return whole
