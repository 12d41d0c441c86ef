import errno
import os
import tempfile

import pytest

from otmd.harness import cache_folder
from otmd.harness.files import PART, make_folder, new_folder, remove_leftovers, write_atomically


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
        lambda: new_folder(tmp_path / "file" / "deep").__enter__(),
    ):
        with pytest.raises(OSError, match=rf"Choose another place.*{tmp_path / 'file'}"):
            begin()


def test_a_full_disk_leaves_no_part_of_a_folder(tmp_path):
    def fill():
        with new_folder(tmp_path / "folder") as fresh:
            (fresh / "a").write_text("1")
            raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="Make room"):
        fill()
    assert list(tmp_path.iterdir()) == []


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


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    def fail():
        with new_folder(tmp_path / "folder") as fresh:
            (fresh / "a").write_text("1")
            raise KeyError("killed")

    with pytest.raises(KeyError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_the_first_of_two_writers_of_a_folder_wins(tmp_path):
    folder = tmp_path / "folder"
    with new_folder(folder) as slow:
        (slow / "a").write_text("slow")
        with new_folder(folder) as quick:
            (quick / "a").write_text("quick")
    assert (folder / "a").read_text() == "quick"
    assert list(tmp_path.iterdir()) == [folder]
