import numpy as np
import polars as pl
import pytest

from otmd.study import summarise
from otmd.study.estimate import Estimate, ratios
from otmd.study.report import DEFAULT_BY
from otmd.study.rows import SCHEMA


def make_table(gaps: list[list[float | None]], **columns) -> pl.DataFrame:
    """Rows of one group; ``gaps[i]`` are those of prompt i's positions."""
    rows = []
    for i, prompt in enumerate(gaps):
        for position, gap in enumerate(prompt):
            row = {"index": len(rows), "prompt_id": f"p{i}", "domain": "d", "position": position}
            row |= {"temperature": 1.0, "law": "Greedy", "num_drafts": 2, "verifier": "TargetOnly"}
            if gap is not None:
                row |= {"optimal": 0.9, "rate": 0.9 - gap, "gap": gap, "status": "ok"}
                row |= {"rate_low": 0.9 - gap, "rate_high": 0.9 - gap}
                row |= {"gap_low": gap, "gap_high": gap}
            rows.append(row | columns)
    return pl.DataFrame(rows, schema=SCHEMA)


def test_means_are_over_positions_and_intervals_over_prompts():
    rng = np.random.default_rng(0)
    gaps = [list(rng.random(size)) for size in (1, 5, 2, 7)]
    (row,) = summarise(make_table(gaps)).to_dicts()
    sums, sizes = (np.array([*map(of, gaps)], float) for of in (sum, len))
    gap, *ends = Estimate.of(ratios(sums, sizes))
    assert row["gap"] == pytest.approx(gap)
    assert row["optimal"] == pytest.approx(0.9)
    assert row["rate"] == pytest.approx(0.9 - gap)
    assert (row["gap_low"], row["gap_high"]) == pytest.approx(ends)
    rates = [0.9 - end for end in reversed(ends)]
    assert (row["rate_low"], row["rate_high"]) == pytest.approx(rates)
    assert (row["positions"], row["prompts"], row["undefined"]) == (15, 4, 0)


def test_undefined_positions_are_counted_and_left_out():
    table = make_table([[0.1, None], [0.3, 0.5], [None, None]])
    (row,) = summarise(table).to_dicts()
    assert (row["positions"], row["undefined"], row["prompts"]) == (3, 3, 2)
    assert row["gap"] == pytest.approx(0.3)
    (nowhere,) = summarise(make_table([[None], [None]])).to_dicts()
    assert (nowhere["positions"], nowhere["undefined"]) == (0, 2)
    assert nowhere["gap"] is nowhere["gap_low"] is None
    # One prompt has a mean and no interval.
    (row,) = summarise(make_table([[0.1, 0.2]])).to_dicts()
    assert row["gap"] == pytest.approx(0.15)
    assert row["gap_low"] is row["rate_high"] is None


def test_the_interval_holds_what_the_bounds_leave_open():
    ends = (("low", -0.01), ("high", 0.01))
    table = make_table([[0.1, 0.1], [0.1]]).with_columns(
        (pl.col(name) + by).alias(f"{name}_{end}") for name in ("rate", "gap") for end, by in ends
    )
    (row,) = summarise(table).to_dicts()
    assert (row["gap_low"], row["gap_high"]) == pytest.approx((0.09, 0.11))
    assert row["bound_width"] == pytest.approx(0.02)


def test_groups(table):
    summary = summarise(table)
    assert summary.columns[: len(DEFAULT_BY)] == list(DEFAULT_BY)
    assert len(summary) == len(table.select(DEFAULT_BY).unique())
    by_domain = summarise(table, by=("domain", *DEFAULT_BY))
    assert set(by_domain["domain"]) == {"code", "chat"}
    assert len(by_domain) == 2 * len(summary)
    coarse = summarise(table, by=["law"])
    assert coarse["positions"].sum() + coarse["undefined"].sum() == len(table)
