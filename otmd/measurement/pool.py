"""Where jobs run (this process, processes, threads or an executor), and how a run keeps its parts."""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import polars as pl

from otmd.harness.progress import progress_bar
from otmd.storage.parquet import parquet_bytes, write_parquet
from otmd.storage.store import Store

Job = TypeVar("Job")
Result = TypeVar("Result")

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
    "POLARS_MAX_THREADS",
)
# The last two let glibc keep freed memory for the next position: new pages from the system take longer than
# the computation. glibc accepts at most 32 MiB for the second of them.
WORKER_ENVIRONMENT = dict.fromkeys(THREAD_VARIABLES, "1") | {
    "MALLOC_TRIM_THRESHOLD_": str(2**28),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
}

# Waits are no longer than this, since polars' signal handler resumes a wait that Ctrl-C interrupts.
WAKE_SECONDS = 0.2


def available_cpus() -> int:
    """How many CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def finish_run(
    store: Store[pl.DataFrame], compute: Callable[[dict[str, pl.DataFrame]], None]
) -> None:
    """Bring a run to its result: ``compute(tables)`` gets the parts that are there and adds the others."""
    store.check()
    if not store.finished():
        with store.held():
            # Another process may have finished it since.
            if not store.finished():
                tables = dict(store.whole_parts())
                compute(tables)
                result = store.folder / store.layout.result
                write_parquet(result, pl.concat(tables[name] for name in sorted(tables)))
            store.remove_parts()


def compute_parts(
    work: Callable[[Job], pl.DataFrame],
    jobs: Iterable[tuple[str, Job]],
    tables: dict[str, pl.DataFrame],
    store: Store[pl.DataFrame] | None,
    workers: int,
    executor: Executor | None,
    bar: tuple[str, int, bool],
    size: Callable[[pl.DataFrame], int] = lambda _: 1,
) -> None:
    """Run the jobs, each named like its part, and add each table to ``tables`` and the store at once.

    ``bar`` is the progress bar's text, total, and whether it is shown; a table moves it by its ``size``.
    """
    with progress_bar(*bar) as update:
        done = sum(map(size, tables.values()))
        update(done, "")
        # Closed here and not by the garbage collector, which would swallow an interrupt.
        with closing(run_jobs(partial(_unnamed, work), jobs, workers, executor)) as running:
            for (name, _), table in running:
                if store:
                    store.write(name, parquet_bytes(table))
                tables[name] = table
                done += size(table)
                update(done, "")


def _unnamed(work: Callable[[Job], Result], job: tuple[str, Job]) -> Result:
    return work(job[1])


def run_jobs(
    function: Callable[[Job], Result],
    jobs: Iterable[Job],
    workers: int,
    executor: Executor | None = None,
) -> Generator[tuple[Job, Result], None, None]:
    """Run a function over jobs and yield each as it finishes, in any order, at most two a worker under way.

    One worker runs in this process, more in as many processes, or in threads where a process could not
    import the function. An ``executor`` runs the jobs instead, and is left open. RuntimeError if a
    process died.
    """
    if executor is not None:
        yield from _windowed(function, jobs, executor, 2 * workers)
    elif workers == 1:
        for job in jobs:
            yield job, function(job)
    else:
        pool = _process_pool if _processes_can_run(function) else ThreadPoolExecutor
        with pool(workers) as own:
            yield from _windowed(function, jobs, own, 2 * workers)


def _processes_can_run(function: Callable[..., object]) -> bool:
    """Whether a new process can import the function and all that it refers to."""
    try:
        pickled = pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    script = getattr(sys.modules["__main__"], "__file__", None)
    return b"__main__" not in pickled if script is None else Path(script).is_file()


def _windowed(
    function: Callable[[Job], Result], jobs: Iterable[Job], executor: Executor, window: int
) -> Iterator[tuple[Job, Result]]:
    waiting = iter(jobs)
    running: dict[Future[Result], Job] = {}
    try:
        while True:
            while len(running) < window and (job := next(waiting, None)) is not None:
                running[executor.submit(function, job)] = job
            if not running:
                return
            for future in wait(running, WAKE_SECONDS, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()
    finally:
        for future in running:
            future.cancel()


@contextmanager
def _process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    before = set(multiprocessing.active_children())
    # Spawned, not forked: a fork of a process with threads (BLAS, polars, torch) can deadlock.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_enter_worker)
    kept = {name: os.environ.get(name) for name in WORKER_ENVIRONMENT}
    # Processes that start now inherit this: one thread each, since they share the CPUs.
    os.environ.update(WORKER_ENVIRONMENT)
    try:
        _start_workers(pool)
        yield pool
        pool.shutdown(wait=True)
    except BrokenProcessPool as error:
        raise RuntimeError(
            "a worker process ended before its work did: it was killed (for memory, perhaps: fewer "
            "workers need less), or it could not import the calling script, which needs an "
            "`if __name__ == '__main__':` guard around what it runs (workers=1 needs none)"
        ) from error
    finally:
        for name in WORKER_ENVIRONMENT:
            os.environ.pop(name, None)
        os.environ.update({name: value for name, value in kept.items() if value is not None})
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()


def _start_workers(pool: ProcessPoolExecutor) -> None:
    # Ctrl-C reaches all processes of a terminal; only the parent acts on it, and ends its workers. A process
    # that is started while the signal is blocked keeps it blocked, also before it runs any code of ours.
    blocks = hasattr(signal, "pthread_sigmask")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]) if blocks else set()
    try:
        pool.submit(int)
    finally:
        if blocks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _enter_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    # Workers of a killed parent would wait forever: each keeps the queue open for the others.
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
