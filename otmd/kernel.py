"""Numba kernels: small problems run as plain Python, so that a first answer does not wait for the compiler.

The size of the problem alone decides: the same call gives the same bits whatever ran before.
Both ways run the same source. Compiled code is kept on disk. It releases Python's lock, so that threads help.
"""

import os
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial, update_wrapper
from itertools import pairwise
from typing import Any

import numpy as np
from numba import config, get_num_threads, njit
from numba.core import event, serialize
from numba.np.ufunc import threading_layer

# Plain Python runs on at most so many tokens: ``compare`` takes two seconds then, compiled code 60 at first.
_MOST_NUMBERS = 32
# A batch may have so many times the numbers of one position: each runs for itself.
_SMALL_BATCH = 8
# The user is told about compiling after this many seconds.
_PATIENCE = 1.0
# For fewer numbers than this, waking a thread takes longer than the work.
_WORTH_A_THREAD = 100_000
# The parts of the work for each thread: several, so that a quick thread takes parts from a slow one.
_PARTS = 4

# A kernel that returns an array calls this function. As Python code it would handle the signals that came
# while the kernel ran, and an error there, such as Ctrl-C's, ends the process. A cache answers without Python
# code.
serialize._numba_unpickle = cache(serialize._numba_unpickle)

REASSOCIATE = {"reassoc", "contract", "nsz"}
"""Fast-math flags for sums whose terms may be added in any order. NaN and infinity keep their meaning."""


class _Mode(threading.local):
    """``plain`` inside a plain run; ``size``: how many numbers the input holds at least, see input_size."""

    plain = False
    size = 0


_mode = _Mode()
_told = threading.Event()
_not_kept = threading.Event()


class _Compiling(event.Listener):
    """``depth`` is above 0 while Numba compiles, and not while it loads what was compiled before."""

    depth = 0

    def on_start(self, event: Any) -> None:
        self.depth += 1

    def on_end(self, event: Any) -> None:
        self.depth -= 1


_compiling = _Compiling()
event.register("numba:compile", _compiling)


class Kernel:
    """A function on arrays, numbers and tuples of these, run plainly or compiled by ``numba.njit``."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self.py_func = function
        # Compiling is quicker without a wrapper for C callers, which no kernel has.
        options = {"nogil": True, "no_cfunc_wrapper": True, **options}
        jit: Any = njit
        self._compiled = jit(cache=True, **options)(function)
        if not config.DISABLE_JIT:  # pyright: ignore[reportAttributeAccessIssue]
            on_disk = self._compiled._cache
            on_disk.save_overload = partial(_save_if_possible, on_disk.save_overload)
        # Sums in any order become part of each kernel that calls them. A function that kernels share by its
        # name has the code of whichever was loaded first, and so the order of its sums.
        self._callee = self._compiled
        if "fastmath" in options:
            self._callee = jit(forceinline=True, **options)(function)
        self._loaded = False

    def __call__(self, *arguments: Any) -> Any:
        """Run the kernel."""
        if _mode.plain:
            return self.py_func(*arguments)
        # Outside a declared problem, the arrays tell its size.
        small = (_mode.size or _size(arguments)) <= _MOST_NUMBERS
        if small or config.DISABLE_JIT:  # pyright: ignore[reportAttributeAccessIssue]
            return self._run_plain(arguments)
        try:
            if self._loaded:
                return self._compiled(*arguments)
            with _waiting_is_explained():
                answer = self._compiled(*arguments)
        except SystemError as error:
            # What Ctrl-C raised while a record was made of the kernel's results comes as the cause.
            cause: BaseException = error
            while isinstance(cause, SystemError) and cause.__cause__:
                cause = cause.__cause__
            raise cause from None
        self._loaded = True
        return answer

    def __reduce__(self) -> str:
        # A pickle names the kernel: the function under this name is the kernel itself.
        return self.py_func.__qualname__

    def _run_plain(self, arguments: tuple[Any, ...]) -> Any:
        _mode.plain = True
        try:
            # Compiled code divides by zero without a warning.
            with np.errstate(all="ignore"):
                return self.py_func(*arguments)
        finally:
            _mode.plain = False

    @property
    def _numba_type_(self) -> Any:
        """The type that Numba gives a compiled function: kernels call each other by it."""
        return self._callee._numba_type_


def _save_if_possible(save: Callable[..., None], *overload: Any) -> None:
    """Keep a compiled kernel on disk. On a full one, it works without."""
    try:
        save(*overload)
    except OSError as error:
        if not _not_kept.is_set():
            _not_kept.set()
            warnings.warn(f"compiled kernels cannot be kept on disk: {error.strerror}", stacklevel=1)


def kernel(**options: Any) -> Callable[[Callable[..., Any]], Kernel]:
    """Decorate a function as a :class:`Kernel`; options are those of ``numba.njit``."""
    return lambda function: Kernel(function, options)


@contextmanager
def input_size(numbers: int, count: int = 1) -> Iterator[None]:
    """Within this context kernels of this thread run as on ``count`` positions of so many numbers.

    The size that a kernel's work comes from is that of the problem: kernels get digests of large inputs, such
    as a few classes of the tokens, and scratch arrays for small ones.
    """
    before = _mode.size
    _mode.size = max(before, numbers, count * numbers // _SMALL_BATCH)
    try:
        yield
    finally:
        _mode.size = before


def every_kernel_compiled() -> AbstractContextManager[None]:
    """Within this context every kernel call of this thread is compiled, even for small inputs."""
    return input_size(_MOST_NUMBERS + 1)


def _size(arguments: tuple[Any, ...]) -> int:
    """The count of numbers in the arrays among the arguments."""
    numbers = 0
    for value in arguments:
        if isinstance(value, np.ndarray):
            numbers += value.size
        elif isinstance(value, tuple):
            numbers += _size(value)
    return numbers


@contextmanager
def _waiting_is_explained() -> Iterator[None]:
    """If kernels are being compiled for long, say so on standard error; once per process."""
    done = threading.Event()

    def tell() -> None:
        while not done.wait(_PATIENCE) and not _told.is_set():
            if _compiling.depth:
                _told.set()
                print("otmd: compiling kernels, once for this machine", file=sys.stderr)

    if not _told.is_set():
        threading.Thread(target=tell, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def num_threads() -> int:
    """The number of Numba's threads. They are not started, since that would change torch's number."""
    try:
        threading_layer()
    except ValueError:
        return int(config.NUMBA_NUM_THREADS)  # pyright: ignore[reportAttributeAccessIssue]
    return get_num_threads()


def in_threads(work: Callable[[int, int], object], count: int, size: int) -> None:
    """Call ``work(start, stop)`` for parts of range(count), in threads if there is much to do.

    Each of the ``count`` positions has ``size`` numbers. The threads, the caller's among them, are at most as
    many as Numba would use. An exception in any of them is raised here.
    """
    threads = min(count, count * size // _WORTH_A_THREAD)
    # Numba takes a microsecond to tell its number.
    threads = min(threads, num_threads()) if threads > 1 else threads
    if threads <= 1:
        with input_size(size, count):
            work(0, count)
        return
    parts = min(count, threads * _PARTS)
    left = deque(pairwise(count * i // parts for i in range(parts + 1)))

    def take_turns() -> None:
        with input_size(size, count):
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
        # Helpers that have not begun are cancelled: in a nested call they might never begin.
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
