"""Options that several commands share, and how their values are read."""

import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from cyclopts import Group, Parameter, Token
from cyclopts.types import PositiveFloat
from cyclopts.validators import Number

from otmd import __version__
from otmd.cli import UsageError
from otmd.registry import LAWS, find
from otmd.storage.files import one_line, shortened, write_atomically

if TYPE_CHECKING:
    from otmd.laws import DraftLaw
    from otmd.probabilities import Processing
    from otmd.study.table import Table

# The groups of options in every command's help, in this order. An option that names none is about drafts.
INPUT = Parameter(group=Group.create_ordered("Input and sampling"))
DRAFTS = Group.create_ordered("Drafts and verifiers")
RUN = Parameter(group=Group.create_ordered("Output"))
RARE = Parameter(group=Group.create_ordered("Rarely used"))


def about(text: str) -> Parameter:
    """The description of an option."""
    return Parameter(help=text)


def _whole(_: Any, tokens: Sequence[Token]) -> int:
    try:
        return int(tokens[0].value)
    except ValueError as error:
        # Cyclopts rounds 1.5.
        reason = f"got {shortened(tokens[0].value)!r}, expected a whole number"
        raise ValueError(reason) from error


PositiveInt = Annotated[int, Parameter(converter=_whole, validator=Number(gte=1))]
NonNegativeInt = Annotated[int, Parameter(converter=_whole, validator=Number(gte=0))]


class OutFile(type(Path())):
    """The path of a file that a command writes."""


Target = Annotated[str, INPUT, about("default, a folder, a .gguf file or a hub name.")]
Draft = Annotated[
    str,
    INPUT,
    about("skip:LAYERS, ngram, ngram:ORDER:FILE, ngram+context or a model."),
]
Prompts = Annotated[str, INPUT, about("code, maths, chat, prose, .jsonl or .txt.")]
PerDomain = Annotated[PositiveInt, INPUT, about("Prompts from each source.")]
Positions = Annotated[PositiveInt, INPUT, about("Positions of each answer.")]
MaxNewTokens = Annotated[PositiveInt, INPUT, about("The most new tokens of a text.")]
Temperature = Annotated[str, INPUT, about("Comma-separated, for logits.")]
NumDrafts = Annotated[str, about("Numbers of drafts: 1-4 or 1,2,8.")]
Law = Annotated[str, about(f"{', '.join(LAWS)}.")]
Top = Annotated[NonNegativeInt, about("For top-then: the number of tokens that are always drafted.")]
Figure = Annotated[list[OutFile] | None, RUN, about("Draw a .png, .pdf or .svg; may be repeated.")]
Json = Annotated[bool, RUN, Parameter("--json", help="Print a JSON object instead of tables.")]
Quiet = Annotated[bool, RUN, about("Show no progress bar.")]
TopK = Annotated[NonNegativeInt | None, RARE, about("Keep the k most likely tokens; 0 keeps all.")]
TopP = Annotated[float | None, RARE, about("Keep the most likely tokens of this total mass.")]
MinP = Annotated[float | None, RARE, about("Keep tokens at least this likely, relative to the top.")]
Order = Annotated[
    str | None,
    RARE,
    about("Order of cuts: transformers (default), vllm, llama.cpp, sglang, a list."),
]
Seed = Annotated[NonNegativeInt, RARE, about("Equal seeds give equal results.")]
Tol = Annotated[PositiveFloat, RARE, about("Width of bounds of a rate without a closed form.")]
Workers = Annotated[PositiveInt | None, RARE, about("Processes; one per CPU unless given.")]
Device = Annotated[str | None, RARE, about("Such as cpu; by default cuda if torch finds it.")]
ModelDtype = Annotated[str | None, RARE, about("Type of the weights, such as bfloat16.")]
Overwrite = Annotated[bool, RARE, about("Replace a run with other settings in the folder.")]

