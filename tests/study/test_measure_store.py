import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from toy_dump import write_dump

import otmd
from otmd.models import FolderLockedError
from otmd.storage.store import Store
from otmd.study import load_results, measure
from otmd.study.run import CHUNK_SIZE, LAYOUT

ASLEEP = """
import time
import polars  # whose signal handler restarts waiting locks
from otmd.study.runner import run_jobs

if __name__ == "__main__":
    for _ in run_jobs(time.sleep, [0, 600, 600], 2):
        print("first", flush=True)
"""


class Interrupted(otmd.TargetOnly):
    """Stops the run at the seventeenth position, the way Ctrl-C does."""

    left = 0

    def position_bounds(self, target, *args, **options):
        # Smaller positions are those at which the rule is checked before the run.
        if target.size == 5:
            type(self).left -= 1
            if type(self).left == 0:
                raise KeyboardInterrupt
        return super().position_bounds(target, *args, **options)


def interrupt(dataset, folder: Path) -> tuple[list[Any], pl.DataFrame]:
    """Interrupt a run after two chunks; return its verifiers, and the table that it makes if continued."""
    rules = [("TargetOnly", Interrupted())]
    Interrupted.left = 17
    with pytest.raises(KeyboardInterrupt) as stop:
        quick(dataset, verifiers=rules, output=folder)
    kept = f"What was finished is kept in {folder}; the same command resumes it."
    assert stop.value.__notes__ == [kept]
    return rules, quick(dataset, verifiers=[otmd.TargetOnly])


def quick(dataset, **changes):
    settings = {"laws": [otmd.Greedy], "num_drafts": (2,), "workers": 1} | changes
    return measure(dataset, **settings)


def parts(folder: Path) -> list[Path]:
    return sorted((folder / "parts").glob("part-*.parquet"))


