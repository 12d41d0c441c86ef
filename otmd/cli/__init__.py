"""The command line: ``otmd collect | measure | solve | plan | decode | audit | demo``.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 an audit found a fault, 4 an audit is inconclusive,
130 interrupted, 143 terminated.
Results go to standard output, progress and errors to standard error.
"""

import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from io import TextIOWrapper
from typing import Any

from otmd.storage.files import one_line

INSTALL = 'pip install -e ".[{}]" in a clone of otmd'
OK = 0
FAILED = 1
USAGE = 2
FAULT_FOUND = 3
INCONCLUSIVE = 4
INTERRUPTED = 130
TERMINATED = 143


class UsageError(Exception):
    """An option with an invalid value."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; ``arguments`` replace those of ``sys.argv``."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    with _readers_may_leave(), _terminated_like_interrupted():
        return _main([token for token in tokens if token != "--debug"], "--debug" in tokens)


def _main(tokens: list[str], debug: bool) -> int:
    if tokens == ["--version"]:
        from otmd import __version__

        # Without the extras as well.
        print(__version__)
        return OK
    try:
        from cyclopts import CycloptsError
    except ModuleNotFoundError:
        return _fail(f"the command line needs more packages: {INSTALL.format('experiments')}")
    from otmd.cli.app import app, explained, run

    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = run(tokens)
            # A full disk is noticed here, not when Python ends.
            print(end="", flush=True)
    except (CycloptsError, UsageError) as error:
        command = next((token for token in tokens if not token.startswith("-")), None)
        named = f"otmd {command}" if command in [*app] else "otmd"
        said = _said(error) if isinstance(error, UsageError) else explained(error)
        return _fail(f"{said} (see: {named} --help)", USAGE)
    except KeyboardInterrupt as stop:
        ended = isinstance(stop, Terminated)
        said = ["terminated." if ended else "interrupted.", *getattr(stop, "__notes__", [])]
        return _fail(" ".join(said), TERMINATED if ended else INTERRUPTED)
    except Exception as error:
        if debug:
            traceback.print_exc()
        if isinstance(error, ModuleNotFoundError):
            return _fail(f"{error}: this command needs {INSTALL.format('llm,experiments')}")
        return _fail(_said(error))
    return code if isinstance(code, int) else OK


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does."""


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
        self._try(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, action: Callable[..., Any], *arguments: Any) -> None:
        try:
            action(*arguments)
        except OSError as error:
            # Otherwise Python writes the rest again when it ends, and fails.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            if not isinstance(error, BrokenPipeError):
                raise


@contextmanager
def _readers_may_leave() -> Iterator[None]:
    with ExitStack() as stack:
        for redirect, stream in (
            (redirect_stdout, sys.stdout),
            (redirect_stderr, sys.stderr),
        ):
            # A stream that was closed is None.
            if stream is not None:
                if isinstance(stream, TextIOWrapper):
                    # A name of a file may be no UTF-8.
                    stream.reconfigure(errors="backslashreplace")
                output: Any = _Output(stream)
                stack.enter_context(redirect(output))
                stack.callback(output.flush)
        yield


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    _fail(f"warning: {message}")


def _fail(message: str, code: int = FAILED) -> int:
    print(f"otmd: {one_line(message)}", file=sys.stderr)
    return code


def _said(error: BaseException) -> str:
    text = str(error).strip()
    expected = isinstance(error, (ValueError, OSError, RuntimeError, UsageError))
    if text and expected:
        return text
    return f"{type(error).__name__}: {text} (--debug shows where)"