MakeLaw = Callable[[np.ndarray, int], "DraftLaw"]


def independent(draft_probs: np.ndarray, num_drafts: int) -> "DraftLaw":
    """Independent drafts: one from each row (n, V), or ``num_drafts`` from one distribution (V,)."""
    from otmd.laws import Independent

    if np.ndim(draft_probs) == 1:
        draft_probs = np.broadcast_to(draft_probs, (num_drafts, len(draft_probs)))
    return Independent(draft_probs, num_drafts)


def read_law(text: str, top: int) -> tuple[str, MakeLaw]:
    """Read ``--law greedy`` as a name and a function of (draft_probs, num_drafts)."""
    law, *more = read_laws(text, top)
    if more:
        raise UsageError(f"--law: got {text!r}, expected one law")
    return law


def read_laws(text: str, top: int) -> list[tuple[str, MakeLaw]]:
    """Read ``--law greedy,top-then`` as names and functions of (draft_probs, num_drafts)."""
    laws = [find("law", name, LAWS) for name in split("--law", text)]
    makers: dict[str, Any] = {law.name: law.load() for law in laws}
    if "independent" in makers:
        makers["independent"] = independent
    if "top-then" in makers:
        makers["top-then"] = partial(makers["top-then"], top=top)
    return [(law.class_name, makers[law.name]) for law in laws]


def counts(option: str, text: str, ranges: bool = True) -> list[int]:
    """Read ``1,2,4`` as whole numbers ≥ 1; with ``ranges``, also ``1-4``, and as a set in order."""
    from otmd.laws.base import MOST_DRAFTS

    values: list[int] = []
    for piece in split(option, text):
        ends = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?" if ranges else r"([0-9]+)()", piece)
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (0, 0)
        if not 1 <= first <= last <= MOST_DRAFTS:
            example = "1,2,4 or 1-4" if ranges else "3,2,1"
            raise UsageError(
                f"{option}: got {piece!r}, expected numbers such as {example}, from 1 to {MOST_DRAFTS}"
            )
        values += range(first, last + 1)
    return sorted(set(values)) if ranges else values


def exact_number(value: Any) -> float:
    """Read a number, or a text such as ``1/3`` or ``0.2``, exact until the last rounding.

    ValueError, ArithmeticError or TypeError for what is no number, or one beyond the range of a float.
    """
    # As an exact fraction, 10 to a large power can fill the memory.
    if isinstance(value, str) and re.search(r"[eE][-+]?[0_]*[1-9][0-9_]{3}", value):
        raise ValueError("an exponent beyond the range of a float")
    return float(Fraction(value))


def numbers(option: str, text: str, example: str) -> list[float]:
    """Read comma-separated numbers; an error message shows the ``example``."""
    values = []
    for piece in split(option, text):
        try:
            values.append(exact_number(piece))
        except (ValueError, ArithmeticError) as error:
            reason = f"got {shortened(piece)!r}, expected numbers such as {example}"
            raise UsageError(f"{option}: {reason}") from error
    return values


def split(option: str, text: str) -> list[str]:
    """Read comma-separated values."""
    pieces = [piece.strip() for piece in text.split(",")]
    if not all(pieces):
        raise UsageError(f"{option}: got {shortened(text)!r}, expected a value before and after every comma")
    return pieces


# What errors of the library call an option of another name.
_OPTION_NAMES = {"sources": "prompts", "layers": "draft", "dtype": "model_dtype"}
# Endings and names of files that hold data. A page in their place would destroy a data set or a run.
_DATA = {".parquet", ".safetensors", ".npz", ".npy", ".gguf", ".jsonl"}
_DATA |= {f"{run}.json" for run in ("collect", "measurement", "plan", "reach", "trees", "demo")}


def option_of(argument: str) -> str:
    """The option for an argument of a function: ``--num-drafts`` for ``num_drafts``."""
    return f"--{_OPTION_NAMES.get(argument, argument).replace('_', '-')}"


