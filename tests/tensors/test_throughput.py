"""The throughput benchmark on a small vocabulary."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
from tensor_pairs import on_each_device

SCRIPT = Path(__file__).parents[2] / "experiments" / "performance" / "device_rates.py"


@on_each_device
def test_a_small_run(device: str, tmp_path: Path) -> None:
    output = tmp_path / "rates.parquet"
    sizes = ["--rows", "3", "--vocab-size", "400", "--num-drafts", "3", "--rounds", "2"]
    command = [sys.executable, str(SCRIPT), "--device", device, "--output", str(output), *sizes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "| share of copy bandwidth |" in done.stdout
    table = pl.read_parquet(output)
    assert table["rate"].n_unique() == table.height == 11
    assert (table["seconds"] > 0).all()
    assert (table["rows"] == 3).all()
    means = dict(zip(table["rate"], table["mean"], strict=True))
    assert means["recursive rejection"] < means["K-SEQ"] < means["optimal"] < 1
    assert means["K-SEQ, curve given"] == means["K-SEQ"]
    assert (table["peak_bytes"].is_null() == (device == "cpu")).all()
