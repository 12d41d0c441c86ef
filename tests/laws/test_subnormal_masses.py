"""Masses below the normal float64 range, as a low temperature makes them: nothing overflows."""

import itertools

import numpy as np
import pytest

import otmd

TARGET = np.full(4, 0.25)


def _draft(tiny: float) -> np.ndarray:
    return np.array([1.0, tiny, 2 * tiny, 3 * tiny])


@pytest.mark.parametrize("tiny", [1e-300, 1e-310, 5e-324])
def test_two_after_another_share_the_rest_in_proportion(tiny: float) -> None:
    """Token 0 comes first; the others are then drawn with probabilities 1/6, 2/6 and 3/6."""
    drafts = otmd.WithoutReplacement(_draft(tiny), 2)
    np.testing.assert_allclose(drafts.inclusion_probs(), [1, 1 / 6, 2 / 6, 3 / 6], rtol=1e-12)
    assert drafts.containment([True, True, True, False]) == pytest.approx(1 / 2, abs=1e-12)
    assert drafts.tuple_prob([0, 3]) == pytest.approx(1 / 2, abs=1e-12)


@pytest.mark.parametrize("tiny", [1e-300, 1e-310, 5e-324])
def test_three_after_another_are_two_of_the_rest(tiny: float) -> None:
    drafts = otmd.WithoutReplacement(_draft(tiny), 3)
    weights = [0, 1, 2, 3]
    pairs = {
        (a, b): weights[a] / 6 * weights[b] / (6 - weights[a])
        for a, b in itertools.permutations([1, 2, 3], 2)
    }
    drafted = [1.0, *(sum(w for pair, w in pairs.items() if y in pair) for y in (1, 2, 3))]
    np.testing.assert_allclose(drafts.inclusion_probs(), drafted, rtol=1e-12)
    order = np.array([0, 1, 2, 3])
    contained = [0, 0, 0, pairs[1, 2] + pairs[2, 1], 1]
    np.testing.assert_allclose(drafts.prefix_containment(order), contained, rtol=0, atol=1e-12)
    assert drafts.containment([True, True, True, False]) == pytest.approx(contained[3], abs=1e-12)


@pytest.mark.parametrize("tiny", [1e-300, 1e-310, 5e-324])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "law", [otmd.WithReplacement, otmd.WithoutReplacement, otmd.ConditionalPoisson, otmd.Greedy]
)
def test_rules_stay_lossless(law: type, n: int, tiny: float) -> None:
    drafts = law(_draft(tiny), n)
    rules = [otmd.TargetOnly()]
    rules += [otmd.RecursiveRejection()] * (law in (otmd.WithReplacement, otmd.WithoutReplacement))
    rules += [otmd.KSequential()] * (law is otmd.WithReplacement)
    rules += [otmd.Preference()] * (law is otmd.Greedy)
    rules += [otmd.Preference()] * (n == 1)
    for rule in rules:
        np.testing.assert_allclose(
            rule.output_distribution(TARGET, drafts), TARGET, rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("tiny", [1e-300, 1e-307])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_rates_hold_down_to_the_smallest_normal_mass(n: int, tiny: float) -> None:
    drafts, rule = otmd.WithoutReplacement(_draft(tiny), n), otmd.RecursiveRejection()
    prepared, exact = rule.prepare(TARGET, drafts), 0.0
    for tokens, prob in zip(*drafts.enumerate(), strict=True):
        exact += prob * prepared.conditional_law(tokens)[np.unique(tokens)].sum()
    low, high = rule.acceptance_bounds(TARGET, drafts, tol=1e-9)
    assert low - 1e-12 <= exact <= high + 1e-12
