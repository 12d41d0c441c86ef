"""Observations in a file: a line of JSON for each row, in place of its distributions."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from otmd.audit import claims
from otmd.audit.boundary_cases import KINDS
from otmd.audit.observer import (
    CLASSES,
    Classified,
    DraftNumbers,
    Observation,
    OutputNumbers,
    Repeat,
)
from otmd.audit.records import LONGEST_LABEL, MOST_ROWS, rows_of_json_lines
from otmd.probabilities import wrong
from otmd.storage.files import shortened

NUMBERS = "numbers.jsonl"
_OF_CLAIMS = "numbers_of_claims"
_MOST = 2**63 - 1
# Sums of probabilities may be above 1 by rounding.
_ROUNDING = 1e-6


def header(law: str) -> str:
    """The first line of a file: the law of the drafts, and the claims that its numbers are of."""
    return _line({"law": law, _OF_CLAIMS: [*claims.CLAIMS]})


def line_of(observation: Observation) -> str:
    """An observation as a line."""
    values = observation._asdict()
    values["drafts"] = [draft._asdict() for draft in observation.drafts]
    output = observation.output
    values["output"] = None if output is None else output._asdict()
    return _line(values)


def _line(values: dict[str, Any]) -> str:
    return json.dumps(values, separators=(",", ":"), allow_nan=False) + "\n"


def law_of_numbers(path: Path) -> str:
    """The name of the law under which the numbers of a file were computed."""
    if not path.is_file():
        raise wrong(path, "no regular file", "one")
    _, first = next(rows_of_json_lines(path), (1, {}))
    law = first.get("law")
    if first.keys() != {"law", _OF_CLAIMS} or not isinstance(law, str):
        raise wrong(f"{path}: row 1", "another line", "the first one that a Recorder writes")
    if first[_OF_CLAIMS] != [*claims.CLAIMS]:
        raise wrong(f"{path}: row 1", "numbers of other claims", "those of this version of otmd")
    return shortened(law, LONGEST_LABEL)


def read_numbers(path: Path) -> Iterator[Observation]:
    """The observations of a file; a ValueError names the line and the field."""
    law_of_numbers(path)
    with path.open("rb") as stream:
        stream.seek(-1, os.SEEK_END)
        if stream.read() != b"\n":
            expected = "a whole one: wait for it if the engine records, or remove it"
            raise wrong(f"{path}: the last line", "a part of a line", expected)
    lines = rows_of_json_lines(path)
    next(lines)
    for number, values in lines:
        if number > MOST_ROWS:
            raise ValueError(f"{path}: got more than {MOST_ROWS} rows: audit them in parts")
        try:
            yield _observation(values)
        except ValueError as error:
            raise ValueError(f"{path}: row {number}: {error}") from error


def _observation(values: dict[str, Any]) -> Observation:
    at = _fields("row", values, Observation)
    size = at["vocab_size"]
    output = at["output"]
    return Observation(
        row=_whole("row", at["row"], 1),
        request=_text("request", at["request"]),
        depth=_whole("depth", at["depth"], 0),
        num_drafts=_whole("num_drafts", at["num_drafts"], 0),
        decided=_flag("decided", at["decided"]),
        accepted=_flag("accepted", at["accepted"]),
        vocab_size=None if size is None else _whole("vocab_size", size, 1),
        listed=_list("listed", at["listed"], _mass, 2),
        cases=_list("cases", at["cases"], _kind),
        drafts=_list("drafts", at["drafts"], _draft),
        output=None if output is None else _output("output", output),
    )


def _draft(name: str, value: Any) -> DraftNumbers:
    at = _fields(name, value, DraftNumbers)
    count = len(claims.claims_in_order(claims.DRAFT_TOKENS))
    return DraftNumbers(
        starts=_list("starts", at["starts"], _prob, count),
        mass=_prob("mass", at["mass"]),
        tail=_prob("tail", at["tail"]),
        in_position=_repeat("in_position", at["in_position"]),
        from_before=_repeat("from_before", at["from_before"]),
    )


def _output(name: str, value: Any) -> OutputNumbers:
    at = _fields(name, value, OutputNumbers)
    ceiling = at["ceiling"]
    classes = _list("classes", at["classes"], count=len(CLASSES))
    return OutputNumbers(
        starts=_list("starts", at["starts"], _prob, len(claims.claims_in_order(claims.OUTPUTS))),
        mass=_prob("mass", at["mass"]),
        tail=_prob("tail", at["tail"]),
        classes=tuple(
            _classified(value, len(names))
            for value, names in zip(classes, CLASSES.values(), strict=True)
        ),
        has_draft=_flag("has_draft", at["has_draft"]),
        ceiling=None if ceiling is None else _prob("ceiling", ceiling),
    )


def _classified(value: Any, num_classes: int) -> Classified:
    label, masses = _list("classes", value, count=2)
    if _whole("classes", label, 0) >= num_classes:
        raise wrong("classes", label, f"a class below {num_classes}")
    return Classified(label, _list("classes", masses, _prob, num_classes))


def _repeat(name: str, value: Any) -> Repeat | None:
    if value is None:
        return None
    happened, prob = _list(name, value, count=2)
    return Repeat(_flag(name, happened), min(1.0, _prob(name, prob)))


def _fields(name: str, value: Any, kind: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != {*kind._fields}:
        raise wrong(name, shortened(repr(value)), f"the fields {', '.join(kind._fields)}")
    return value


def _list(
    name: str,
    value: Any,
    item: Callable[[str, Any], Any] = lambda _, x: x,
    count: int | None = None,
) -> tuple[Any, ...]:
    if not isinstance(value, list) or (count is not None and len(value) != count):
        raise wrong(name, shortened(repr(value)), f"a list of {'' if count is None else count}")
    return tuple(item(name, x) for x in value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise wrong(name, shortened(repr(value)), "true or false")
    return value


def _kind(name: str, value: Any) -> str:
    if _text(name, value) not in KINDS:
        raise wrong(name, shortened(value), "a kind of boundary case")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_LABEL:
        raise wrong(name, shortened(repr(value)), f"a text of at most {LONGEST_LABEL} characters")
    return value


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
        raise wrong(name, shortened(repr(value)), f"a whole number from {least}")
    return value


def _mass(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        raise wrong(name, shortened(repr(value)), "a number")
    return float(value)


def _prob(name: str, value: Any) -> float:
    if not 0 <= _mass(name, value) <= 1 + _ROUNDING:
        raise wrong(name, value, "a probability")
    return float(value)
