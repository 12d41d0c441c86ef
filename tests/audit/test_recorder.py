"""What an engine records: whole rows come back as they were, and their numbers lead to the same verdict."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
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
from otmd.audit.numbers import NUMBERS, read_numbers
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


def verdict(source, **options) -> dict:
    """The whole report, without the cause."""
    report = recorded_run(source, **options).to_dict()
    return {name: x for name, x in report.items() if name not in {"explanations", "has_rows"}}


def tied(count: int) -> list[dict]:
    """Rows whose logits tie at the edge of a cut, and at temperature 0."""
    rng = np.random.default_rng(1)
    logits = np.array([2.5, 0.8, 0.7, 0.7])
    edge = {"target_logits": logits, "target_top_p": 0.85}
    edge |= {"draft_logits": logits, "draft_top_p": 0.85}
    p = Processing(top_p=0.85)(logits)
    rows = []
    for index in range(count):
        output = int(rng.choice(4, p=p))
        tokens = rng.choice(4, 1, p=p)
        row = edge | {"draft_tokens": tokens, "output_token": 2 + (index % 2 if output > 1 else 0)}
        rows.append(row if output > 1 else row | {"output_token": output})
        best = {
            "target_logits": np.array([1.0, 1.0, 0.0]),
            "target_temperature": 0,
            "output_token": index % 2,
        }
        rows.append(best)
    return rows


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


def without_outputs() -> list[dict]:
    rows = Engine(depth=2, record_unreached=True).run(80, 5)
    for row in rows[::5]:
        row.pop("output_token", None)
    return rows


RUNS = {
    "sound": (Engine(num_drafts=2, depth=2, record_unreached=True).run(150, 3), "with-replacement"),
    "no replacement": (
        Engine(num_drafts=2, law=otmd.WithoutReplacement, rule=otmd.RecursiveRejection()).run(
            80, 1
        ),
        "without-replacement",
    ),
    "fixed": (Engine(draft=Processing(temperature=0)).run(80, 2), "fixed"),
    "parameters": (
        Engine(num_drafts=3, law=otmd.Stratified, rule=otmd.Preference()).run(40, 2),
        partial(otmd.Stratified, sharpness=1.0),
    ),
    "impossible output": (Engine(recorded_target=Processing(top_p=0.5)).run(80, 4), "independent"),
    "impossible drafts": (Engine(recorded_draft=Processing(top_k=2)).run(80, 4), "independent"),
    "never drawn": (Engine(num_drafts=2).run(80, 4), "without-replacement"),
    "missing outputs": (without_outputs(), "with-replacement"),
    "ties": (tied(40), "with-replacement"),
    "ids": (listed(60), "with-replacement"),
    "no drafts": ([dict(ROW, output_token=i % 2) for i in range(9)], "with-replacement"),
    "NaN": ([ROW, ROW | {"target_probs": np.array([np.nan, 1.0])}, ROW], "with-replacement"),
    "out of range": ([ROW, ROW | {"output_token": 7, "request": "b"}, ROW], "with-replacement"),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_verdict_is_that_of_the_rows_bit_for_bit(name, tmp_path):
    rows, law = RUNS[name]
    sources = [written(tmp_path / keep, rows, keep, law=law) for keep in KEEPS]
    for seed in (0, 5):
        expected = verdict(rows, law=law, rng=seed)
        for source in sources:
            given = law if callable(law) else None
            assert verdict(source, law=given, rng=seed) == expected
    lines = (tmp_path / "numbers" / NUMBERS).read_text().splitlines()
    assert max(map(len, lines)) < 2000
    assert len(lines) == 1 + len(rows)


def test_a_fault_is_found_in_numbers_and_its_cause_is_not_searched(tmp_path):
    rows = Engine(recorded_target=Processing(0.5)).run(500, 1)
    report = recorded_run(written(tmp_path / "a", rows, "numbers"))
    whole = recorded_run(written(tmp_path / "b", rows, "rows"))
    assert report.verdict == whole.verdict
    assert whole.explanations
    assert not report.explanations
    assert "not searched, as only numbers were recorded" in str(report)
    assert "not searched" not in str(whole)


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


def test_rows_without_drafts_have_no_arrays_of_them(tmp_path):
    from safetensors import safe_open

    rows = [ROW, ROW | {"draft_probs": np.array([0.25, 0.75]), "draft_tokens": [1]}]
    [shard] = shards.shards_of(written(tmp_path / "a", rows, "rows"))
    with safe_open(shard, "numpy") as stored:
        assert {*stored.keys()} == {"0.target_probs", "1.target_probs", "1.draft_probs"}
        assert stored.get_tensor("1.draft_probs").tolist() == [0.25, 0.75]
        assert json.loads(stored.metadata()["otmd_fields"])[1] == {
            "draft_tokens": [1],
            "output_token": 0,
        }


def test_arrays_are_copied(tmp_path):
    buffer = np.array([0.5, 0.5])
    with Recorder(tmp_path / "a") as writer:
        writer.add(target_probs=buffer)
        buffer[:] = 7.0
    [read] = read_records(tmp_path / "a", {})
    np.testing.assert_array_equal(read.target.probs, [0.5, 0.5])


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


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"output_tokens": []}, "output_tokens: got 0 tokens, expected 1 to 2 for 1 drafts"),
        ({"output_tokens": [0, 1, 2]}, "output_tokens: got 3 tokens"),
        ({"target_logits": [[0.0, 1.0]]}, "target_logits: got 1 rows, expected 2 rows"),
        ({"draft_logits": [0.0]}, "draft_logits: got 0.0, expected a list of numbers"),
        ({"target_logits": "a"}, "target_logits: got 1 rows"),
        ({"penalty": 1.0}, "penalty: got an unknown field"),
    ],
)
def test_steps_at_fault_are_named(fields, message, tmp_path):
    step = {"target_logits": [[0.0, 1.0], [1.0, 0.0]], "draft_tokens": [1], "output_tokens": [1]}
    with Recorder(tmp_path / "a") as writer:
        with pytest.raises(ValueError, match=message):
            writer.add_step(**step | fields)
        writer.add_step(**step)
    assert len([*read_records(tmp_path / "a", {})]) == 1


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"target_probs": [[1.0]]}, r"target_probs: got float64 of shape \(1, 1\)"),
        ({"request": 0.5}, "request: got float"),
        ({"output_token": 0.5}, "output_token: got 0.5, expected a whole number"),
        ({"target_prob": [1.0]}, "target_prob: got an unknown field"),
    ],
)
def test_fields_at_fault_are_named(keep, fields, message, tmp_path):
    with Recorder(tmp_path / "a", keep) as writer, pytest.raises(ValueError, match=message):
        writer.add(**ROW | fields)


@pytest.mark.parametrize("limit", ["_BYTES_OF_SHARD", "MOST_ROWS_OF_SHARD"])
def test_a_run_of_several_shards(limit, tmp_path, monkeypatch):
    rows = Engine(num_drafts=2).run(20, 3)
    monkeypatch.setattr(recorder, limit, 2 * 50 * 8 * 3 if limit.startswith("_") else 3)
    source = written(tmp_path / "a", rows, "rows")
    assert len(shards.shards_of(source)) == 7
    assert verdict(source) == verdict(rows)
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
os.kill(os.getpid(), signal.{signal})
"""


