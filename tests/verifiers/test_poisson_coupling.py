"""Couplings without communication: rates in fractions, by quadrature and simulation, invariance."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad

import otmd
from otmd.optimum import exact

COUPLINGS = {
    "poisson": (otmd.PoissonCoupling(), otmd.WithReplacement),
    "list": (otmd.GumbelList(), otmd.WithReplacement),
    "top": (otmd.GumbelTop(), otmd.WithoutReplacement),
}
EVERY = pytest.mark.parametrize("name", COUPLINGS)


def pairs(count: int, size: int, seed: int):
    rng = np.random.default_rng(seed)
    for k in range(count):
        p, q = rng.dirichlet(np.full(size, 0.6), size=2)
        if k % 3 == 1:
            p[0], q[1] = 0.0, 0.0
        yield p / p.sum(), q / q.sum()


def fraction_pair(seed: int, size: int = 4) -> tuple[list[Fraction], list[Fraction]]:
    parts = np.random.default_rng(seed).integers(1, 30, size=(2, size))
    return tuple([Fraction(int(x), int(row.sum())) for x in row] for row in parts)  # pyright: ignore


def excess(p, q, scale):
    return [max(scale * b - a, 0 * a) for a, b in zip(p, q, strict=True)]


def drafted_by_top(p, q, n: int, scale: Fraction) -> Fraction:
    """P(a token with p/q = ``scale`` is drafted | the target emits it), from its race with the others."""
    rates = excess(p, q, scale)
    if sum(rate > 0 for rate in rates) < n:
        return Fraction(1)
    raced = [rate / (1 + sum(rates)) for rate in [*rates, Fraction(1)]]
    contained = exact.WithoutReplacement(raced, n).containment(
        len(raced), lambda name, values: list(values)
    )
    return 1 - contained[2 ** len(p) - 1]


@pytest.mark.parametrize("num_drafts", [1, 2, 3])
def test_poisson_and_top_in_fractions(num_drafts):
    for seed in range(5):
        p, q = fraction_pair(seed)
        by_poisson = by_top = Fraction(0)
        for a, b in zip(p, q, strict=True):
            total = 1 + sum(excess(p, q, a / b))
            by_poisson += a * (1 - (1 - 1 / total) ** num_drafts)
            by_top += a * drafted_by_top(p, q, num_drafts, a / b)
        target, draft = ([float(x) for x in row] for row in (p, q))
        for coupling, law, rate in (
            (otmd.PoissonCoupling(), otmd.WithReplacement, by_poisson),
            (otmd.GumbelTop(), otmd.WithoutReplacement, by_top),
        ):
            bounds = coupling.acceptance_bounds(target, law(draft, num_drafts))
            assert bounds == pytest.approx((float(rate), float(rate)), abs=1e-12)


@pytest.mark.parametrize("num_drafts", [1, 2, 3])
def test_the_top_is_concave_in_the_rate_of_one_draft(num_drafts):
    for seed in range(8):
        p, q = fraction_pair(seed, size=5)
        scales = {a / b for a, b in zip(p, q, strict=True)} | {Fraction(k, 4) for k in range(1, 16)}
        drafted = {
            1 / (1 + sum(excess(p, q, scale))): drafted_by_top(p, q, num_drafts, scale)
            for scale in scales
        }
        slopes = [(drafted[b] - drafted[a]) / (b - a) for a, b in pairwise(sorted(drafted))]
        assert all(before >= after >= 0 for before, after in pairwise(slopes))


@pytest.mark.parametrize(("size", "noise", "num_drafts"), [(900, 0.5, 2), (700, 2.0, 5)])
def test_the_top_against_one_race_a_token(size, noise, num_drafts):
    rng = np.random.default_rng(9)
    logits = rng.normal(size=size)
    p, q = (otmd.probs_from_logits(x) for x in (logits, logits + noise * rng.normal(size=size)))
    rate = 0.0
    for y in range(size):
        race = np.append(np.maximum(p[y] / q[y] * q - p, 0.0), 1.0)
        race[y] = 0.0
        drafted = 1.0
        if np.count_nonzero(race) > num_drafts:
            raced = otmd.WithoutReplacement(race / race.sum(), num_drafts)
            drafted -= float(raced.containment(np.arange(size + 1) < size))
        rate += p[y] * drafted
    law = otmd.WithoutReplacement(q, num_drafts)
    low, high = otmd.GumbelTop().acceptance_bounds(p, law)
    assert low - 1e-13 <= rate <= high + 1e-13
    assert high - low <= 1e-6


def missed_by_list(p, q, n: int, y: int) -> float:
    """P(no draft is y | the target emits y), by adaptive quadrature."""
    if q[y] == 0.0:
        return 1.0
    start = p[y] / q[y]
    kinks = {a / b for a, b in zip(p, q, strict=True) if b > 0 and a / b > start}
    ends = [start, *sorted(kinks)]

    def drafted_by_another(s: float) -> float:
        def unreached(c):
            return np.exp(-s * sum(excess(p, q, c)))

        inside = sum(quad(unreached, *span)[0] for span in pairwise(ends))
        return s * q[y] * (inside + quad(unreached, ends[-1], np.inf)[0])

    def integrand(s: float) -> float:
        alone = -np.expm1(-s * sum(excess(p, q, start)))
        return n * np.exp(-n * s) * alone * (1.0 - drafted_by_another(s)) ** (n - 1)

    return quad(integrand, 0.0, 40.0 / n, epsabs=1e-8)[0]


@pytest.mark.parametrize("num_drafts", [1, 2, 5])
def test_the_list_against_adaptive_quadrature(num_drafts):
    for p, q in pairs(2, 4, 7):
        missed = sum(p[y] * missed_by_list(p, q, num_drafts, y) for y in range(4) if p[y] > 0)
        law = otmd.WithReplacement(q, num_drafts)
        rate = otmd.acceptance_rate(otmd.GumbelList(), p, law)
        assert rate == pytest.approx(1.0 - missed, abs=1e-6)


@pytest.mark.parametrize("num_drafts", [2, 4, 30])
def test_the_list_takes_enough_times(num_drafts, monkeypatch):
    rng = np.random.default_rng(10)
    for size, sharp in ((3, 0.05), (4, 1.0), (40, 0.3), (400, 0.05)):
        p, q = rng.dirichlet(np.full(size, sharp), size=2)
        law = otmd.WithReplacement(q, num_drafts)
        rate = otmd.acceptance_rate(otmd.GumbelList(), p, law)
        with monkeypatch.context() as finer:
            finer.setattr("otmd.verifiers.gumbel_list._SPACING", 0.1)
            finest = otmd.acceptance_rate(otmd.GumbelList(), p, law)
        assert rate == pytest.approx(finest, abs=2e-11)


@EVERY
def test_output_and_drafts_follow_their_laws_and_meet_at_the_rate(name):
    coupling, law = COUPLINGS[name]
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.full(5, 0.7), size=2)
    drafts = law(q, 3)
    draws = [coupling.clocks(5, 3, rng=rng) for _ in range(4000)]
    proposed = np.array([coupling.draft_tokens(q, clocks) for clocks in draws])
    emitted = np.array([coupling.output_token(p, clocks) for clocks in draws])
    assert not otmd.audit.draft_law(proposed, drafts, rng=rng).faulty
    counts = np.bincount(emitted, minlength=5)
    assert (np.abs(counts / 4000 - p) < 4.5 * np.sqrt(p / 4000)).all()
    rate = coupling.acceptance_rate(p, drafts)
    hits = (proposed == emitted[:, None]).any(axis=1).mean()
    assert abs(hits - rate) < 4.5 * np.sqrt(rate * (1 - rate) / 4000)


@EVERY
def test_the_output_does_not_change_with_the_draft_model(name):
    coupling, _ = COUPLINGS[name]
    rng = np.random.default_rng(2)
    p = rng.dirichlet(np.ones(20))
    for seed in range(20):
        clocks = coupling.clocks(20, 4, rng=seed)
        again = coupling.clocks(20, 4, rng=seed)
        output = coupling.output_token(p, clocks)
        drafts = [coupling.draft_tokens(rng.dirichlet(np.ones(20)), clocks) for _ in range(3)]
        assert len({tuple(tokens.tolist()) for tokens in drafts}) > 1
        assert coupling.output_token(p, again) == output
        assert output in coupling.draft_tokens(p, clocks)


@EVERY
def test_published_floors(name):
    coupling, law = COUPLINGS[name]
    for p, q in pairs(12, 8, 4):
        apart = 0.5 * np.abs(p - q).sum()
        assert coupling.acceptance_rate(p, law(q, 1)) >= (1 - apart) / (1 + apart) - 1e-12
        drawn = (q > 0) & (p > 0)
        for n in (2, 4):
            grown = np.array([sum(excess(p, q, c)) for c in p[drawn] / q[drawn]])
            # The list matching lemma, whose T + n − 1 is A + n.
            floor = (n * p[drawn] / (grown + n)).sum()
            if name == "list":
                assert coupling.acceptance_rate(p, law(q, n)) >= floor - 1e-12


TINY = 5e-324
HOSTILE = {
    "one token": ([1.0], [1.0]),
    "one and the same": ([1.0, 0.0], [1.0, 0.0]),
    "disjoint": ([1.0, 0.0, 0.0], [0.0, 0.5, 0.5]),
    "one target token": ([1.0, 0.0, 0.0], [0.2, 0.3, 0.5]),
    "ties": ([0.1, 0.1, 0.4, 0.4], [0.2, 0.2, 0.3, 0.3]),
    "equal": ([0.25] * 4, [0.25] * 4),
    "subnormal target": ([TINY, 1.0, 0.0], [0.5, 0.25, 0.25]),
    "subnormal draft": ([0.5, 0.25, 0.25], [TINY, 0.5, 0.5]),
    "the rest subnormal": ([0.0, 0.5, 0.5], [1.0, TINY, 2 * TINY]),
    "both subnormal": ([1.0, TINY, 3 * TINY], [1.0, 2 * TINY, TINY]),
    "swapped": ([1.0, 1e-310, 0.0, 1e-320], [1e-310, 1.0, 1e-320, 0.0]),
    "far apart": ([1e-150, 0.5, 0.5], [1.0, 1e-100, 2e-100]),
}


@EVERY
@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_pairs(name, case):
    coupling, law = COUPLINGS[name]
    p, q = HOSTILE[case]
    for n in range(1, 1 + (np.count_nonzero(q) if name == "top" else 4)):
        low, high = coupling.acceptance_bounds(p, law(q, n))
        assert 0.0 <= low <= high <= 1.0
        if case in ("one token", "one and the same", "equal"):
            assert low == pytest.approx(1.0, abs=1e-11)
        elif case == "disjoint":
            assert high == 0.0
        elif name == "top" and n == np.count_nonzero(q):
            assert high == pytest.approx(sum(a for a, b in zip(p, q, strict=True) if b > 0))


def test_bounds_of_the_top_hold_at_every_tolerance():
    p, q = np.random.default_rng(5).dirichlet(np.full(400, 0.1), size=2)
    law = otmd.WithoutReplacement(q, 3)
    bounds = [otmd.GumbelTop().acceptance_bounds(p, law, tol) for tol in (1e-1, 1e-3, 1e-5)]
    for (low, high), (lower, upper) in pairwise(bounds):
        assert low <= lower <= upper <= high
    assert bounds[-1][1] - bounds[-1][0] <= 1e-5


def test_errors_name_what_was_expected():
    coupling, p = otmd.GumbelTop(), np.array([0.5, 0.5, 0.0])
    with pytest.raises(ValueError, match=r"clocks: got shape \(2,\)"):
        coupling.output_token(p, np.ones(2))
    with pytest.raises(ValueError, match="expected 3 or more"):
        coupling.draft_tokens(p, coupling.clocks(3, 3, rng=0))
    with pytest.raises(ValueError, match="no closed form given the drafts"):
        coupling.output_distribution(p, otmd.WithoutReplacement(p, 2))
