"""Recorded rows from JSON Lines: one object a line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LONGEST_LINE = 32 << 20
"""Bytes: two full rows of 500,000 tokens, with 30 digits each."""
# Of those that become an object each; a row has a few dozen, and what its texts hold.
_MOST_PARTS = 10_000


def rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the lines of a file, with their numbers from 1.

    A line is read only as far as :data:`LONGEST_LINE`, so no file is too large to be refused.

    Raises
    ------
    ValueError
        For a line that is too long, empty, or no JSON object.
    """
    with path.open("rb") as stream:
        number = 0
        while line := stream.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE:
                raise ValueError(
                    f"{path}: row {number}: got a line of more than {LONGEST_LINE} bytes"
                )
            yield number, _parsed(path, number, line)


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        if sum(line.count(mark) for mark in b'[{:"') > _MOST_PARTS:
            raise ValueError(f"more than {_MOST_PARTS} brackets, colons and quotes")
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        what = "cut short" if not line.endswith(b"\n") else "malformed"
        raise ValueError(f"{path}: row {number}: no JSON, {what} ({error})") from error
    if not isinstance(row, dict):
        raise ValueError(
            f"{path}: row {number}: got {type(row).__name__}, wanted a JSON object with the fields"
        )
    return row
