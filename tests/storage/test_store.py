"""A folder of named parts is never mixed with another run's, or with files of something else."""

from pathlib import Path

import pytest

from otmd.storage.files import PART
from otmd.storage.store import Layout, Store

SETTINGS = {"temperature": 1.0, "laws": [f"law {i} (otmd.laws.law_{i})" for i in range(9)]}


def read(path: Path) -> str:
    text = path.read_text()
    if not text.endswith("."):
        raise ValueError("torn")
    return text


RUN = Layout(read, ".txt", record="run.json", result="whole.txt", subfolder="parts")
PLAIN = Layout(read, ".txt", pattern="part-[0-9]")


def begin(folder: Path, description: dict | None = SETTINGS, layout=RUN, **options) -> Store[str]:
    store = Store(folder, description, layout, **options)
    with store.held():
        store.write("part-1", b"one.")
        store.write("part-2", b"torn")
    return store


@pytest.mark.parametrize("layout", [RUN, PLAIN])
def test_parts_come_back_and_torn_ones_do_not(tmp_path, layout):
    store = begin(tmp_path, layout=layout)
    assert store.names() == ["part-1", "part-2"]
    assert (store.read("part-1"), store.read("part-2"), store.read("none")) == ("one.", None, None)
    assert store.path("part-2").exists()


def test_what_differs_is_said_shortly(tmp_path):
    begin(tmp_path, SETTINGS | {"a": {"b": [1]}, "long": "x" * 999})
    other = {"temperature": 0.6, "laws": SETTINGS["laws"][1:], "extra": {"seed": 1}}
    other |= {"a": {"b": [1, 2]}, "long": "y\n" * 999}
    with pytest.raises(ValueError, match="begun with other settings") as caught:
        Store(tmp_path, other, RUN).check()
    said = str(caught.value)
    assert "temperature: stored 1.0, asked 0.6; " in said
    assert "laws: stored law 0 (otmd.laws.law_0), asked nothing more; " in said
    assert "extra.seed: stored nothing, asked 1" in said
    assert "a.b: stored nothing more, asked 2" in said
    assert "); give --overwrite" in said
    assert len(said) < 500 + len(str(tmp_path))


def test_overwrite_removes_another_run_and_nothing_else(tmp_path):
    begin(tmp_path)
    (tmp_path / "whole.txt").write_text("old.")
    (tmp_path / "notes.md").write_text("mine")
    kept = Store(tmp_path, SETTINGS, RUN, overwrite=True)
    with kept.held():
        assert (kept.finished(), kept.names()) == (True, ["part-1", "part-2"])
    other = Store(tmp_path, {"temperature": 2.0}, RUN, overwrite=True)
    assert not other.finished()
    with other.held():
        assert (other.finished(), other.names()) == (False, [])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.md", "parts", "run.json"]


@pytest.mark.parametrize("layout", [RUN, PLAIN])
def test_leftovers_of_a_killed_writer_are_removed_and_nothing_else(tmp_path, layout):
    store = begin(tmp_path, layout=layout)
    for folder in (tmp_path, store.parts):
        for name in (f".abc{PART}", ".hidden.own.file"):
            (folder / name).write_text("x")
    with store.held():
        assert not list(tmp_path.rglob(f"*{PART}"))
        assert (tmp_path / ".hidden.own.file").exists()
        assert (store.parts / ".hidden.own.file").exists()


@pytest.mark.parametrize("layout", [RUN, PLAIN])
@pytest.mark.parametrize("overwrite", [False, True])
def test_nothing_is_written_into_a_foreign_folder(tmp_path, layout, overwrite):
    (tmp_path / "thesis.tex").write_text("years of work")
    said = r"output: .* holds files.*\(thesis\.tex\), expected a new"
    with pytest.raises(ValueError, match=said):
        begin(tmp_path, layout=layout, overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_parts_without_their_record_are_of_unknown_settings(tmp_path):
    store = begin(tmp_path, layout=PLAIN, description=None)
    (tmp_path / "otmd.lock").unlink()
    with store.held():
        assert store.read("part-1") == "one."
    (begin(tmp_path / "run").folder / "run.json").unlink()
    with pytest.raises(ValueError, match=r"files without their run\.json \(parts\)"):
        begin(tmp_path / "run")
