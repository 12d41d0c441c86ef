"""The command line: ``otmd collect | measure | solve | plan | decode | audit | demo``.

Results go to standard output, progress and errors to standard error. The exit codes are below.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
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
    with _readers_may_leave(), _terminated_like_interrupted():
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
def _terminated_like_interrupted() -> Iterator[None]:
    """Raise Terminated at SIGTERM. A SIGINT that the shell ignores, as of ``otmd … &``, stays ignored."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def stop(*_: Any) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


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
