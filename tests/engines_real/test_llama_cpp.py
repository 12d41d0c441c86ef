"""llama.cpp's server, in this process, audited by its outputs against the same weights in transformers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import otmd
from otmd.audit import texts

pytest.importorskip("xllamacpp", reason="llama.cpp is absent: pip install xllamacpp")
pytest.importorskip("gguf")
pytest.importorskip("transformers")

from tiny_gguf import BOS

TEMPERATURE = 0.8
PROMPT = [BOS, 5, 6]
COUNT = 400


@pytest.fixture(scope="module")
def example():
    """The example of docs/howto/llama_cpp.md."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples"))
    import llama_cpp_texts

    return llama_cpp_texts


@pytest.mark.parametrize("draft", ["none", "greedy", "probabilistic"])
def test_outputs_follow_the_target(example, weights, oracle, draft):
    target, other = weights
    server = example.serve(
        target, None if draft == "none" else other, probabilistic=draft == "probabilistic"
    )
    listed = example.answers(server, PROMPT, COUNT)
    drafted = sum(answer["timings"].get("draft_n", 0) for answer in listed)
    assert (drafted > 1000) == (draft != "none")
    report = texts(example.as_texts(PROMPT, listed), oracle, temperature=TEMPERATURE)
    assert report.outcome == "PASS", str(report)


def test_another_temperature_is_found(example, weights, oracle):
    listed = example.answers(example.serve(*weights, probabilistic=True), PROMPT, COUNT, 0.6)
    report = texts(example.as_texts(PROMPT, listed), oracle, temperature=TEMPERATURE)
    assert report.outcome == "FAULTY"


def test_its_counters_are_read(example, weights, tmp_path):
    listed = example.answers(example.serve(*weights, probabilistic=True), PROMPT, 50)
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(answer) + "\n" for answer in listed))
    counts = otmd.engines.read_counts(path)
    assert counts.source == "llama.cpp"
    assert 1.0 <= counts.tokens_per_step < 2.0


def test_n_probs_says_1_for_tokens_of_speculative_steps(example, weights):
    """A warning of docs/howto/llama_cpp.md: these numbers are no probabilities of the target."""

    def logprobs(server) -> list[float]:
        listed = example.answers(server, PROMPT, 40)
        return [token["logprob"] for answer in listed for token in example.tokens_of(answer)]

    assert np.all(logprobs(example.serve(weights[0])))
    assert np.mean(np.array(logprobs(example.serve(*weights))) == 0.0) > 0.5
