"""The examples in docstrings print what they say."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["compare", "planning.texts"])
def test_examples_run_as_printed(name: str) -> None:
    module = importlib.import_module(f"otmd.study.{name}")
    failed, tried = doctest.testmod(module, verbose=False)
    assert tried > 1
    assert failed == 0