def test_a_finished_measurement_is_read_and_not_made_again(dataset, tmp_path, monkeypatch):
    table = quick(dataset, output=tmp_path)
    assert_frame_equal(table, quick(dataset))
    names = ["measurement.json", "results.parquet"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    monkeypatch.setattr("otmd.study.runner.compute_parts", None)
    assert_frame_equal(quick(dataset, output=tmp_path), table)
    assert_frame_equal(load_results(tmp_path), table)
    assert_frame_equal(load_results(tmp_path / "results.parquet"), table)


def test_an_interrupted_run_keeps_what_was_finished_and_goes_on(dataset, tmp_path, monkeypatch):
    rules, whole = interrupt(dataset, tmp_path)
    assert len(parts(tmp_path)) == 2
    before = [path.stat().st_mtime_ns for path in parts(tmp_path)]
    with pytest.raises(ValueError, match="unfinished"):
        load_results(tmp_path)
    seen = []
    original = measure.__globals__["measure_chunk"]

    def watched(settings, chunk):
        seen.extend(place.index for place in chunk.positions)
        assert [path.stat().st_mtime_ns for path in parts(tmp_path)] == before
        return original(settings, chunk)

    monkeypatch.setitem(measure.__globals__, "measure_chunk", watched)
    assert_frame_equal(quick(dataset, verifiers=rules, output=tmp_path), whole)
    assert seen == list(range(2 * CHUNK_SIZE, len(dataset)))


@pytest.mark.slow
def test_an_interrupt_does_not_wait_for_the_chunk_under_way(tmp_path):
    script = tmp_path / "asleep.py"
    script.write_text(ASLEEP)
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    # The shell may ignore SIGINT, as of `make test &`.
    options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen([sys.executable, str(script)], **options) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(timeout=30) != 0
        finally:
            process.kill()


def test_a_part_under_the_name_of_another_is_made_again(dataset, tmp_path):
    rules, whole = interrupt(dataset, tmp_path)
    first, second = parts(tmp_path)
    second.write_bytes(first.read_bytes())
    assert_frame_equal(quick(dataset, verifiers=rules, output=tmp_path), whole)


def test_another_process_may_be_first(dataset, tmp_path, monkeypatch):
    """It finishes after we look at the folder and before we lock it: its results are taken."""
    record = settings_of(dataset, tmp_path / "elsewhere")
    begun = Store(tmp_path / "here", record, LAYOUT)
    whole = quick(dataset, output=tmp_path / "here")
    monkeypatch.setitem(measure.__globals__, "Store", lambda *_: begun)
    monkeypatch.setattr("otmd.study.runner.compute_parts", None)
    monkeypatch.setattr(begun, "finished", iter([False, True, True, True]).__next__)
    assert_frame_equal(quick(dataset, output=tmp_path / "here"), whole)
    assert not (tmp_path / "here" / "parts").exists()


@pytest.mark.parametrize("changes", [{}, {"num_drafts": (1,)}])
def test_two_at_a_time_are_refused(dataset, tmp_path, changes):
    """So settings are not mixed, and no part of the first run is removed."""
    record = settings_of(dataset, tmp_path / "elsewhere")
    first = Store(tmp_path / "here", record, LAYOUT)
    with first.held():
        with pytest.raises(FolderLockedError, match="Wait for it"):
            quick(dataset, output=tmp_path / "here", **changes)
        assert json.loads((tmp_path / "here" / "measurement.json").read_text("utf-8")) == record
    quick(dataset, output=tmp_path / "here", **changes)


def settings_of(dataset, folder: Path) -> dict[str, Any]:
    quick(dataset, output=folder)
    return json.loads((folder / "measurement.json").read_text("utf-8"))


def test_settings_of_a_run_that_measured_nothing_bind_nobody(dataset, tmp_path):
    broken, sound = Interrupted(), otmd.TargetOnly()
    for low, high in ((1.0, 0.0), (1.01, 1.02)):
        broken.position_bounds = lambda p, *given, pair=(low, high), **more: (
            pair if p.size == 5 else sound.position_bounds(p, *given, **more)
        )
        message = f"gave the bounds {min(low, 1.0)} and {min(high, 1.0)} .*, expected the first no larger"
        with pytest.raises(ValueError, match=message):
            quick(dataset, verifiers=[("TargetOnly", broken)], output=tmp_path)
    assert_frame_equal(quick(dataset, output=tmp_path), quick(dataset))


def test_other_settings_in_the_same_folder_are_refused(dataset, tmp_path):
    out = tmp_path / "out"
    quick(dataset, output=out)
    for other, changes, named in (
        (dataset, {"num_drafts": (1, 2)}, "num_drafts"),
        (dataset, {"laws": [otmd.Hub]}, "laws"),
        (dataset, {"verifiers": [otmd.TargetOnly]}, "verifiers"),
        (dataset, {"processing": [otmd.Processing(0.5)]}, "processing"),
        (dataset, {"tol": 1e-3}, "tol"),
        (write_dump(tmp_path / "other", seed=1), {}, "dataset"),
        (write_dump(tmp_path / "more", prompts=7), {}, "positions"),
    ):
        said = rf"output: .* with other settings \({named}(\[0\]\.\w+)?: stored .*--overwrite"
        with pytest.raises(ValueError, match=said):
            quick(other, output=out, **changes)


@pytest.mark.parametrize("text", ["", "{", "[1]"])
def test_a_torn_record_is_named(dataset, tmp_path, text):
    (tmp_path / "measurement.json").write_text(text)
    said = r"measurement\.json is torn .* --overwrite to replace it, or another output"
    with pytest.raises(ValueError, match=said):
        quick(dataset, output=tmp_path)


def test_a_bit_that_flipped_is_never_read_as_another_number(dataset, tmp_path):
    """The flipped bit is anywhere in the data pages; the metadata behind them stay whole."""
    table = quick(dataset, output=tmp_path)
    path = tmp_path / "results.parquet"
    whole = path.read_bytes()
    pages = len(whole) - int.from_bytes(whole[-8:-4], "little") - 8
    refused = []
    for place in range(4, pages, 41):
        data = bytearray(whole)
        data[place] ^= 1 << place % 8
        path.write_bytes(data)
        try:
            read = load_results(path)
        except ValueError as error:
            refused.append(str(error))
            continue
        assert_frame_equal(read, table)
    assert len(refused) > 50
    assert all("delete it" in said for said in refused)


def test_what_is_no_parquet_may_be_the_users_own(tmp_path):
    path = tmp_path / "results.parquet"
    path.write_bytes(b"not parquet at all")
    with pytest.raises(ValueError, match=r"results\.parquet: torn, altered or no Parquet") as said:
        load_results(path)
    assert "delete" not in str(said.value)
