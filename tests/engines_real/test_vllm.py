"""The recorder against vLLM itself on a CPU, with a random pair of models; read and run with vLLM 0.32.0."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import otmd
from otmd.audit.records import numbered_rows

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: otmd[vllm]"
    ),
]


def save_pair(folder: Path) -> None:
    """Save a random target of 1,000 tokens, and a draft with nearly its weights."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=1000,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder / "target")
    with torch.no_grad():
        for weights in model.parameters():
            weights += 0.024 * torch.randn_like(weights)
    model.save_pretrained(folder / "draft")


def run_engine(scenario: str, folder: Path, **environment: str) -> None:
    """Run a function of vllm_engine.py in its own process."""
    paths = [str(ROOT), str(ROOT / "docs" / "examples"), str(folder), str(HERE)]
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(HERE / "vllm_engine.py"), scenario, str(folder)],
        env=os.environ | settings | environment | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("vllm")
    save_pair(folder)
    return folder


@pytest.fixture(scope="module")
def runs(pair) -> Path:
    """Recorded runs of engines with sampled drafts."""
    run_engine("in_process", pair)
    return pair


def audited(run: Path) -> otmd.audit.RecordedRunAudit:
    return otmd.audit.recorded_run(run, rng=0)


def metric(report: otmd.audit.RecordedRunAudit, name: str) -> float:
    return {metric.name: metric.value for metric in report.metrics}[name]


def test_as_shipped_it_is_faulty_on_a_cpu(runs):
    """The temperature is never written: vllm/utils/cpu_triton_utils.py, `_expand_kernel_impl`."""
    assert audited(runs / "shipped").outcome == "FAULTY"


def test_greedy_requests_pass_as_shipped(runs):
    report = audited(runs / "greedy")
    assert not report.faulty
    assert metric(report, "acceptance rate") > 0.1


@pytest.mark.parametrize("name", ["repaired", "cuts", "custom"])
def test_sampled_drafts_pass_once_repaired(runs, name):
    report = audited(runs / name)
    assert report.outcome == "PASS"
    optimal = metric(report, "optimal acceptance rate")
    assert 0.3 < optimal < 0.7
    assert abs(metric(report, "acceptance rate") - optimal) < 0.06


def test_block_is_ignored_and_drafts_are_not_sampled(runs):
    rows, _ = numbered_rows(runs / "block", "block")
    drafts = [(row["draft_tokens"], row["draft_ids"]) for _, row in rows if "draft_ids" in row]
    assert len(drafts) > 100
    assert all(np.array_equal(tokens, ids) for tokens, ids in drafts)


def test_the_texts_alone_say_the_same(runs):
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(runs / "target").eval()

    def oracle(prefixes):
        longest = max(map(len, prefixes))
        ids = torch.tensor([[*prefix, *[0] * (longest - len(prefix))] for prefix in prefixes])
        with torch.inference_mode():
            logits = model(ids).logits
        return logits[torch.arange(len(prefixes)), [len(prefix) - 1 for prefix in prefixes]]

    for name, outcome in {"shipped": "FAULTY", "repaired": "PASS"}.items():
        report = otmd.audit.texts(runs / f"{name}.jsonl", oracle, temperature=0.8)
        assert report.outcome == outcome


def test_an_engine_in_its_own_process_is_recorded_by_the_plugin(pair, tmp_path):
    install_plugins(pair)
    run_engine("by_plugin", pair, OTMD_RECORD=str(tmp_path / "run"))
    report = audited(tmp_path / "run")
    assert report.outcome == "PASS"
    # A row for each token, and those that the ends of texts cut off.
    assert report.num_rows >= 40 * 40


def install_plugins(folder: Path) -> None:
    """Make the entry points of otmd, and one for the repair, known to processes that import from a folder."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    group = project["entry-points"]["vllm.general_plugins"] | {"repair": "vllm_engine:repair"}
    info = folder / "otmd_plugins-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: otmd-plugins\nVersion: 1.0\n")
    lines = ["[vllm.general_plugins]", *(f"{name} = {value}" for name, value in group.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
