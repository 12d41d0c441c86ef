"""The examples in docstrings print what they say, and public names have one."""

from __future__ import annotations

import doctest
import inspect
import operator
import re
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from test_project import reference_names

import otmd
import otmd.verifiers

# Packages whose names need no example.
WITHOUT_EXAMPLES = re.compile(r"(audit|models|study|tensors)\.")
# What functions return, shown in the example of the function.
RESULTS = {
    "LossyFrontier",
    "OptimalAcceptance",
    "TransportSolution",
    "engines.EngineVerdict",
    "exact.ExactOptimum",
    "transport.CanonicalDecomposition",
    "transport.LinearProgram",
    "trees.TokensPerStep",
    "trees.SequenceOptimum",
}
NAMES = sorted([*reference_names(), "verifiers.verifiers_serving"])
PARSER = doctest.DocTestParser()


def docstrings(name: str, thing: object) -> Iterator[tuple[str, str]]:
    """The docstring of a public thing and of its public methods, with their names."""
    yield name, thing.__doc__ or ""
    if inspect.isclass(thing):
        for method, value in vars(thing).items():
            if not method.startswith("_"):
                yield f"{name}.{method}", getattr(value, "__doc__", None) or ""


def examples(name: str, thing: object) -> list[doctest.DocTest]:
    found = (PARSER.get_doctest(text, {}, at, at, 0) for at, text in docstrings(name, thing))
    return [test for test in found if test.examples]


def run_examples(name: str, thing: object) -> None:
    """Run a thing's examples; printed output must agree."""
    for test in examples(name, thing):
        report: list[str] = []
        doctest.DocTestRunner(verbose=False).run(test, out=report.append)
        if report:
            pytest.fail("".join(report), pytrace=False)


def named(name: str) -> object:
    return operator.attrgetter(name)(otmd)


@pytest.mark.parametrize("name", [name for name in NAMES if examples(name, named(name))])
def test_examples_run_as_printed(name: str) -> None:
    if name.startswith("tensors."):
        pytest.importorskip("torch")
    run_examples(name, named(name))


def test_public_names_have_examples() -> None:
    required = {name for name in NAMES if not WITHOUT_EXAMPLES.match(name)} - RESULTS
    required |= {f"audit.{name}" for name in otmd.audit.__all__ if name[0].islower()}
    required |= {"audit.SequentialAudit", "measure", "study.summarise"}
    required |= {"models.load_prompts", "models.open_dataset"}
    assert {name for name in required if not examples(name, named(name))} == set()
    assert set(NAMES) >= RESULTS


@pytest.mark.parametrize(
    "thing",
    [
        SimpleNamespace(__doc__=">>> 1 + 1\n3\n"),
        type("Thing", (), {"method": SimpleNamespace(__doc__=">>> 1 / 0\n")}),
    ],
    ids=["function", "method"],
)
def test_a_wrong_example_fails(thing: object) -> None:
    with pytest.raises(pytest.fail.Exception):
        run_examples("thing", thing)
