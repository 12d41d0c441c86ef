"""The masses of p and q by ratio: groups, single ratios, and the lines that bound what lies between."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

import naive
import numpy as np
import pytest
from strategies import Array, instances

from otmd.curve.ratio_groups import (
    FARTHEST_OCTAVE,
    MANTISSA_BITS,
    NUM_GROUPS,
    fill_ratios,
    group_by_ratio,
    group_edges,
    ratios_of,
    span_vertex,
    tokens_of_groups,
)
from otmd.curve.ratio_histogram import RatioHistogram

ROUNDING = 1e-13
INSTANCES = instances(300, seed=71)


def float_ratios(p: list[float], q: list[float]) -> list[float]:
    return [a / b if b > 0 else np.inf for a, b in zip(p, q, strict=True)]


def grouped(p: Array, q: Array) -> tuple[Array, Array, Array, Array]:
    ratio, group = np.empty(p.size), np.empty(p.size, np.int16)
    masses = np.zeros((2, NUM_GROUPS))
    fill_ratios(p, q, ratio)
    group_by_ratio(p, q, group, *masses)
    return ratio, group, masses[0], masses[1]


def random_pair(V: int, seed: int) -> tuple[Array, Array]:
    """Two laws with ratios in many groups, some tokens without mass in either."""
    rng = np.random.default_rng(seed)
    p, q = (rng.dirichlet(np.full(V, 0.2)) * (rng.random(V) < 0.9) for _ in range(2))
    return p, q


def test_edges_are_sixteen_steps_a_factor_of_two() -> None:
    edges = group_edges()
    assert edges.tolist() == [*naive.ratio_edges(FARTHEST_OCTAVE, 2**MANTISSA_BITS), np.inf]


def test_tokens_are_grouped_as_one_by_one() -> None:
    lows = naive.ratio_edges(FARTHEST_OCTAVE, 2**MANTISSA_BITS)
    for instance in INSTANCES:
        p, q = np.array(instance.p), np.array(instance.q)
        ratio, group, target, draft = grouped(p, q)
        wanted = float_ratios(instance.p, instance.q)
        assert ratio.tolist() == wanted, instance
        assert ratios_of(p, q, np.arange(p.size)[::-1]).tolist() == wanted[::-1], instance
        places = [bisect_right(lows, own) - 1 for own in wanted]
        assert group.tolist() == places, instance
        for mass, own in ((target, p), (draft, q)):
            expected = np.bincount(places, weights=own, minlength=NUM_GROUPS)
            np.testing.assert_allclose(mass, expected, rtol=1e-15, atol=0)


@pytest.mark.parametrize("ratio", [0.0, 2.0**-41, 2.0**-40, 1.0, 17 / 16, 2.0**40, 2.0**41, 1e300])
def test_a_ratio_on_an_edge_belongs_to_the_group_above(ratio: float) -> None:
    edges = group_edges()
    for own in (ratio, np.nextafter(ratio, np.inf), np.nextafter(ratio, 0.0)):
        _, group, _, _ = grouped(np.array([own]), np.ones(1))
        assert edges[group[0]] <= own < edges[group[0] + 1]


def test_a_ratio_beyond_the_largest_float_is_infinite() -> None:
    ratio, group, _, draft = grouped(np.array([1.0, 0.0]), np.array([5e-324, 0.0]))
    assert ratio.tolist() == [np.inf, np.inf]
    assert group.tolist() == [NUM_GROUPS - 1] * 2
    assert draft[-1] == 5e-324


def test_tokens_of_groups() -> None:
    group = np.array([3, 0, 2, 3, 1], np.int16)
    assert tokens_of_groups(group, np.array([True, False, False, True]), 5).tolist() == [0, 1, 3]
    assert tokens_of_groups(group, np.zeros(4, bool), 5).size == 0


def assert_masses(histogram: RatioHistogram, p: Array, q: Array) -> None:
    """Masses below every edge against sums over the tokens."""
    below = histogram.ratio < histogram.edges[:, None]
    for before, mass in ((histogram.target_before, p), (histogram.draft_before, q)):
        wanted = np.where(below, mass, 0.0).sum(axis=1)
        wanted[-1] = mass.sum()
        np.testing.assert_allclose(before, wanted, atol=ROUNDING, rtol=0)


@pytest.mark.parametrize("part", [0.0, 0.3, 1.0])
def test_resolved_groups_hold_one_ratio_each(part: float) -> None:
    for seed in range(20):
        p, q = random_pair(60, seed)
        rng = np.random.default_rng(seed)
        histogram = RatioHistogram.of(p, q)
        chosen = rng.random(NUM_GROUPS) < part
        resolved = histogram.resolve(chosen)
        assert_masses(histogram, p, q)
        assert_masses(resolved, p, q)
        assert (np.diff(resolved.edges[:-1]) > 0).all()
        places = np.searchsorted(resolved.edges, resolved.ratio, side="right") - 1
        places = np.minimum(places, resolved.single.size - 1)
        wanted = chosen[grouped(p, q)[1]]
        assert (resolved.single[places] == wanted).all()
        assert (resolved.edges[places][wanted] == resolved.ratio[wanted]).all()
        held = np.unique(places[wanted & (p + q > 0)])
        assert held.size == np.unique(resolved.ratio[wanted & (p + q > 0)]).size


def test_groups_that_stay_keep_both_edges() -> None:
    """Were one wider its lines would cross lower, and bound nothing worth having."""
    for seed in range(20):
        p, q = random_pair(60, seed)
        histogram = RatioHistogram.of(p, q)
        chosen = np.random.default_rng(seed).random(NUM_GROUPS) < 0.3
        resolved = histogram.resolve(chosen)
        for k in np.flatnonzero(~chosen):
            (place,) = np.flatnonzero(resolved.edges[:-1] == histogram.edges[k])
            assert resolved.edges[place + 1] == histogram.edges[k + 1], (seed, k)


def test_resolving_tied_ratios_merges_them() -> None:
    p, q = np.array([2, 4, 2, 8]) / 16, np.array([3, 6, 3, 4]) / 16
    resolved = RatioHistogram.of(p, q).resolve(np.ones(NUM_GROUPS, bool))
    assert resolved.single.all()
    assert np.unique(resolved.draft_before).tolist() == [0, 0.75, 1]
    assert np.unique(resolved.target_before).tolist() == [0, 0.5, 1]


@pytest.mark.parametrize("step", [1, 7, 64])
def test_no_prefix_lies_below_the_lines_of_its_span(step: int) -> None:
    for seed in range(20):
        p, q = random_pair(60, seed)
        histogram = RatioHistogram.of(p, q)
        nodes = np.unique(np.append(np.arange(0, NUM_GROUPS, step), NUM_GROUPS))
        curve = histogram.edges, histogram.target_before, histogram.draft_before
        order = np.argsort(histogram.ratio, kind="stable")
        inside = np.append(0.0, p[order].cumsum()), np.append(0.0, q[order].cumsum())
        for low, high in pairwise(nodes):
            edge = histogram.edges[low], histogram.edges[high]
            target, draft = span_vertex(*curve, low, high)
            ends = np.searchsorted(histogram.ratio[order], edge)
            ends[1] = p.size if np.isinf(edge[1]) else ends[1]
            across, up = (values[ends[0] : ends[1] + 1] for values in inside[::-1])
            lowest = target + edge[0] * (across - draft)
            if np.isfinite(edge[1]):
                lowest = np.maximum(lowest, target + edge[1] * (across - draft))
            scale = max(1.0, edge[0])
            assert (up >= lowest - ROUNDING * scale).all()
            assert across[0] - ROUNDING <= draft <= across[-1] + ROUNDING
