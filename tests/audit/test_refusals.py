"""Refusals of the whole package: a call, its error, and the message, in one line."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from honest import P, Q

import otmd
from otmd import audit
from otmd.audit import Recorder, recorded_run, shards
from otmd.audit.numbers import NUMBERS
from otmd.probabilities import Processing

LAW = otmd.WithReplacement(Q, 2)
ROW = {"target_probs": [0.5, 0.5], "output_token": 0}
DRAFTED = ROW | {"draft_probs": [0.5, 0.5], "draft_tokens": [1, 0]}
STEP = {"target_logits": [[0.0, 1.0], [1.0, 0.0]], "draft_tokens": [1], "output_tokens": [1]}


def sampled(**change):
    """An audit by samples of a verifier that draws from the target."""
    verifier = lambda drafts: np.zeros(len(drafts), int)  # noqa: E731
    options = {"verifier": verifier, "target_probs": P, "law": LAW, "num_samples": 10}
    return lambda at: audit.losslessness(**options | {"batched": True, "rng": 0} | change)


def enumerated(**change):
    options = {"verifier": otmd.RecursiveRejection(), "target_probs": P, "law": LAW}
    return lambda at: audit.enumerated(**options | change)


def needed(**options):
    return lambda at: audit.samples_to_detect(P, LAW, **options)


def updated(drafts, tokens):
    return lambda at: audit.SequentialAudit(P, LAW).update(drafts, tokens)


def drafts(samples, law=LAW, **options):
    return lambda at: audit.draft_law(samples, law, rng=0, **options)


def texts(*rows, logits=lambda prefixes: np.zeros((len(prefixes), 2))):
    good = {"prompt_tokens": [0], "output_tokens": [1]}
    return lambda at: audit.texts([good, *rows], logits)


def of(rows, **options):
    return lambda at: recorded_run(rows, **options)


def line(text: str):
    """A run whose second line is this one."""
    return lambda at: recorded_run(written(at / "run.jsonl", f"{json.dumps(ROW)}\n{text}"))


def columns(**values):
    def call(at: Path):
        pq.write_table(pa.table(values), at / "run.parquet")
        recorded_run(at / "run.parquet")

    return call


def tensors(*entries: str):
    """A safetensors file with these entries of its header and 16 bytes."""
    header = f"{{{', '.join(entries)}}}"
    content = len(header).to_bytes(8, "little") + header.encode() + bytes(16)
    return lambda at: recorded_run(written(at / "run.safetensors", content))


def tensor(shape, dtype="F64", name="target_probs"):
    entry = json.dumps({"dtype": dtype, "shape": shape, "data_offsets": [0, 16]})
    return f'"{name}": {entry}'


def shard(fields: str, **metadata):
    def call(at: Path):
        tensor = {"0.target_probs": np.ones(1)}
        metadata["otmd_fields"] = fields
        content = shards._in_safetensors(tensor, metadata | {"otmd_law": "fixed"})
        recorded_run(written(at / "rows-00000.safetensors", content).parent)

    return call


def numbers(before: str = "", after: str = "", row: int = 2, cut: int = 0):
    """Numbers with a row altered, or cut short by so many bytes."""

    def call(at: Path):
        with Recorder(at / "a", "numbers") as recorder:
            recorder.add(**DRAFTED)
            recorder.add(**DRAFTED)
        path = at / "a" / NUMBERS
        lines = path.read_text().splitlines(keepends=True)
        assert before in lines[row]
        lines[row] = lines[row].replace(before, after, 1)
        path.write_text("".join(lines)[: -cut or None])
        recorded_run(at / "a")

    return call


def recorder(keep: str = "rows", law="with-replacement"):
    return lambda at: Recorder(at / "a", keep, law)


def added(keep: str, **fields):
    def call(at: Path):
        with Recorder(at / "a", keep) as recorder:
            recorder.add(**ROW | fields)

    return call


def step(**fields):
    def call(at: Path):
        with Recorder(at / "a") as recorder:
            recorder.add_step(**STEP | fields)

    return call


def recorded(keep: str, recorded_law, **options):
    def call(at: Path):
        with Recorder(at / "a", keep, recorded_law) as recorder:
            recorder.add(**DRAFTED)
        recorded_run(at / "a", **options)

    return call


def pipe(name: str):
    def call(at: Path):
        os.mkfifo(at / name)
        recorded_run(at / name if name == "run.jsonl" else at)

    return call


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


BATCH = otmd.WithReplacement(np.stack([Q, Q]), 2)
VALUES = [
    # Verifiers.
    (sampled(target_probs=[0.5, 0.5]), r"target_probs.*2.*6"),
    (sampled(target_probs=np.stack([P, P])), "leading axes"),
    (sampled(law=BATCH), "one position"),
    (sampled(num_samples=1), "num_samples"),
    (sampled(false_alarm=0.3), r"false_alarm.*0\.25"),
    (sampled(false_alarm=1e-9), r"level.*SequentialAudit"),
    (sampled(verifier=lambda x: x), r"verifier.*\(10,\)"),
    (sampled(verifier=lambda x: np.full(len(x), 0.5)), "verifier.*float64"),
    (sampled(verifier=lambda x: np.full(len(x), 6)), r"verifier.*\[0, 6\)"),
    (sampled(verifier=lambda x: x, batched=False), "verifier.*batched=True"),
    (enumerated(target_probs=P[:2]), "target_probs"),
    (enumerated(tol=0.0), "tol"),
    (enumerated(verifier=lambda _: P[:2] / P[:2].sum()), r"verifier.*\(2,\).*\(6,\)"),
    (enumerated(verifier=lambda _: P / 2), "verifier.*sums"),
    (enumerated(verifier=otmd.SpecHub()), "SpecHub"),
    (enumerated(law=otmd.WithReplacement(Q, 20)), "enumerate"),
    (needed(output_distribution=P, total_variation=0.1), "exactly one"),
    (needed(), "exactly one"),
    (needed(output_distribution=P[:3] / P[:3].sum()), "output_distribution"),
    (needed(total_variation=1.5), "total_variation"),
    (needed(total_variation=0.1, power=1), "power"),
    (updated([[0, 1]], [6]), r"output_tokens.*\[0, 6\)"),
    (updated([0, 1], [0]), r"draft_tokens.*\(M, n\)"),
    (updated([[0, 1]], [0, 1]), r"output_tokens.*\(1,\)"),
    (updated([[0]], [0]), "draft_tokens"),
    (lambda at: audit.SequentialAudit(P, LAW, false_alarm=1), "false_alarm"),
    (lambda at: audit.sampler_of(lambda _: [0.5, 0.6], rng=0)(np.zeros((1, 2), int)), "verifier"),
    # Drafts.
    (drafts([[0, 1]], BATCH), "law.*leading axes"),
    (drafts([0, 1]), r"samples.*\(N, n\)"),
    (drafts([[0, 6]]), r"samples.*\[0, 6\)"),
    (drafts([[0, 1, 2]]), "samples"),
    (drafts(np.empty((0, 2), int)), "samples.*N ≥ 1"),
    (drafts([[0, 1]], false_alarm=2), "false_alarm"),
    # Texts.
    (texts({"prompt_tokens": [0]}), "row 2: output_tokens: got None"),
    (texts({"text": "a"}), "row 2: text: got an unknown field"),
    (texts({"prompt_tokens": [0.5], "output_tokens": [1]}), "row 2: prompt_tokens: got float64"),
    (texts(logits=lambda prefixes: np.zeros(2)), r"oracle: got logits of shape \(2,\)"),
    # Recorded runs.
    (of([]), "got no rows"),
    (of("run.csv"), "got a '.csv' file"),
    (of([ROW], law="joint"), "law"),
    (of([ROW], false_alarm=0.5), "false_alarm"),
    (of([ROW], false_alarm=1e-7), "false_alarm"),
    (of([ROW], bias=1), "bias"),
    (of([ROW], target_processing=Processing()), "target_processing: got a processing of target_probs"),
    (of([{"target_logits": [0, 1], "target_top_k": 1}], target_processing=Processing()),
     "row 1: target_top_k: got it in the row and for the whole"),
    (line("{"), "jsonl: row 2: no JSON, cut short"),
    (line("{a}\n"), "row 2: no JSON, malformed"),
    (line('{"target_probs": [1], "target_probs": [1]}\n'),
     r"row 2: no JSON, malformed \(it names 'target_probs' twice\)"),
    (line('{"\\u001b[2J": 1}\n'), r"row 2: \\x1b\[2J: got an unknown field"),
    (line("[" * 100_000 + "\n"), "row 2: no JSON"),
    (line("{}\n"), "row 2: target_probs: got nothing"),
    (line('{"target_probs": [[1], [2, 3]]}\n'), "row 2: target_probs: got rows of different"),
    (line('{"target_probs": [1%s]}\n' % ("0" * 400)), "row 2: target_probs: got object"),
    (line('{"target_probs": [1], "target_logits": [1]}\n'), "row 2: target_logits: got it and"),
    (line('{"target_probs": [1], "output_token": 1%s}\n' % ("0" * 30)), "row 2: output_token"),
    (line('{"target_probs": [1], "target_temperature": 1}\n'),
     "row 2: target_temperature: got a processing of target_probs"),
    (line('{"target_logits": [1], "target_temperature": -1}\n'), "row 2: temperature: got -1.0"),
    (line('{"target_probs": [1], "draft_probs": [0.5, 0.5]}\n'),
     "row 2: draft: got 2 tokens and a target with 1, expected equally many, or target_ids"),
    (line('{"target_logits": [1], "target_repetition_penalty": 1.1}\n'),
     "target_repetition_penalty: got an unknown field, expected record logits after penalties"),
    (line('{"target_probs": [1], "target_ids": [1, 2]}\n'), "row 2: target_ids: got 2 ids for 1"),
    (line('{"target_logits": [1], "target_order": "top_p"}\n'), "row 2: order: got 'top_p', expected one of"),
    (line('{"target_probs": [0.5, 0.5], "target_ids": [1, 1]}\n'),
     "row 2: target_ids: got a negative or a repeated id"),
    (line('{"target_probs": [1.0], "target_ids": [9999999999]}\n'),
     "row 2: target: got ids up to 9999999999"),
    (line('{"target_probs": [1], "depth": 99999999}\n'), "row 2: depth: got 99999999"),
    (line('{"target_probs": [1], "request": "%s"}\n' % ("a" * 2000)), "row 2: request: got 2000 characters"),
    (columns(target_probs=[[[0.5]]]), "row 1: target_probs: got object of shape"),
    (columns(target_probs=[[1.0]], step=[[1]]), "row 1: step: got array.*, expected a whole number"),
    (columns(target_probs=[[1.0]], step=[0.5]), "row 1: step: got 0.5"),
    (columns(target_probs=[[1.0]], other=[1]), "other: got an unknown field"),
    (columns(target_probs=["a"]), "row 1: target_probs: got 'a', expected a list of numbers"),
    (columns(target_probs=[None]), "row 1: target_probs: got nothing"),
    (columns(target_probs=[[1.0]], draft_tokens=[[None]]), "draft_tokens: got"),
    (columns(request=pa.array([b"\xff"]).cast(pa.string(), safe=False)), "run.parquet: row 1: 'utf-8' codec"),
    (tensors(tensor([2])), "got shape"),
    (tensors(tensor([1, 2], "C64")), "got type C64"),
    (tensors(tensor([2], name="other")), "other: got an unknown field"),
    (tensors(tensor([1, 2]), tensor([1, 2])), "run.safetensors.*it names 'target_probs' twice"),
    # Recorders, and what they wrote.
    (recorder(keep="all"), "keep: got 'all', expected rows or numbers"),
    (recorder(law="none"), "law: got 'none'"),
    (of(Path(__file__).parent), "audit: got a folder without rows"),
    (pipe("run.jsonl"), "run.jsonl: got no regular file"),
    (pipe(NUMBERS), f"{NUMBERS}: got no regular file"),
    (pipe("rows-00000.safetensors"), "safetensors: got no regular file"),
    *((added(keep, **{name: value}), message)
      for keep in ("rows", "numbers")
      for name, value, message in (
          ("target_probs", [[1.0]], r"target_probs: got float64 of shape \(1, 1\)"),
          ("request", 0.5, "request: got float"),
          ("output_token", 0.5, "output_token: got 0.5, expected a whole number"),
          ("target_prob", [1.0], "target_prob: got an unknown field"),
      )),
    (step(output_tokens=[]), "got 0 tokens, expected 1 to 2 for 1 drafts"),
    (step(target_logits=[[0.0, 1.0]]), "target_logits: got 1 rows, expected 2 rows"),
    (step(draft_logits=[0.0]), "draft_logits: got 0.0, expected a list of numbers"),
    (step(penalty=1.0), "penalty: got an unknown field"),
    (recorded("rows", partial(otmd.Stratified, sharpness=2.0)), r"law: got 'stratified \(sharpness=2.0\)'"),
    (recorded("numbers", "fixed", law="with-replacement"), "law: got with-replacement, expected fixed"),
    (recorded("numbers", "fixed", target_processing=Processing()), "target_processing: got Processing"),
    (numbers(cut=9), "the last line: got a part of a line, expected a whole one"),
    (numbers("in order of p)", "in another order)", row=0), "numbers of other claims"),
    (numbers('"law"', '"laws"', row=0), "row 1: got another line"),
    (numbers('"depth":0', '"depth":-1'), "row 3: depth: got -1, expected a whole number from 0"),
    (numbers('"depth":0', '"deep":0'), "row 3: row: got"),
    (numbers('"decided":true', '"decided":1'), "decided: got 1, expected true or false"),
    (numbers('"cases":[]', '"cases":["a"]'), "cases: got a, expected a kind"),
    (numbers('"cases":[]', '"cases":{}'), "cases: got {}, expected a list"),
    (numbers('"mass":0', '"mass":7'), "mass: got 7"),
    (numbers('"classes":[[', '"classes":[[9'), "classes: got"),
    (numbers('"starts":[', '"starts":[0,'), "starts: got"),
    (numbers('"request":""', '"request":4'), "request: got 4, expected a text"),
    (numbers('"has_draft":true', '"has_draft":null'), "has_draft: got None"),
    (numbers('"row":2', '"row":2,"row":2'), "row 3: no JSON"),
    (shard(""), "fields that are no JSON"),
    (shard("{}"), "other fields"),
    (shard("[" + "{}," * 5000 + "{}]"), "other fields"),
    (shard("[]"), r"0.target_probs: got shape \(1,\), expected a vector"),
    (shard('[{"output_tokens": 1}]'), "row 1: output_tokens: got an unknown field"),
]  # fmt: skip
OTHER_ERRORS = [
    (sampled(law=Q), TypeError, "law.*DraftLaw"),
    (sampled(law=P, target_probs=LAW), TypeError, "are the two swapped"),
    (sampled(rng="0"), TypeError, "rng"),
    (sampled(verifier=3), TypeError, "verifier.*callable"),
    (sampled(verifier=otmd.TargetOnly), TypeError, r"instance: TargetOnly\(\)"),
    (of("none.jsonl"), FileNotFoundError, "there is no file none.jsonl"),
    (of([1]), TypeError, "source: got list"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [*((call, ValueError, said) for call, said in VALUES), *OTHER_ERRORS],
)
def test_a_refusal(call, error, message, tmp_path):
    with pytest.raises(error, match=message) as caught:
        call(tmp_path)
    assert "\n" not in str(caught.value)
