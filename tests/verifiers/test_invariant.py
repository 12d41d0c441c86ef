"""Couplings without communication: rates in fractions and simulated, losslessness, invariance, floors."""

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


@pytest.mark.parametrize("num_drafts", [1, 2, 3])
def test_poisson_and_top_in_fractions(num_drafts):
    for seed in range(5):
        p, q = fraction_pair(seed)
        by_poisson = by_top = Fraction(0)
        for a, b in zip(p, q, strict=True):
            rates = excess(p, q, a / b)
            total = 1 + sum(rates)
            by_poisson += a * (1 - (1 - 1 / total) ** num_drafts)
            raced = [rate / total for rate in [*rates, Fraction(1)]]
            first = Fraction(1)
            if sum(rate > 0 for rate in rates) >= num_drafts:
                law = exact.WithoutReplacement(raced, num_drafts)
                contained = law.containment(5, lambda name, values: list(values))
                first = 1 - contained[0b1111]
            by_top += a * first
        target, draft = ([float(x) for x in row] for row in (p, q))
        for coupling, law, rate in (
            (otmd.PoissonCoupling(), otmd.WithReplacement, by_poisson),
            (otmd.GumbelTop(), otmd.WithoutReplacement, by_top),
        ):
            found = coupling.acceptance_bounds(target, law(draft, num_drafts))
            assert found == pytest.approx((float(rate), float(rate)), abs=1e-12)


def missed_by_list(p, q, n: int, y: int) -> float:
    """P(no draft is y | the target emits y), by adaptive quadrature."""
    if q[y] == 0.0:
        return 1.0
    start = p[y] / q[y]
    kinks = {a / b for a, b in zip(p, q, strict=True) if b > 0 and a / b > start}
    ends = [start, *sorted(kinks)]

    def other(s: float) -> float:
        def unreached(c):
            return np.exp(-s * sum(excess(p, q, c)))

        inside = sum(quad(unreached, *each)[0] for each in pairwise(ends))
        return s * q[y] * (inside + quad(unreached, ends[-1], np.inf)[0])

    def integrand(s: float) -> float:
        alone = -np.expm1(-s * sum(excess(p, q, start)))
        return n * np.exp(-n * s) * alone * (1.0 - other(s)) ** (n - 1)

    return quad(integrand, 0.0, 40.0 / n, epsabs=1e-8)[0]


@pytest.mark.parametrize("num_drafts", [2, 5])
def test_the_list_against_adaptive_quadrature(num_drafts):
    for p, q in pairs(2, 4, 7):
        missed = sum(p[y] * missed_by_list(p, q, num_drafts, y) for y in range(4) if p[y] > 0)
        law = otmd.WithReplacement(q, num_drafts)
        rate = otmd.acceptance_rate(otmd.GumbelList(), p, law)
        assert rate == pytest.approx(1.0 - missed, abs=1e-6)


@EVERY
def test_one_draft_is_gumbel_sampling(name):
    coupling, law = COUPLINGS[name]
    for p, q in pairs(6, 6, 1):
        ratios = [a / b if b > 0 else np.inf for a, b in zip(p, q, strict=True)]
        wanted = sum(
            a / (1.0 + sum(excess(p, q, c)))
            for a, c in zip(p, ratios, strict=True)
            if np.isfinite(c)
        )
        assert coupling.acceptance_rate(p, law(q, 1)) == pytest.approx(wanted, abs=1e-11)


@EVERY
def test_output_and_drafts_follow_their_laws_and_meet_at_the_rate(name):
    coupling, law = COUPLINGS[name]
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.full(5, 0.7), size=2)
    drafts = law(q, 3)
    draws = [coupling.clocks(rng, 5, 3) for _ in range(4000)]
    proposed = np.array([coupling.draft_tokens(q, clocks) for clocks in draws])
    emitted = np.array([coupling.output_token(p, clocks) for clocks in draws])
    assert not otmd.audit.draft_law(proposed, drafts, rng=rng).faulty
    counts = np.bincount(emitted, minlength=5)
    assert (np.abs(counts / 4000 - p) < 4.5 * np.sqrt(p / 4000)).all()
    rate = coupling.acceptance_rate(p, drafts)
    hits = (proposed == emitted[:, None]).any(axis=1).mean()
    assert abs(hits - rate) < 4.5 * np.sqrt(rate * (1 - rate) / 4000)


