"""One way to run an experiment: options, tasks, parts that survive an interruption, one Parquet file.

The rows of each finished task are a part in ``--parts``, whose name is a hash of all that they depend on. So
the same command continues an interrupted run, an extended one computes only what is new, and the parts of
several machines may be copied into one folder. The table goes to ``--output``; its metadata hold the command,
the versions and the settings.
"""

import argparse
import hashlib
import inspect
import io
import json
import os
import platform
import shlex
import sys
import tomllib
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import polars as pl
import pyarrow.parquet as pq

from otmd import __version__
from otmd.probabilities import wrong
from otmd.storage.files import write_atomically
from otmd.storage.parquet import read_parquet
from otmd.storage.store import Layout, Store
from otmd.study.runner import Bar, frame, run_study

RESULTS = Path("paper_figures/results")
PARTS = Layout(read_parquet, pattern="[0-9a-f]{20}", argument="--parts")
PACKAGES = ("otmd", "numpy", "scipy", "numba", "polars")
Task = dict[str, Any]
Rows = Iterable[Mapping[str, Any]]


def options(name: str, arguments: Sequence[str], **defaults: Any) -> argparse.Namespace:
    """Read the options of the module ``name``, one for each default, whose type it has; False is a flag.

    A tuple is the default of an option with several values, None that of a path.
    """
    script = name.rpartition(".")[2]
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments {script}",
        description=sys.modules[name].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Defaults: " + json.dumps(defaults, default=str, ensure_ascii=False),
    )
    for option, default in defaults.items():
        flag = f"--{option.replace('_', '-')}"
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, tuple):
            parser.add_argument(flag, type=type(default[0]), nargs="+", default=list(default))
        else:
            kind = Path if default is None else type(default)
            parser.add_argument(flag, type=kind, default=default)
    parser.set_defaults(command=shlex.join(["python", "-m", "experiments", script, *arguments]))
    return parser.parse_args(arguments)


def run(
    function: Callable[..., Rows],
    arguments: Sequence[str],
    seconds_a_task: float,
    tasks: Callable[[Namespace], list[Task]] | None = None,
    data: Callable[[list[Task]], str] = lambda tasks: "",
    summarise: Callable[[pl.DataFrame], pl.DataFrame] | None = None,
    **defaults: Any,
) -> pl.DataFrame:
    """Compute a function for every task that has no part yet, save the table of all, and return it.

    Parameters
    ----------
    function : callable
        ``function(rng, **task)`` returns the rows of a task: mappings with the same keys. The generator is
        seeded by the task, so what it draws depends neither on the other tasks nor on the code.
    arguments : sequence of str
        The options of the command line.
    seconds_a_task : float
        The measured time of one task, for the estimate of the time left.
    tasks : callable, optional
        The tasks of the options; without it they stand in a TOML file next to the function's module.
    data : callable
        Makes the data that the tasks read, unless they are there; returns a string that identifies them.
    summarise : callable, optional
        From the table to what is saved and returned; the table itself is saved as ``NAME_prompts.parquet``.
    **defaults
        More options, as for :func:`options`. ``output`` is where the table goes.
    """
    name = function.__module__
    script = Path(sys.modules[name].__file__ or "")
    common = {"output": RESULTS / f"{script.stem}.parquet", "parts": Path("runs") / script.stem}
    common |= {"workers": os.cpu_count() or 1, "scheduler": "", "quiet": False}
    if tasks is None:
        # Relative, since it is stored with the results.
        common["spec"] = Path(os.path.relpath(script.with_suffix(".toml")))
    chosen = options(name, arguments, **(common | defaults))
    listed = tasks(chosen) if tasks else read_tasks(chosen.spec)
    table = _computed(function, listed, data(listed), chosen, seconds_a_task)
    if summarise:
        save(chosen.output.with_name(f"{chosen.output.stem}_prompts.parquet"), table, chosen)
        table = summarise(table)
    save(chosen.output, table, chosen)
    return table


