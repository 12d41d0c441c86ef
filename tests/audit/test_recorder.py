"""The recorder: the table of a folder is that of the rows, and damaged folders are refused."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from recorded_engine import FAULTS, Engine

import otmd
from otmd.audit import Recorder, recorded_run, recorder, table
from otmd.audit.recorder import read_folder
from otmd.audit.rows import read_row
from otmd.cli import main
from otmd.probabilities import Processing
from otmd.storage.files import FolderLockedError

ROW = {"target_probs": np.array([0.5, 0.5]), "output_token": 0}


def written(folder: Path, rows: list[dict], **options) -> Path:
    with Recorder(folder, **options) as writer:
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
DISTINCT = Engine(num_drafts=2, law=otmd.WithoutReplacement, verifier=otmd.RecursiveRejection())
RUNS = {
    "sound": (Engine(num_drafts=2, depth=2, record_unreached=True).run(150, 3), "with-replacement"),
    "no replacement": (DISTINCT.run(80, 1), "without-replacement"),
    "fixed": (Engine(draft=Processing(temperature=0)).run(80, 2), "fixed"),
    "parameters": (
        Engine(num_drafts=3, law=otmd.Stratified, verifier=otmd.Preference()).run(40, 2),
        partial(otmd.Stratified, sharpness=1.0),
    ),
    "impossible output": (FAULTS["top-p not applied"].run(80, 4), "independent"),
    "impossible drafts": (FAULTS["drafts drawn before a cut"].run(80, 4), "independent"),
    "never drawn": (Engine(num_drafts=2).run(80, 4), "without-replacement"),
    "missing outputs": (
        [row if i % 5 else row | {"output_token": None} for i, row in enumerate(Engine(depth=2).run(80, 5))],
        "with-replacement",
    ),
    "ties": (
        [TIED | {"output_token": i % 2, "context": i % 3} for i in range(40)]
        + [EDGE | {"draft_tokens": [i % 4], "output_token": i // 2 % 4} for i in range(40)],
        "with-replacement",
    ),
    "ids": (listed(60), "with-replacement"),
    "no drafts": ([dict(ROW, output_token=i % 2) for i in range(9)], "none"),
    "NaN": ([ROW, ROW | {"target_probs": np.array([np.nan, 1.0])}, ROW], "with-replacement"),
    "out of range": ([ROW, ROW | {"output_token": 7, "request": "b"}, ROW], "with-replacement"),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_verdict_is_that_of_the_rows_bit_for_bit(name, tmp_path, monkeypatch):
    rows, law = RUNS[name]
    monkeypatch.setattr(recorder, "LINES_OF_PART", 32)
    source = written(tmp_path / "a", rows, law=law)
    parts = sorted(tmp_path.glob("a/part-*.npz"))
    assert len(parts) == -(-len(rows) // 32) or len(rows) >= 40
    # The folder keeps the name of its law.
    expected = str(recorded_run(rows, law, rng=5).to_dict())
    assert str(recorded_run(source, rng=5).to_dict()) == expected


def test_arrays_of_every_kind_are_read(tmp_path):
    torch = pytest.importorskip("torch")
    p = np.array([1, 2, 7])
    values = [p, p.astype(np.float16), p.astype(">f8"), np.repeat(p, 2)[::2], [1.0, 2.0, 7.0]]
    values += [torch.tensor(p, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)]
    for index, value in enumerate(values):
        fields = {"target_logits": value, "draft_tokens": np.array([index % 3]), "request": index}
        row = read_row(1, fields, "", {})
        np.testing.assert_allclose(row.target.probs, otmd.probs_from_logits(p), rtol=1e-12)


CHAIN = {
    "target_logits": np.arange(12, dtype=np.float32).reshape(4, 3) % 5,
    "draft_logits": np.arange(9, dtype=np.float32).reshape(3, 3) % 4,
    "target_temperature": 0.8,
    "draft_temperature": 0.5,
    "request": "a",
    "step": 4,
}


def same(one: Path, other: Path) -> bool:
    first, second = (read_folder(folder)[1] for folder in (one, other))
    return all(np.array_equal(first[x], second[x], equal_nan=x != "request") for x in first)


@pytest.mark.parametrize("outputs", [[1], [2, 1], [2, 0, 1], [2, 0, 1, 2]])
def test_a_step_is_its_rows(outputs, tmp_path):
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
    one_by_one = written(tmp_path / "a", rows)
    with Recorder(tmp_path / "b") as writer:
        padded = outputs + [-1] * (4 - len(outputs))
        writer.add_step(draft_tokens=drafts, output_tokens=padded, **CHAIN)
    assert same(tmp_path / "b", one_by_one)


def test_the_bonus_token_has_the_last_q_or_one_of_its_own(tmp_path):
    q = np.append(CHAIN["draft_logits"], [[0.0, 3.0, 0.0]], axis=0)
    for name, logits in (("a", CHAIN["draft_logits"]), ("b", q)):
        with Recorder(tmp_path / name) as writer:
            step = CHAIN | {"draft_logits": logits}
            writer.add_step(draft_tokens=[2, 0, 1], output_tokens=[2, 0, 1, 2], **step)
    for name, of_row in (("a", 2), ("b", 3)):
        _, found = read_folder(tmp_path / name)
        extra = (found["slot"] < 0) & (found["depth"] == 3)
        expected = otmd.probs_from_logits(q[of_row], temperature=0.5)[2]
        assert found["draft_mass"][extra] == pytest.approx(expected)


def test_plain_decoding_and_fixed_drafts_are_steps(tmp_path):
    with Recorder(tmp_path / "a", law="fixed") as writer:
        writer.add_step(target_logits=[[0.0, 1.0]], draft_tokens=[], output_tokens=[1])
        logits = [[0.0, 1.0], [1.0, 0.0]]
        writer.add_step(target_logits=logits, draft_logits=None, draft_tokens=[1], output_tokens=[1, 0])
    _, found = read_folder(tmp_path / "a")
    columns = (found[name].tolist() for name in ("depth", "num_drafts", "token"))
    assert [*zip(*columns, strict=True)] == [(0, 0, 1), (0, 1, 1), (1, 0, 0)]


def test_a_missing_or_copied_part_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "LINES_OF_PART", 9)
    source = written(tmp_path / "a", Engine(num_drafts=2).run(20, 3))
    parts = sorted(source.glob("part-*"))
    assert len(parts) >= 4
    parts[3].write_bytes(parts[2].read_bytes())
    with pytest.raises(ValueError, match=r"part-00003.npz: got row \d+, expected rows after"):
        recorded_run(source)
    parts[2].unlink()
    with pytest.raises(ValueError, match=r"got part-00003.npz, expected part-00002"):
        recorded_run(source)


def test_tables_that_no_recorder_writes_are_refused(tmp_path):
    source = written(tmp_path / "a", Engine(num_drafts=2).run(20, 3))
    (part,) = source.glob("part-*")
    with np.load(part) as stored:
        sound = dict(stored)
    first_draft = int(np.flatnonzero(sound["slot"] == 0)[0])
    claim = "output tokens follow the target (in order of p)"

    def changed(column, line, value):
        lines = np.arange(len(sound[column]))
        return sound | {column: np.where(lines == line, value, sound[column])}

    for columns, message in (
        (changed("slot", first_draft, 2), "a draft without its position"),
        (changed("mass", first_draft, 0.0), "drafts after one that cannot be drawn"),
        (changed("mass", 0, 1.5), "a number that is no mass"),
        (changed(claim, 0, np.nan), "a number that is no mass"),
        (changed("class by p", 0, 9), "a class that does not exist"),
        (changed("row", 0, 7), "rows that do not ascend"),
        (changed("token", first_draft, -1), "a draft without a token"),
        (changed("decided", 0, False), "an output that was not decided"),
        (changed("repeat_in_slots", first_draft + 1, np.nan), "a draft without its repetitions"),
        (changed("depth", 0, -1), "a negative number"),
        (changed("depth", 0, 1 << 40), "too large a depth"),
        ({name: x for name, x in sound.items() if name != "depth"}, r"other columns \(depth\)"),
        (sound | {"depth": sound["depth"].astype(float)}, "depth: got float64 of shape"),
        ({name: x[:0] for name, x in sound.items()}, "got no lines"),
    ):
        np.savez(part, **columns)
        with pytest.raises(ValueError, match=message):
            recorded_run(source)
    np.savez(part, **sound)
    altered = bytearray(part.read_bytes())
    altered[len(altered) // 2] ^= 1
    part.write_bytes(altered)
    with pytest.raises(ValueError, match=r"part-00000.npz.* torn"):
        recorded_run(source)
    declared = {"otmd_run": 1, "law": "fixed", "rule": "token", "end_tokens": [2]}
    wrong = ({"rule": "none"}, {"law": "\x1b[31m"}, {"law": ""}, {"end_tokens": "12"}, {"end_tokens": [1.5]})
    for entry in wrong:
        (source / "run.json").write_text(json.dumps(declared | entry))
        with pytest.raises(ValueError, match=r"run.json: torn, or not written by otmd"):
            recorded_run(source)


def test_an_interrupt_leaves_no_part_of_a_step(tmp_path, monkeypatch):
    step = {"target_probs": [[0.5, 0.5]] * 2, "draft_probs": [[0.5, 0.5]]}
    step |= {"draft_tokens": [0], "output_tokens": [0, 1]}
    with Recorder(tmp_path / "a") as writer:
        sound = table.Tabulator.lines

        def interrupted(self, row, all_drafts=False):
            if row.depth == 1:
                raise KeyboardInterrupt
            return sound(self, row, all_drafts)

        monkeypatch.setattr(table.Tabulator, "lines", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.add_step(**step)
        monkeypatch.undo()
        writer.add_step(**step)
    assert recorded_run(tmp_path / "a").num_rows == 2


def exit_code_of_child(function, *given) -> int | None:
    process = multiprocessing.get_context("fork").Process(target=function, args=given)
    process.start()
    process.join(60)
    return process.exitcode


def left_open(folder: Path, number: int, signal_at_end: int = 0) -> None:
    global kept_open
    kept_open = Recorder(folder)
    for index in range(number):
        kept_open.add(**ROW | {"output_token": index % 2})
    if signal_at_end:
        os.kill(os.getpid(), signal_at_end)


@pytest.mark.slow
def test_a_killed_process_keeps_what_is_finished(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "LINES_OF_PART", 4)
    assert exit_code_of_child(left_open, tmp_path / "a", 10, signal.SIGKILL) == -signal.SIGKILL
    assert recorded_run(tmp_path / "a").num_rows == 8


def test_an_exit_without_close_keeps_all_rows(tmp_path):
    assert exit_code_of_child(left_open, tmp_path / "a", 1) == 0
    assert recorded_run(tmp_path / "a").num_rows == 1


def test_a_forked_process_is_refused_and_writes_nothing(tmp_path):
    writer, parent = Recorder(tmp_path / "a"), os.getpid()
    writer.add(**ROW)

    def add() -> None:
        with pytest.raises(ValueError, match=f"expected its own, {parent}"):
            writer.add(**ROW)

    assert exit_code_of_child(add) == 0
    assert not [*tmp_path.glob("a/part-*")]
    writer.close()
    assert recorded_run(tmp_path / "a").num_rows == 1


def test_a_folder_has_one_recorder(tmp_path):
    with Recorder(tmp_path / "a") as writer:
        with pytest.raises(FolderLockedError, match="another process is writing"):
            Recorder(tmp_path / "a")
        writer.add(**ROW)
    with pytest.raises(ValueError, match="recorder: got a row after it was closed"):
        writer.add(**ROW)
    writer.close()
    assert recorded_run(tmp_path / "a").num_rows == 1
    with pytest.raises(ValueError, match="which has a recorded run"):
        Recorder(tmp_path / "a")


def test_what_was_declared_is_that_of_the_recorder_on_the_command_line_too(tmp_path, capsys):
    rows = [ROW | {"draft_probs": np.array([0.5, 0.5]), "draft_tokens": [0, 0]}] * 2
    source = written(tmp_path / "a", rows, law="without-replacement", rule="block", end_tokens=[1])
    assert [event.kind for event in recorded_run(source).events] == ["draft_never"]
    assert main(["audit", str(source), "--seed", "3"]) == 3
    assert capsys.readouterr().out == f"{recorded_run(source, rng=3)}\n"
    for name, other in (("law", "fixed"), ("rule", "token"), ("end_tokens", (1, 2))):
        with pytest.raises(ValueError, match=f"{name}: got .*, as the run in .* was recorded"):
            recorded_run(source, **{name: other})


def test_early_requests_are_forgotten(monkeypatch):
    """A server that records for days has no end of requests."""
    monkeypatch.setattr(table, "_MOST_REQUESTS", 3)
    tabulator = table.Tabulator("with-replacement")
    rows = [ROW | {"request": request} for request in (0, 0, 1, 2, 0, 3, 4, 1)]
    lines = [tabulator.lines(read_row(i, row, "", {}))[0] for i, row in enumerate(rows, 1)]
    assert len(tabulator._requests) == 3
    # Whether the token came out earlier in the request, as far as is known.
    assert [x["class by earlier occurrences"] for x in lines] == [0, 1, 0, 0, 1, 0, 0, 0]
