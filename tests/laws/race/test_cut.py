"""The cut without replacement against a scan of every prefix."""

import numpy as np
import pytest

import otmd
from otmd.laws.race.containment import ExponentialRace, RaceCurve
from otmd.laws.race.quadrature import latest_win, win_times
from otmd.optimum.acceptance import best_prefix


def cut_of(target: np.ndarray, draft: np.ndarray, n: int) -> tuple[np.ndarray, float]:
    curve = RaceCurve(target, ExponentialRace(draft, n))
    (cut,) = curve.smallest_cuts()
    return curve.subset(cut.end), 1.0 + cut.value


def counted(law: otmd.WithoutReplacement, order: np.ndarray) -> np.ndarray:
    """g of every prefix, from counts of arrivals at each node to which tokens are added one by one."""
    q, n = law.draft_probs[order], law.num_drafts
    times, steps = win_times(latest_win(q, n), 1.0, n, 1)
    counts, contained = np.zeros((n, times.size)), [0.0]
    counts[0] = 1.0
    for mass, outside in zip(q, np.append(q[::-1].cumsum()[-2::-1], 0.0), strict=True):
        absent = np.exp(-mass * times)
        counts[1:] = counts[1:] * absent + counts[:-1] * (1.0 - absent)
        counts[0] *= absent
        fewer = steps * np.exp(-outside * times) @ counts.sum(axis=0)
        contained.append(1.0 - outside * fewer)
    return np.array(contained)


def pair(size: int, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = 3.0 * rng.gumbel(size=size)
    moved = logits + noise * rng.standard_normal(size)
    return otmd.probs_from_logits(logits), otmd.probs_from_logits(moved)


@pytest.mark.parametrize("num_drafts", [2, 4])
@pytest.mark.parametrize("noise", [0.1, 4.0])
def test_as_a_scan_of_every_prefix(noise: float, num_drafts: int) -> None:
    target, draft = pair(6_000, noise, seed=num_drafts)
    law = otmd.WithoutReplacement(draft, num_drafts)
    subset, rate = cut_of(target, law.draft_probs, law.num_drafts)
    order = np.argsort(target / draft, kind="stable")
    _, scanned = best_prefix(target, order, counted(law, order))
    assert rate == pytest.approx(1.0 + scanned, abs=1e-12)
    # Several prefixes may be equally good up to rounding; the one returned has the best value.
    own = 1.0 + target[subset].sum() - law.containment(subset)
    assert own == pytest.approx(rate, abs=1e-12)


def test_tied_ratios_stay_together() -> None:
    draft = np.repeat([0.02, 0.01, 0.005], [20, 40, 40])
    ratio = np.repeat([0.5, 1.0, 2.0], [20, 40, 40])
    target = draft * ratio / (draft * ratio).sum()
    law = otmd.WithoutReplacement(draft, 3)
    subset, rate = cut_of(target, law.draft_probs, law.num_drafts)
    values = {
        tuple(row): 1.0 + target[row].sum() - law.containment(row)
        for row in (np.arange(100) < k for k in (0, 20, 60, 100))
    }
    assert rate == pytest.approx(min(values.values()), abs=1e-13)
    assert tuple(subset) in values
