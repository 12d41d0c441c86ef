"""Positions in threads: the kernels release the interpreter while they run."""

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise

from numba import config, get_num_threads
from numba.np.ufunc import threading_layer

# Less than this many numbers are done sooner than a thread is woken.
_WORTH_A_THREAD = 100_000
# Several parts for each thread: none waits for long for one that was woken late or has more to do.
_PARTS = 4


def num_threads() -> int:
    """How many threads Numba would use, without starting its own: these would set torch's number anew."""
    try:
        threading_layer()
    except ValueError:
        return int(config.NUMBA_NUM_THREADS)  # pyright: ignore[reportAttributeAccessIssue]
    return get_num_threads()


def in_threads(work: Callable[[int, int], None], count: int, size: int) -> None:
    """Call ``work(start, stop)`` for parts of range(count), side by side where that pays.

    Parameters
    ----------
    work : callable
        Does the positions from start to stop; what it raises is raised here.
    count : int
        How many positions there are.
    size : int
        Numbers a position.

    Notes
    -----
    As many threads as Numba would use: the processors at hand, or the environment variable
    ``NUMBA_NUM_THREADS``. The caller's is one of them, so that nothing is waited for that has not begun.
    """
    threads = min(num_threads(), count, count * size // _WORTH_A_THREAD)
    if threads <= 1:
        work(0, count)
        return
    parts = min(count, threads * _PARTS)
    ends = [count * i // parts for i in range(parts + 1)]
    left = deque(pairwise(ends))

    def take_turns() -> None:
        while True:
            try:
                start, stop = left.popleft()
            except IndexError:
                return
            work(start, stop)

    helpers = [_pool().submit(take_turns) for _ in range(threads - 1)]
    try:
        take_turns()
    finally:
        left.clear()
        helpers = [helper for helper in helpers if not helper.cancel()]
        wait(helpers)
    for helper in helpers:
        helper.result()


@cache
def _pool() -> ThreadPoolExecutor:
    """Threads that stay: a new one costs as much as several positions."""
    return ThreadPoolExecutor(int(config.NUMBA_NUM_THREADS), "otmd")  # pyright: ignore[reportAttributeAccessIssue]


# A forked process has none of its parent's threads. (Where there is no fork there is nothing to say.)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
