"""The benchmark of the recorder on a small vocabulary."""

from __future__ import annotations

import pytest

from experiments.performance import recording


def test_a_row_for_each_kind_and_cut(capsys: pytest.CaptureFixture[str]) -> None:
    recording.main(["--vocab-size", "200", "--rounds", "2"])
    lines = capsys.readouterr().out.splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [row[:2] for row in cells] == [
        [keep, cut] for keep in ("numbers", "rows") for cut in ("none", "top-k", "top-p")
    ]
    assert all(float(row[2]) > 0 for row in cells)
    # Two vectors of 200 float32, and what else a row has.
    assert all(1600 < float(row[4].replace(",", "")) < 2400 for row in cells[3:])
