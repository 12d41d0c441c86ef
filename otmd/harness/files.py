"""The cache folder, and files that are either wholly there or not there at all."""

import errno
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PART = ".otmd-part"
_MAKE_ROOM = "Make room there and run the same again; what was finished is kept"
_GO_ELSEWHERE = "Choose a place that you may write to, or make this one writable"
_NO_FOLDER = "Choose another place: a file stands where a folder would be"
_NO_LOCKS = "Choose a place on a local disk: some network file systems have no locks"
ADVICE = {
    errno.ENOSPC: _MAKE_ROOM,
    errno.EDQUOT: _MAKE_ROOM,
    errno.EFBIG: _MAKE_ROOM,
    errno.EACCES: _GO_ELSEWHERE,
    errno.EPERM: _GO_ELSEWHERE,
    errno.EROFS: _GO_ELSEWHERE,
    errno.ENOTDIR: _NO_FOLDER,
    errno.EEXIST: _NO_FOLDER,
    errno.ENOLCK: _NO_LOCKS,
    errno.EOPNOTSUPP: _NO_LOCKS,
}


def cache_folder() -> Path:
    """Folder for everything fetched or converted, created where it is missing.

    The environment variable ``OTMD_CACHE`` names it outright; otherwise it is ``otmd`` inside the
    platform's cache folder of this user.
    """
    named = os.environ.get("OTMD_CACHE")
    return make_folder(Path(named).expanduser() if named else _platform_cache() / "otmd")


def _platform_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def advice_on_failure(path: Path) -> Iterator[None]:
    """Where the system refuses to write, name the file and say what to do about it.

    The error keeps its class and number.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in ADVICE:
            raise
        said = f"{os.strerror(error.errno)}. {ADVICE[error.errno]}"
        raise OSError(error.errno, said, str(path)) from error


def make_folder(path: Path) -> Path:
    """Create a folder and those above it where they are missing, and return it."""
    with advice_on_failure(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves either the old content or the new, never a part.

    Its folder is created where it is missing.
    """
    make_folder(path.parent)
    with advice_on_failure(path):
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=PART, dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def remove_leftovers(folder: Path) -> None:
    """Remove what ``write_atomically`` was writing into the folder when it was killed.

    Whoever calls this holds the folder's lock: another process may be writing otherwise.
    """
    for path in folder.glob(f".*{PART}"):
        path.unlink()


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Fill a folder beside ``path``, then rename it into place once all of it is written.

    Where another process has put ``path`` there meanwhile, its copy stays and ours is dropped.
    """
    make_folder(path.parent)
    with advice_on_failure(path):
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            yield temporary
            os.chmod(temporary, 0o755)
            try:
                os.rename(temporary, path)
            except OSError:
                if not path.is_dir():
                    raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
