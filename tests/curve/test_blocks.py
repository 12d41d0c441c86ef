"""Blocks of the curve, sorted, grouped and split into parts: the cut against fractions and a sorted scan."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import reference
from strategies import Array, close_pair, instances

import otmd
from otmd.curve._kernels import ratios_of
from otmd.curve.blocks import DRAFT, NUM_GROUPS, SLACK, TARGET, BlockedCurve, fill_groups

# The cut may be worse by what it takes for a tie, and by the rounding of sums near 1.
AGREE = SLACK + 1e-14


class Grouped(BlockedCurve):
    """Groups at every vocabulary, and single ratios from groups."""

    smallest_grouped = 0


class InParts(Grouped):
    """Groups, parts of groups, and single ratios from parts."""

    most_sorted = 0


CURVES = (BlockedCurve, Grouped, InParts)


def cut_of(p: Array, q: Array, n: int, kind: type[BlockedCurve] = Grouped) -> tuple[Array, float]:
    """Tokens of the cut, and its value as the search found it."""
    (cut,) = kind(p, q, [n]).smallest_cuts()
    ratio = ratios_of(p, q, np.arange(p.size))
    return (ratio < cut.end) & (q > 0), cut.value


def assert_smallest_minimiser(p: Array, q: Array, n: int, where: object) -> None:
    """Value against the exact minimum over all subsets, and no token too many."""
    exact_p, exact_q = ([Fraction(mass) for mass in masses.tolist()] for masses in (p, q))
    best, smallest = reference.smallest_best_cut(exact_p, exact_q, n)
    with np.errstate(all="ignore"):
        ratio = p / q
    for kind in CURVES:
        subset, found = cut_of(p, q, n, kind)
        tokens = np.flatnonzero(subset).tolist()
        own = sum(exact_p[y] for y in tokens) - sum(exact_q[y] for y in tokens) ** n
        assert 0 <= own - best <= AGREE, where
        assert abs(found - float(best)) <= AGREE, where
        # Ratios that are one float belong together, whatever they are exactly.
        assert set(tokens) <= set(np.flatnonzero(np.isin(ratio, ratio[list(smallest)]))), where


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_brute_force_in_fractions(scale: float) -> None:
    """Hostile instances as they are, and with a target that sums to less than 1."""
    for instance in instances(80, seed=81):
        p, q = scale * np.array(instance.p), np.array(instance.q)
        assert_smallest_minimiser(p, q, instance.num_drafts, instance)
        assert_smallest_minimiser(p, q, 32, instance)


def nested(q: list[Fraction], n: int, first: Fraction) -> list[Fraction]:
    """p with the same p(H) - q(H)^n on every prefix H but the empty one, exactly."""
    ends = [sum(q[: k + 1]) ** n for k in range(len(q))]
    return [first, *(after - before for before, after in pairwise(ends))]


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("counts", [(1, 1, 2, 4), (2, 1, 1, 1, 3), (1, 7), (4, 2, 2)])
def test_of_equally_good_cuts_the_smallest(n: int, counts: tuple[int, ...]) -> None:
    q = [Fraction(count, 8) for count in counts]
    tight = nested(q, n, Fraction(0))
    exact = [*tight[:-1], 1 - sum(tight[:-1])]
    best, smallest = reference.smallest_best_cut(exact, q, n)
    assert (best, smallest) == (-(q[0] ** n), (0,))
    p, draft = np.array([float(mass) for mass in exact]), np.array([float(mass) for mass in q])
    subset, found = cut_of(p, draft, n)
    assert np.flatnonzero(subset).tolist() == [0]
    assert found == float(best)
    # Every prefix as good as no cut at all: nothing is cut.
    level = nested(q, n, q[0] ** n)
    subset, found = cut_of(np.array([float(mass) for mass in level]), draft, n)
    assert not subset.any()
    assert found == 0.0


def sorted_scan(p: Array, q: Array, n: int) -> float:
    """The least p(H) − q(H)^n over prefixes, by a sort of all tokens."""
    curve = otmd.RatioCurve(p, q)
    return float((curve.target_mass - np.minimum(curve.draft_mass, 1.0) ** n).min())


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("noise", [1e-6, 1.0, 30.0])
def test_a_large_vocabulary_against_the_sorted_scan(noise: float, curve: type[BlockedCurve]) -> None:
    """Ratios all but equal, and over thirty orders of magnitude; all numbers of drafts at once."""
    p, q = close_pair(50_000, noise, 1)
    counts = range(1, 9)
    for n, cut in zip(counts, curve(p, q, counts).smallest_cuts(), strict=True):
        subset, value = cut_of(p, q, n, curve)
        wanted = pytest.approx(sorted_scan(p, q, n), abs=1e-12)
        assert (cut.value, value) == (wanted, wanted)
        assert p[subset].sum() - q[subset].sum() ** n == wanted
        best = otmd.optimal_acceptance(p, otmd.WithReplacement(q, n))
        assert best.rate - 1.0 == wanted
        np.testing.assert_array_equal(best.subset, subset)


def test_blocks_hold_every_token_once() -> None:
    rng = np.random.default_rng(5)
    p, q = rng.dirichlet(np.full(3000, 0.2), size=2)
    q[::7] = 0.0
    ratio = ratios_of(p, q, np.arange(p.size))
    for kind in CURVES:
        curve = kind(p, q, [2, 5])
        curve.smallest_cuts()
        blocks = curve.blocks
        assert (np.diff(blocks.low) > 0).all()
        place = np.searchsorted(blocks.low, ratio, side="right") - 1
        for column, mass in ((TARGET, p), (DRAFT, q)):
            own = np.bincount(place, mass, len(blocks.low))
            np.testing.assert_allclose(blocks.sums[:, column], own, atol=1e-13)
        single = blocks.single[place]
        assert (ratio[single] == blocks.low[place][single]).all()


def test_groups_ascend_with_the_ratio() -> None:
    ratio = np.concatenate([[0.0, 5e-324], 2.0 ** np.linspace(-45, 45, 900), [np.inf]])
    draft = (ratio < np.inf).astype(float)
    group = np.empty(ratio.size, np.int16)
    fill_groups(np.minimum(ratio, 1e300), draft, np.empty(ratio.size), group)
    assert (np.diff(group) >= 0).all()
    assert group[[0, 1, -1]].tolist() == [0, 1, NUM_GROUPS - 1]
    # Thirty-two groups an octave.
    assert group[np.searchsorted(ratio, 4.0)] - group[np.searchsorted(ratio, 2.0)] == 32


@pytest.mark.parametrize("tiny", [5e-324, 1e-310, 2.3e-308])
def test_subnormal_masses(tiny: float) -> None:
    p, q = np.array([0.5, tiny, 0.25, 0.25]), np.array([tiny, 0.5, 0.5 - 1e-17, tiny])
    assert_smallest_minimiser(p, q, 2, tiny)
    subset, value = cut_of(p, q, 2)
    assert subset.tolist() == [False, True, True, False]
    assert value == pytest.approx(-0.75, abs=AGREE)


def test_ratios_over_sixty_orders_of_magnitude() -> None:
    for seed in range(10):
        rng = np.random.default_rng([60, seed])
        p, q = 10.0 ** rng.uniform(-30, 0, (2, 7))
        assert_smallest_minimiser(p / p.sum(), q / q.sum(), int(rng.integers(1, 5)), seed)
