"""The recorder of vLLM without vLLM; tests/engines_real/test_vllm.py runs the engine."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from otmd.models import vllm_recorder


@pytest.mark.parametrize(
    ("module", "name", "given"),
    [
        ("engine", "Runner.sample", "self, logits, more"),
        ("engine", "Runner.other", "type object 'Runner' has no attribute 'other'"),
        ("moved", "Runner.sample", "No module named 'moved'"),
    ],
)
def test_another_symbol_is_refused(monkeypatch, module, name, given):
    class Runner:
        def sample(self, logits, more):
            raise NotImplementedError

    monkeypatch.setitem(sys.modules, "engine", SimpleNamespace(Runner=Runner))
    symbol = (module, name, "self, logits")
    monkeypatch.setattr(vllm_recorder, "_SYMBOLS", [symbol])
    expected = f"{name} of {module}: got {given}, expected self, logits, tested with vLLM 0.32.0"
    monkeypatch.setattr(vllm_recorder, "_TESTED", "0.32.0")
    with pytest.raises(RuntimeError) as error, vllm_recorder.recorded("run"):
        pass
    assert str(error.value) == expected


def column(*values):
    return SimpleNamespace(np=np.array(values))


def fake_sampler(**used) -> SimpleNamespace:
    """The V2 runner's sampler, with the settings of two requests."""
    idle = np.zeros(2, bool)
    return SimpleNamespace(
        sampling_states=SimpleNamespace(
            temperature=column(0.8, 0.5), top_k=column(4, 4), top_p=column(1.0, 0.9), min_p=column(0.0, 0.0)
        ),
        logits_processors=[
            SimpleNamespace(use_logit_bias=used.get("bias", idle)),
            SimpleNamespace(use_penalty=used.get("penalty", idle)),
            SimpleNamespace(num_bad_words=column(0, 0)),
        ],
        thinking_budget_state=SimpleNamespace(enabled=False),
        trace_replay_state=None,
    )  # fmt: skip


def read_batch(sampler):
    """A step of two requests: a grammar forbids the second of three drafts, one prompt is not yet read."""
    import torch

    batch = SimpleNamespace(
        req_ids=["first", "second"],
        idx_mapping_np=np.array([1, 0]),
        input_ids=torch.tensor([3, 1, 2, 0, 3, 1]),
        logits_indices=torch.arange(6),
        cu_num_logits=torch.tensor([0, 4, 6]),
        is_prefilling_np=np.array([False, True]),
    )
    logits = torch.arange(24.0).reshape(6, 4)
    draft_logits = torch.arange(24.0).reshape(2, 3, 4)
    invalid = torch.tensor([False, False, True, True, False, False])
    return list(vllm_recorder._read_v2(sampler, logits, batch, draft_logits, invalid))


def test_v2_drafts_that_cannot_be_accepted_are_left_out():
    first, second = read_batch(fake_sampler())
    assert first["draft_tokens"].tolist() == [1]
    np.testing.assert_array_equal(first["target_logits"], np.arange(8.0).reshape(2, 4))
    np.testing.assert_array_equal(first["draft_logits"], [[12, 13, 14, 15]])
    assert (first["target_temperature"], first["draft_temperature"]) == (0.5, 0.5)
    assert second["target_logits"].tolist() == [[16, 17, 18, 19]]
    assert not second["draft_tokens"].size
    assert "draft_logits" not in second


def test_v2_settings_that_are_not_recorded_are_refused():
    with pytest.raises(ValueError, match=r"sampling: got penalties, expected temperature"):
        read_batch(fake_sampler(penalty=np.array([True, False])))
