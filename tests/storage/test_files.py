"""Files are written whole or not at all, and one process at a time writes into a folder."""

import errno
import os
import stat
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from otmd.models.wheels import cache_folder
from otmd.storage.files import (
    HOLDER,
    FolderLockedError,
    folder_lock,
    make_folder,
    write_atomically,
)

ROOM, PLACE = "Make room there and run the same again", "Choose a place that you may write to"
ADVICE = {errno.ENOSPC: ROOM, errno.EDQUOT: ROOM, errno.EROFS: PLACE, errno.ENOENT: PLACE}


@pytest.mark.parametrize(("number", "said"), [*ADVICE.items(), (errno.EIO, None)])
@pytest.mark.parametrize("where", ["open", "fsync", "replace"])
def test_what_the_system_refuses_is_named_and_leaves_the_old_content(
    tmp_path, monkeypatch, where, number, said
):
    """The error keeps its class, so that whoever catches OSError still does; without advice it stays."""
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with monkeypatch.context() as patched:
        refuse = Mock(side_effect=OSError(number, "refused"))
        patched.setattr(Path if where == "open" else os, where, refuse)
        expected = rf"{said}.*{path}" if said else r"^\[Errno 5\] refused$"
        with pytest.raises(OSError, match=expected) as caught:
            write_atomically(path, b"new")
    assert caught.value.errno == number
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_links_and_modes_stay_and_new_files_follow_the_umask(tmp_path):
    old = tmp_path / "old"
    old.write_bytes(b"old")
    old.chmod(0o640)
    (tmp_path / "link").symlink_to("old")
    before = os.umask(0o077)
    try:
        write_atomically(tmp_path / "link", b"new")
        write_atomically(tmp_path / "private", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "link").is_symlink()
    assert old.read_bytes() == b"new"
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("old", "private")]
    assert modes == [0o640, 0o600]


def test_what_is_no_regular_file_is_written_and_not_replaced(tmp_path, capfd):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_atomically(pipe, b"said")
    reader.join()
    assert read == [b"said"]
    assert pipe.is_fifo()
    write_atomically(Path(os.devnull), b"")
    assert Path(os.devnull).is_char_device()
    # Here standard output goes to a regular file.
    print("before")
    write_atomically(Path("/dev/stdout"), b"page\n")
    print("after")
    assert capfd.readouterr().out == "before\npage\nafter\n"


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


def test_a_second_holder_is_refused_and_told_who_and_what_to_do(tmp_path):
    with (
        folder_lock(tmp_path / "new"),
        pytest.raises(FolderLockedError, match=rf"\(process {os.getpid()} on .*Wait for it"),
        folder_lock(tmp_path / "new"),
    ):
        pass
    with pytest.raises(KeyError), folder_lock(tmp_path / "new"):
        raise KeyError
    with folder_lock(tmp_path / "new"):
        assert str(os.getpid()) in (tmp_path / "new" / HOLDER).read_text()


def test_a_disk_without_locks_or_without_room_for_the_holders_name_is_named(tmp_path, monkeypatch):
    resource, fcntl = map(pytest.importorskip, ("resource", "fcntl"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match=rf"Make room.*{tmp_path}"), folder_lock(tmp_path):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, "no locks")))
    with pytest.raises(OSError, match=rf"local disk.*{tmp_path}"), folder_lock(tmp_path):
        pass
