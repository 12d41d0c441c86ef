"""The command-line application with all its commands."""

import re
import traceback
import warnings
from pathlib import Path
from typing import Any

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter, UnknownOptionError

from otmd import __version__
from otmd.cli import (
    FAILED,
    OK,
    USAGE,
    UsageError,
    audit,
    collect,
    decode,
    demo,
    fail,
    measure,
    options,
    plan,
    solve,
)

# Packages of the extras; the commands that run models need both.
LLM = {"torch", "transformers", "tokenizers", "gguf", "accelerate"}
EXPERIMENTS = {"polars", "pyarrow", "joblib", "matplotlib", "rich", "safetensors"}
RUN_MODELS = ("demo", "collect", "plan", "decode")


def _shown(default: object) -> str | None:
    """A default in the help; those that say nothing are not shown."""
    return None if default is None or default is False else str(default)


app = App(
    name="otmd",
    help=(
        "How far is a verifier for multi-draft speculative decoding from the optimum? "
        "Answered exactly, on toy distributions and on language models."
    ),
    help_epilogue=(
        "Examples:  \n"
        "otmd demo  \n"
        "otmd solve 1/2,1/4,1/4 1/4,1/4,1/2 --num-drafts 2\n\n"
        "Every command takes --debug, which shows where an error came from. Exit codes: 0 done, "
        "1 failed, 2 wrong usage, 3 an audit found a fault, 4 an audit is inconclusive, 130 interrupted, "
        "143 terminated."
    ),
    version=__version__,
    help_format="markdown",
    default_parameter=Parameter(negative=(), show_default=_shown),
    # Interrupts are handled by main, which reports what was kept.
    suppress_keyboard_interrupt=False,
)
for module in (demo, collect, measure, plan, decode, audit, solve):
    name = module.__name__.rpartition(".")[2]
    # Two spaces end a line in Markdown.
    examples = "Examples:  \n" + module.EXAMPLES.strip().replace("\n", "  \n")
    app.command(getattr(module, name), help_epilogue=examples, group_parameters=options.DRAFTS)
app["solve"].usage = "Usage: otmd solve [OPTIONS] TARGET [DRAFT]"
app.register_install_completion_command(
    name="completion",
    help="Let the shell complete commands and options.",
    help_epilogue="Examples:  \notmd completion  \notmd completion --shell bash",
)


def run(tokens: list[str], debug: bool) -> int:
    """Run a command and return its exit code; an error is one line on standard error."""
    command = next((token for token in tokens if not token.startswith("-")), None)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: fail(f"warning: {message}") and None
            code = _run(tokens)
            # A full disk is noticed here, not when Python ends.
            print(end="", flush=True)
            return code if isinstance(code, int) else OK
    except (CycloptsError, UsageError) as error:
        named = f"otmd {command}" if command in [*app] else "otmd"
        said = explained(error) if isinstance(error, CycloptsError) else error
        return fail(f"{said} (see: {named} --help)", USAGE)
    except Exception as error:
        if debug:
            traceback.print_exc()
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        module = (absent or "").partition(".")[0]
        if module in LLM | EXPERIMENTS:
            models = command in RUN_MODELS or module in LLM
            extras = "llm,experiments" if models else "experiments"
            return fail(f'otmd {command} needs {module}: pip install "otmd[{extras}]"')
        if isinstance(error, OSError) and error.filename and error.strerror:
            return fail(f"{error.filename}: {error.strerror}")
        if isinstance(error, (ValueError, OSError, RuntimeError)) and str(error).strip():
            return fail(error)
        return fail(f"{type(error).__name__}: {error} (--debug shows where)", FAILED)


def _run(tokens: list[str]) -> Any:
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
        alike = {
            name: sum(f"-{word}" in name for word in typed.split("-") if word)
            for argument in error.argument_collection
            for name in argument.names
        }
        if most := max(alike.values(), default=0):
            meant = " or ".join(name for name, words in alike.items() if words == most)
            return f"Unknown option: {typed}. Did you mean {meant}?"
    if isinstance(error, MissingArgumentError) and error.command_chain:
        (command,) = error.command_chain
        example = re.search(rf"otmd {command} .*\S", app[command].help_epilogue or "")
        return f"{error} For example: {example[0]}" if example else str(error)
    return str(error)
