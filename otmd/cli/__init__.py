"""The command line: ``otmd collect | measure | solve | report | plan | decode | audit | demo | warmup``.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 an audit found a fault, 4 too few rows, 130 interrupted.
Results go to standard output, progress and errors to standard error.
"""

import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

from otmd.storage.files import one_line

INSTALL = 'pip install -e ".[{}]" in a clone of otmd'
OK = 0
FAILED = 1
USAGE = 2
FAULT_FOUND = 3
INCONCLUSIVE = 4
INTERRUPTED = 130


class UsageError(Exception):
    """An option with an invalid value."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; ``arguments`` replace those of ``sys.argv``."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal may lack ≥, and file names and ids may be no UTF-8.
        sys.stdout.reconfigure(errors="backslashreplace")
    debug = "--debug" in tokens
    tokens = [token for token in tokens if token != "--debug"]
    if tokens == ["--version"]:
        from otmd import __version__

        # Without the extras as well.
        print(__version__)
        return OK
    try:
        from cyclopts import CycloptsError
    except ModuleNotFoundError:
        return _fail(f"the command line needs more packages: {INSTALL.format('experiments')}")
    from otmd.cli.app import app, explained

    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    except (CycloptsError, UsageError) as error:
        command = next((token for token in tokens if not token.startswith("-")), None)
        named = f"otmd {command}" if command in [*app] else "otmd"
        said = _said(error) if isinstance(error, UsageError) else explained(error)
        return _fail(f"{said} (see: {named} --help)", USAGE)
    except KeyboardInterrupt as stop:
        return _fail(" ".join(["interrupted.", *getattr(stop, "__notes__", [])]), INTERRUPTED)
    except BrokenPipeError:
        _discard_output()
        return FAILED
    except Exception as error:
        if debug:
            traceback.print_exc()
        if isinstance(error, ModuleNotFoundError):
            return _fail(f"{error}: this command needs {INSTALL.format('llm,experiments')}")
        return _fail(_said(error))
    return code if isinstance(code, int) else OK


def print_verdict(text: str) -> None:
    """Print what decides the exit code, which a reader that closes the pipe (`| head -1`) does not change."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        _discard_output()


def _discard_output() -> None:
    # Without this, Python reports an error at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
