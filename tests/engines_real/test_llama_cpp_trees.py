"""Draft trees on libllama's sequences: the example, audited by its outputs."""

from __future__ import annotations

import numpy as np
import pytest

import otmd
from otmd.audit import texts

pytest.importorskip("cyllama", reason="libllama is absent: pip install cyllama")
pytest.importorskip("gguf")
pytest.importorskip("transformers")

from tiny_gguf import BOS

EXAMPLE = "llama_cpp_trees"
PROMPT = [BOS, 5, 6]
LENGTH = 12


def audited(example, weights, oracle, count: int) -> tuple[otmd.audit.RecordedRunAudit, float]:
    """The verdict on texts, and the tokens per call of the target."""
    target, draft = map(example.Reader, weights)
    rng = np.random.default_rng(0)
    written = [example.write(target, draft, PROMPT, LENGTH, rng) for _ in range(count)]
    listed = [{"prompt_tokens": PROMPT, "output_tokens": tokens} for tokens, _ in written]
    report = texts(listed, oracle, temperature=example.TEMPERATURE)
    return report, LENGTH * len(written) / sum(calls for _, calls in written)


@pytest.mark.slow
def test_texts_follow_the_target(example, weights, oracle):
    report, tokens_per_call = audited(example, weights, oracle, 100)
    assert report.outcome == "PASS", str(report)
    assert tokens_per_call > 1.25


@pytest.mark.slow
def test_a_draft_that_sees_the_other_paths_is_found(example, weights, oracle, monkeypatch):
    def read_all_as_one_path(reader, nodes, sequences):
        read(reader, nodes, lambda node: list(range(reader.paths)))

    read = example.Reader.read
    monkeypatch.setattr(example.Reader, "read", read_all_as_one_path)
    report, _ = audited(example, weights, oracle, 400)
    assert report.outcome == "FAULTY"
