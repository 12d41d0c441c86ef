"""Files: one-line errors, JSON read strictly, files written whole or not at all, locked folders."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# End of the name of a file or folder that is still being written.
PART = ".otmd-part"
# The lock of a folder, and the file that names the process that holds it.
LOCK, HOLDER = "otmd.lock", "otmd.holder"
_STDOUT = 1
_ROOM = "Make room there and run the same again; what was finished is kept"
_WRITABLE = "Choose a place that you may write to, or make this one writable"
_FILE = "Choose another place: a file stands where a folder would be"
_LOCAL = "Choose a place on a local disk: some network file systems have no locks"
_ADVICE: dict[int, str] = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _ROOM),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT), _WRITABLE),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), _FILE),
    **dict.fromkeys((errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP), _LOCAL),
}


class DatasetError(ValueError):
    """A stored file or folder is unfinished, torn or altered."""


class FolderLockedError(RuntimeError):
    """Another process is writing into the same folder."""


def one_line(said: object) -> str:
    """The text of an error or of a file in one line, with control characters escaped."""
    text = " ".join(str(said).split())
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def shortened(said: object, most: int = 40) -> str:
    """A text in one line, short enough for a message; … stands for what is cut off."""
    # A file may hold texts of many megabytes.
    text = one_line(str(said)[: 10 * most])
    return text if len(text) <= most else f"{text[:most]}…"


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; ValueError if the text is not JSON, is nested too deeply, or an object has a name twice."""

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        refuse_repeated(name for name, _ in pairs)
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=distinct)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def refuse_repeated(names: Iterable[str], where: object = "it") -> None:
    """Raise DatasetError if two fields, arrays or columns of a file have one name."""
    for name, count in Counter(names).most_common(1):
        if count > 1:
            raise DatasetError(f"{where} names {shortened(name)!r} twice")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def advice_on_failure(path: Path) -> Iterator[None]:
    """Add the path and advice to an OSError of the block; its class and number stay."""
    try:
        yield
    except OSError as error:
        if error.errno not in _ADVICE:
            raise
        reason = f"{os.strerror(error.errno)}. {_ADVICE[error.errno]}"
        raise OSError(error.errno, reason, str(path)) from error


def make_folder(path: Path) -> Path:
    """Create a folder and its parents where they are missing, and return it."""
    with advice_on_failure(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file, and make its folder if missing. A crash leaves either the old content or the new.

    A link stays, and its target is written. A pipe, a device and standard output are written in place.
    """
    is_stdout = False
    with suppress(OSError):
        # /dev/stdout may be a regular file: opened anew, it would lose what was printed.
        is_stdout = os.path.samestat(path.stat(), os.fstat(_STDOUT))
    if is_stdout or (path.exists() and not path.is_file() and not path.is_dir()):
        if is_stdout:
            sys.stdout.flush()
        file = _STDOUT if is_stdout else path
        with advice_on_failure(path), open(file, "wb", closefd=not is_stdout) as opened:
            opened.write(data)
        return
    path = path.resolve()
    # Unlike a file of tempfile, one made by open has the mode that the umask asks for.
    temporary = make_folder(path.parent) / f".{secrets.token_hex(8)}{PART}"
    with advice_on_failure(path):
        try:
            with temporary.open("xb") as opened:
                opened.write(data)
                opened.flush()
                os.fsync(opened.fileno())
            if path.exists():
                shutil.copymode(path, temporary)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def folder_lock(folder: Path, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a folder, which is made if missing, during the block; a killed process frees it.

    If another process holds it: wait, or raise FolderLockedError. OSError, with advice, if locking fails.
    """
    from filelock import FileLock, Timeout

    holder = make_folder(folder) / HOLDER
    who = "a process without a name"
    try:
        with advice_on_failure(folder / LOCK):
            lock = FileLock(folder / LOCK).acquire(timeout=-1 if wait else 0)
    except Timeout:
        with suppress(FileNotFoundError):
            who = holder.read_text("utf-8", "replace").strip() or who
        raise FolderLockedError(
            f"another process is writing into {folder} ({who}). Wait for it, "
            "or stop it and run the same again, which goes on from what it finished"
        ) from None
    with lock:
        try:
            with advice_on_failure(holder):
                holder.write_text(f"process {os.getpid()} on {socket.gethostname()}\n", "utf-8")
            yield
        finally:
            holder.unlink(missing_ok=True)
