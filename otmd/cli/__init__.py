"""The command line: ``otmd collect | measure | solve | plan | decode | audit | demo``.

Results go to standard output, progress and errors to standard error. The exit codes are below.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from io import TextIOWrapper
from typing import Any

OK = 0
FAILED = 1
USAGE = 2
FAULT_FOUND = 3
INCONCLUSIVE = 4
INTERRUPTED = 130
TERMINATED = 143


class UsageError(Exception):
    """An option with an invalid value."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; ``arguments`` replace those of ``sys.argv``."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    with _readers_may_leave(), _signals_stop():
        try:
            from otmd.cli.app import run

            return run([token for token in tokens if token != "--debug"], "--debug" in tokens)
        except KeyboardInterrupt as stop:
            ended = isinstance(stop, Terminated)
            said = ["terminated." if ended else "interrupted.", *getattr(stop, "__notes__", [])]
            return fail(" ".join(said), TERMINATED if ended else INTERRUPTED)


def fail(message: object, code: int = FAILED) -> int:
    """Print a message in one line on standard error, and return the exit code."""
    # Ctrl-C before main begins prints a traceback, so this module imports little.
    from otmd.storage.files import one_line

    print(f"otmd: {one_line(message)}", file=sys.stderr)
    return code


@contextmanager
def _signals_stop() -> Iterator[None]:
    """Say at once that SIGINT or SIGTERM stops the command, and raise KeyboardInterrupt or Terminated.

    A SIGINT that the shell ignores, as of ``otmd … &``, stays ignored.
    """
    is_main = threading.current_thread() is threading.main_thread()
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    caught = {number: x for number, x in defaults.items() if is_main and signal.getsignal(number) is x}

    def stop(number: int, _: Any) -> None:
        # Threads may take seconds to end. A signal may come within a print, where a second one would fail.
        with suppress(OSError):
            os.write(2, "\nStopping …\n".encode())
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    for number in caught:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, default in caught.items():
            signal.signal(number, default)


class _Output:
    """A stream that drops its text once the reader has left, as in ``otmd audit … | head``."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._readers_may_leave():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._readers_may_leave():
            self._stream.flush()

    @contextmanager
    def _readers_may_leave(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # Otherwise Python writes the rest again when it ends, and fails.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            if not isinstance(error, BrokenPipeError):
                raise


@contextmanager
def _readers_may_leave() -> Iterator[None]:
    with ExitStack() as stack:
        for redirect, stream in ((redirect_stdout, sys.stdout), (redirect_stderr, sys.stderr)):
            # A stream that was closed is None.
            if stream is not None:
                if isinstance(stream, TextIOWrapper):
                    # A name of a file may be no UTF-8.
                    stream.reconfigure(errors="backslashreplace")
                output: Any = _Output(stream)
                stack.enter_context(redirect(output))
                stack.callback(output.flush)
        yield
