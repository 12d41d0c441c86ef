"""Work on many positions in threads; the compiled kernels release Python's lock while they run."""

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise

from numba import config, get_num_threads
from numba.np.ufunc import threading_layer

# For fewer numbers than this, waking a thread takes longer than the work.
_WORTH_A_THREAD = 100_000
# Several parts for each thread, so that a thread that is done early takes over from slower ones.
_PARTS = 4


def num_threads() -> int:
    """How many threads Numba would use. Numba's own are not started, since that changes torch's number."""
    try:
        threading_layer()
    except ValueError:
        return int(config.NUMBA_NUM_THREADS)  # pyright: ignore[reportAttributeAccessIssue]
    return get_num_threads()


def in_threads(work: Callable[[int, int], None], count: int, size: int) -> None:
    """Call ``work(start, stop)`` for parts of range(count); in threads if there is much to do.

    A position has ``size`` numbers. There are as many threads as Numba would use. The calling thread
    works too, and exceptions are raised here.
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
    """The threads, started once: starting one takes as long as several positions."""
    return ThreadPoolExecutor(int(config.NUMBA_NUM_THREADS), "otmd")  # pyright: ignore[reportAttributeAccessIssue]


# A forked process has none of its parent's threads, so it needs a pool of its own.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
