"""The recorder against vLLM itself on a CPU, with a random pair of models; 0.32.0 and 0.33.0 were run."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from models.conftest import make_model
from vllm_engine import drafts

import otmd
from otmd.audit.recorder import read_folder

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: otmd[vllm]"),
]


def save_models(folder: Path) -> None:
    """Save a target of 1,000 tokens, a draft with nearly its weights, and a target of 50 tokens."""
    import torch

    # Heads of 32 numbers.
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
    make_model(50, 2, **sizes, **ends).save_pretrained(folder / "small")
    model = make_model(1000, 2, **sizes, **ends)
    model.save_pretrained(folder / "target")
    with torch.no_grad():
        for weights in model.parameters():
            weights += 0.024 * torch.randn_like(weights)
    model.save_pretrained(folder / "draft")


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The variables of an engine, which finds this project and the plugins of a folder."""
    paths = [str(ROOT), str(ROOT / "docs" / "examples"), str(folder), str(HERE)]
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    # One thread, on any core and never spinning: on a busy machine, more take minutes.
    settings |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_WAIT_POLICY": "PASSIVE"}
    settings |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    return os.environ | settings | more | {"PYTHONPATH": os.pathsep.join(paths)}


def run_engine(scenario: str, folder: Path, **more: str) -> None:
    """Run a function of vllm_engine.py in its own process."""
    done = subprocess.run(
        [sys.executable, str(HERE / "vllm_engine.py"), scenario, str(folder)],
        env=environment(folder, **more),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("vllm")
    save_models(folder)
    return folder


@pytest.fixture(scope="module")
def runs(pair) -> Path:
    """Recorded runs of engines with sampled drafts."""
    run_engine("in_process", pair)
    return pair


def audited(run: Path) -> otmd.audit.RecordedRunAudit:
    return otmd.audit.recorded_run(run, rng=0)


def assert_drafts_are_deterministic(run: Path, more_than: int) -> None:
    """A deterministic draft has no line of its own in the table: there is nothing to test."""
    _, table = read_folder(run)
    assert table["num_drafts"].sum() > more_than
    assert (table["slot"] < 0).all()


@pytest.mark.parametrize("name", ["shipped", "ngram_shipped"])
def test_as_shipped_it_is_faulty_on_a_cpu(runs, name):
    """The temperature is never written: vllm/utils/cpu_triton_utils.py, `_expand_kernel_impl`."""
    assert audited(runs / name).outcome == "FAULTY"


def test_greedy_requests_pass_as_shipped(runs):
    report = audited(runs / "greedy")
    assert not report.faulty
    assert report.metrics["acceptance rate"] > 0.1


@pytest.mark.parametrize("name", ["repaired", "cuts", "custom"])
def test_sampled_drafts_pass_once_repaired(runs, name):
    report = audited(runs / name)
    assert report.outcome == "PASS"
    optimal = report.metrics["optimal acceptance rate"]
    assert 0.3 < optimal < 0.7
    assert abs(report.metrics["acceptance rate"] - optimal) < 0.06


def test_looked_up_drafts_are_deterministic_and_pass_once_repaired(runs):
    report = audited(runs / "ngram")
    assert report.outcome == "PASS"
    optimal = report.metrics["optimal acceptance rate"]
    assert 0.05 < optimal < 0.7
    assert abs(report.metrics["acceptance rate"] - optimal) < 0.06
    assert_drafts_are_deterministic(runs / "ngram", more_than=500)


def test_block_is_ignored_and_drafts_are_not_sampled(runs):
    assert_drafts_are_deterministic(runs / "block", more_than=100)


@pytest.fixture(scope="module")
def v2_runs(pair) -> Path:
    run_engine("v2_runner", pair, TRITON_INTERPRET="1", VLLM_USE_V2_MODEL_RUNNER="1")
    return pair


@pytest.mark.parametrize(("name", "least"), [("standard", 0.3), ("block", 0.3), ("argmax", 0.05)])
def test_v2_runner_is_recorded(v2_runs, name, least):
    report = audited(v2_runs / f"v2_{name}")
    assert not report.faulty
    optimal = report.metrics["optimal acceptance rate"]
    assert least < optimal < 0.7
    assert abs(report.metrics["acceptance rate"] - optimal) < 0.06


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


@contextmanager
def served(folder: Path, record: Path) -> Iterator[str]:
    """The address of a server of two engines, which is interrupted at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {
        "model": folder / "target", "port": port, "data-parallel-size": 2, "shutdown-timeout": 60,
        "max-model-len": 64, "max-num-seqs": 16, "dtype": "float32", "served-model-name": "pair",
        "speculative-config": json.dumps(drafts(folder)),
    }  # fmt: skip
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
    command += ["--skip-tokenizer-init", *(f"--{name}={x}" for name, x in options.items())]
    with subprocess.Popen(command, env=environment(folder, OTMD_RECORD=str(record))) as server:
        try:
            address = f"http://127.0.0.1:{port}"
            wait_for(server, f"{address}/health")
            yield address
        finally:
            server.send_signal(signal.SIGINT)


def wait_for(server: subprocess.Popen, address: str) -> None:
    end = time.monotonic() + 900
    while server.poll() is None and time.monotonic() < end:
        with suppress(OSError), urllib.request.urlopen(address, timeout=10):
            return
        time.sleep(1)
    raise AssertionError("the server did not start")


def ask_for_text(address: str, seed: int) -> None:
    prompt = np.random.default_rng(seed).integers(1000, size=8).tolist()
    body = {"model": "pair", "prompt": prompt, "max_tokens": 40, "temperature": 0.8}
    body |= {"ignore_eos": True, "detokenize": False, "return_token_ids": True}
    request = urllib.request.Request(
        f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=300).close()


def test_engines_of_a_server_have_a_folder_each(pair, tmp_path):
    install_plugins(pair)
    with served(pair, tmp_path / "run") as address, ThreadPoolExecutor(16) as pool:
        list(pool.map(ask_for_text, [address] * 40, range(40)))
    reports = [audited(tmp_path / name) for name in ("run", "run-1")]
    assert not any(report.faulty for report in reports)
    # None is lost at the end: a row for each token.
    assert sum(report.num_rows for report in reports) >= 40 * 40


def install_plugins(folder: Path) -> None:
    """Make the entry points of otmd, and one for the repair, known to processes that import from a folder."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    group = project["entry-points"]["vllm.general_plugins"] | {"repair": "vllm_engine:repair"}
    info = folder / "otmd_plugins-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: otmd-plugins\nVersion: 1.0\n")
    lines = ["[vllm.general_plugins]", *(f"{name} = {value}" for name, value in group.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))


def test_the_referee_sees_the_fault_of_the_sampler_and_passes_the_repaired_one(tmp_path):
    command = [sys.executable, str(HERE / "vllm_referee.py"), "2000"]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=900)
    verdicts = [line.split(":")[0] for line in done.stdout.splitlines() if "cases of" in line]
    assert verdicts == ["NOT LOSSLESS", "PASS"], done.stderr[-4000:]
