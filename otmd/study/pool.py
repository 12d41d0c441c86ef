"""Running jobs in this process, processes, threads or an executor, and keeping each result as a part."""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import polars as pl

from otmd.kernel import every_kernel_compiled
from otmd.models.progress import progress_bar
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
# With the last two, glibc keeps freed memory for the next position: new pages from the system take longer
# than the computation. glibc accepts at most 32 MiB for the second of them.
WORKER_ENVIRONMENT = dict.fromkeys(THREAD_VARIABLES, "1") | {
    "MALLOC_TRIM_THRESHOLD_": str(2**28),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
}

# The longest single wait for a result. Polars' signal handler resumes a wait that Ctrl-C interrupts.
WAKE_SECONDS = 0.2


def available_cpus() -> int:
    """How many CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def finish_run(
    store: Store[pl.DataFrame], compute: Callable[[dict[str, pl.DataFrame]], None]
) -> None:
    """Finish a run and write its result. ``compute(tables)`` gets the stored parts and adds the others."""
    store.check()
    if not store.finished():
        with store.held():
            # Another process may have finished it in the meantime.
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
    executor: futures.Executor | None,
    bar: tuple[str, int, bool],
    size: Callable[[pl.DataFrame], int] = lambda _: 1,
) -> None:
    """Run jobs, (part name, job) each. Add every table to ``tables`` and to the store when it is done.

    ``bar`` is the progress bar's text, its total, and whether it is shown. A table counts as its ``size``.
    """
    with progress_bar(*bar) as update:
        done = sum(map(size, tables.values()))
        update(done, "")
        # The generator is closed here, since the garbage collector would swallow an interrupt.
        with closing(run_jobs(partial(_compute, work), jobs, workers, executor)) as running:
            for (name, _), table in running:
                if store:
                    store.write(name, parquet_bytes(table))
                tables[name] = table
                done += size(table)
                update(done, "")


def _compute(work: Callable[[Job], Result], job: tuple[str, Job]) -> Result:
    """Do a job with all kernels compiled. Plain ones round differently, and resumed runs would differ."""
    with every_kernel_compiled():
        return work(job[1])


def run_jobs(
    function: Callable[[Job], Result],
    jobs: Iterable[Job],
    workers: int,
    executor: futures.Executor | None = None,
) -> Generator[tuple[Job, Result], None, None]:
    """Run a function over jobs, and yield each job with its result when it finishes, in any order.

    At most two jobs per worker are submitted at a time. One worker is this process; more are processes, or
    threads where a process could not import the function. An ``executor`` runs the jobs instead, and is left
    open. A worker process that dies is a RuntimeError.
    """
    if executor is not None:
        yield from _windowed(function, jobs, executor, 2 * workers)
    elif workers == 1:
        for job in jobs:
            yield job, function(job)
    else:
        pool = _process_pool if _processes_can_run(function) else futures.ThreadPoolExecutor
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
    function: Callable[[Job], Result], jobs: Iterable[Job], executor: futures.Executor, window: int
) -> Iterator[tuple[Job, Result]]:
    """Run jobs in an executor, at most ``window`` of them at a time."""
    waiting = iter(jobs)
    running: dict[futures.Future[Result], Job] = {}
    try:
        while True:
            while len(running) < window and (job := next(waiting, None)) is not None:
                running[executor.submit(function, job)] = job
            if not running:
                return
            for future in futures.wait(running, WAKE_SECONDS, futures.FIRST_COMPLETED).done:
                yield running.pop(future), future.result()
    finally:
        for future in running:
            future.cancel()


@contextmanager
def _process_pool(workers: int) -> Iterator[futures.ProcessPoolExecutor]:
    """Processes with one thread each. None of them is left running at the end, or after an error."""
    before = set(multiprocessing.active_children())
    # Spawned, not forked: a fork of a process with threads (BLAS, polars, torch) can deadlock.
    context = multiprocessing.get_context("spawn")
    pool = futures.ProcessPoolExecutor(workers, mp_context=context, initializer=_enter_worker)
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


def _start_workers(pool: futures.ProcessPoolExecutor) -> None:
    # Ctrl-C reaches all processes of a terminal. Only the parent is to act on it, and ends its workers. A
    # process that is started while the signal is blocked has it blocked from its first instruction on.
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
    # If the parent is killed, its workers would wait forever, since each keeps the queue open for the others.
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
