"""What an engine records: whole rows come back as they were, and their numbers lead to the same verdict."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from recorded_engine import Engine

import otmd
from otmd.audit import Recorder, observer, recorded_run, recorder, shards
from otmd.audit.numbers import NUMBERS
from otmd.audit.records import numbered_rows, read_records
from otmd.cli import main
from otmd.probabilities import Processing
from otmd.storage.files import FolderLockedError

KEEPS = ("rows", "numbers")
ROW = {"target_probs": np.array([0.5, 0.5]), "output_token": 0}


def written(folder: Path, rows: list[dict], keep: str, **options) -> Path:
    with Recorder(folder, keep, **options) as writer:
        for row in rows:
            writer.add(**row)
    return folder


def listed(count: int) -> list[dict]:
    """Rows of the most likely tokens alone, with requests and a vocabulary of any size."""
    rng = np.random.default_rng(2)
    row = {"target_probs": [0.25, 0.75], "target_ids": [9, 4]}
    row |= {"draft_probs": [0.5, 0.5], "draft_ids": [4, 9]}
    outputs = rng.choice([9, 4], count, p=[0.25, 0.75])
    return [
        row | {"draft_tokens": [4 + 5 * (i % 2)], "output_token": int(y), "request": i % 7}
        for i, y in enumerate(outputs)
    ]


TIED = {"target_logits": np.array([1.0, 1.0, 0.0]), "target_temperature": 0}
EDGE = {
    f"{side}_{name}": value
    for side in ("target", "draft")
    for name, value in {"logits": np.array([2.5, 0.8, 0.7, 0.7]), "top_p": 0.85}.items()
}
DISTINCT = Engine(num_drafts=2, law=otmd.WithoutReplacement, rule=otmd.RecursiveRejection())
RUNS = {
    "sound": (Engine(num_drafts=2, depth=2, record_unreached=True).run(150, 3), "with-replacement"),
    "no replacement": (DISTINCT.run(80, 1), "without-replacement"),
    "fixed": (Engine(draft=Processing(temperature=0)).run(80, 2), "fixed"),
    "parameters": (
        Engine(num_drafts=3, law=otmd.Stratified, rule=otmd.Preference()).run(40, 2),
        partial(otmd.Stratified, sharpness=1.0),
    ),
    "impossible output": (Engine(recorded_target=Processing(top_p=0.5)).run(80, 4), "independent"),
    "impossible drafts": (Engine(recorded_draft=Processing(top_k=2)).run(80, 4), "independent"),
    "never drawn": (Engine(num_drafts=2).run(80, 4), "without-replacement"),
    "missing outputs": (
        [
            row if i % 5 else row | {"output_token": None}
            for i, row in enumerate(Engine(depth=2).run(80, 5))
        ],
        "with-replacement",
    ),
    "ties": (
        [TIED | {"output_token": i % 2} for i in range(40)]
        + [EDGE | {"draft_tokens": [i % 4], "output_token": i // 2 % 4} for i in range(40)],
        "with-replacement",
    ),
    "ids": (listed(60), "with-replacement"),
    "no drafts": ([dict(ROW, output_token=i % 2) for i in range(9)], "with-replacement"),
    "NaN": ([ROW, ROW | {"target_probs": np.array([np.nan, 1.0])}, ROW], "with-replacement"),
    "out of range": ([ROW, ROW | {"output_token": 7, "request": "b"}, ROW], "with-replacement"),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_verdict_is_that_of_the_rows_bit_for_bit(name, tmp_path):
    rows, law = RUNS[name]
    sources = [written(tmp_path / keep, rows, keep, law=law) for keep in KEEPS]
    expected = recorded_run(rows, law, rng=5).to_dict()
    for source in sources:
        # Numbers keep the name of their law.
        given = law if callable(law) else None
        assert recorded_run(source, given, rng=5).to_dict() == expected
    lines = (tmp_path / "numbers" / NUMBERS).read_text().splitlines()
    assert max(map(len, lines)) < 2000
    assert len(lines) == 1 + len(rows)


def test_rows_come_back_as_they_were(tmp_path):
    torch = pytest.importorskip("torch")
    p = np.array([0.1, 0.2, 0.7])
    tensors = {
        "float16": p.astype(np.float16),
        "float32": p.astype(np.float32),
        "float64": p,
        "big-endian": p.astype(">f8"),
        "integers": np.array([3, 1, 2], np.uint8),
        "strided": np.repeat(p, 2)[::2],
        "torch": torch.tensor(p, dtype=torch.float32, requires_grad=True),
        "bfloat16": torch.tensor(p, dtype=torch.bfloat16),
        "list": [0.5, 0.25, None],
    }
    rows = [
        {"target_logits": value, "draft_tokens": np.array([index]), "request": name}
        for index, (name, value) in enumerate(tensors.items())
    ]
    source = written(tmp_path / "a", rows, "rows")
    read = [row for _, row in numbered_rows(source, "")[0]]
    assert [row.keys() for row in read] == [row.keys() for row in rows]
    given = [*read_records(rows, {})]
    for before, after in zip(given, read_records(source, {}), strict=True):
        assert after.request == before.request
        assert after.draft_tokens.tolist() == before.draft_tokens.tolist()
        np.testing.assert_array_equal(after.target.probs, before.target.probs)
    assert read[-2]["target_logits"].dtype == np.float32
    # Arrays are copied: an engine may use its buffers again.
    buffer = np.array([0.5, 0.5])
    with Recorder(tmp_path / "b") as writer:
        writer.add(target_probs=buffer)
        buffer[:] = 7.0
    [copied] = read_records(tmp_path / "b", {})
    np.testing.assert_array_equal(copied.target.probs, [0.5, 0.5])


CHAIN = {
    "target_logits": np.arange(12, dtype=np.float32).reshape(4, 3) % 5,
    "draft_logits": np.arange(9, dtype=np.float32).reshape(3, 3) % 4,
    "target_temperature": 0.8,
    "draft_temperature": 0.5,
    "request": "a",
    "step": 4,
}


@pytest.mark.parametrize("outputs", [[1], [2, 1], [2, 0, 1], [2, 0, 1, 2]])
@pytest.mark.parametrize("keep", KEEPS)
def test_a_step_is_its_rows(outputs, keep, tmp_path):
    drafts = [2, 0, 1]
    rows = []
    for depth in range(3 + (len(outputs) == 4)):
        row = {name: CHAIN[name] for name in ("request", "step", "target_temperature")}
        row |= {"depth": depth, "target_logits": CHAIN["target_logits"][depth]}
        if depth < len(outputs):
            row["output_token"] = outputs[depth]
        if depth < 3:
            row |= {"draft_tokens": drafts[depth : depth + 1], "draft_temperature": 0.5}
            row["draft_logits"] = CHAIN["draft_logits"][depth]
        rows.append(row)
    one_by_one = written(tmp_path / "a", rows, keep)
    with Recorder(tmp_path / "b", keep) as writer:
        padded = outputs + [-1] * (4 - len(outputs))
        writer.add_step(draft_tokens=drafts, output_tokens=padded, **CHAIN)
    if keep == "numbers":
        assert (tmp_path / "b" / NUMBERS).read_text() == (one_by_one / NUMBERS).read_text()
        return
    read, expected = (
        [
            {name: np.array(x).tolist() for name, x in row.items()}
            for _, row in numbered_rows(at, "")[0]
        ]
        for at in (tmp_path / "b", one_by_one)
    )
    assert read == expected


def test_plain_decoding_and_fixed_drafts_are_steps(tmp_path):
    with Recorder(tmp_path / "a", law="fixed") as writer:
        writer.add_step(target_logits=[[0.0, 1.0]], draft_tokens=[], output_tokens=[1])
        logits = [[0.0, 1.0], [1.0, 0.0]]
        writer.add_step(
            target_logits=logits, draft_logits=None, draft_tokens=[1], output_tokens=[1, 0]
        )
    read = [*read_records(tmp_path / "a", {})]
    assert [(x.depth, x.draft_tokens.tolist(), x.output_token) for x in read] == [
        (0, [], 1),
        (0, [1], 1),
        (1, [], 0),
    ]


@pytest.mark.parametrize("limit", ["_BYTES_OF_SHARD", "MOST_ROWS_OF_SHARD"])
def test_a_run_of_several_shards(limit, tmp_path, monkeypatch):
    rows = Engine(num_drafts=2).run(20, 3)
    monkeypatch.setattr(recorder, limit, 2 * 50 * 8 * 3 if limit.startswith("_") else 3)
    source = written(tmp_path / "a", rows, "rows")
    assert len(shards.shards_of(source)) == 7
    assert str(recorded_run(source)) == str(recorded_run(rows))
    shards.shards_of(source)[2].unlink()
    with pytest.raises(ValueError, match=r"got rows-00003.safetensors, expected rows-00002"):
        recorded_run(source)


KILLED = """
import os, signal, sys
import numpy as np
from otmd.audit import Recorder, recorder
recorder.MOST_ROWS_OF_SHARD = 4
writer = Recorder(sys.argv[1], sys.argv[2])
for index in range(10):
    writer.add(target_probs=np.array([0.5, 0.5]), output_token=index % 2)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("keep", "num_rows"), [("rows", 8), ("numbers", 10)])
