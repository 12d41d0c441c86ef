"""A folder in which a run stores its parts by name, so that an interrupted run can be continued.

It may also hold a *record* (JSON that describes the run) and a *result* (what a finished run writes).
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from otmd.storage import files

Part = TypeVar("Part")
_LONGEST_VALUE = 60
_MOST_DIFFERENCES = 6


class Layout(NamedTuple, Generic[Part]):
    """The files of one kind of store.

    ``read(path)`` returns a part; ValueError if the file is torn. The name of a part matches ``pattern``, and
    its file ends with ``suffix``. ``record`` and ``result`` are file names, "" for none. The parts and the
    lock lie in ``subfolder``, "" for the folder itself. ``argument`` is what error messages call the folder.
    """

    read: Callable[[Path], Part]
    suffix: str = ".parquet"
    pattern: str = ".+"
    record: str = ""
    result: str = ""
    subfolder: str = ""
    argument: str = "output"


class Store(Generic[Part]):
    """A folder of named parts, created when the store is held for the first time.

    ``description`` has the settings that the parts depend on. A folder holds parts of one description:
    ``overwrite`` removes those of another, without it they are an error. One process at a time writes.
    """

    def __init__(
        self,
        folder: Path,
        description: dict[str, Any] | None,
        layout: Layout[Part],
        overwrite: bool = False,
    ) -> None:
        self.folder = folder
        self.layout = layout
        self.overwrite = overwrite
        self.parts = folder / layout.subfolder
        self._record = folder / (layout.record or files.LOCK)
        # If the layout has no result, this is the folder, for which is_file is false.
        self.result = folder / layout.result
        self._description = json.loads(json.dumps(description))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Begin or continue the run, and keep other processes out of the folder during the block.

        Errors are those of :meth:`check` and :func:`files.folder_lock`. An interrupt says what is kept.
        """
        # This comes before the lock, which writes a file into the folder.
        self._check_files()
        with files.folder_lock(self.parts):
            # A killed process left them: a living one would hold the lock.
            for folder in {self.folder, self.parts}:
                for path in folder.glob(f".*{files.PART}"):
                    path.unlink()
            if self.overwrite and self._difference():
                self.clear()
            self.check()
            if self.layout.record and not self._begun():
                text = json.dumps(self._description, indent=1, ensure_ascii=False)
                files.write_atomically(self._record, text.encode() + b"\n")
            try:
                yield
            except KeyboardInterrupt as stop:
                stop.add_note(f"What was finished is kept in {self.folder}; the same command resumes it.")
                raise

    def check(self) -> None:
        """Raise ValueError if the folder holds a run with another description, or other files."""
        self._check_files()
        if not self.overwrite and (difference := self._difference()):
            raise ValueError(
                f"{self.layout.argument}: {self.folder} {difference}; give --overwrite to replace it, "
                f"or another {self.layout.argument}"
            )

    def finished(self) -> bool:
        """Whether the result is there and will not be replaced because of ``overwrite``."""
        return self.result.is_file() and not (self.overwrite and self._difference())

    def names(self) -> list[str]:
        """Names of the parts, sorted. The files are not read, so some may be torn."""
        suffix = self.layout.suffix
        names = [path.name.removesuffix(suffix) for path in self.parts.glob(f"*{suffix}")]
        return sorted(name for name in names if re.fullmatch(self.layout.pattern, name))

    def path(self, name: str) -> Path:
        """Return the file of a part."""
        return self.parts / f"{name}{self.layout.suffix}"

    def read(self, name: str) -> Part | None:
        """Read a part; None if it is missing or torn, and has to be made again."""
        try:
            return self.layout.read(self.path(name))
        except (FileNotFoundError, ValueError):
            return None

    def write(self, name: str, data: bytes) -> None:
        """Store a part. The caller holds the store."""
        files.write_atomically(self.path(name), data)

    def clear(self) -> None:
        """Remove the parts and the result, and nothing else that lies in the folder."""
        for path in [*map(self.path, self.names()), self.result]:
            if path.is_file():
                path.unlink()

    def _begun(self) -> bool:
        return self.result.is_file() or bool(self.names())

    def _check_files(self) -> None:
        """Raise ValueError if the folder belongs to something else."""
        layout = self.layout
        if self._record.exists() or not self.folder.is_dir():
            return
        allowed = {files.LOCK, files.HOLDER}
        if not layout.record:
            allowed |= {self.path(name).name for name in self.names()}
        elif (self.parts / files.LOCK).exists() and not self.names():
            # A run left the subfolder that was killed before it wrote its record. Parts without a record are
            # refused, since nothing says with which settings they were made.
            allowed.add(layout.subfolder)
        names = sorted(path.name for path in self.folder.iterdir() if path.name[0] != ".")
        if foreign := [name for name in names if name not in allowed]:
            without = f" without their {layout.record}" if layout.record else ""
            shown = files.one_line(", ".join(foreign[:3])) + ", …" * (len(foreign) > 3)
            raise ValueError(
                f"{layout.argument}: {self.folder} holds files{without} ({shown}), expected a new or "
                "empty folder, or one in which such a run was begun"
            )

    def _difference(self) -> str:
        """Why this run may not use the folder, in words; "" if it may."""
        if not self.layout.record or not self._record.is_file():
            return ""
        try:
            stored = dict(files.parse_json(self._record.read_text("utf-8")))
        except (ValueError, TypeError) as error:
            reason = files.shortened(error, _LONGEST_VALUE)
            return (
                f"was begun by a run whose {self._record.name} is torn or was not written by otmd ({reason})"
            )
        # Settings of a run that stored nothing yet do not matter.
        differing = _differences(stored, self._description) if self._begun() else []
        shown = "; ".join(differing[:_MOST_DIFFERENCES])
        more = len(differing) - _MOST_DIFFERENCES
        if more > 0:
            shown += f"; and {more} more"
        return f"was begun with other settings ({shown})" if shown else ""


def _differences(stored: Any, asked: Any, name: str = "") -> list[str]:
    """The settings that differ, each by its path: ``"target.name: stored a, asked b"``; {} is nothing."""
    if isinstance(stored, dict) and isinstance(asked, dict):
        differing = []
        for key in {**stored, **asked}:
            path = f"{name}.{key}" if name else key
            differing += _differences(stored.get(key, {}), asked.get(key, {}), path)
        return differing
    if stored == asked:
        return []
    if isinstance(stored, list) and isinstance(asked, list):
        sides = [(stored, asked), (asked, stored)]
        stored, asked = (
            ", ".join(str(value) for value in values if value not in others) or "nothing more"
            for values, others in sides
        )
    said = ("nothing" if value == {} else value for value in (stored, asked))
    texts = [files.shortened(text, _LONGEST_VALUE) for text in (name, *said)]
    return ["{}: stored {}, asked {}".format(*texts)]
