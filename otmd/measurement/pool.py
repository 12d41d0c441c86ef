"""Where chunks run: in this process, in a pool of processes, or in an executor of the caller's."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

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
# Memory that one position has freed is kept for the next: pages that the system takes back cost more than
# what is computed in them. 32 MiB is the most that glibc takes for the second.
WORKER_ENVIRONMENT = dict.fromkeys(THREAD_VARIABLES, "1") | {
    "MALLOC_TRIM_THRESHOLD_": str(2**28),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
}


# How long Ctrl-C may go unnoticed: polars installs a signal handler that restarts a waiting lock.
WAKE_SECONDS = 0.2


def available_cpus() -> int:
    """How many CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_jobs(
    function: Callable[[Job], Result],
    jobs: Iterable[Job],
    workers: int,
    executor: Executor | None = None,
) -> Generator[tuple[Job, Result], None, None]:
    """Run a function over jobs and yield each as it finishes, in any order.

    Parameters
    ----------
    function : callable
        Importable by name, since worker processes import it.
    jobs : iterable
        Drawn from lazily: at most twice as many as there are workers are under way.
    workers : int
        1 runs in this process.
    executor : concurrent.futures.Executor, optional
        Runs the jobs instead of a process pool, and is left open afterwards.

    Yields
    ------
    job, result

    Raises
    ------
    RuntimeError
        If a worker process died (killed for memory, say, or unable to import the main script).
    """
    if executor is not None:
        yield from _windowed(function, jobs, executor, 2 * workers)
    elif workers == 1:
        for job in jobs:
            yield job, function(job)
    else:
        with _process_pool(workers) as pool:
            yield from _windowed(function, jobs, pool, 2 * workers)


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
    try:
        with _worker_environment():
            yield pool
        pool.shutdown(wait=True)
    except BrokenProcessPool as error:
        raise RuntimeError(
            "a worker process ended before its work did: it was killed (for memory, perhaps: fewer "
            "workers need less), or it could not import the calling script, which needs an "
            "`if __name__ == '__main__':` guard around what it runs (workers=1 needs none)"
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()


@contextmanager
def _worker_environment() -> Iterator[None]:
    """Let processes that start within see one thread each, since they divide the CPUs among them."""
    kept = {name: os.environ.get(name) for name in WORKER_ENVIRONMENT}
    os.environ.update(WORKER_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in kept.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _enter_worker() -> None:
    # Ctrl-C reaches the whole process group; the parent decides what becomes of the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    # A pool's workers outlive a parent that was killed: each holds the queue's other end open.
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
