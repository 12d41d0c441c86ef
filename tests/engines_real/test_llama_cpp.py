"""llama.cpp's server, in this process, audited by its outputs against the same weights in transformers."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from test_project import ROOT, code_blocks

import otmd
from otmd.audit import texts

pytest.importorskip("xllamacpp", reason="llama.cpp is absent: pip install xllamacpp")
pytest.importorskip("gguf")
pytest.importorskip("transformers")

from tiny_gguf import BOS

TEMPERATURE = 0.8
EXAMPLE = "llama_cpp_texts"
PROMPT = [BOS, 5, 6]
COUNT = 250


@pytest.fixture(scope="module")
def answered(example, weights):
    """The answers of a server with a kind of drafts, each started once."""
    target, draft = weights

    @cache
    def server(drafts: str):
        probabilistic = drafts == "probabilistic"
        return example.serve(target, None if drafts == "none" else draft, probabilistic=probabilistic)

    @cache
    def answers(drafts: str, temperature: float = TEMPERATURE):
        return example.answers(server(drafts), PROMPT, COUNT, temperature)

    return answers


SLOW = [pytest.param(drafts, marks=pytest.mark.slow) for drafts in ("none", "greedy")]


@pytest.mark.parametrize("drafts", [*SLOW, "probabilistic"])
def test_outputs_follow_the_target(example, answered, oracle, drafts):
    listed = answered(drafts)
    drafted = sum(answer["timings"].get("draft_n", 0) for answer in listed)
    assert (drafted > 1000) == (drafts != "none")
    report = texts(example.as_texts(PROMPT, listed), oracle, temperature=TEMPERATURE)
    assert report.outcome == "PASS", str(report)


@pytest.mark.slow
def test_another_temperature_is_found(example, answered, oracle):
    listed = answered("probabilistic", 0.6)
    report = texts(example.as_texts(PROMPT, listed), oracle, temperature=TEMPERATURE)
    assert report.outcome == "FAULTY"


def test_its_counters_are_read(answered):
    """By the lines of docs/howto/llama_cpp.md."""
    page = (ROOT / "docs" / "howto" / "llama_cpp.md").read_text()
    (lines,) = [code for _, _, code in code_blocks(page) if 'answer["predicted_n"]' in code]
    names = {"otmd": otmd, "answers": answered("probabilistic")}
    exec(lines, names)
    counts = names["counts"]
    assert counts.accepted > 0
    assert 1.0 < counts.tokens_per_step < 2.0
    assert 0.0 < counts.draft_acceptance_rate < 0.5


@pytest.mark.slow
def test_n_probs_says_1_for_tokens_of_speculative_steps(example, answered):
    """A warning of docs/howto/llama_cpp.md: these numbers are no probabilities of the target."""

    def logprobs(drafts: str) -> list[float]:
        return [x["logprob"] for answer in answered(drafts) for x in example.tokens_of(answer)]

    assert np.all(logprobs("none"))
    assert np.mean(np.array(logprobs("greedy")) == 0.0) > 0.5
