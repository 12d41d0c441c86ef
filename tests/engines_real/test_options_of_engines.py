"""The options of a plan against the engines' own checks."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from otmd.engines import ENGINES, PlannedDrafts

pytestmark = pytest.mark.engines
CHAIN = PlannedDrafts(levels=3, tokens=3, width=1, acceptance=(0.7, 0.5, 0.3))
SHORT = PlannedDrafts(levels=1, tokens=1, width=1, acceptance=(0.7,))


@pytest.fixture(scope="module")
def speculative_config():
    """A configuration of vLLM's n-gram draft, which names no model."""
    config = pytest.importorskip("vllm.config", reason="vLLM is not installed: otmd[vllm]")
    return lambda **options: config.SpeculativeConfig(
        method="ngram", prompt_lookup_max=3, **options
    )


@pytest.mark.parametrize("rule", ENGINES["vllm"].rules)
def test_vllm_takes_the_configuration(speculative_config, rule):
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

    written = ENGINES["vllm"].configuration(rule, {1: CHAIN, 4: SHORT, 6: None})
    for options in (written["run"], written["time"]):
        config = speculative_config(**options)
        assert config.num_speculative_tokens == 3
        schedule = config.num_speculative_tokens_per_batch_size
        lengths = build_dynamic_sd_schedule_lookup(schedule, 7, 3)
        assert lengths[1:] == [3, 1, 1, 1, 0, 0, 0]
    assert config.synthetic_acceptance_rates == [0.7, 0.5, 0.3]


def test_vllm_refuses_what_is_wrong(speculative_config):
    options = ENGINES["vllm"].configuration("block", {1: CHAIN})["time"]
    with pytest.raises(ValueError, match="must have length 3"):
        speculative_config(**options | {"synthetic_acceptance_rates": [0.5]})
    with pytest.raises(ValueError, match="Unexpected keyword"):
        speculative_config(**options, length_of_drafts=3)


def test_llama_cpp_has_the_options():
    """They are texts in its compiled code."""
    found = importlib.util.find_spec("xllamacpp")
    if found is None or found.origin is None:
        pytest.skip("llama.cpp is absent: pip install xllamacpp")
    (library,) = Path(found.origin).parent.glob("xllamacpp*.so")
    compiled = library.read_bytes()
    engine = ENGINES["llama.cpp"]
    for rule in engine.rules:
        arguments = engine.configuration(rule, {1: CHAIN})["time"]["arguments"]
        options = [part for part in arguments if part.startswith("--")]
        assert len(options) == 4
        for option in options:
            assert b"\0" + option.encode() + b"\0" in compiled
    assert b"--spec-synthetic-acceptance-rates" not in compiled
