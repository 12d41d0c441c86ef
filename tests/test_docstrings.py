"""Public docstrings have the form of numpydoc."""

from __future__ import annotations

import tomllib

import pytest
from numpydoc.validate import validate
from test_examples import NAMES, docstrings, named
from test_project import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FORM = {*PROJECT["tool"]["numpydoc_validation"]["checks"]}


def faults(path: str, checks: set[str]) -> list[str]:
    """The checks that a docstring does not pass, with numpydoc's words."""
    return [f"{code}: {said}" for code, said in validate(path)["errors"] if code in checks]


def test_public_docstrings_are_complete() -> None:
    found = {}
    for name in NAMES:
        thing = named(name)
        # Where it is defined: otmd.audit.texts is also the path of a module.
        path = f"{thing.__module__}.{thing.__qualname__}"
        found[path] = faults(path, FORM | {"GL08"})
        for at, _ in docstrings("", thing):
            if at and (callable(named(f"{name}{at}")) or isinstance(named(f"{name}{at}"), property)):
                found[f"{path}{at}"] = faults(f"{path}{at}", FORM)
    assert len(found) > 400
    assert {path: said for path, said in found.items() if said} == {}


def disordered(rate):
    """Double a rate.

    Returns
    -------
    float
        Twice the rate.

    Parameters
    ----------
    rate : float
    """
    return 2 * rate


def bare(rate):
    return 2 * rate


@pytest.mark.parametrize(
    ("name", "codes"),
    [("disordered", ["GL07", "PR07"]), ("bare", ["GL08"])],
)
def test_a_fault_would_be_found(name: str, codes: list[str]) -> None:
    assert [said[:4] for said in faults(f"{__name__}.{name}", FORM | {"GL08"})] == codes
