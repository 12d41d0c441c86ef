"""llama.cpp's server, in this process, audited by its outputs against the same weights in transformers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import otmd
from otmd.audit import texts

xllamacpp = pytest.importorskip("xllamacpp", reason="llama.cpp is absent: pip install xllamacpp")
pytest.importorskip("gguf")
pytest.importorskip("transformers")

from tiny_gguf import BOS, write_tiny_llama  # noqa: E402

TEMPERATURE = 0.8
PROMPT = [BOS, 5, 6]
COUNT, LENGTH = 400, 12
FULL = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "samplers": ["temperature"]}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("gguf")
    return tuple(write_tiny_llama(folder / f"{seed}.gguf", seed) for seed in (0, 1))


@pytest.fixture(scope="module")
def oracle(weights):
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return otmd.models.load_target(str(weights[0]), progress=False).logits_after


def serve(target: Path, draft: Path | None = None, *, probabilistic: bool = False) -> Any:
    """A server with one thread for each model: threads that spin slow each other down."""
    params = xllamacpp.CommonParams()
    params.model.path = str(target)
    params.n_ctx, params.n_parallel, params.warmup = 256, 1, False
    exact = xllamacpp.ggml_type.GGML_TYPE_F32
    params.cache_type_k = params.cache_type_v = exact
    threads = [params.cpuparams, params.cpuparams_batch]
    if draft is not None:
        kind = xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE
        params.speculative.types = [kind]
        drafting = params.speculative.draft
        drafting.mparams.path = str(draft)
        drafting.n_max, drafting.n_min, drafting.p_min = 3, 0, 0.0
        drafting.cache_type_k = drafting.cache_type_v = exact
        drafting.probabilistic = probabilistic
        threads += [drafting.cpuparams, drafting.cpuparams_batch]
    for settings in threads:
        settings.n_threads = 1
    return xllamacpp.Server(params)


def answers(server: Any, count: int = COUNT, **settings: Any) -> list[dict[str, Any]]:
    """Completions of one prompt, each with a seed of its own, with the ids of the tokens."""
    asked = {
        "prompt": PROMPT,
        "n_predict": LENGTH,
        "n_probs": 1,
        "temperature": TEMPERATURE,
        **FULL,
    }
    return [server.handle_completions(asked | {"seed": 1000 + i} | settings) for i in range(count)]


def tokens_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return answer["choices"][0]["logprobs"]["content"]


def as_texts(listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"prompt_tokens": PROMPT, "output_tokens": [token["id"] for token in tokens_of(answer)]}
        for answer in listed
    ]


@pytest.mark.parametrize("draft", ["none", "greedy", "probabilistic"])
def test_outputs_follow_the_target(weights, oracle, draft):
    target, other = weights
    server = serve(
        target, None if draft == "none" else other, probabilistic=draft == "probabilistic"
    )
    listed = answers(server)
    drafted = sum(answer["timings"].get("draft_n", 0) for answer in listed)
    assert (drafted > 1000) == (draft != "none")
    report = texts(as_texts(listed), oracle, temperature=TEMPERATURE)
    assert report.outcome == "PASS", str(report)


def test_another_temperature_is_found(weights, oracle):
    server = serve(*weights, probabilistic=True)
    report = texts(as_texts(answers(server, temperature=0.6)), oracle, temperature=TEMPERATURE)
    assert report.outcome == "FAULTY"


def test_its_counters_are_read(weights, tmp_path):
    listed = answers(serve(*weights, probabilistic=True), 50)
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(answer) + "\n" for answer in listed))
    counts = otmd.engines.read_counts(path)
    assert counts.source == "llama.cpp"
    assert 1.0 <= counts.tokens_per_step < 2.0


def test_n_probs_says_1_for_tokens_of_speculative_steps(weights):
    """A warning of docs/howto/llama_cpp.md: these numbers are no probabilities of the target."""
    plain = [token["logprob"] for x in answers(serve(weights[0]), 40) for token in tokens_of(x)]
    speculative = [token["logprob"] for x in answers(serve(*weights), 40) for token in tokens_of(x)]
    assert np.count_nonzero(plain) == len(plain)
    assert np.mean(np.array(speculative) == 0.0) > 0.5