def run_killed(folder: Path, keep: str, signal_name: str) -> int:
    command = [sys.executable, "-c", KILLED.format(signal=signal_name), str(folder), keep]
    return subprocess.run(command, check=False).returncode


@pytest.mark.parametrize(("keep", "num_rows"), [("rows", 8), ("numbers", 10)])
def test_a_killed_process_keeps_what_is_finished(keep, num_rows, tmp_path):
    assert run_killed(tmp_path / "a", keep, "SIGKILL") == -signal.SIGKILL
    assert recorded_run(tmp_path / "a").num_rows == num_rows
    with pytest.raises(ValueError, match="which has a recorded run, expected a new folder"):
        Recorder(tmp_path / "a", keep)


def left_open(folder: Path) -> None:
    global kept_open
    kept_open = Recorder(folder)
    kept_open.add(**ROW)


def test_an_exit_without_close_keeps_all_rows(tmp_path):
    process = multiprocessing.get_context("fork").Process(target=left_open, args=(tmp_path / "a",))
    process.start()
    process.join()
    assert recorded_run(tmp_path / "a").num_rows == 1
    code = "from otmd.audit import Recorder; r = Recorder({!r}); r.add(target_probs=[1.0])"
    subprocess.run([sys.executable, "-c", code.format(str(tmp_path / "b"))], check=True)
    assert recorded_run(tmp_path / "b").num_rows == 1


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


