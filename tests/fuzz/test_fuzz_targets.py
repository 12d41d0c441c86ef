"""The targets of the fuzzer on random bytes, and on inputs that found a fault once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz import command_line, datasets, laws, probabilities, records

TARGETS = (probabilities, laws, records, datasets, command_line)
inputs = st.integers(0, 2**32).flatmap(
    lambda seed: st.integers(0, 500).map(lambda size: random_bytes(seed, size))
)


def random_bytes(seed: int, size: int) -> bytes:
    import random

    return random.Random(seed).randbytes(size)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.__name__)
@given(data=st.one_of(st.binary(max_size=300), inputs))
@settings(max_examples=400)
def test_only_the_errors_that_are_meant(target, data: bytes) -> None:
    target.one_input(data)


def try_many(target) -> None:
    for seed in range(200):
        target.one_input(random_bytes(seed, 200))


def planted(fault: Exception) -> Callable[..., None]:
    def reader(*_: object, **__: object) -> None:
        raise fault

    return reader


@pytest.mark.parametrize(
    ("target", "place"),
    [
        (probabilities, "validate_probs"),
        (laws, "any_law"),
        (records, "recorded_run"),
        (datasets, "load_prompts"),
        (command_line, "main"),
    ],
)
def test_a_planted_fault_is_caught(target, place, monkeypatch) -> None:
    monkeypatch.setattr(target, place, planted(KeyError("planted")))
    with pytest.raises(KeyError, match="planted"):
        try_many(target)


def test_an_error_of_two_lines_is_caught(monkeypatch) -> None:
    monkeypatch.setattr(records, "recorded_run", planted(ValueError("one\ntwo")))
    with pytest.raises(AssertionError):
        records.one_input(b"")


def test_an_error_that_nobody_foresaw_is_caught_on_the_command_line(monkeypatch) -> None:
    monkeypatch.setattr("otmd.cli.solve.read_problem", planted(KeyError("planted")))
    monkeypatch.setattr(command_line, "_arguments", lambda _: ["solve", "1"])
    with pytest.raises(AssertionError, match="debug"):
        command_line.one_input(b"")
