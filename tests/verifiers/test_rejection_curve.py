"""The curve with merged tokens against sums over all of them."""

import numpy as np
import pytest
import reference
import rejection_twins

from otmd.laws import Race
from otmd.laws.race.quadrature import RATE_UNIT
from otmd.verifiers.rejection_bounds import state_between
from otmd.verifiers.rejection_classes import ONE, RejectionPosition


def pair(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p, q = (
        rng.dirichlet(np.ones(size)),
        rng.dirichlet(np.full(size, 0.5)) * (rng.random(size) < 0.9),
    )
    return p, q / q.sum()


@pytest.mark.parametrize("interval", [(1.0, 1.7e308), (1.3, 2.5), (2.0, 2.0)])
@pytest.mark.parametrize("size", [3, 1024, 2500])
def test_merged_tokens_and_tails(size: int, interval: tuple[float, float]) -> None:
    p, q = pair(size, size)
    position = RejectionPosition(p, Race(q, 2))
    # In the unit of the class, where every product with a power of two is exact.
    position.interval = ONE, ONE * interval[0], ONE * interval[1]
    tokens, ratios = position._kept
    merged = rejection_twins.merged_masses(p.tolist(), q.tolist(), interval)
    with np.errstate(divide="ignore"):
        ratio = np.where(q > 0, p / q, np.inf)
    wanted = [y for y in range(size) if rejection_twins.part_of_ratio(ratio[y], interval) is None]
    assert sorted(tokens) == wanted
    assert ratios[2:-1].tolist() == sorted(ratio[wanted] * ONE)
    for mass, tail, column in ((p, 1, 0), (q, 2, 1)):
        found = position.curve[tail] * (ONE if tail == 2 else 1.0)
        low, between, beyond = (part[column] for part in merged)
        entries = [low, between, *mass[tokens], beyond]
        after = [sum(entries[k:]) for k in range(len(entries) + 1)]
        np.testing.assert_allclose(found, after, rtol=1e-12, atol=1e-18)


@pytest.mark.parametrize("num_drafts", [2, 3, 5])
def test_the_curve_is_exact_where_it_is_read(num_drafts: int) -> None:
    for seed in range(20):
        p, q = pair(40, seed)
        position = RejectionPosition(p, Race(q, num_drafts))
        first = reference.hockey_stick(p.tolist(), q.tolist(), 1.0)
        for C in (
            0.0,
            1.0,
            *np.linspace(1.0 + first, min(RATE_UNIT * position.interval[-1], 9.0), 20),
        ):
            found = state_between(position.curve, C / RATE_UNIT, C / RATE_UNIT).W_low
            assert found == pytest.approx(
                reference.hockey_stick(p.tolist(), q.tolist(), C), abs=1e-14
            )