@EVERY
def test_verifying_drafts_alone_is_lossless_and_has_the_rate(name):
    coupling, law = COUPLINGS[name]
    rng = np.random.default_rng(1)
    p, q = rng.dirichlet(np.full(5, 0.7), size=2)
    drafts = law(q, 3)
    audit = otmd.audit.losslessness(coupling, p, drafts, 4000, rng=rng)
    assert audit.impossible == 0
    assert not audit.faulty
    rate = coupling.acceptance_rate(p, drafts)
    assert audit.acceptance.low <= rate <= audit.acceptance.high
    assert rate <= otmd.optimal_acceptance(p, drafts).rate + 1e-12


@EVERY
def test_the_output_does_not_change_with_the_draft_model(name):
    coupling, _ = COUPLINGS[name]
    rng = np.random.default_rng(2)
    p = rng.dirichlet(np.ones(20))
    for seed in range(20):
        clocks = coupling.clocks(np.random.default_rng(seed), 20, 4)
        again = coupling.clocks(np.random.default_rng(seed), 20, 4)
        output = coupling.output_token(p, clocks)
        drafts = [coupling.draft_tokens(rng.dirichlet(np.ones(20)), clocks) for _ in range(3)]
        assert len({tuple(each.tolist()) for each in drafts}) > 1
        assert coupling.output_token(p, again) == output
        assert output in coupling.draft_tokens(p, clocks)


@EVERY
def test_equal_distributions_always_agree(name):
    coupling, law = COUPLINGS[name]
    q = np.random.default_rng(3).dirichlet(np.ones(8))
    assert coupling.acceptance_rate(q, law(q, 3)) == pytest.approx(1.0, abs=1e-11)


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


def test_bounds_of_the_top_are_certain_at_every_tolerance():
    p, q = np.random.default_rng(5).dirichlet(np.full(400, 0.1), size=2)
    law = otmd.WithoutReplacement(q, 3)
    bounds = [otmd.GumbelTop().acceptance_bounds(p, law, tol) for tol in (1e-1, 1e-3, 1e-5)]
    for (low, high), (lower, upper) in pairwise(bounds):
        assert low <= lower <= upper <= high
    assert bounds[-1][1] - bounds[-1][0] <= 1e-5


def test_drafts_without_replacement_agree_at_least_as_often_as_with():
    for p, q in pairs(9, 6, 6):
        q = 0.9 * q + 0.1 / 6
        with_them = otmd.acceptance_rate(otmd.PoissonCoupling(), p, otmd.WithReplacement(q, 3))
        without = otmd.acceptance_rate(otmd.GumbelTop(), p, otmd.WithoutReplacement(q, 3))
        assert without >= with_them - 1e-6


def test_they_stand_beside_the_verifiers():
    p, q = np.random.default_rng(8).dirichlet(np.ones(6), size=2)
    rules = [otmd.GumbelTop, otmd.PoissonCoupling, otmd.GumbelList, otmd.RecursiveRejection]
    laws = [otmd.WithReplacement, otmd.WithoutReplacement]
    rows = otmd.compare(p, q, [2], laws=laws, verifiers=rules).to_dicts()
    assert {row["verifier"] for row in rows} == {rule.__name__ for rule in rules}
    assert all(row["gap"] >= -1e-9 for row in rows)


def test_errors_name_what_was_wanted():
    coupling, p = otmd.GumbelTop(), np.array([0.5, 0.5, 0.0])
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"clocks: got shape \(2,\)"):
        coupling.output_token(p, np.ones(2))
    with pytest.raises(ValueError, match="wanted 3 or more"):
        coupling.draft_tokens(p, coupling.clocks(rng, 3, 3))
    with pytest.raises(ValueError, match="no closed form given the drafts"):
        coupling.output_law(p, otmd.WithoutReplacement(p, 2))
    with pytest.raises(otmd.UnsupportedLaw):
        coupling.acceptance_rate(p, otmd.WithReplacement(p, 2))
