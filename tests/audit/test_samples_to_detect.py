"""How many samples an audit needs: held against audits of that many."""

from __future__ import annotations

import numpy as np
import pytest
from honest import P, Q

import otmd
from otmd import audit
from otmd.audit.by_samples import judge_tokens
from otmd.audit.counts import detectable_total_variation

LAW = otmd.WithReplacement(Q, 2)
FALSE_ALARM = 0.05


def found_by_the_test(
    output: np.ndarray, number: int, runs: int, rng: np.random.Generator
) -> float:
    """How often the test of the law alone finds the fault."""
    found = 0
    for _ in range(runs):
        tokens = rng.choice(6, size=number, p=output)
        # No draft equals its token, so that the acceptance never speaks.
        own = judge_tokens(P, LAW, np.full((number, 2), -1), tokens, FALSE_ALARM, rng=rng)
        found += own.impossible > 0 or own.p_value <= own.share
    return found / runs


@pytest.mark.parametrize("power", [0.5, 0.9])
def test_so_many_samples_find_it_with_that_power(power):
    rng, output = np.random.default_rng(0), 0.9 * P + 0.1 * Q
    number = audit.samples_to_detect(P, LAW, output, power=power, false_alarm=FALSE_ALARM)
    assert number is not None
    # 200 runs: within four standard errors, and as far again for what is approximate.
    assert found_by_the_test(output, number, 200, rng) == pytest.approx(power, abs=0.2)
    assert found_by_the_test(output, 3 * number, 50, rng) > power
    assert found_by_the_test(output, number // 5, 50, rng) < power


def test_an_impossible_token_is_found_at_its_first():
    target = np.array([0.5, 0.5, 0.0])
    drafts = otmd.WithReplacement(np.full(3, 1 / 3), 1)
    number = audit.samples_to_detect(target, drafts, np.array([0.495, 0.495, 0.01]))
    assert number == pytest.approx(np.log(0.1) / np.log(0.99), abs=2)
    assert audit.samples_to_detect(target, drafts, np.array([0, 0, 1.0])) == 1


def test_fewer_samples_for_what_is_easier():
    numbers = [
        audit.samples_to_detect(P, LAW, total_variation=tv, power=power, false_alarm=alarm)
        for tv, power, alarm in [
            (0.2, 0.9, 1e-3),
            (0.02, 0.9, 1e-3),
            (0.02, 0.99, 1e-3),
            (0.02, 0.99, 1e-4),
        ]
    ]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == 4
    # A known deviation of the same total variation needs no more than the worst one.
    output = 0.9 * P + 0.1 * Q
    distance = 0.5 * np.abs(output - P).sum()
    known = audit.samples_to_detect(P, LAW, output)
    assert known <= audit.samples_to_detect(P, LAW, total_variation=distance)


def test_what_does_not_show_needs_more_than_any_number():
    assert audit.samples_to_detect(P, LAW, P) is None


def test_the_detectable_distance_is_the_inverse():
    number = audit.samples_to_detect(P, LAW, total_variation=0.03)
    cells = 6
    assert detectable_total_variation(number, cells, 1e-3 / 3) == pytest.approx(0.03, rel=1e-2)
    assert detectable_total_variation(number, 1, 1e-3) == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "output_distribution.*exactly one"),
        ({"output_distribution": P, "total_variation": 0.1}, "output_distribution.*exactly one"),
        ({"output_distribution": P[:3] / P[:3].sum()}, "output_distribution"),
        ({"output_distribution": [0.5, 0.6]}, "output_distribution"),
        ({"total_variation": 0.0}, "total_variation"),
        ({"total_variation": 1.5}, "total_variation"),
        ({"total_variation": 0.1, "power": 1}, "power"),
        ({"total_variation": 0.1, "false_alarm": -1}, "false_alarm"),
        ({"total_variation": 0.1, "law": P}, "law"),
    ],
    ids=str,
)
def test_bad_input_is_named(options, told):
    with pytest.raises(ValueError, match=told):
        audit.samples_to_detect(**{"target_probs": P, "law": LAW, **options})
