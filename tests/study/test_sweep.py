"""Sweeps lose nothing: interrupted, killed, torn, merged, run by processes, threads or a cluster."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import distributed
import joblib
import numpy as np
import polars as pl
import pytest
import sweep_toys
from polars.testing import assert_frame_equal
from sweep_toys import GRID, deadly, draws, other_keys

from otmd.storage.files import LOCK
from otmd.study import Sweep, merge_sweeps, read_tasks, run_sweep

WHOLE = Sweep(draws, GRID)


@pytest.fixture
def table(tmp_path: Path) -> pl.DataFrame:
    return run_sweep(WHOLE, tmp_path / "table", workers=1)


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def test_a_row_for_each_that_the_function_gave_in_the_order_of_the_tasks(table) -> None:
    assert table.columns == ["task", "shift", "count", "number", "value"]
    wanted = [(t["shift"], t["count"], n) for t in GRID for n in range(t["count"])]
    assert list(table.select("shift", "count", "number").iter_rows()) == wanted
    assert table["task"].n_unique() == len(GRID)
    assert table["value"].n_unique() == table.height


def test_a_task_draws_the_same_wherever_it_stands(table, tmp_path) -> None:
    alone = run_sweep(Sweep(draws, [GRID[3]]), tmp_path / "alone", workers=1)
    assert_frame_equal(alone, table.filter(pl.col("task") == alone["task"][0]))
    other = run_sweep(Sweep(draws, [GRID[3]], seed=1), tmp_path / "alone", workers=1)
    assert other["task"][0] != alone["task"][0]
    assert not np.isin(other["value"], alone["value"]).any()
    # As after an edit of the code: the part has another name.
    again = run_sweep(Sweep(draws, GRID, data="x"), tmp_path / "again", workers=1)
    assert not again["task"].is_in(table["task"].to_list()).any()
    assert_frame_equal(again.drop("task"), table.drop("task"))


def test_another_function_or_its_code_is_another_task(tmp_path, monkeypatch) -> None:
    before, copy = WHOLE.key(GRID[0]), tmp_path / "sweep_toys.py"
    assert WHOLE.key({"count": 1, "shift": 0.0}) == before != Sweep(other_keys, GRID).key(GRID[0])
    copy.write_bytes(Path(sweep_toys.__file__).read_bytes())
    monkeypatch.setattr("inspect.getfile", lambda _: str(copy))
    assert WHOLE.key(GRID[0]) == before
    copy.write_text(copy.read_text() + "\n# changed\n")
    assert WHOLE.key(GRID[0]) != before


def test_nothing_is_computed_twice(table, tmp_path) -> None:
    folder = tmp_path / "table"
    before = [part.stat().st_mtime_ns for part in parts(folder)]
    grown = Sweep(draws, [*GRID, {"shift": 9.0, "count": 1}])
    assert_frame_equal(run_sweep(grown, folder, workers=1)[:-1], table)
    kept = [folder / f"{WHOLE.key(task)}.parquet" for task in GRID]
    assert [part.stat().st_mtime_ns for part in sorted(kept)] == before


@pytest.mark.parametrize("damage", ["cut", "one bit"])
def test_a_torn_part_is_made_again_and_no_other(table, tmp_path, damage) -> None:
    torn, *others = parts(tmp_path / "table")
    data = bytearray(torn.read_bytes())
    if damage == "cut":
        del data[-20:]
    else:
        data[len(data) // 8] ^= 1
    torn.write_bytes(data)
    before = [part.stat().st_mtime_ns for part in others]
    assert_frame_equal(run_sweep(WHOLE, tmp_path / "table", workers=1), table)
    assert [part.stat().st_mtime_ns for part in others] == before


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_sweep_that_was_killed_goes_on(table, tmp_path, workers) -> None:
    folder = tmp_path / "killed"
    command = [sys.executable, sweep_toys.__file__, str(folder), str(workers)]
    killed = subprocess.Popen(command)
    deadline = time.monotonic() + 60
    while not parts(folder) and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    kept = {part: part.stat().st_mtime_ns for part in parts(folder)}
    assert 0 < len(kept) < len(GRID)
    assert all(pl.read_parquet(part).height for part in kept)
    subprocess.run(command, check=True, timeout=120)
    assert len(parts(folder)) == len(GRID)
    assert all(part.stat().st_mtime_ns == at for part, at in kept.items())
    assert {path.name for path in folder.iterdir()} == {*(p.name for p in parts(folder)), LOCK}


@pytest.mark.slow
def test_a_worker_that_was_killed_loses_no_finished_part(tmp_path) -> None:
    tasks = [task | {"mark": str(tmp_path / "mark")} for task in GRID]
    with pytest.raises(RuntimeError, match="worker process ended"):
        run_sweep(Sweep(deadly, tasks), tmp_path / "deadly", workers=2)
    kept = parts(tmp_path / "deadly")
    assert 0 < len(kept) < len(GRID)
    assert run_sweep(Sweep(deadly, tasks), tmp_path / "deadly", workers=2)["task"].n_unique() == 6


def test_a_cluster_agrees(table, tmp_path) -> None:
    options = {"processes": False, "threads_per_worker": 2, "dashboard_address": None}
    with (
        distributed.LocalCluster(1, **options) as cluster,
        distributed.Client(cluster),
        joblib.parallel_config("dask"),
    ):
        assert_frame_equal(run_sweep(WHOLE, tmp_path / "cluster", 2), table)


def test_two_machines_results_are_merged_by_their_union(table, tmp_path) -> None:
    run_sweep(Sweep(draws, GRID[:4]), tmp_path / "one", workers=1)
    run_sweep(Sweep(draws, GRID[2:]), tmp_path / "two", workers=1)
    assert merge_sweeps([tmp_path / "one", tmp_path / "two"], tmp_path / "both") == len(GRID)
    assert merge_sweeps([tmp_path / "one"], tmp_path / "both") == 0
    before = [part.stat().st_mtime_ns for part in parts(tmp_path / "both")]
    assert_frame_equal(run_sweep(WHOLE, tmp_path / "both", workers=1), table)
    assert [part.stat().st_mtime_ns for part in parts(tmp_path / "both")] == before


def test_tasks_of_a_toml_file(tmp_path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text('[[tasks]]\na = [1, 2]\nb = "x"\n[[tasks]]\na = [2, 3]\nb = ["x", "y"]\n')
    pairs = [(1, "x"), (2, "x"), (2, "y"), (3, "x"), (3, "y")]
    assert read_tasks(spec) == [{"a": a, "b": b} for a, b in pairs]