def given_options(bound: inspect.BoundArguments) -> dict[str, Any]:
    """The values on a command line by what messages call them: ``--num-drafts``, ``FILE``."""
    given: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        positional = bound.signature.parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY
        for field, part in (vars(value) if is_dataclass(value) else {name: value}).items():
            if part is not None:
                given[field.upper() if positional else f"--{field.replace('_', '-')}"] = part
    return given


def refuse_overwriting(given: Mapping[str, Any]) -> None:
    """Raise UsageError if a file to write holds data, is one to read, or another one to write."""
    named = [
        (option, path)
        for option, value in given.items()
        for path in (value if isinstance(value, list) else [value])
        if isinstance(path, (Path, str))
    ]
    for index, (option, path) in enumerate(named):
        if not isinstance(path, OutFile) or (path.exists() and not path.is_file()):
            continue
        if {path.suffix, path.name} & _DATA:
            raise UsageError(f"{option}: got {path}, expected a file of text or a figure, not of data")
        for holder, value in (*named[:index], *named[index + 1 :]):
            # --prompts a.jsonl,b.txt; --draft ngram:3:corpus.txt
            pieces = [value] if isinstance(value, Path) else [value, *re.split("[,:]", value)]
            if any(_is_file(piece, path) for piece in pieces):
                raise UsageError(f"{option}: got {path}, which {holder} names; expected another file")


def _is_file(named: Path | str, path: Path) -> bool:
    """Whether it is the same file, also by a link."""
    if os.path.exists(named) and path.exists():
        return path.samefile(named)
    return isinstance(named, Path) and path.resolve() == named.resolve()


@RUN
@Parameter(name="*")
@dataclass(frozen=True)
class Pages:
    """The files that a command writes in addition to what it prints."""

    html: Annotated[OutFile | None, about("Write a page that needs no other file.")] = None
    markdown: Annotated[OutFile | None, about("Write all tables.")] = None
    csv: Annotated[OutFile | None, about("Write one table with numbers in full.")] = None

    def write(
        self,
        title: str,
        said: list[str],
        tables: "list[Table]",
        about: dict[str, str],
        table: "Table",
    ) -> None:
        """Write sentences, tables and provenance as HTML and Markdown, and one table as CSV."""
        from otmd.study.table import html_page, markdown_page

        # It names a file, whose name may hold line ends.
        title = one_line(title)
        about = {**about, "otmd": __version__, "made again by": shlex.join(["otmd", *sys.argv[1:]])}
        for path, text in (
            (self.html, html_page(title, said, tables, about)),
            (self.markdown, markdown_page(title, said, tables)),
            (self.csv, table.to_csv()),
        ):
            if path is not None:
                # A name of a file may be no UTF-8.
                write_atomically(path, text.encode(errors="backslashreplace"))
                say_written([path])


NO_PAGES = Pages()


def say_written(paths: Sequence[Path]) -> None:
    """Name files that were written, on standard error."""
    for path in paths:
        print(f"Written: {path}", file=sys.stderr)


@Parameter(name="*")
@dataclass(frozen=True)
class Cuts:
    """The steps from logits to probabilities, but for the temperature."""

    top_k: TopK = None
    top_p: TopP = None
    min_p: MinP = None
    order: Order = None

    def at(self, temperature: float | None) -> "Processing":
        """The processing with these cuts at a temperature."""
        from otmd.probabilities import Processing

        at = 1.0 if temperature is None else temperature
        return Processing(at, self.top_k or None, self.top_p, self.min_p, self.order or "transformers")

    def at_each(self, temperatures: str) -> "list[Processing]":
        """Read ``0.6,1`` as one processing a temperature."""
        values = numbers("--temperature", temperatures, "0.6 or 0.6,1.0")
        return [self.at(value) for value in dict.fromkeys(values)]


NO_CUTS = Cuts()
