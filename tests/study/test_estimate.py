"""Means over positions or steps; intervals over few prompts hold the truth as often as they say."""

import numpy as np
import polars as pl
import pytest

from otmd.study import summarise
from otmd.study.estimate import Estimate, estimate, ratios
from otmd.study.report import DEFAULT_BY
from otmd.study.rows import SCHEMA

TRIALS, TRUTHS = 2000, 400_000


def texts(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and steps of texts: acceptance varies by prompt, and three in ten texts end early."""
    acceptance = 0.8 * rng.beta(6, 3, shape)
    tokens = np.where(rng.random(shape) < 0.3, rng.integers(8, 43, shape), 43).astype(float)
    noise = rng.normal(0, 1.5, shape)
    return tokens, np.maximum(1.0, np.round(tokens * (1.0 - acceptance) + noise))


def rates(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Sums of acceptance rates and numbers of positions: 2 to 8 positions a prompt, alike within it."""
    sizes = rng.integers(2, 9, shape).astype(float)
    return sizes * rng.beta(12, 4, shape), sizes


def percentiles(totals: np.ndarray, sizes: np.ndarray) -> tuple[float, float]:
    """The negative control: percentiles of a bootstrap over prompts."""
    count = totals.size
    weights = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=400)
    low, high = np.quantile(weights @ totals / (weights @ sizes), [0.025, 0.975])
    return low, high


def jackknife(totals: np.ndarray, sizes: np.ndarray) -> tuple[float, float]:
    return Estimate.of(ratios(totals, sizes))[1:]


def coverage(ends, draw, prompts: int, trials: int = TRIALS) -> float:
    totals, sizes = draw(np.random.default_rng(9), (TRUTHS,))
    truth = totals.sum() / sizes.sum()
    totals, sizes = draw(np.random.default_rng(1), (trials, prompts))
    covered = 0
    for i in range(trials):
        low, high = ends(totals[i], sizes[i])
        covered += low <= truth <= high
    return covered / trials


@pytest.mark.parametrize("draw", [texts, rates])
@pytest.mark.parametrize("prompts", [4, 8, 12, 24])
def test_intervals_keep_their_level(draw, prompts):
    """2,000 trials: coverage of 95% has a standard error of 0.5 points; 2.5 points are tolerated."""
    assert coverage(jackknife, draw, prompts) == pytest.approx(0.95, abs=0.025)


def test_percentiles_do_not():
    assert coverage(percentiles, texts, 4, 400) < 0.85


def test_intervals_of_paired_differences_keep_their_level():
    """Two ratios over the same prompts, which share most of what varies, and whose difference is 0.1."""
    rng, covered, narrower = np.random.default_rng(2), 0, 0
    for _ in range(TRIALS):
        totals, sizes = texts(rng, (6,))
        more = totals + sizes * (0.1 + rng.normal(0, 0.05, 6))
        _, low, high = Estimate.of(ratios(more, sizes) - ratios(totals, sizes))
        alone = jackknife(totals, sizes)
        covered += low <= 0.1 <= high
        narrower += high - low < alone[1] - alone[0]
    assert covered / TRIALS == pytest.approx(0.95, abs=0.025)
    assert narrower > 0.95 * TRIALS


def test_an_interval_by_hand():
    totals, sizes = np.array([1.0, 2.0, 4.0]), np.array([2.0, 3.0, 4.0])
    values = np.array([6 / 7, 5 / 6, 3 / 5])
    assert ratios(totals, sizes) == pytest.approx(np.append(7 / 9, values))
    value, low, high = Estimate.of(ratios(totals, sizes))
    error = np.sqrt(2 / 3 * ((values - values.mean()) ** 2).sum())
    # Student's t with 2 degrees of freedom has 2.5% above 4.302653.
    assert (low, value, high) == pytest.approx(7 / 9 + 4.302652729911275 * error * np.arange(-1, 2))
    assert Estimate.of(ratios(totals[:1], sizes[:1])) == (0.5, None, None)
    # The interval of a value between bounds holds those of the bounds.
    wide = Estimate.of(ratios(totals, sizes), ratios(totals - 0.3, sizes), ratios(totals + 0.3, sizes))
    assert wide.value == value
    assert wide.low == Estimate.of(ratios(totals - 0.3, sizes)).low < low
    assert wide.high == Estimate.of(ratios(totals + 0.3, sizes)).high > high


def test_groups_have_their_prompts_in_the_same_order():
    rows = [
        ("a", "d", "q", 1.0, 2),
        ("a", "d", "p", 4.0, 1),
        ("b", "d", "p", 3.0, 1),
        ("b", "d", "q", 6.0, 2),
    ]
    names = ["rule", "domain", "prompt_id", "tokens", "steps"]
    frame = pl.DataFrame(rows, schema=names, orient="row")
    groups = list(estimate(frame, ["rule"], ["tokens"], "steps"))
    assert [group for group, _ in groups] == [{"rule": "a"}, {"rule": "b"}]
    by_prompt = [means["tokens"] for _, means in groups]
    # All, without p, without q.
    assert by_prompt[0] == pytest.approx([5 / 3, 1 / 2, 4])
    assert by_prompt[1] == pytest.approx([3, 3, 3])
    ((_, counted),) = estimate(frame.filter(rule="a"), ["rule"], ["tokens"])
    assert counted["tokens"] == pytest.approx([5 / 2, 1, 4])


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
