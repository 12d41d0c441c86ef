"""Public functions and the command line raise only the errors that are meant, whatever they are given."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz import command_line, datasets, laws, probabilities, records
from fuzz.choices import Choices

TARGETS = (probabilities, laws, records, datasets, command_line)
# A function that each of them calls.
PLACES = ("validate_probs", "any_law", "recorded_run", "load_prompts", "main")


@pytest.mark.parametrize("count", [200, pytest.param(600, marks=pytest.mark.slow)], ids=["few", "many"])
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.__name__)
def test_only_the_errors_that_are_meant(target, count) -> None:
    @given(st.randoms(use_true_random=False))
    @settings(max_examples=count)
    def run(random: Random) -> None:
        target.one_input(Choices(random))

    run()


def planted(fault: Exception) -> Callable[..., None]:
    def reader(*_: object, **__: object) -> None:
        raise fault

    return reader


@pytest.mark.parametrize(("target", "place"), [*zip(TARGETS, PLACES, strict=True)])
def test_a_planted_fault_is_caught(target, place, monkeypatch) -> None:
    monkeypatch.setattr(target, place, planted(KeyError("planted")))
    with pytest.raises(KeyError, match="planted"):
        [target.one_input(Choices(Random(seed))) for seed in range(100)]


def test_an_error_of_two_lines_is_caught(monkeypatch) -> None:
    monkeypatch.setattr(records, "recorded_run", planted(ValueError("one\ntwo")))
    monkeypatch.setattr(records, "NAMES", ("run.jsonl",))
    with pytest.raises(AssertionError):
        records.one_input(Choices(Random(0)))


def test_an_error_that_nobody_foresaw_is_caught_on_the_command_line(monkeypatch) -> None:
    monkeypatch.setattr("otmd.cli.solve.read_problem", planted(KeyError("planted")))
    monkeypatch.setattr(command_line, "_arguments", lambda _: ["solve", "1"])
    with pytest.raises(AssertionError, match="debug"):
        command_line.one_input(Choices(Random(0)))
