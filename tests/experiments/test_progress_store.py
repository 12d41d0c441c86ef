"""What long experiments keep: nothing that was measured is lost, by whichever run."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import ROOT

from otmd.models import FolderLockedError


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))


def interrupted():
    raise KeyboardInterrupt


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """The output of a run that made parts "one" and "two" and was interrupted at "three"."""
    from progress_store import progress_store

    path = tmp_path / "table.parquet"

    def run() -> None:
        with progress_store(path) as store:
            assert store.keep("one", lambda: [{"a": 1}]) == [{"part": "one", "a": 1}]
            store.keep("two", lambda: [{"a": 2}, {"a": 3}])
            store.keep("three", interrupted)

    with pytest.raises(KeyboardInterrupt):
        run()
    return path


def test_an_interrupted_run_goes_on_where_it_stopped(begun):
    from progress_store import progress_store

    with progress_store(begun) as again:
        assert again.keep("one", interrupted)[0]["a"] == 1
        assert "three" not in again
        again.keep("three", lambda: [{"b": 2.5}])
        assert again.finish().height == 4
    assert [path.name for path in begun.parent.iterdir()] == ["table.parquet"]
    with progress_store(begun) as finished:
        assert finished.keep("three", interrupted)[0]["b"] == 2.5


def test_another_run_to_its_end_loses_no_part_of_one_that_was_interrupted(begun):
    from progress_store import progress_store

    with progress_store(begun) as other:
        other.keep("four", lambda: [{"a": 4}])
        other.finish()
    with progress_store(begun) as again:
        assert [row["a"] for row in again.keep("two", interrupted)] == [2, 3]


def test_a_torn_part_is_made_again_and_no_other(begun):
    from progress_store import progress_store

    torn = begun.with_suffix(".parts") / "two.parquet"
    torn.write_bytes(torn.read_bytes()[:-20])
    with progress_store(begun) as again:
        assert "two" not in again
        again.keep("one", interrupted)
        again.keep("two", lambda: [{"a": 7}])
        assert sorted(again.finish()["a"]) == [1, 7]


def test_a_torn_table_is_named_and_left_alone(begun):
    from progress_store import progress_store

    begun.write_bytes(b"PAR1 torn")
    with (
        pytest.raises(ValueError, match=r"table\.parquet: torn.*delete it"),
        progress_store(begun),
    ):
        pass
    begun.unlink()
    with progress_store(begun) as again:
        again.keep("one", interrupted)


def test_two_at_a_time_are_refused(begun):
    from progress_store import progress_store

    with (
        progress_store(begun),
        pytest.raises(FolderLockedError, match="Wait for it"),
        progress_store(begun),
    ):
        pass


def test_what_quick_runs_measure_stands_for_no_full_one(begun, monkeypatch):
    """They may have the same output."""
    import lp_scaling
    from progress_store import progress_store

    monkeypatch.setattr(lp_scaling, "compare_forms", lambda *sizes: [{"sizes": str(sizes)}])
    monkeypatch.setattr(lp_scaling, "compare_backends", lambda *_, rounds: [{"rounds": rounds}])
    with progress_store(begun) as store:
        lp_scaling.run_claims(store, quick=True)
        lp_scaling.run_claims(store, quick=False)
        kept = store.finish().filter(rounds=lp_scaling.ROUNDS)
    assert kept.height == len(lp_scaling.PROGRAMS_COMPARED)
