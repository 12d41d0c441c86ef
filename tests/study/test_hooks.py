"""The hook for transformers: a sound run passes, and a public fault, planted again, is found."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from models.conftest import make_model
from transformers.generation.candidate_generator import AssistedCandidateGenerator

import otmd
from otmd.cli import main

VOCAB, TOP_K, TOKENS = 24, 4, 110


@pytest.fixture
def hook(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "docs" / "examples"))
    import record_transformers

    return record_transformers


@pytest.fixture(scope="module")
def pair():
    settings = {"initializer_range": 0.5, "eos_token_id": None, "pad_token_id": 0}
    return [make_model(VOCAB, 1, seed, **settings).eval() for seed in range(2)]


def write(target, draft, texts, seed=0, tokens=TOKENS, **settings):
    """Tokens that assisted generation writes, prompt included."""
    torch.manual_seed(seed)
    draft.generation_config.num_assistant_tokens = 3
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    found = []
    for start in range(texts):
        ids = torch.tensor([[start % VOCAB, 1]])
        found.append(
            target.generate(
                ids, assistant_model=draft, do_sample=True, top_k=0, max_new_tokens=tokens,
                attention_mask=torch.ones_like(ids), **settings,
            )[0].tolist()
        )  # fmt: skip
    return found


def returned_raw(self, input_ids, **_):
    """Transformers issue 47932: drafts sampled from the processed q, and the raw q returned."""
    drafted, raw = input_ids, []
    for _ in range(3):
        logits = self.assistant_model(drafted).logits[:, -1].float()
        kept = logits.topk(TOP_K)
        chosen = kept.indices[0, torch.multinomial(kept.values[0].softmax(-1), 1)]
        drafted = torch.cat([drafted, chosen[None]], dim=1)
        raw.append(logits)
    return drafted, torch.stack(raw, dim=1)


def test_a_sound_run_is_not_called_faulty(hook, pair, tmp_path):
    with hook.recorded(tmp_path / "run.jsonl"):
        written = write(*pair, texts=3, temperature=0.5)
    report = otmd.audit.recorded_run(tmp_path / "run.jsonl", rng=np.random.default_rng(0))
    assert not report.faulty
    rows = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    recorded = [row["output_token"] for row in rows]
    # The last tokens of a text are sampled without drafts, and are not recorded.
    assert recorded[:40] == written[0][2:42]
    # The temperature reaches the assistant twice, and the pad token, 0, not at all.
    ids = torch.tensor([written[0][:2]])
    for name, lm, factor, mask in (("target", pair[0], 2, None), ("draft", pair[1], 4, ids != 0)):
        raw = lm(ids, attention_mask=mask).logits[0, -1].tolist()
        np.testing.assert_allclose(rows[0][f"{name}_logits"], np.multiply(raw, factor), atol=1e-4)


@pytest.mark.slow
def test_prompt_lookup_is_recorded_with_fixed_drafts(hook, pair, tmp_path):
    torch.manual_seed(0)
    ids = torch.tensor([[3, 4, 5, 3, 4, 5, 3, 4]])
    settings = {
        "do_sample": True,
        "top_k": 0,
        "temperature": 0.5,
        "attention_mask": torch.ones_like(ids),
    }
    written = []
    with hook.recorded(tmp_path / "run.jsonl"):
        for _ in range(15):
            text = pair[0].generate(ids, prompt_lookup_num_tokens=3, max_new_tokens=TOKENS, **settings)
            written += text[0, ids.shape[1] :].tolist()
    rows = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [row["output_token"] for row in rows] == written
    kept = [row["draft_tokens"] == [row["output_token"]] for row in rows if "draft_tokens" in row]
    assert 0.1 < np.mean(kept) < 0.9
    assert not any("draft_logits" in row for row in rows)
    rng = np.random.default_rng(0)
    assert otmd.audit.recorded_run(rows, "fixed", rng=rng).outcome == "PASS"
    # Negative control: an engine that keeps every draft that it looked up.
    for row in rows:
        row["output_token"] = row.get("draft_tokens", [row["output_token"]])[0]
    assert otmd.audit.recorded_run(rows, "fixed", rng=rng).outcome == "FAULTY"


@pytest.mark.slow
def test_the_public_fault_is_found(hook, pair, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(AssistedCandidateGenerator, "get_candidates", returned_raw)
    with hook.recorded(tmp_path / "run.jsonl"):
        write(*pair, texts=6)
    assert main(["audit", str(tmp_path / "run.jsonl")]) == 3
    said = capsys.readouterr().out
    assert said.startswith("FAULTY")
