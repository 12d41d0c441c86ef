"""Rates of the positions of a batch in one kernel: against fractions, position by position."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import naive
import numpy as np
import pytest
from strategies import Array, instances

from otmd.curve.rate_rows import (
    hit_rates,
    k_sequential_rates,
    rates_beside_likeliest,
    recursive_rejection_rates,
)
from otmd.curve.ratio_groups import group_edges

COUNTS = np.array([1, 2, 5])
P_ROW, Q_ROW = np.array([0, 1, 1]), np.array([0, 1, 0])


def batches() -> Iterator[tuple[Array, Array]]:
    """Two rows of p and two of q, which three positions read."""
    by_size: dict[int, list] = {}
    for instance in instances(150, seed=91):
        rows = by_size.setdefault(len(instance.p), [])
        rows.append(instance)
        if len(rows) == 2:
            yield np.array([x.p for x in rows]), np.array([x.q for x in rows])
            rows.clear()


BATCHES = list(batches())


def exact_pairs(p: Array, q: Array) -> list[tuple[list[Fraction], list[Fraction]]]:
    pairs = zip(P_ROW, Q_ROW, strict=True)
    return [(naive.exact(p[i].tolist()), naive.exact(q[j].tolist())) for i, j in pairs]


def test_recursive_rejection() -> None:
    for p, q in BATCHES:
        rates = np.empty((3, 3))
        recursive_rejection_rates(p, P_ROW, q, Q_ROW, COUNTS, rates)
        wanted = [[naive.rrs_by_curve(*pair, n) for n in COUNTS] for pair in exact_pairs(p, q)]
        np.testing.assert_allclose(rates, np.array(wanted, float), rtol=0, atol=1e-14)


def test_k_sequential() -> None:
    for p, q in BATCHES:
        rates = np.empty((3, 3))
        k_sequential_rates(p, P_ROW, q, Q_ROW, COUNTS, group_edges(), rates)
        for b, (i, j) in enumerate(zip(P_ROW, Q_ROW, strict=True)):
            target, draft = p[i].tolist(), q[j].tolist()
            for k, n in enumerate(COUNTS.tolist()):
                beta = naive.k_seq_beta(target, draft, naive.k_seq_rho(target, draft, n))
                assert rates[b, k] == pytest.approx(1 - (1 - beta) ** n, abs=1e-12)


def test_hits() -> None:
    for p, q in BATCHES:
        rates = np.empty((3, 3))
        hit_rates(p, P_ROW, q, Q_ROW, COUNTS, rates)
        wanted = [
            [sum(a * (1 - (1 - b) ** int(n)) for a, b in zip(*pair, strict=True)) for n in COUNTS]
            for pair in exact_pairs(p, q)
        ]
        np.testing.assert_allclose(rates, np.array(wanted, float), rtol=1e-13, atol=1e-300)


def beside(target: list[Fraction], draft: list[Fraction], top: int) -> Fraction | float:
    """p(Top) + Σ min(p, q'), Top by a sort."""
    likeliest = sorted(range(len(draft)), key=lambda y: (-draft[y], y))[:top]
    others = [0 if y in likeliest else mass for y, mass in enumerate(draft)]
    left = sum(others)
    coupled = sum(min(a, b / left) for a, b in zip(target, others, strict=True)) if left else 0
    return sum(target[y] for y in likeliest) + coupled


def test_beside_the_likeliest_tokens() -> None:
    for p, q in BATCHES:
        tops = np.array([n for n in (0, 1, 3) if n < p.shape[1]])
        rates = np.empty((3, tops.size))
        rates_beside_likeliest(p, P_ROW, q, Q_ROW, tops, rates)
        wanted = [[beside(*pair, top) for top in tops] for pair in exact_pairs(p, q)]
        np.testing.assert_allclose(rates, np.array(wanted, float), rtol=0, atol=1e-14)


def test_no_positions() -> None:
    p, q = BATCHES[0]
    none, rates = np.empty(0, np.int64), np.empty((0, 3))
    recursive_rejection_rates(p, none, q, none, COUNTS, rates)
    k_sequential_rates(p, none, q, none, COUNTS, group_edges(), rates)
    hit_rates(p, none, q, none, COUNTS, rates)
    rates_beside_likeliest(p, none, q, none, COUNTS, rates)