def test_arguments_are_named(tmp_path):
    with pytest.raises(ValueError, match="keep: got 'all', expected rows or numbers"):
        Recorder(tmp_path / "a", "all")
    with pytest.raises(ValueError, match="law: got 'none'"):
        Recorder(tmp_path / "a", law="none")
    assert not (tmp_path / "a").exists()
    (tmp_path / "b").mkdir()
    with pytest.raises(ValueError, match="b: got a folder without rows"):
        recorded_run(tmp_path / "b")


@pytest.mark.parametrize("name", [NUMBERS, "rows-00000.safetensors"])
def test_a_pipe_in_a_folder_is_refused_at_once(name, tmp_path):
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=f"{name}: got no regular file"):
        recorded_run(tmp_path)


def test_the_law_is_that_of_the_recorder(tmp_path):
    rows = [ROW | {"draft_probs": np.array([0.5, 0.5]), "draft_tokens": [0, 0]}] * 2
    source = written(tmp_path / "a", rows, "rows", law="without-replacement")
    assert [case.kind for case in recorded_run(source).cases] == ["draft_never"]
    assert not recorded_run(source, "with-replacement").cases
    strata = written(tmp_path / "b", rows, "rows", law=partial(otmd.Stratified, sharpness=2.0))
    with pytest.raises(ValueError, match=r"law: got 'stratified \(sharpness=2.0\)'"):
        recorded_run(strata)
    numbers = written(tmp_path / "c", rows, "numbers", law="without-replacement")
    assert recorded_run(numbers, "without-replacement").law == "without-replacement"
    with pytest.raises(ValueError, match="law: got with-replacement, expected without-replacement"):
        recorded_run(numbers, "with-replacement")
    with pytest.raises(ValueError, match="target_processing: got Processing"):
        recorded_run(numbers, target_processing=Processing())


def test_the_command_line_reads_folders(tmp_path, capsys):
    rows = Engine().run(30, 1)
    for keep in KEEPS:
        source = written(tmp_path / keep, rows, keep, law="independent")
        assert main(["audit", str(source), "--seed", "3"]) == 4
        assert capsys.readouterr().out == f"{recorded_run(source, rng=3)}\n"
    assert main(["audit", str(tmp_path / "numbers"), "--law", "fixed"]) == 1
    assert "law: got fixed, expected independent" in capsys.readouterr().err


def test_log_probabilities_of_some_tokens_are_refused_in_numbers_too(tmp_path):
    row = {"target_logits": np.log([0.5, 0.2]), "target_ids": [3, 4], "output_token": 3}
    with pytest.raises(ValueError, match="target: got") as of_rows:
        recorded_run([row] * 3)
    with pytest.raises(ValueError, match="target: got") as of_numbers:
        recorded_run(written(tmp_path / "a", [row] * 3, "numbers"))
    assert str(of_rows.value).partition(":")[2] == str(of_numbers.value).partition(":")[2]


def test_a_torn_last_line_is_refused(tmp_path):
    path = written(tmp_path / "a", [ROW, ROW], "numbers") / NUMBERS
    content = path.read_bytes()
    path.write_bytes(content[:-9])
    with pytest.raises(
        ValueError, match="the last line: got a part of a line, expected a whole one"
    ):
        recorded_run(tmp_path / "a")
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="row 1: got another line"):
        recorded_run(tmp_path / "a")
    path.write_bytes(content.replace(b"in order of p)", b"in another order)"))
    with pytest.raises(ValueError, match="numbers of other claims"):
        recorded_run(tmp_path / "a")


