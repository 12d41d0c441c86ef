"""Options that several commands share, and how their values are read."""

import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from otmd.registry import LAWS, VERIFIERS, Entry, find
from otmd.storage.files import one_line, shortened, write_atomically

if TYPE_CHECKING:
    from otmd.laws import DraftLaw
    from otmd.probabilities import Processing
    from otmd.study.table import Table


# The groups of options in every command's help, in this order. An option that names none is about drafts.
INPUT = Parameter(group=Group.create_ordered("Input"))
DRAFTS = Group.create_ordered("Drafts and verifiers")
SAMPLING = Parameter(group=Group.create_ordered("Sampling"))
TIMES = Parameter(group=Group.create_ordered("Times"))
ACCURACY = Parameter(group=Group.create_ordered("Accuracy"))
RUN = Parameter(group=Group.create_ordered("Output and run"))


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


Json = Annotated[bool, RUN, Parameter("--json", help="Print a JSON object instead of tables.")]
Quiet = Annotated[bool, RUN, Parameter(help="Show no progress bar.")]
Target = Annotated[
    str,
    INPUT,
    Parameter(
        help="The target model: default (SmolLM2-135M-Instruct, fetched once), a folder, a .gguf "
        "file, or a name on the hub."
    ),
]
Draft = Annotated[
    str,
    INPUT,
    Parameter(
        help="The draft: skip:13,15,17 (the target without these layers), ngram, "
        "ngram:ORDER:FILE, ngram+context (which learns from the text as it is written), or a "
        "second model over the same tokens, named like the target."
    ),
]
Prompts = Annotated[
    str,
    INPUT,
    Parameter(help="Comma-separated: code, maths, chat, prose, or your .jsonl and .txt files."),
]
PerDomain = Annotated[PositiveInt, INPUT, Parameter(help="How many prompts from each source.")]
Positions = Annotated[PositiveInt, SAMPLING, Parameter(help="How many positions of each answer.")]
MaxNewTokens = Annotated[PositiveInt, SAMPLING, Parameter(help="The most new tokens of a text.")]
Device = Annotated[
    str | None, RUN, Parameter(help="Such as cpu; by default cuda if torch finds it.")
]
ModelDtype = Annotated[str | None, RUN, Parameter(help="Type of the weights, such as bfloat16.")]
Seed = Annotated[NonNegativeInt, RUN, Parameter(help="Equal seeds give equal results.")]
NumDrafts = Annotated[str, Parameter(help="Numbers of drafts: 1-4 or 1,2,8.")]
Law = Annotated[str, Parameter(help=f"How drafts are drawn: {', '.join(LAWS)}.")]
Top = Annotated[
    NonNegativeInt,
    Parameter(help="For top-then: how many of the most likely tokens are always drafted."),
]
Tol = Annotated[
    PositiveFloat,
    ACCURACY,
    Parameter(help="How far apart bounds of a rate without a closed form may be."),
]
Temperature = Annotated[str, SAMPLING, Parameter(help="Comma-separated, for logits.")]
TopK = Annotated[PositiveInt | None, SAMPLING, Parameter(help="Keep the k most likely tokens.")]
TopKOrAll = Annotated[
    NonNegativeInt | None, SAMPLING, Parameter(help="Keep the k most likely tokens; 0 keeps all.")
]
TopP = Annotated[
    float | None,
    SAMPLING,
    Parameter(help="Keep the most likely tokens that together have this mass."),
]
MinP = Annotated[
    float | None,
    SAMPLING,
    Parameter(help="Keep the tokens at least this likely relative to the most likely."),
]
Order = Annotated[
    str | None,
    SAMPLING,
    Parameter(
        help="The order of temperature and cuts: transformers (the default), vllm, llama.cpp or sglang, or a "
        "list such as top_k,top_p,min_p,temperature."
    ),
]
Overwrite = Annotated[bool, RUN, Parameter(help="Replace a run with other settings in the folder.")]
Workers = Annotated[PositiveInt | None, RUN, Parameter(help="Processes; one per CPU unless given.")]
Figure = Annotated[
    list[OutFile] | None,
    RUN,
    Parameter(help="Also draw into this file, .png, .pdf or .svg; may be given more than once."),
]

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
    makers: dict[str, Any] = {"independent": independent}
    if "top" in text.lower():
        makers["top-then"] = partial(LAWS["top-then"].load(), top=top)
    return [
        (entry.class_name, makers.get(entry.name) or entry.load())
        for entry in _known("law", text, LAWS)
    ]


def read_verifiers(text: str) -> list[Any]:
    """Read ``--verifier optimal,k-sequential`` as classes."""
    return [entry.load() for entry in _known("verifier", text, VERIFIERS)]


def _known(argument: str, text: str, registry: Mapping[str, Entry]) -> list[Entry]:
    return [find(argument, name, registry) for name in split(option_of(argument), text)]


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


def processing(
    prefix: str,
    temperature: float | None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    order: str | None = None,
) -> "Processing":
    """Make a processing. An error names an option, behind the ``prefix``: ``--target-top-p``."""
    from otmd.probabilities import Processing

    try:
        at = 1.0 if temperature is None else temperature
        return Processing(at, top_k or None, top_p, min_p, order or "transformers")
    except ValueError as error:
        argument, _, said = str(error).partition(": ")
        raise UsageError(f"{option_of(prefix + argument)}: {said}") from error


