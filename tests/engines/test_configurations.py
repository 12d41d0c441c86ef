"""What is written for each engine, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from otmd.engines import ENGINES, PlannedDrafts
from otmd.study.planning import CANDIDATES

CHAIN = PlannedDrafts(levels=3, tokens=3, width=1, acceptance=(0.7, 0.5, 0.3123456789))
SHORT = PlannedDrafts(levels=1, tokens=1, width=1, acceptance=(0.7,))
TREE = PlannedDrafts(levels=5, tokens=7, width=4, acceptance=(0.8, 0.6, 0.4, 0.2, 0.1))
RATES = [0.7, 0.5, 0.312346]
SCHEDULE = {1: CHAIN, 8: SHORT, 32: None}


def test_vllm():
    written = ENGINES["vllm"].configuration("block", {1: CHAIN})
    sampling = {"draft_sample_method": "probabilistic"}
    length = {"num_speculative_tokens": 3}
    assert written["run"] == length | sampling | {"rejection_sample_method": "block"}
    synthetic = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": RATES}
    assert written["time"] == length | sampling | synthetic


def test_vllm_by_concurrent_requests():
    written = ENGINES["vllm"].configuration("one-hot", SCHEDULE)["run"]
    assert written["num_speculative_tokens"] == 3
    ranges = written["num_speculative_tokens_per_batch_size"]
    assert ranges == [[1, 1, 3], [2, 8, 1], [9, 32, 0]]
    assert written["draft_sample_method"] == "greedy"
    assert written["rejection_sample_method"] == "standard"


def test_tensorrt_llm():
    engine = ENGINES["tensorrt-llm"]
    exact_match = {"use_rejection_sampling": False}
    assert engine.configuration("one-hot", {1: CHAIN})["run"] == {"max_draft_len": 3} | exact_match
    written = engine.configuration("one-hot", SCHEDULE)["run"]
    assert written["draft_len_schedule"] == {1: 3, 8: 1, 32: 0}
    assert written["max_draft_len"] == 3
    with pytest.raises(ValueError, match="draft_len_schedule: got"):
        engine.configuration("one-hot", {1: SHORT, 8: CHAIN})


def test_sglang():
    engine = ENGINES["sglang"]
    tree = engine.configuration("most-likely", {1: TREE})
    # Its own choice for Llama: 5 steps, top 4, and 8 tokens with the root.
    options = ["--speculative-num-steps", "5", "--speculative-eagle-topk", "4"]
    assert tree["run"]["arguments"] == [*options, "--speculative-num-draft-tokens", "8"]
    # 1 + 0.8 + 0.6 + 0.4 + 0.2 + 0.1
    length = {"SGLANG_SIMULATE_ACC_LEN": "3.1", "SGLANG_SIMULATE_ACC_METHOD": "match-expected"}
    assert tree["time"] == tree["run"] | {"environment": length}
    chain = engine.configuration("rejection", {4: CHAIN})["run"]["arguments"]
    assert chain[1::2][:3] == ["3", "1", "4"]
    assert chain[-1] == "--speculative-use-rejection-sampling"


def test_llama_cpp():
    written = ENGINES["llama.cpp"].configuration("rejection-top-10", {1: CHAIN})
    arguments = ["--spec-draft-n-max", "3", "--spec-draft-p-min", "0"]
    arguments += ["--spec-draft-sampling", "probabilistic"]
    assert written["run"] == {"arguments": arguments}
    assert written["time"] == {
        "arguments": [*arguments, "--spec-synth-rates", "0.7,0.5,0.312346"],
    }


@pytest.mark.parametrize("name", ENGINES)
def test_every_rule_of_an_engine_can_be_planned_and_written(name):
    engine = ENGINES[name]
    for rule in engine.rules:
        assert engine.title in CANDIDATES[rule].engines
        written = engine.configuration(rule, {1: CHAIN})
        assert json.loads(json.dumps(written)) == written
        assert written["engine"] == engine.title
        assert written["read in"] == engine.source
        assert written["rule"] == rule
    listed = [rule for rule, entry in CANDIDATES.items() if engine.title in entry.engines]
    assert sorted(listed) == sorted(engine.rules)


@pytest.mark.parametrize(
    ("name", "rule", "schedule", "said"),
    [
        ("vllm", "stratified", {1: CHAIN}, "rule: got 'stratified', expected one that vLLM runs"),
        ("tensorrt-llm", "block", {1: CHAIN}, "expected one that TensorRT-LLM runs: one-hot"),
        ("vllm", "block", {1: None, 8: None}, "drafts: got a plan that does not draft"),
        ("llama.cpp", "one-hot", SCHEDULE, "requests: got 1, 8, 32, expected one number"),
        ("sglang", "one-hot", SCHEDULE, "SGLang has one draft length"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(name, rule, schedule, said):
    with pytest.raises(ValueError, match=said):
        ENGINES[name].configuration(rule, schedule)


TWO = PlannedDrafts(levels=2, tokens=2, width=1, acceptance=(0.7, 0.5))


@pytest.mark.parametrize(
    ("engine", "schedule", "message"),
    [
        ("vllm", {0: TWO}, "requests"),
        ("vllm", {1: TWO._replace(levels=0, acceptance=())}, "levels"),
        ("vllm", {1: TWO._replace(acceptance=(0.7,))}, "acceptance"),
        ("vllm", {1: TWO._replace(acceptance=(0.5, 0.7))}, "acceptance"),
        ("sglang", {1: TWO._replace(acceptance=(float("nan"), 0.5))}, "acceptance"),
        ("llama.cpp", {1: TWO._replace(width=3, tokens=6)}, "configured for chains"),
    ],
)
def test_drafts_that_no_engine_has_are_refused(engine: str, schedule, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ENGINES[engine].configuration("one-hot", schedule)


def test_numbers_of_requests_of_numpy_are_written() -> None:
    schedule = {np.int64(1): TWO, np.int64(8): None}
    assert json.loads(json.dumps(ENGINES["vllm"].configuration("one-hot", schedule)))
