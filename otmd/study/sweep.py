"""Sweeps: a function computed for many parameters, with a Parquet file for each answer.

Such a file is called a part. Its name is a hash of everything that its rows depend on. So an interrupted
sweep continues where it stopped, an extended one computes only what is new, and folders can be merged.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from otmd import __version__
from otmd.probabilities import wrong
from otmd.storage.parquet import read_parquet
from otmd.storage.store import Layout, Store
from otmd.study.runner import Bar, compute_parts, frame, without_part

LAYOUT = Layout(read_parquet, pattern="[0-9a-f]{20}", argument="folder")
Parameters = Mapping[str, Any]
Rows = Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class Sweep:
    """A function and the tasks to compute.

    Attributes
    ----------
    function : callable
        ``function(rng, **parameters)`` returns the rows of a task: mappings with the same keys. Workers
        import it by its name.
    tasks : sequence of mappings
        The parameters of each task, in JSON's types.
    seed : int
        Each task's generator is seeded by this number and by the task's parameters. So its random numbers
        depend neither on the task's place among the others nor on the code.
    data : str
        A hash of the data that the function reads, if any.
    """

    function: Callable[..., Rows]
    tasks: Sequence[Parameters]
    seed: int = 0
    data: str = ""

    def key(self, parameters: Parameters) -> str:
        """The name of a task: a hash of its parameters, the seed, the data and the code."""
        file = Path(inspect.getfile(self.function))
        return _digest(
            function=f"{file.name}:{self.function.__qualname__}",
            source=hashlib.sha256(file.read_bytes()).hexdigest(),
            otmd=__version__,
            seed=self.seed,
            data=self.data,
            parameters=dict(parameters),
        )


def run_sweep(
    sweep: Sweep,
    folder: str | Path,
    workers: int | None = None,
    progress: bool = False,
) -> pl.DataFrame:
    """Compute the tasks that have no part in the folder yet.

    Parameters
    ----------
    sweep : Sweep
        The function and its tasks.
    folder : str or Path
        The folder of the parts, ``<key>.parquet``. It may have parts of other sweeps as well.
    workers, progress
        As for :func:`otmd.measure`.

    Returns
    -------
    polars.DataFrame
        The rows of all tasks of the sweep, in their order: ``task`` (the key), the parameters, and
        the columns that the function returned.

    Raises
    ------
    ValueError
        For no tasks, two equal ones, a task without rows, rows with a parameter's name, or a folder that
        holds other files.
    RuntimeError
        If a worker process died. What was finished is kept.
    FolderLockedError, OSError
        As for :func:`otmd.measure`.
    """
    store = Store(Path(folder), None, LAYOUT)
    keys = [sweep.key(task) for task in sweep.tasks]
    if not keys or len(set(keys)) < len(keys):
        raise wrong("tasks", f"{len(keys)}, {len(set(keys))} of them different", "each once")
    jobs = without_part({pair[0]: pair for pair in zip(keys, sweep.tasks, strict=True)})
    work = partial(_rows, sweep.function, sweep.seed)
    with store.held():
        stored = {key: table for key in keys if (table := store.read(key)) is not None}
        bar = Bar(sweep.function.__name__, len(keys), progress)
        tables = compute_parts(work, jobs, stored, store, workers, bar)
    return pl.concat([tables[key] for key in keys], how="diagonal_relaxed")


def merge_sweeps(sources: Iterable[str | Path], folder: str | Path) -> int:
    """Copy the parts of several folders of :func:`run_sweep` into one.

    Parameters
    ----------
    sources : iterable of str or Path
        The folders.
    folder : str or Path
        Where the parts are copied. It is made if it is not there; the parts in it stay.

    Returns
    -------
    int
        The number of parts that were copied.

    Raises
    ------
    ValueError
        For a source that is no folder.
    FolderLockedError
        If another process is computing into the folder.
    """
    store = Store(Path(folder), None, LAYOUT)
    copied = 0
    with store.held():
        for source in map(Path, sources):
            if not source.is_dir():
                raise wrong("sources", source, "a folder of a sweep")
            parts = Store(source, None, LAYOUT)
            for key in parts.names():
                if parts.read(key) is not None and store.read(key) is None:
                    store.write(key, parts.path(key).read_bytes())
                    copied += 1
    return copied


def read_tasks(path: str | Path) -> list[dict[str, Any]]:
    """Read the tasks of a TOML file: for each table ``[[tasks]]`` every combination of its lists' values.

    Parameters
    ----------
    path : str or Path
        The file. A value that is no list is the same in all tasks of its table.

    Returns
    -------
    list of dict
        The tasks. One that occurs twice is returned once.

    Raises
    ------
    ValueError
        If the file is no TOML, or has no tasks.
    """
    try:
        spec = tomllib.loads(Path(path).read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: cannot be read as TOML ({error})") from error
    tables = spec.get("tasks")
    if not isinstance(tables, list) or not tables or set(spec) != {"tasks"}:
        raise wrong(path, sorted(spec), "tables [[tasks]] and nothing else")
    tasks = []
    for table in tables:
        lists = [value if isinstance(value, list) else [value] for value in table.values()]
        tasks += [dict(zip(table, values, strict=True)) for values in product(*lists)]
    return [task for i, task in enumerate(tasks) if task not in tasks[:i]]


def _digest(**of: Any) -> str:
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:20]


def _rows(function: Callable[..., Rows], seed: int, task: tuple[str, Parameters]) -> pl.DataFrame:
    """Compute the rows of one task, (key, parameters)."""
    key, parameters = task
    spawn_key = (int(_digest(**parameters), 16),)
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=spawn_key))
    rows = [dict(row) for row in function(rng, **parameters)]
    if not rows:
        raise ValueError(f"{function.__qualname__}: gave no rows for {dict(parameters)}")
    both = {name for row in rows for name in row} & {"task", *parameters}
    if both:
        raise ValueError(f"{function.__qualname__}: gave columns {sorted(both)}, which tasks have")
    return frame([{"task": key, **parameters, **row} for row in rows])
