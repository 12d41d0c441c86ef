"""Intervals of ratios over few prompts hold the truth as often as they say."""

import numpy as np
import pytest

from otmd.study.jackknife import interval, left_out

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
    return interval(totals.sum() / sizes.sum(), left_out(totals, sizes))


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
        apart = more.sum() / sizes.sum() - totals.sum() / sizes.sum()
        low, high = interval(apart, left_out(more, sizes) - left_out(totals, sizes))
        alone = jackknife(totals, sizes)
        covered += low <= 0.1 <= high
        narrower += high - low < alone[1] - alone[0]
    assert covered / TRIALS == pytest.approx(0.95, abs=0.025)
    assert narrower > 0.95 * TRIALS


def test_the_confidence_sets_the_width():
    totals, sizes = np.array([1.0, 2.0, 4.0]), np.array([2.0, 3.0, 4.0])
    widths = [
        np.diff(interval(7 / 9, left_out(totals, sizes), level)) for level in (0.5, 0.9, 0.99)
    ]
    assert widths == sorted(widths)
    # Student's t with 2 degrees of freedom has 5% above 2.919986.
    values = np.array([6 / 7, 5 / 6, 3 / 5])
    error = np.sqrt(2 / 3 * ((values - values.mean()) ** 2).sum())
    assert widths[1] == pytest.approx(2 * 2.919985580355516 * error)
