import os

import pytest

from otmd.harness.files import PART, new_folder, remove_leftovers, write_atomically


def test_a_failed_write_leaves_the_old_content_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


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
