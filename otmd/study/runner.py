"""Run a function on many jobs; store each result, a part, as soon as it is computed; join them to a table.

With more than one worker, jobs run in joblib's processes, or on the backend of
``joblib.parallel_config(backend=…)``, such as Dask's. One worker is this process, whatever the backend.
"""

import os
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeVar

import joblib
import polars as pl

from otmd.kernel import every_kernel_compiled
from otmd.models.progress import progress_bar
from otmd.storage.files import write_atomically
from otmd.storage.parquet import parquet_bytes, read_parquet
from otmd.storage.store import Store

Job = TypeVar("Job")
Work = Callable[[Job], pl.DataFrame]
INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
# With the last two, glibc keeps freed memory for the next position: new pages from the system take longer
# than the computation. glibc accepts at most 32 MiB for the second of them.
WORKER_ENVIRONMENT = {
    "POLARS_MAX_THREADS": "1",
    "MALLOC_TRIM_THRESHOLD_": str(2**28),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
}


class Bar(NamedTuple):
    """A progress bar: its label, its end, and by how much a part moves it."""

    label: str
    total: int
    shown: bool
    size: Callable[[pl.DataFrame], int] = lambda _: 1


def run_study(
    work: Work[Job],
    jobs: Mapping[str, Any],
    store: Store[pl.DataFrame] | None,
    workers: int | None,
    bar: Bar,
    read: Callable[[Any], Job] = lambda job: job,
) -> pl.DataFrame:
    """Compute the jobs that have no part yet, and return the table of all, in their order.

    Parameters
    ----------
    work : callable
        From a job to the rows of its part.
    jobs : mapping
        The jobs by the names of their parts. ``read`` makes of each what ``work`` takes, in this process, as
        soon as a worker is free.
    store : Store, optional
        It keeps the parts. If it has a result, this is the table of a finished run: it is written in their
        place, and only read from then on.
    workers : int, optional
        As many as there are CPUs unless given.
    bar : Bar
        The progress bar.
    """
    if store is None:
        return compute_parts(work, jobs, None, workers, bar, read)
    store.check()
    if not store.finished():
        with store.held():
            # Another process may have finished it in the meantime.
            if not store.finished():
                table = compute_parts(work, jobs, store, workers, bar, read)
                if not store.layout.result:
                    return table
                write_atomically(store.result, parquet_bytes(table))
            shutil.rmtree(store.parts, ignore_errors=True)
    return read_parquet(store.result)


def compute_parts(
    work: Work[Job],
    jobs: Mapping[str, Any],
    store: Store[pl.DataFrame] | None,
    workers: int | None,
    bar: Bar,
    read: Callable[[Any], Job],
) -> pl.DataFrame:
    """Compute what the store, which the caller holds, has not; the table of all jobs, in their order."""
    stored = {name: store.read(name) for name in jobs} if store else {}
    tables = {name: table for name, table in stored.items() if table is not None}
    left = ((name, read(job)) for name, job in jobs.items() if name not in tables)
    with progress_bar(bar.label, bar.total, bar.shown) as update, warnings.catch_warnings():
        # An error here stops the workers, and joblib warns of that.
        warnings.filterwarnings("ignore", module="joblib")
        done = sum(map(bar.size, tables.values()))
        update(done, "")
        most = min(workers or joblib.cpu_count(), len(jobs))
        # The generator is closed here, since the garbage collector would swallow an interrupt.
        with closing(run_jobs(partial(_compiled, work), left, most)) as results:
            for name, table in results:
                if store:
                    store.write(name, parquet_bytes(table, name))
                tables[name] = table
                done += bar.size(table)
                update(done, "")
    return pl.concat([tables[name] for name in jobs], how="diagonal_relaxed")


def frame(rows: Sequence[Any], **options: Any) -> pl.DataFrame:
    """Make a data frame of rows; Ctrl-C and SIGTERM wait for it.

    Polars loses an interrupt that comes in between, and fails with another error.
    """
    if threading.current_thread() is not threading.main_thread():
        return pl.DataFrame(rows, **options)
    arrived: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: arrived.append(number)) for number in INTERRUPTS
    }
    try:
        return pl.DataFrame(rows, **options)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in arrived:
            signal.raise_signal(number)


def _compiled(work: Work[Job], job: tuple[str, Job]) -> tuple[str, pl.DataFrame]:
    """Do a job with all kernels compiled. Plain ones round differently, and resumed runs would differ."""
    with every_kernel_compiled():
        return job[0], work(job[1])


def run_jobs(function: Callable[[Any], Any], jobs: Iterable[Any], workers: int) -> Generator[Any, None, None]:
    """Yield the function's result for each job as it finishes, in any order.

    Jobs are drawn as workers become free. One worker is this process. RuntimeError for a worker process that
    ends before its work does.
    """
    if workers == 1:
        yield from map(function, jobs)
        return
    backend, _ = joblib.parallel.get_active_backend()
    is_configured = type(backend).__name__ != "LokyBackend"
    calls = (joblib.delayed(function)(job) for job in jobs)
    options: Any = {"batch_size": 1, "return_as": "generator_unordered"}
    with nullcontext() if is_configured else _processes():
        try:
            # Without memory maps: kernels would be compiled anew for arrays that are only read.
            yield from joblib.Parallel(workers, max_nbytes=None, **options)(calls)
        except BrokenProcessPool as error:
            raise RuntimeError(
                "a worker process ended before its work did: it was killed, perhaps for memory (fewer "
                "workers need less), or it could not import what it runs"
            ) from error


@contextmanager
def _processes() -> Iterator[None]:
    """Configure joblib's processes, with one thread each, since they share the CPUs."""
    before = {name: os.environ.get(name) for name in WORKER_ENVIRONMENT}
    os.environ.update(WORKER_ENVIRONMENT)
    try:
        # A worker that asked for its parent itself might be too late.
        entry: Any = {"initializer": _enter_worker, "initargs": (os.getpid(),)}
        with joblib.parallel_config("loky", inner_max_num_threads=1, **entry):
            yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ |= {} if value is None else {name: value}


def _enter_worker(parent: int) -> None:
    # A terminal interrupts all its processes. Only the parent is to act on it.
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, args=(parent,), daemon=True).start()


def _leave_with_parent(parent: int) -> None:
    # Otherwise the workers of a parent that was killed would wait for work for minutes.
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
