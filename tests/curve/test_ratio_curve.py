"""The ratio curve: every public method against sums over the tokens, and the relations between them."""

import numpy as np
import pytest

import otmd

COUNT = 5
RATES = ("recursive_rejection_rates", "k_sequential_rates", "optimal_rates")


def _pair(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([11, seed])
    size = int(rng.integers(1, 40))
    p, q = rng.dirichlet(np.full(size, 0.5)), rng.dirichlet(np.full(size, 0.5))
    if seed % 4 == 1:
        q = 10.0 ** -rng.uniform(0, 30, size)
    if seed % 4 == 2:
        p = p * (np.arange(size) != rng.integers(size)) + (size == 1)
        q = q * (np.arange(size) != rng.integers(size)) + (size == 1)
    if seed % 4 == 3:
        p, q = rng.integers(1, 4, size).astype(float), rng.integers(1, 4, size).astype(float)
    return p / p.sum(), q / q.sum()


seeds = pytest.mark.parametrize("seed", range(8))


@seeds
def test_masses_and_tails_follow_the_order(seed: int) -> None:
    p, q = _pair(seed)
    curve = otmd.RatioCurve(p, q)
    assert (np.sort(curve.order) == np.arange(p.size)).all()
    assert (curve.ratio[1:] >= curve.ratio[:-1]).all()
    assert (np.isinf(curve.ratio) == (q[curve.order] == 0)).all()
    for mass, before, after in (
        (p, curve.target_mass, curve.target_tail),
        (q, curve.draft_mass, curve.draft_tail),
    ):
        sorted_mass = mass[curve.order]
        want = [sorted_mass[k:].sum() for k in range(p.size + 1)]
        np.testing.assert_allclose(before, np.append(0, sorted_mass.cumsum()), rtol=1e-13)
        np.testing.assert_allclose(after, want, rtol=1e-13)


@seeds
def test_toland_form_of_the_optimum(seed: int) -> None:
    """α* = 2 − max over C of W(C) + C − (n−1)(C/n)^{n/(n−1)}; the maximum lies at a slope n q(H)^{n−1}."""
    p, q = _pair(seed)
    curve = otmd.RatioCurve(p, q)
    rates = curve.optimal_rates(COUNT)
    assert rates[0] == pytest.approx(np.minimum(p, q).sum(), abs=1e-14)
    for n in range(2, COUNT + 1):
        C = n * np.minimum(curve.draft_mass, 1.0) ** (n - 1)
        dual = curve.hockey_stick(C) + C - (n - 1) * (C / n) ** (n / (n - 1))
        assert rates[n - 1] == pytest.approx(2 - dual.max(), abs=1e-13)
        anywhere = np.linspace(0, n, 101)
        dual = curve.hockey_stick(anywhere) + anywhere
        dual -= (n - 1) * (anywhere / n) ** (n / (n - 1))
        assert rates[n - 1] <= 2 - dual.max() + 1e-13


@pytest.mark.parametrize("shape", [(2, 3), (3, 1), (0,)])
def test_leading_axes(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    p, q = rng.dirichlet(np.ones(6), shape), rng.dirichlet(np.ones(6))
    curve = otmd.RatioCurve(p, q)
    assert curve.batch_shape == shape
    many = [curve.hockey_stick(np.full((2, *shape), 0.7)), curve.k_sequential_scale(3)]
    many += [getattr(curve, name)(3) for name in RATES]
    assert np.shape(many[0]) == (2, *shape)
    assert np.shape(many[1]) == shape
    for index in np.ndindex(shape):
        alone = otmd.RatioCurve(p[index], q)
        one = [alone.hockey_stick([0.7, 0.7]), alone.k_sequential_scale(3)]
        one += [getattr(alone, name)(3) for name in RATES]
        np.testing.assert_allclose(many[0][(slice(None), *index)], one[0], rtol=1e-14)
        for got, want in zip(many[1:], one[1:], strict=True):
            np.testing.assert_allclose(got[index], want, rtol=1e-14)


def test_ratios_that_overflow_are_below_those_of_tokens_never_drafted() -> None:
    curve = otmd.RatioCurve([0.5, 0.3, 0.1, 0.1, 0.0], [1.0, 1e-310, 5e-324, 0.0, 0.0])
    assert curve.order.tolist() == [0, 1, 2, 3, 4]
    assert (curve.ratio[:1].tolist(), curve.ratio[3:].tolist()) == ([0.5], [np.inf, np.inf])
    assert 2.0**1020 < curve.ratio[1] < curve.ratio[2] < 2.0**1022
    assert curve.hockey_stick(1e300) == pytest.approx(0.5)
