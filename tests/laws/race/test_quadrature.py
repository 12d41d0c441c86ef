"""The end of the race and its nodes, against exact probabilities."""

from __future__ import annotations

import numpy as np
import pytest
import reference
from scipy.special import comb

from otmd.laws.race.quadrature import latest_win, win_times

ROUNDING = 1e-13
Array = np.ndarray

KINDS = ("uniform", "dirichlet", "peaked", "wide", "steps")


def draft_of(kind: str, V: int, seed: int = 0) -> Array:
    rng = np.random.default_rng([41, V, seed])
    mass = {
        "uniform": lambda: np.ones(V),
        "dirichlet": lambda: rng.gamma(1.0, size=V) + 1e-12,
        "peaked": lambda: np.append(0.999999 * V / 1e-6, np.ones(V - 1)),
        "wide": lambda: 10.0 ** rng.uniform(-30, 0, V),
        "steps": lambda: np.where(np.arange(V) < 3, 1e4, 1.0),
    }[kind]()
    return mass / mass.sum()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("V", [8, 3000])
@pytest.mark.parametrize("n", [2, 8])
def test_by_the_latest_win_all_have_won(kind: str, V: int, n: int) -> None:
    """P(N < n) at the end, an exact sum of positive terms, is at most n e^{−42}."""
    draft = draft_of(kind, V)
    latest = latest_win(draft, n)
    left = sum(reference.arrivals(draft.tolist(), latest, n))
    assert 0.0 <= left <= n * np.exp(-42.0) * (1.0 + 1e-6)
    assert latest <= 42.0 / np.sort(draft)[-n] * (1.0 + 1e-12)


@pytest.mark.parametrize("n", [2, 8])
@pytest.mark.parametrize("V", [8, 151_936])
def test_win_times_integrate_the_time_of_the_last_win(n: int, V: int) -> None:
    """For V equal clocks, the density of the n-th arrival integrates to 1, and gives E[e^{−time/V}]."""
    latest = latest_win(np.full(V, 1 / V), n)
    times, steps = win_times(latest, 1.0, n, n)
    rate = 1 / V
    assert (np.diff(times) > 0).all()
    assert times[-1] == pytest.approx(latest)
    density = n * comb(V, n) * rate * np.exp(-rate * (V - n + 1) * times)
    density *= (-np.expm1(-rate * times)) ** (n - 1)
    assert steps @ density == pytest.approx(1.0, abs=ROUNDING)
    ranks = np.arange(V - n + 1, V + 1)
    faster = np.prod(ranks / (ranks + 1.0))
    assert steps @ (density * np.exp(-rate * times)) == pytest.approx(faster, abs=ROUNDING)


@pytest.mark.parametrize("latest", [1e70, 7e247])
def test_win_times_of_a_race_whose_end_is_far(latest: float) -> None:
    """If faint tokens end the race late, tokens of rate 1 still get nodes: ∫ t³ e^{−t} dt = 6."""
    times, steps = win_times(latest, 1.0, 4, 3)
    assert (np.diff(times) > 0).all()
    near = times < 1e3
    integrand = times[near] ** 3 * np.exp(-times[near])
    assert steps[near] @ integrand == pytest.approx(6.0, rel=10 * ROUNDING)
