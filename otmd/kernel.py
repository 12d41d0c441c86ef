"""Numba kernels that begin as plain Python: a first answer on a few tokens waits for no compiler.

A kernel runs as plain Python while its inputs are small, its calls are few, and these calls together took a
tenth of a second at most. Then, or at the first large input, it is compiled. The compiled code is kept on
disk. Both run the same source, so there is one copy of each algorithm.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import update_wrapper
from time import perf_counter
from typing import Any

import numpy as np
from numba import config, njit

# When a kernel is compiled: at the first input of more numbers, or after so many plain runs, or so many
# seconds of them.
_MOST_NUMBERS = 256
_MOST_CALLS = 32
_MOST_SECONDS = 0.1
# Seconds after which a waiting user is told what is going on.
_PATIENCE = 1.0

REASSOCIATE = {"reassoc", "contract", "nsz"}
"""Fast-math flags of sums: terms may be added in any order. NaN and infinity keep their meaning."""


class _Mode(threading.local):
    """How the kernels of this thread run: inside a plain run every kernel is plain."""

    plain = False
    compiled = False


_mode = _Mode()
_told = threading.Event()


class Kernel:
    """A function on arrays, numbers and tuples of these, run plainly or compiled by ``numba.njit``."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self.py_func = function
        # No kernel is called as a C function: a wrapper for that would only take time to compile.
        compiler: Any = njit
        self._compiled = compiler(cache=True, nogil=True, no_cfunc_wrapper=True, **options)(
            function
        )
        self._hot = False
        self._calls, self._seconds = 0, 0.0

    def __call__(self, *arguments: Any) -> Any:
        """Run the kernel."""
        if _mode.plain:
            return self.py_func(*arguments)
        if config.DISABLE_JIT:  # pyright: ignore[reportAttributeAccessIssue]
            return self._run_plain(arguments)
        if self._hot:
            return self._compiled(*arguments)
        few = self._calls < _MOST_CALLS and self._seconds < _MOST_SECONDS
        if few and not _mode.compiled and _size(arguments) <= _MOST_NUMBERS:
            return self._run_plain(arguments)
        with _waiting_is_explained():
            answer = self._compiled(*arguments)
        self._hot = True
        return answer

    def _run_plain(self, arguments: tuple[Any, ...]) -> Any:
        _mode.plain = True
        begun = perf_counter()
        try:
            # Compiled code divides by zero without a warning.
            with np.errstate(all="ignore"):
                return self.py_func(*arguments)
        finally:
            _mode.plain = False
            self._calls += 1
            self._seconds += perf_counter() - begun

    @property
    def _numba_type_(self) -> Any:
        """The type that Numba gives a compiled function: kernels call each other by it."""
        return self._compiled._numba_type_


def kernel(**options: Any) -> Callable[[Callable[..., Any]], Kernel]:
    """Decorate a function as a :class:`Kernel`; options are those of ``numba.njit``."""
    return lambda function: Kernel(function, options)


@contextmanager
def every_kernel_compiled() -> Iterator[None]:
    """Within it, every call from this thread is compiled, however small its input is."""
    before, _mode.compiled = _mode.compiled, True
    try:
        yield
    finally:
        _mode.compiled = before


def _size(arguments: tuple[Any, ...]) -> int:
    """How many numbers the arrays among the arguments hold."""
    total = 0
    for value in arguments:
        if isinstance(value, np.ndarray):
            total += value.size
        elif isinstance(value, tuple):
            total += _size(value)
    return total


@contextmanager
def _waiting_is_explained() -> Iterator[None]:
    """Say once, on a terminal, that kernels are being compiled, if it takes a while."""
    if _told.is_set() or not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(_PATIENCE, _tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _tell() -> None:
    if not _told.is_set():
        _told.set()
        print(
            "otmd: compiling kernels, once for this machine (otmd warmup does it ahead)",
            file=sys.stderr,
        )
