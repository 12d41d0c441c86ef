"""The cache folder, and files that are either wholly there or not there at all."""

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PART = ".otmd-part"


def cache_folder() -> Path:
    """Folder for everything fetched or converted, created where it is missing.

    The environment variable ``OTMD_CACHE`` names it outright; otherwise it is ``otmd`` inside the
    platform's cache folder of this user.
    """
    named = os.environ.get("OTMD_CACHE")
    folder = Path(named).expanduser() if named else _platform_cache() / "otmd"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


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


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves either the old content or the new, never a part."""
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
    """Remove what ``write_atomically`` was writing into the folder when it was killed."""
    for path in folder.glob(f".*{PART}"):
        path.unlink()


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Fill a folder beside ``path``, then rename it into place once all of it is written.

    Where another process has put ``path`` there meanwhile, its copy stays and ours is dropped.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
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
