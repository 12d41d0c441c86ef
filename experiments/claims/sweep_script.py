"""What all scripts of claims share: the options, and running and storing a sweep."""

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import joblib
import polars as pl

from otmd.storage.parquet import write_parquet
from otmd.study import Sweep, read_tasks, run_sweep

RESULTS = Path("paper_figures/results")


def run(
    function: Callable[..., Any],
    about: str,
    seconds_a_task: float,
    arguments: list[str] | None = None,
    data: Callable[[list[dict[str, Any]]], str] = lambda tasks: "",
) -> pl.DataFrame:
    """Read the options, run the sweep, write its table, and return it.

    Parameters
    ----------
    function : callable
        See :class:`otmd.study.Sweep`. The tasks stand in a TOML file beside its module.
    about : str
        For ``--help``.
    seconds_a_task : float
        The measured time of one task, for the estimate of the time left.
    arguments : list of str, optional
        Instead of ``sys.argv``.
    data : callable
        Makes the data that the tasks read, unless they are there, and returns a string that identifies them.
    """
    script = Path(sys.modules[function.__module__].__file__ or "")
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--spec", type=Path, default=script.with_suffix(".toml"))
    parser.add_argument("--output", type=Path, default=RESULTS / f"{script.stem}.parquet")
    parser.add_argument("--parts", type=Path, help="folder of parts, by default runs/NAME")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--scheduler", help="of a Dask cluster, tcp://…, instead of processes")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    chosen = parser.parse_args(arguments)
    tasks = read_tasks(chosen.spec)
    sweep = Sweep(function, tasks, data=data(tasks))
    parts = chosen.parts or Path("runs") / script.stem
    if not chosen.quiet:
        left = sum(not (parts / f"{sweep.key(task)}.parquet").exists() for task in sweep.tasks)
        minutes = left * seconds_a_task / max(chosen.workers, 1) / 60
        print(
            f"{left} of {len(sweep.tasks)} tasks are left, about {minutes:.1f} minutes with "
            f"{chosen.workers} workers",
            file=sys.stderr,
        )
    with ExitStack() as stack:
        if chosen.scheduler:
            from distributed import Client

            try:
                stack.enter_context(Client(chosen.scheduler))
            except OSError as error:
                parser.error(f"--scheduler: nothing answers at {chosen.scheduler} ({error})")
            stack.enter_context(joblib.parallel_config(backend="dask"))
        table = run_sweep(sweep, parts, chosen.workers, progress=not chosen.quiet)
    write_parquet(chosen.output, table)
    return table
