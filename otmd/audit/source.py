"""The source of an audit: a list of dicts, or a file of JSON lines, read within bounds."""

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from otmd.probabilities import wrong, wrong_type
from otmd.storage.files import parse_json

# Bytes of a line of JSON: two full rows of 500,000 tokens, with 30 digits each.
LONGEST_LINE = 32 << 20
# Brackets, colons and quotes of a line: each may become a Python object. A sound row has a few dozen.
_MOST_MARKS = 10_000
Fields = Mapping[str, Any]
Source = str | Path | Sequence[Fields]


def numbered(source: Source, name: str) -> tuple[Iterator[tuple[int, Fields]], str]:
    """The rows of a file or list with their numbers from 1, and its name in messages."""
    if isinstance(source, str | Path):
        return _lines_of(Path(source)), str(source)
    if isinstance(source, Sequence) and all(isinstance(row, Mapping) for row in source):
        return iter(enumerate(source, start=1)), name
    raise wrong_type("source", source, "a path or a list of mappings")


def _lines_of(path: Path) -> Iterator[tuple[int, Fields]]:
    """The objects of a file of JSON lines with the numbers of their lines; blank lines are skipped.

    A line longer than :data:`LONGEST_LINE` is refused before it is read in full.
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    endings = [ending.lower() for ending in path.suffixes[-2:]]
    is_packed = endings[-2:] == [".jsonl", ".gz"]
    if not is_packed and endings[-1:] != [".jsonl"]:
        raise wrong(path, f"a {path.suffix!r} file", "a .jsonl or .jsonl.gz file, or a folder")
    if not path.is_file():
        raise wrong(path, "no regular file (a pipe or a device)", "one")
    return _objects(path, is_packed)


def _objects(path: Path, is_packed: bool) -> Iterator[tuple[int, Fields]]:
    with gzip.open(path) if is_packed else path.open("rb") as stream:
        for number, line in enumerate(iter(lambda: _next_line(path, stream), b""), start=1):
            name = f"{path}: row {number}"
            if len(line) > LONGEST_LINE:
                raise ValueError(f"{name}: got a line of more than {LONGEST_LINE} bytes")
            if not line.strip():
                continue
            try:
                if sum(line.count(mark) for mark in b'[{:"') > _MOST_MARKS:
                    raise ValueError(f"more than {_MOST_MARKS} brackets, colons and quotes")
                fields = parse_json(line)
            except ValueError as error:
                fault = "malformed" if line.endswith(b"\n") else "cut short"
                raise ValueError(f"{name}: no JSON, {fault} ({error})") from error
            if not isinstance(fields, dict):
                raise wrong(name, type(fields).__name__, "a JSON object with the fields")
            yield number, fields


def _next_line(path: Path, stream: gzip.GzipFile | IO[bytes]) -> bytes:
    try:
        return stream.readline(LONGEST_LINE + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: cut short, or no gzip file ({error})") from error
