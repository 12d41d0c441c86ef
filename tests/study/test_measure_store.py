import json
from pathlib import Path
from typing import Any

import pytest
from polars.testing import assert_frame_equal
from toy_dump import write_dump

import otmd
from otmd.models import FolderLockedError
from otmd.storage.store import Store
from otmd.study import load_results, measure
from otmd.study.run import LAYOUT


def quick(dataset, **changes):
    settings = {"laws": [otmd.Greedy], "num_drafts": (2,), "workers": 1} | changes
    return measure(dataset, **settings)


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
def test_another_run_at_the_same_time_is_refused(dataset, tmp_path, changes):
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
    broken = otmd.TargetOnly()
    for low, high in ((1.0, 0.0), (1.01, 1.02)):
        broken.position_bounds = lambda *_, bounds=(low, high), **__: bounds
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
