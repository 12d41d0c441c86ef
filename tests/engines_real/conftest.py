"""Random models that llama.cpp and transformers both read, and the examples of docs/howto/llama_cpp.md."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

import otmd

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    from tiny_gguf import write_tiny_llama

    folder = tmp_path_factory.mktemp("gguf")
    return write_tiny_llama(folder / "0.gguf", 0), write_tiny_llama(folder / "1.gguf", 1)


@pytest.fixture(scope="session")
def oracle(weights):
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return otmd.models.load_target(str(weights[0]), progress=False).logits_after


@pytest.fixture(scope="module")
def example(request):
    """The example that the file of tests names."""
    sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module(request.module.EXAMPLE)
