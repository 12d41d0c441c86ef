"""Bounds of recursive rejection without replacement hold whatever the classes and however early they stop."""

import itertools

import numpy as np
import pytest
from reference import exact, judged, rrsw, without_replacement
from strategies import close_pair

import otmd
from otmd.laws import Race
from otmd.laws.race.quadrature import RATE_UNIT
from otmd.verifiers.rejection_bounds import _fill_deficits, state_between, walk_paths
from otmd.verifiers.rejection_classes import RejectionPosition

ROUNDING = 1e-12
WIDEST = (1.0, 0.01, 0.0)
STOPS = ((0.0, 10**7), (1e-4, 10**7), (1e-2, 10**7), (0.0, 30))


def _instance(seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    rng = np.random.default_rng([7, seed])
    V = int(rng.integers(3, 8))
    p, q = rng.dirichlet(np.full(V, 0.7)), rng.dirichlet(np.full(V, rng.choice([0.3, 1.0, 8.0])))
    if seed % 4 == 0:
        q = 10.0 ** -rng.uniform(0, 8, V)
    if seed % 5 == 0:
        q = np.repeat(q, 2)[:V]
    return p, q / q.sum(), int(rng.integers(3, min(V, 4) + 1))


def _rejected(p: np.ndarray, q: np.ndarray, n: int) -> float:
    law = without_replacement(q.tolist(), n)
    return 1.0 - float(judged(law, rrsw(p.tolist(), q.tolist()), p.size)[0])


@pytest.mark.parametrize("seed", range(12))
def test_bounds_hold_the_exact_probability(seed: int) -> None:
    p, q, n = _instance(seed)
    rejected = _rejected(p, q, n)
    position = RejectionPosition(p, Race(q, n))
    for widest, (negligible, most) in itertools.product(WIDEST, STOPS):
        low, high, _ = walk_paths(position.curve, position.classes(widest), n, negligible, most)
        assert low - ROUNDING <= rejected <= high + ROUNDING
        # Where each token is its own class and no path is left out, the bounds are equal.
        assert widest or negligible or most < 100 or high - low < 1e-13


def _hardly_any_mass_left(seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    """All but a few tokens have draft masses of up to the smallest subnormal number."""
    rng = np.random.default_rng([301, seed])
    V = int(rng.integers(3, 6))
    p, q = rng.dirichlet(np.full(V, 0.5)), 10.0 ** -rng.uniform(300, 323, V)
    if seed % 4 == 0:
        q = 10.0 ** -rng.uniform(0, 323, V)
    if seed % 4 == 1:
        q = 5e-324 * rng.integers(1, 6, V)
    if seed % 4 == 2:
        temperature = rng.uniform(0.019, 0.022)
        p = otmd.probs_from_logits(-rng.choice([0, 0.001, 0.01, 0.05], V), temperature=temperature)
        q = otmd.probs_from_logits(-rng.choice([15.0, 15.01, 15.02], V), temperature=temperature)
        q *= 5e-324 / q.min()
    q[rng.permutation(V)[: 1 + seed % 8 // 4]] = 1.0
    q /= q.sum()
    return p, q, min(int(np.count_nonzero(q)), int(rng.integers(2, 5)))


def _logits_at_a_low_temperature() -> tuple[np.ndarray, np.ndarray, int]:
    p, q = [-0.05, 0, 0, -0.001, -0.002, -0.02], [-15.02, 0, -15, -15.01, -15.01, -15.02]
    return *(otmd.probs_from_logits(x, temperature=0.0203) for x in (p, q)), 3  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("p", "q", "n"),
    [
        ([0.008266313059408514, 0.9917336869402094, 3.8e-13], [1.5e-323, 1.5e-323, 1.0], 2),
        ([0.008266313059408514, 0.9917336869402094, 3.8e-13], [1.5e-323, 1.5e-323, 1.0], 3),
        _logits_at_a_low_temperature(),
        *(_hardly_any_mass_left(seed) for seed in range(12)),
    ],
)
def test_bounds_hold_where_hardly_any_draft_mass_is_left(p, q, n: int) -> None:
    target, draft = exact(p), exact(q)
    rate = judged(without_replacement(draft, n), rrsw(target, draft), len(p))[0]
    drafts = otmd.WithoutReplacement(q, n)
    low, high = otmd.acceptance_bounds(otmd.RecursiveRejection(), p, drafts, tol=1e-6)
    assert low - 1e-14 <= rate <= high + 1e-14
    assert high - low <= 1e-6


@pytest.mark.parametrize("size", [5, 2500])
@pytest.mark.parametrize("widest", [1.0, 0.01, 0.0])
def test_classes_and_the_curve_against_sums_over_all_tokens(size: int, widest: float) -> None:
    for seed in range(2):
        rng = np.random.default_rng([size, seed])
        p = rng.dirichlet(np.ones(size))
        q = rng.dirichlet(np.full(size, 0.4))
        q[rng.random(size) < 0.1] = 0.0
        q[size // 2 :] = q[0] = q.max() if size < 10 else np.sort(q)[size // 2]
        q /= q.sum()
        position = RejectionPosition(p, Race(q, 3))
        classes = position.classes(widest)
        low = classes.smallest / RATE_UNIT
        high = classes.largest / RATE_UNIT
        members = [np.flatnonzero((a <= q) & (q <= b)) for a, b in zip(low, high, strict=True)]
        assert classes.size.tolist() == [tokens.size for tokens in members]
        assert classes.size.sum() == np.count_nonzero(q)
        np.testing.assert_allclose(classes.total / RATE_UNIT, [q[x].sum() for x in members])
        assert (classes.total / RATE_UNIT * (high - low) <= widest).all()
        assert (high <= 8.0 * low).all()
        first, last = RATE_UNIT * np.array(position.interval[1:])
        deficit = np.empty(low.size)
        for C in (1.0, *np.linspace(first, min(last, 9.0), 7)):
            _fill_deficits(classes, C / RATE_UNIT, deficit)
            expected = [np.maximum(C * q[x] - p[x], 0.0).sum() for x in members]
            np.testing.assert_allclose(deficit, expected, rtol=1e-9, atol=1e-14)
            state = state_between(position.curve, C / RATE_UNIT, C / RATE_UNIT)
            assert state.W_low == pytest.approx(np.maximum(p - C * q, 0.0).sum(), abs=1e-14)


@pytest.mark.parametrize("n", [3, 4])
def test_bounds_meet_the_tolerance_at_a_large_vocabulary(n: int) -> None:
    q, p = close_pair(20_000, 0.7, n)
    drafts = otmd.WithoutReplacement(q, n)
    wide = otmd.acceptance_bounds(otmd.RecursiveRejection(), p, drafts, tol=1e-2)
    tight = otmd.acceptance_bounds(otmd.RecursiveRejection(), p, drafts, tol=1e-4)
    assert tight[1] - tight[0] <= 1e-4
    assert wide[0] - ROUNDING <= tight[0] <= tight[1] <= wide[1] + ROUNDING


def test_ties_end_the_search_at_any_tolerance() -> None:
    """Classes of equal masses cannot be split: they are exact as they are."""
    p, q = np.random.default_rng(0).dirichlet(np.ones(6)), np.full(6, 1 / 6)
    exact = 1.0 - _rejected(p, q, 4)
    drafts = otmd.WithoutReplacement(q, 4)
    low, high = otmd.acceptance_bounds(otmd.RecursiveRejection(), p, drafts, tol=1e-16)
    assert low <= exact <= high
    assert high - low < 1e-13
