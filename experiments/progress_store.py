"""Results of a long run, kept part by part: an interruption loses nothing, and a rerun goes on."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from otmd.storage.parquet import parquet_bytes, read_parquet, write_parquet
from otmd.storage.store import Layout, Store


class ProgressStore:
    """Named parts of one table; a stored part is not made again.

    Unlike in ``otmd.study.run_sweep``, parts are named by what they hold, not by the code that made
    them, and a part may depend on earlier ones. A finished table also tells later runs what is stored.

    Parameters
    ----------
    path : Path
        The Parquet file of the whole table. Its parts lie beside it until :meth:`finish`.
    store : Store
        The store of the parts; the caller holds its lock.

    Raises
    ------
    ValueError
        If the whole table cannot be read.
    """

    def __init__(self, path: Path, store: Store[pl.DataFrame]) -> None:
        self.path = path
        self._store = store
        self._done = dict(store.whole_parts())
        if path.exists():
            try:
                whole = read_parquet(path)
            except ValueError as error:
                raise ValueError(f"output: {error}; delete it to measure again") from error
            self._done |= {str(name): rows for (name,), rows in whole.group_by("part")}

    def __len__(self) -> int:
        return len(self._done)

    def __contains__(self, name: str) -> bool:
        return name in self._done

    def keep(self, name: str, make: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Return the rows of a part, made now unless they are stored."""
        if name not in self._done:
            rows = pl.DataFrame([{"part": name, **row} for row in make()])
            self._store.write(name, parquet_bytes(rows))
            self._done[name] = rows
        return self._done[name].to_dicts()

    def finish(self) -> pl.DataFrame:
        """Write the whole table, parts of other runs included, remove the parts, and return it."""
        tables = [self._done[name] for name in sorted(self._done)]
        whole = pl.concat(tables, how="diagonal_relaxed")
        write_parquet(self.path, whole)
        self._store.remove_parts()
        return whole


@contextmanager
def progress_store(path: Path) -> Iterator[ProgressStore]:
    """Open a store, and lock out other processes during the block.

    Raises
    ------
    FolderLockedError
        If another process holds it.
    """
    store = Store(path.with_suffix(".parts"), None, Layout(read_parquet))
    with store.held():
        opened = ProgressStore(path, store)
        if count := len(opened):
            told = f"{path} holds {count} parts, which are not measured again: another --output begins anew"
            print(told, file=sys.stderr)
        yield opened