@pytest.fixture(scope="module")
def lines(tmp_path_factory) -> list[str]:
    rows = [row for row in Engine(num_drafts=2).run(9, 3) if row["depth"] == 0]
    folder = written(tmp_path_factory.mktemp("a") / "b", rows, "numbers")
    return (folder / NUMBERS).read_text().splitlines()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"depth":0', '"depth":-1', "depth: got -1, expected a whole number from 0"),
        ('"depth":0', '"deep":0', "row: got"),
        ('"decided":true', '"decided":1', "decided: got 1, expected true or false"),
        ('"cases":[]', '"cases":["a"]', "cases: got a, expected a kind"),
        ('"cases":[]', '"cases":{}', "cases: got {}, expected a list"),
        ('"mass":0', '"mass":7', "mass: got 7"),
        ('"classes":[[', '"classes":[[9', "classes: got"),
        ('"starts":[', '"starts":[0,', "starts: got"),
        ('"request":""', '"request":4', "request: got 4, expected a text"),
        ('"has_draft":true', '"has_draft":null', "has_draft: got None"),
        ('"row":2', '"row":2,"row":2', "no JSON"),
    ],
)
def test_altered_numbers_are_refused(lines, before, after, message, tmp_path):
    assert before in lines[2]
    path = tmp_path / NUMBERS
    path.write_text("\n".join([*lines[:2], lines[2].replace(before, after, 1), lines[3], ""]))
    with pytest.raises(ValueError, match=f"row 3: {message}") as caught:
        recorded_run(tmp_path)
    assert "\n" not in str(caught.value)


def test_random_bytes_in_numbers_raise_no_other_error(lines, tmp_path):
    coins = random.Random(0)
    path = tmp_path / NUMBERS
    refusals = []
    for _ in range(300):
        content = bytearray("\n".join([*lines, ""]).encode())
        for _ in range(coins.choice([1, 1, 3])):
            content[coins.randrange(len(content))] = coins.choice(b'0123456789.-,:[]{}"enatru\n ')
        path.write_bytes(bytes(content))
        try:
            for _ in read_numbers(path):
                pass
        except ValueError as error:
            refusals.append(str(error))
    assert 50 < len(refusals) < 300
    assert "\n" not in "".join(refusals)


def with_metadata(path: Path, metadata: dict) -> None:
    path.write_bytes(shards._in_safetensors({"0.target_probs": np.ones(1)}, metadata))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (None, "fields that are no JSON"),
        ("[", "fields that are no JSON"),
        ("{}", "other fields"),
        ("[1]", "other fields"),
        ("[]", r"0.target_probs: got shape \(1,\), expected a vector"),
        ('[{"target_probs": [1.0]}]', r"0.target_probs: got shape \(1,\)"),
        ('[{"output_tokens": 1}]', "row 1: output_tokens: got an unknown field"),
        ("[" + "{}," * 5000 + "{}]", "other fields"),
    ],
)
def test_altered_shards_are_refused(fields, message, tmp_path):
    metadata = {} if fields is None else {"otmd_fields": fields}
    with_metadata(tmp_path / "rows-00000.safetensors", metadata | {"otmd_law": "fixed"})
    with pytest.raises(ValueError, match=message) as caught:
        recorded_run(tmp_path)
    assert "\n" not in str(caught.value)


def test_early_requests_are_forgotten(monkeypatch):
    """A server that records for days has no end of requests."""
    monkeypatch.setattr(observer, "_MOST_REQUESTS", 3)
    watching = observer.Observer(otmd.WithReplacement)
    rows = [ROW | {"request": request} for request in (0, 0, 1, 2, 0, 3, 4, 1)]
    seen = [watching.observe(record).output for record in read_records(rows, {})]
    assert len(watching._requests) == 3
    # Whether the token came out earlier in the request, as far as is known.
    assert [x.classes[-1].label for x in seen if x] == [0, 1, 0, 0, 1, 0, 0, 0]