def _computed(
    function: Callable[..., Rows],
    tasks: list[Task],
    data: str,
    chosen: Namespace,
    seconds_a_task: float,
) -> pl.DataFrame:
    """The rows of all tasks; says before how much is left to compute."""
    jobs = {part_name(function, task, data): task for task in tasks}
    store = Store(chosen.parts, None, PARTS)
    if not chosen.quiet:
        left = len(jobs.keys() - store.names())
        minutes = left * seconds_a_task / chosen.workers / 60
        words = f"{left} of {len(jobs)} tasks are left, about {minutes:.1f} minutes"
        print(f"{words} with {chosen.workers} workers", file=sys.stderr)
    bar = Bar(function.__name__, len(jobs), not chosen.quiet)
    named = {name: (name, task) for name, task in jobs.items()}
    work = partial(task_rows, function)
    compute = partial(run_study, work, named, store, chosen.workers, bar)
    if not chosen.scheduler:
        return compute()
    from distributed import Client

    try:
        client = Client(chosen.scheduler)
    except OSError as error:
        sys.exit(f"--scheduler: nothing answers at {chosen.scheduler} ({error})")
    with client, joblib.parallel_config(backend="dask"):
        return compute()


def part_name(function: Callable[..., Rows], task: Task, data: str = "") -> str:
    """A hash of a task, of the function's module, of the data that it reads, and of the version."""
    file = Path(inspect.getfile(function))
    return _digest(
        function=f"{file.name}:{function.__qualname__}",
        source=hashlib.sha256(file.read_bytes()).hexdigest(),
        otmd=__version__,
        seed=0,
        data=data,
        parameters=task,
    )


def task_rows(function: Callable[..., Rows], named: tuple[str, Task]) -> pl.DataFrame:
    """The rows of a task, behind the name of its part and its parameters."""
    name, task = named
    rng = np.random.default_rng(np.random.SeedSequence(0, spawn_key=(int(_digest(**task), 16),)))
    rows = list(function(rng, **task))
    if not rows:
        raise ValueError(f"{function.__qualname__}: gave no rows for {task}")
    if both := {name for row in rows for name in row} & {"task", *task}:
        raise ValueError(f"{function.__qualname__}: gave columns {sorted(both)}, which tasks have")
    return frame([{"task": name, **task, **row} for row in rows])


def read_tasks(path: Path) -> list[Task]:
    """Read the tasks of a TOML file: for each table ``[[tasks]]`` every combination of its lists' values."""
    try:
        spec = tomllib.loads(path.read_text("utf-8"))
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


def require(good: bool, option: str, value: object, expected: str) -> None:
    """End the program with a message unless the value of an option is good."""
    if not good:
        sys.exit(f"--{option}: got {value}, expected {expected}")


def save(path: Path, table: pl.DataFrame, chosen: Namespace) -> None:
    """Write a table, whole or not at all, with the command, the versions and the settings."""
    about = {
        "command": chosen.command,
        "versions": {"python": platform.python_version()} | {p: version(p) for p in PACKAGES},
        "settings": {name: value for name, value in vars(chosen).items() if name != "command"},
    }
    texts = {name: json.dumps(value, default=str) for name, value in about.items()}
    rows = table.to_arrow()
    rows = rows.replace_schema_metadata({**(rows.schema.metadata or {}), **texts})
    file = io.BytesIO()
    pq.write_table(rows, file, compression="zstd", write_page_checksum=True)
    write_atomically(path, file.getvalue())


def show(*tables: pl.DataFrame) -> None:
    """Print tables with all their rows and columns."""
    style: dict[str, Any] = {
        "tbl_rows": -1,
        "tbl_cols": -1,
        "tbl_width_chars": 250,
        "fmt_str_lengths": 40,
    }
    with pl.Config(**style, float_precision=4, tbl_hide_dataframe_shape=True):
        for table in tables:
            print(table)


def markdown(heads: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Text of a table in Markdown."""
    lines = [list(map(str, line)) for line in (heads, *rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
