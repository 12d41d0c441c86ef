"""Refusals of the whole package: a call, its error, and the message, in one line."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from honest import P, Q

import otmd
from otmd import audit
from otmd.audit import Recorder, recorded_run
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


def recorded(method, fields, audited=(), **options):
    """A run that a recorder writes, and that is audited with these options."""

    def call(at: Path):
        with Recorder(at / "a", **options) as recorder:
            getattr(recorder, method)(**fields)
        recorded_run(at / "a", **dict(audited))

    return call


def added(**fields):
    return recorded("add", ROW | fields)


def step(**fields):
    return recorded("add_step", STEP | fields)


def pipe(at: Path):
    os.mkfifo(at / "run.jsonl")
    recorded_run(at / "run.jsonl")


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
    (of(__file__), "got a '.py' file"),
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
    (line('{"target_probs": [1], "ended": 1}\n'), "row 2: ended: got 1, expected true or false"),
    (line('{"target_probs": [1], "context": [1]}\n'), "row 2: context: got list"),
    (of([ROW], rule="all"), "rule: got 'all', expected token, block, tree"),
    (of([ROW], end_tokens=[0.5]), "end_tokens: got float64"),
    # Recorders, and what they wrote.
    (lambda at: Recorder(at, law="joint"), "law: got 'joint'"),
    (lambda at: Recorder(at, rule="all"), "rule: got 'all'"),
    (of(Path(__file__).parent), "audit: got a folder without run.json"),
    (pipe, "run.jsonl: got no regular file"),
    (added(target_probs=[[1.0]]), r"row 1: target_probs: got float64 of shape \(1, 1\)"),
    (added(request=0.5), "row 1: request: got float"),
    (added(output_token=0.5), "row 1: output_token: got 0.5, expected a whole number"),
    (added(target_prob=[1.0]), "row 1: target_prob: got an unknown field"),
    (step(output_tokens=[]), "got 0 tokens, expected 1 to 2 for 1 drafts"),
    (step(target_logits=[[0.0, 1.0]]), "target_logits: got 1 rows, expected 2 rows"),
    (step(draft_logits=[0.0]), "draft_logits: got 0.0, expected a list of numbers"),
    (step(draft_logits=[]), "draft_logits: got 0 rows, expected 1 or 2 rows"),
    (step(penalty=1.0), "penalty: got an unknown field"),
    (recorded("add", DRAFTED, {"law": "stratified"}, law=partial(otmd.Stratified, sharpness=2.0)),
     r"law: got stratified, expected stratified \(sharpness=2.0\), as the run"),
    (recorded("add", DRAFTED, {"target_processing": Processing()}, law="fixed"),
     "target_processing: got Processing.* None, as"),
]  # fmt: skip
OTHER_ERRORS = [
    (sampled(law=P, target_probs=LAW), TypeError, "are the two swapped"),
    (sampled(verifier=3), TypeError, "verifier: got int"),
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
