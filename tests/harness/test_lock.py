"""One process at a time writes into a folder, and the next is told what to do."""

import errno
import os

import pytest

from otmd.harness import FolderLockedError
from otmd.harness.lock import FILE, folder_lock


def test_a_second_holder_is_refused_and_told_who_and_what_to_do(tmp_path):
    with (
        folder_lock(tmp_path / "new"),
        pytest.raises(FolderLockedError, match=rf"\(process {os.getpid()} on .*Wait for it"),
        folder_lock(tmp_path / "new"),
    ):
        pass
    with folder_lock(tmp_path / "new"):
        pass


def test_the_lock_ends_with_an_exception(tmp_path):
    with pytest.raises(KeyError), folder_lock(tmp_path):
        raise KeyError
    with folder_lock(tmp_path):
        assert str(os.getpid()) in (tmp_path / FILE).read_text()


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(pytest.importorskip("fcntl"), "flock", refuse)
    with pytest.raises(OSError, match=rf"local disk.*{tmp_path}"), folder_lock(tmp_path):
        pass


def test_a_disk_without_room_for_the_holders_name_is_named(tmp_path):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match=rf"Make room.*{tmp_path}"), folder_lock(tmp_path):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
