"""Errors of files and folders, each told in one line, and JSON that is read strictly."""

import json
from typing import Any


class DatasetError(ValueError):
    """A stored file or folder is unfinished, torn or altered."""


class FolderLockedError(RuntimeError):
    """Another process is writing into the same folder."""


def one_line(said: object) -> str:
    """What an error says, or a file holds, without its line breaks; control characters are escaped."""
    text = " ".join(str(said).split())
    return "".join(own if own.isprintable() else ascii(own)[1:-1] for own in text)


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError if it is none, is nested too deeply, or an object has a name twice."""
    try:
        return json.loads(text, object_pairs_hook=_distinct)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it names {named(twice)!r} twice")
    return dict(pairs)


def named(field: str) -> str:
    """Return the name that a file gives a field, short enough for a message."""
    return one_line(field)[:40]