def test_a_killed_process_keeps_what_is_finished(keep, num_rows, tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path / "a"), keep]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert recorded_run(tmp_path / "a").num_rows == num_rows


def left_open(folder: Path) -> None:
    global kept_open
    kept_open = Recorder(folder)
    kept_open.add(**ROW)


def test_an_exit_without_close_keeps_all_rows(tmp_path):
    process = multiprocessing.get_context("fork").Process(target=left_open, args=(tmp_path / "a",))
    process.start()
    process.join()
    assert recorded_run(tmp_path / "a").num_rows == 1


def add_in_child(writer: Recorder, queue) -> None:
    try:
        writer.add(**ROW)
    except ValueError as error:
        queue.put(str(error))


def test_a_forked_process_is_refused_and_writes_nothing(tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    writer = Recorder(tmp_path / "a")
    writer.add(**ROW)
    process = context.Process(target=add_in_child, args=(writer, queue))
    process.start()
    assert f"expected its own, {os.getpid()}" in queue.get(timeout=60)
    process.join()
    assert not shards.shards_of(tmp_path / "a")
    writer.close()
    assert recorded_run(tmp_path / "a").num_rows == 1


@pytest.mark.parametrize("keep", KEEPS)
def test_a_folder_has_one_recorder(keep, tmp_path):
    with Recorder(tmp_path / "a", keep) as writer:
        with pytest.raises(FolderLockedError, match="another process is writing"):
            Recorder(tmp_path / "a", keep)
        writer.add(**ROW)
    with pytest.raises(ValueError, match="recorder: got a row after it was closed"):
        writer.add(**ROW)
    writer.close()
    assert recorded_run(tmp_path / "a").num_rows == 1
    for second in KEEPS:
        with pytest.raises(ValueError, match="which has a recorded run"):
            Recorder(tmp_path / "a", second)


def test_the_law_is_that_of_the_recorder_on_the_command_line_too(tmp_path, capsys):
    rows = [ROW | {"draft_probs": np.array([0.5, 0.5]), "draft_tokens": [0, 0]}] * 2
    for keep in KEEPS:
        source = written(tmp_path / keep, rows, keep, law="without-replacement")
        assert [case.kind for case in recorded_run(source).cases] == ["draft_never"]
        assert main(["audit", str(source), "--seed", "3"]) == 3
        assert capsys.readouterr().out == f"{recorded_run(source, rng=3)}\n"
    assert not recorded_run(tmp_path / "rows", "with-replacement").cases


def test_early_requests_are_forgotten(monkeypatch):
    """A server that records for days has no end of requests."""
    monkeypatch.setattr(observer, "_MOST_REQUESTS", 3)
    watching = observer.Observer(otmd.WithReplacement)
    rows = [ROW | {"request": request} for request in (0, 0, 1, 2, 0, 3, 4, 1)]
    seen = [watching.observe(record).output for record in read_records(rows, {})]
    assert len(watching._requests) == 3
    # Whether the token came out earlier in the request, as far as is known.
    assert [x.classes[-1].label for x in seen if x] == [0, 1, 0, 0, 1, 0, 0, 0]
