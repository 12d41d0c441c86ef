"""The cut without replacement against a scan of every prefix."""

import numpy as np
import pytest
from strategies import instances

import otmd
from otmd.optimum.acceptance import best_prefix
from otmd.optimum.race_cut import race_cut


def scanned(target: np.ndarray, law: otmd.WithoutReplacement) -> tuple[np.ndarray, float]:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(law.draft_probs > 0, target / law.draft_probs, np.inf)
    order = np.argsort(ratio, kind="stable")
    return best_prefix(target, order, law.prefix_containment(order))


def pair(size: int, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = 3.0 * rng.gumbel(size=size)
    moved = logits + noise * rng.standard_normal(size)
    return otmd.probs_from_logits(logits), otmd.probs_from_logits(moved)


@pytest.mark.parametrize("num_drafts", [2, 3, 4, 8])
@pytest.mark.parametrize("noise", [0.1, 1.0, 4.0])
def test_as_a_scan_of_every_prefix(noise: float, num_drafts: int) -> None:
    target, draft = pair(6_000, noise, seed=num_drafts)
    law = otmd.WithoutReplacement(draft, num_drafts)
    cut = race_cut(target, law)
    subset, rate = cut.subset, cut.rate
    assert rate == pytest.approx(scanned(target, law)[1], abs=1e-12)
    # Prefixes may be as good as each other up to rounding; the one returned has that value.
    own = 1.0 + target[subset].sum() - law.containment(subset)
    assert own == pytest.approx(rate, abs=1e-12)


def test_hostile_instances() -> None:
    compared = 0
    for instance in instances(300, seed=23):
        target, draft = np.array(instance.p, float), np.array(instance.q, float)
        if instance.num_drafts < 2 or np.count_nonzero(draft) < instance.num_drafts:
            continue
        law = otmd.WithoutReplacement(draft, instance.num_drafts)
        cut = race_cut(target, law)
        subset, rate = cut.subset, cut.rate
        expected_subset, expected = scanned(target, law)
        assert rate == pytest.approx(expected, abs=1e-12), instance
        np.testing.assert_array_equal(subset, expected_subset)
        compared += 1
    assert compared > 150


def test_tied_ratios_stay_together() -> None:
    draft = np.repeat([0.02, 0.01, 0.005], [20, 40, 40])
    ratio = np.repeat([0.5, 1.0, 2.0], [20, 40, 40])
    target = draft * ratio / (draft * ratio).sum()
    law = otmd.WithoutReplacement(draft, 3)
    cut = race_cut(target, law)
    subset, rate = cut.subset, cut.rate
    values = {
        tuple(row): 1.0 + target[row].sum() - law.containment(row)
        for row in (np.arange(100) < k for k in (0, 20, 60, 100))
    }
    assert rate == pytest.approx(min(values.values()), abs=1e-13)
    assert tuple(subset) in values


def test_a_target_of_less_than_all_mass() -> None:
    target, draft = pair(500, 1.0, seed=1)
    law = otmd.WithoutReplacement(draft, 3)
    cut = race_cut(0.7 * target, law)
    subset, rate = cut.subset, cut.rate
    assert rate == pytest.approx(scanned(0.7 * target, law)[1], abs=1e-12)
    assert subset.any()
