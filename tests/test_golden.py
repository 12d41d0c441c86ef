"""otmd answers what it answered; see ``golden.py``."""

from __future__ import annotations

import json
from typing import Any

import golden
import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("compiled")
WRITTEN: dict[str, dict[str, golden.Values]] = json.loads(golden.FILE.read_text("utf-8"))
INSTANCES = [
    pytest.param(group, instance, id=f"{group}: {name}")
    for group, instances in WRITTEN.items()
    for name, instance in instances.items()
]


def deviations(instance: golden.Values, given: golden.Values) -> list[str]:
    return [
        f"{key}: got {given.get(key)}, expected {right}"
        for key, right in instance["out"].items()
        if key not in given or not golden.is_right(key, given[key], right)
    ]


@pytest.mark.parametrize(("group", "instance"), INSTANCES)
def test_golden(group: str, instance: golden.Values) -> None:
    wrong = deviations(instance, golden.values(group, instance["in"]))
    assert not wrong, "\n".join(wrong)


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
        assert deviations(instance, right) == []
        for key, value in right.items():
            # A sound run has no claim that must be refuted, and no boundary case.
            assert value == [] or not golden.is_right(key, perturbed(key, value), value), key


def test_what_is_missing_or_no_number_is_caught_and_more_may_be_attained() -> None:
    instance = {"out": {"attained optimal": 1.0, "tokens layer": 1.75}}
    for given, number in (
        ({"attained optimal": 1.1, "tokens layer": 1.75}, 0),
        ({"attained optimal": 0.9, "tokens layer": 1.8}, 2),
        ({"attained optimal": np.nan, "tokens layer": np.nan}, 2),
        ({"tokens layer": 1.75}, 1),
    ):
        assert len(deviations(instance, given)) == number


@pytest.mark.parametrize(
    ("group", "name", "key", "shift"),
    [
        ("position greedy", "random, V=2", "optimum", 1e-9),
        ("position with-replacement", "random, V=4", "rate k-sequential", 1e-9),
        ("tree iid-paths", "random, [1, 3]", "best tokens", -0.1),
        ("tree iid-paths", "random, [1, 3]", "tokens bound", -0.1),
    ],
)
def test_a_wrong_answer_is_not_written(group: str, name: str, key: str, shift: float) -> None:
    given = WRITTEN[group][name]["in"]
    out = golden.values(group, given)
    golden.check(group, given, out)
    with pytest.raises(AssertionError):
        golden.check(group, given, out | {key: (np.array(out[key]) + shift).tolist()})