def exact_number(value: Any) -> float:
    """Read a number, or a text such as ``1/3`` or ``0.2``, exact until the last rounding.

    ValueError, ArithmeticError or TypeError for what is no number, or one beyond the range of a float.
    """
    # As an exact fraction, 10 to a large power can fill the memory.
    if isinstance(value, str) and re.search(r"[eE][-+]?[0_]*[1-9][0-9_]{3}", value):
        raise ValueError("an exponent beyond the range of a float")
    return float(Fraction(value))


def numbers(option: str, text: str, read: Callable[[str], float], example: str) -> list[float]:
    """Read comma-separated numbers; an error message shows the ``example``."""
    values = []
    for piece in split(option, text):
        try:
            values.append(read(piece))
        except (ValueError, ArithmeticError) as error:
            reason = f"got {shortened(piece)!r}, expected numbers such as {example}"
            raise UsageError(f"{option}: {reason}") from error
    return values


def split(option: str, text: str) -> list[str]:
    """Read comma-separated values."""
    pieces = [piece.strip() for piece in text.split(",") if piece.strip()]
    if not pieces:
        raise UsageError(f"{option}: got {text!r}, expected at least one value")
    return pieces


def figures(paths: Sequence[Path] | None) -> list[Path]:
    """The files of ``--figure``, whose endings name known formats."""
    from otmd.study.style import figure_paths

    return figure_paths(paths or [], "figure")


# What errors of the library call an option of another name.
_OPTION_NAMES = {"sources": "prompts", "layers": "draft", "dtype": "model_dtype"}
# Endings and names of files that hold data. A page in their place would destroy a data set or a run.
_DATA = (".parquet", ".safetensors", ".npz", ".npy", ".gguf", ".jsonl")
_RECORDS = [f"{run}.json" for run in ("collect", "measurement", "plan", "reach", "trees", "demo")]


def option_of(argument: str) -> str:
    """The option for an argument of a function: ``--num-drafts`` for ``num_drafts``."""
    return f"--{_OPTION_NAMES.get(argument, argument).replace('_', '-')}"


def given_options(bound: inspect.BoundArguments) -> dict[str, Any]:
    """The values on a command line by what messages call them: ``--num-drafts``, ``FILE``."""
    given: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        positional = bound.signature.parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY
        values = vars(value) if is_dataclass(value) else {name: value}
        for field, part in values.items():
            if part is not None:
                given[field.upper() if positional else f"--{field.replace('_', '-')}"] = part
    return given


def refuse_overwriting(given: Mapping[str, Any]) -> None:
    """Raise UsageError if a file to write is one to read, a part of a folder, or another one to write."""
    named = [
        (option, path)
        for option, value in given.items()
        for path in (value if isinstance(value, list) else [value])
        if isinstance(path, (Path, str))
    ]
    for index, (option, path) in enumerate(named):
        if not isinstance(path, OutFile) or (path.exists() and not path.is_file()):
            continue
        if path.suffix in _DATA:
            raise UsageError(
                f"{option}: got {path}, expected a file of text or a figure, not of data"
            )
        for holder, value in (*named[:index], *named[index + 1 :]):
            if any(_is_or_holds(piece, path) for piece in _paths(value)):
                raise UsageError(
                    f"{option}: got {path}, which {holder} names; expected another file"
                )


def _paths(value: Path | str) -> list[str]:
    if isinstance(value, Path):
        return [str(value)]
    # --prompts a.jsonl,b.txt; --draft ngram:3:corpus.txt
    return [piece for piece in (value, *re.split("[,:]", value)) if os.path.exists(piece)]


def _is_or_holds(named: str, path: Path) -> bool:
    """Whether it is the same file, also by a link, or a folder whose record the path would replace."""
    if os.path.isdir(named):
        return path.name in _RECORDS and path.parent.resolve() == Path(named).resolve()
    if os.path.exists(named) and path.exists():
        return path.samefile(named)
    return path.resolve() == Path(named).resolve()


@contextmanager
def kept_when_stopped(said: Callable[[], str]) -> Iterator[None]:
    """If the block is interrupted, say what was kept of its work."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.add_note(f"{said()}; the same command goes on from there.")
        raise


def default_folder(dataset: Path, ending: str) -> Path:
    """The folder for what a command makes of a dataset, unless ``--output`` names one."""
    return dataset.parent / f"{dataset.stem if dataset.is_file() else dataset.name}-{ending}"


@RUN
@Parameter(name="*")
@dataclass(frozen=True)
class Pages:
    """The files that a command writes in addition to what it prints."""

    html: Annotated[OutFile | None, Parameter(help="Write a page that needs no other file.")] = None
    markdown: Annotated[OutFile | None, Parameter(help="Write all tables.")] = None
    csv: Annotated[OutFile | None, Parameter(help="Write one table with numbers in full.")] = None

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
        return processing("", temperature, self.top_k, self.top_p, self.min_p, self.order)

    def at_each(self, temperatures: str) -> "list[Processing]":
        """Read ``0.6,1`` as one processing a temperature."""
        values = numbers("--temperature", temperatures, float, "0.6 or 0.6,1.0")
        return [self.at(value) for value in dict.fromkeys(values)]


NO_CUTS = Cuts()
