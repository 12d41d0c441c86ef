"""Files are written whole or not at all, and one process at a time writes into a folder."""

import errno
import os
import tempfile

import pytest

from otmd.models.wheels import cache_folder
from otmd.storage.files import (
    HOLDER,
    PART,
    FolderLockedError,
    folder_lock,
    make_folder,
    remove_leftovers,
    write_atomically,
)


def test_a_failed_write_leaves_the_old_content_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "Make room there and run the same again"),
        (errno.EDQUOT, "Make room there and run the same again"),
        (errno.EROFS, "Choose a place that you may write to"),
        (errno.EACCES, "Choose a place that you may write to"),
    ],
)
@pytest.mark.parametrize("where", ["mkstemp", "fsync", "replace"])
def test_what_the_system_refuses_is_named_with_what_to_do(
    tmp_path, monkeypatch, where, number, advice
):
    """The error keeps its class, so that whoever catches OSError still does."""
    path = tmp_path / "file"
    write_atomically(path, b"old")
    refuse_to(monkeypatch, where, number)
    with pytest.raises(OSError, match=rf"{advice}.*{path}") as caught:
        write_atomically(path, b"new")
    assert caught.value.errno == number
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_errors_without_advice_stay_what_they_are(tmp_path, monkeypatch):
    refuse_to(monkeypatch, "fsync", errno.EIO)
    with pytest.raises(OSError, match=r"^\[Errno 5\] refused$"):
        write_atomically(tmp_path / "file", b"new")


def test_a_file_where_a_folder_would_be_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("OTMD_CACHE", str(tmp_path / "file" / "cache"))
    for begin in (
        cache_folder,
        lambda: make_folder(tmp_path / "file"),
        lambda: write_atomically(tmp_path / "file" / "deep", b""),
        lambda: folder_lock(tmp_path / "file" / "deep").__enter__(),
    ):
        with pytest.raises(OSError, match=rf"Choose another place.*{tmp_path / 'file'}"):
            begin()


def refuse_to(monkeypatch, where, number):
    def refuse(*arguments, **options):
        raise OSError(number, "refused")

    owner = tempfile if where == "mkstemp" else os
    monkeypatch.setattr(owner, where, refuse)


def test_leftovers_of_a_killed_writer_are_removed_and_nothing_else(tmp_path):
    for name in (f".file.abc{PART}", ".hidden.own.file", "file.txt"):
        (tmp_path / name).write_text("x")
    remove_leftovers(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".hidden.own.file", "file.txt"]


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
        assert str(os.getpid()) in (tmp_path / HOLDER).read_text()


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
