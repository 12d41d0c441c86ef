"""The command-line application with all its commands."""

import inspect
import re
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter, UnknownOptionError

from otmd import __version__
from otmd.cli import (
    UsageError,
    audit,
    collect,
    decode,
    demo,
    measure,
    options,
    plan,
    solve,
)

app = App(
    name="otmd",
    help=(
        "How far is a verifier for multi-draft speculative decoding from the optimum? "
        "Answered exactly, on toy distributions and on language models."
    ),
    help_epilogue=(
        "Examples:\n\n"
        "  otmd demo\n\n"
        "  otmd solve 1/2,1/4,1/4 1/4,1/4,1/2 --num-drafts 2\n\n"
        "Every command takes --debug, which shows where an error came from. Exit codes: 0 done, "
        "1 failed, 2 wrong usage, 3 an audit found a fault, 4 an audit is inconclusive, 130 interrupted, "
        "143 terminated."
    ),
    version=__version__,
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
    # Interrupts are handled by main, which reports what was kept.
    suppress_keyboard_interrupt=False,
)


def unwrapped(function: Callable[..., None]) -> Callable[..., None]:
    """Join the lines of each paragraph of a docstring, so that a terminal of any width can wrap them."""

    def paragraph(line: str) -> str | int:
        apart = not line.strip() or " : " in line or line.startswith("---")
        return line if apart else len(line) - len(line.lstrip())

    blocks = groupby((inspect.getdoc(function) or "").splitlines(), paragraph)
    joined = (" ".join([first, *map(str.strip, rest)]) for _, (first, *rest) in blocks)
    function.__doc__ = "\n".join(joined)
    return function


for module in (demo, collect, measure, plan, decode, audit, solve):
    name = module.__name__.rpartition(".")[2]
    examples = "Examples:" + module.EXAMPLES.replace("\n", "\n\n  ")
    command = unwrapped(getattr(module, name))
    app.command(command, help_epilogue=examples, group_parameters=options.DRAFTS)
app["solve"].usage = "Usage: otmd solve [OPTIONS] TARGET [DRAFT]"
app.register_install_completion_command(
    name="completion",
    help="Let the shell complete commands and options, such as --target-temperature after --target-temp.",
    help_epilogue="Examples:\n\n  otmd completion\n\n  otmd completion --shell bash",
)


def run(tokens: list[str]) -> Any:
    """Run a command, and return what it returns. An error that names an option is one of usage."""
    command, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    given = options.given_options(bound)
    options.refuse_overwriting(given)
    try:
        return command(*bound.args, **bound.kwargs)
    except ValueError as error:
        argument, _, said = str(error).partition(": ")
        option = options.option_of(argument)
        if option in given and not isinstance(given[option], Path):
            raise UsageError(f"{option}: {said}") from error
        raise


def explained(error: CycloptsError) -> str:
    """Message of an error of usage, with options that begin as an unknown one, or with an example."""
    if isinstance(error, UnknownOptionError):
        typed = (error.token.keyword or error.token.value).partition("=")[0]
        starts = [word for word in typed.split("-") if word]
        alike = {
            name: sum(f"-{word}" in name for word in starts)
            for argument in error.argument_collection
            for name in argument.names
        }
        if most := max(alike.values(), default=0):
            meant = " or ".join(name for name, words in alike.items() if words == most)
            return f"Unknown option: {typed}. Did you mean {meant}?"
    if isinstance(error, MissingArgumentError) and error.command_chain:
        (command,) = error.command_chain
        example = re.search(rf"otmd {command} .*", app[command].help_epilogue or "")
        return f"{error} For example: {example[0]}" if example else str(error)
    return str(error)
