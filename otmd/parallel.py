"""Positions in threads: the kernels release the interpreter while they run."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from numba import config, get_num_threads
from numba.np.ufunc import threading_layer

# Less than this many numbers are done sooner than a thread is started.
_WORTH_A_THREAD = 100_000


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
    ``NUMBA_NUM_THREADS``.
    """
    threads = min(num_threads(), count, count * size // _WORTH_A_THREAD)
    if threads <= 1:
        work(0, count)
        return
    ends = [count * i // threads for i in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, ends[:-1], ends[1:]))
