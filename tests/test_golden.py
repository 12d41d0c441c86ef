"""otmd answers what it answered, and what is known to be wrong gets no worse; see ``golden.py``."""

from __future__ import annotations

import json
from typing import Any

import golden
import numpy as np
import pytest

WRITTEN: dict[str, dict[str, golden.Values]] = json.loads(golden.FILE.read_text("utf-8"))
INSTANCES = [
    pytest.param(group, instance, id=f"{group}: {name}")
    for group, instances in WRITTEN.items()
    for name, instance in instances.items()
]


def deviations(instance: golden.Values, given: golden.Values) -> tuple[list[str], list[str]]:
    """The values that are wrong, and those that are as wrong as they are known to be, or less."""
    wrong, known = [], []
    today = instance.get("today", {})
    for key, right in instance["out"].items():
        far = golden.distance(key, given[key], right) if key in given else np.inf
        tolerance = golden.TOLERANCES.get(key.split()[0], 0.0)
        if far > tolerance:
            at_most = golden.distance(key, today[key], right) + tolerance if key in today else 0.0
            line = f"{key}: got {given.get(key)}, expected {right}"
            (known if far <= at_most else wrong).append(line)
    return wrong, known


@pytest.mark.parametrize(("group", "instance"), INSTANCES)
def test_golden(group: str, instance: golden.Values) -> None:
    wrong, known = deviations(instance, golden.values(group, instance["in"]))
    assert not wrong, "\n".join(wrong)
    if known:
        pytest.xfail("\n".join([instance["why"], *known]))


def perturbed(key: str, right: Any) -> Any:
    """A value that is off by little more than is allowed."""
    kind = key.split()[0]
    if kind not in golden.TOLERANCES:
        return []
    values = np.array(right, np.float64)
    if not values.size:
        return [0.5]
    shift = 3 * golden.TOLERANCES[kind] + golden.WIDTH * (kind in ("rate", "bounds"))
    shift = -shift if kind == "attained" else shift
    return np.where(np.isfinite(values), values + shift, 0.5).tolist()


@pytest.mark.parametrize("group", WRITTEN)
def test_a_wrong_value_is_caught(group: str) -> None:
    for instance in WRITTEN[group].values():
        right = instance["out"]
        assert deviations(instance, right) == ([], [])
        for key, value in right.items():
            # A sound run has no claim that must be refuted, and no boundary case.
            assert value == [] or not golden.is_right(key, perturbed(key, value), value), key


def test_a_known_fault_may_shrink_and_may_not_grow() -> None:
    instance = {
        "out": {"attained optimal": 1.0, "tokens layer": 1.75},
        "today": {"attained optimal": 0.9, "tokens layer": 1.8},
    }
    for attained, tokens, numbers in (
        (0.9, 1.8, (0, 2)),
        (0.95, 1.72, (0, 2)),
        (1.0, 1.75, (0, 0)),
        (0.89, 1.81, (2, 0)),
        (np.nan, np.nan, (2, 0)),
    ):
        wrong, known = deviations(instance, {"attained optimal": attained, "tokens layer": tokens})
        assert (len(wrong), len(known)) == numbers
    assert len(deviations(instance, {"tokens layer": 1.75})[0]) == 1
