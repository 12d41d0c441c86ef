"""Reading recorded runs: the three formats agree, and files are refused before they fill the memory."""

from __future__ import annotations

import json
import tracemalloc
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recorded_engine import Engine

from otmd.audit import records
from otmd.audit import recorded_run
from otmd.audit.shards import _in_safetensors
from otmd.probabilities import Processing

ROW = {"target_probs": [0.5, 0.5], "output_token": 0}


def write(path: Path, rows: list[dict]) -> Path:
    """Write rows with the same fields in the format that the ending names."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    elif path.suffix == ".safetensors":
        padded = zip_longest(*columns["draft_tokens"], fillvalue=-1)
        columns["draft_tokens"] = np.transpose([*padded])
        path.write_bytes(_in_safetensors({k: np.array(v) for k, v in columns.items()}, {}))
    else:
        lines = [json.dumps({k: np.array(v).tolist() for k, v in row.items()}) for row in rows]
        path.write_text("\n".join(lines) + "\n\n  \n")
    return path


def run() -> list[dict]:
    rows = Engine(num_drafts=2, vocab_size=50, depth=2).run(40, 3)
    return [{"draft_tokens": np.empty(0, np.int64)} | row | {"request": 4} for row in rows]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "safetensors"])
def test_the_formats_agree_and_are_refused_where_cut_short(suffix, tmp_path):
    path = write(tmp_path / f"run.{suffix}", run())
    assert str(recorded_run(str(path))) == str(recorded_run(run()))
    content = path.read_bytes()
    for share in (0.0, 0.3, 0.98):
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(ValueError, match=f"run.{suffix}") as caught:
            recorded_run(path)
        assert "\n" not in str(caught.value)


def test_parquet_has_nulls_and_other_lists(tmp_path):
    columns = {
        "target_probs": pa.array([[0.5, 0.5]] * 2, pa.list_(pa.float32(), 2)),
        "draft_probs": pa.array([[0.5, 0.5], None], pa.large_list(pa.float64())),
        "draft_tokens": pa.array([[1], None], pa.list_(pa.int32())),
        "output_token": pa.array([None, 0], pa.int8()),
        "request": ["a", "b"],
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    report = recorded_run(tmp_path / "a.parquet")
    assert {claim.num_samples for claim in report.claims} == {1}
    assert [(case.kind, case.first_rows) for case in report.cases] == [("output_missing", (1,))]


def test_bfloat16_arrays_are_read_with_their_tolerance(tmp_path):
    probs = np.array([[0.3, 0.3, 0.4]] * 4, np.float32)
    upper = (probs.view(np.uint32) >> 16).astype("<u2")
    arrays = {"target_probs": upper, "output_token": np.arange(4) % 3}
    (tmp_path / "a.safetensors").write_bytes(_in_safetensors(arrays, {}))
    assert not recorded_run(tmp_path / "a.safetensors").cases


def test_the_order_of_the_cuts_is_a_field(tmp_path):
    row = {"target_logits": [3.0, 2.0, 1.0], "target_temperature": 0.5, "target_top_p": 0.8}
    row["output_token"] = 1
    steps = ["top_k", "top_p", "min_p", "temperature"]
    assert [case.kind for case in recorded_run([row]).cases] == ["output_impossible"]
    for order in ("llama.cpp", ",".join(steps), steps):
        rows = [row | {"target_order": order}] * 3
        files = [write(tmp_path / f"run.{suffix}", rows) for suffix in ("jsonl", "parquet")]
        assert not any(recorded_run(source).cases for source in (rows, *files))
    cut = Processing(0.5, top_p=0.8, order="llama.cpp")
    plain = {"target_logits": row["target_logits"], "output_token": 1}
    assert not recorded_run([plain], target_processing=cut).cases


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_null_of_logits_is_a_token_that_cannot_come_out(suffix, tmp_path):
    rows = [{"target_logits": [1.0, None, 0.0], "output_token": token} for token in (0, 1)]
    report = recorded_run(write(tmp_path / f"run.{suffix}", rows))
    assert [(case.kind, case.first_rows) for case in report.cases] == [("output_impossible", (2,))]


def most_likely(count: int, **more) -> list[dict]:
    """Log-probabilities of the most likely of 60 tokens, as engines' interfaces return them."""
    rng, rows = np.random.default_rng(0), []
    for _ in range(50):
        log_probs = np.log(Processing()(rng.normal(0, 1.5, 60)))
        ids = np.argsort(-log_probs)[:count]
        row = {"target_ids": ids, "target_logits": log_probs[ids], "output_token": int(ids[0])}
        rows.append(row | more)
    return rows


LISTS = {
    "log-probabilities": most_likely(20),
    "without ids": [row | {"target_ids": None, "output_token": 0} for row in most_likely(20)],
    "probabilities": [
        row | {"target_logits": None, "target_probs": np.exp(row["target_logits"])}
        for row in most_likely(20)
    ],
    "top-p": most_likely(20, target_temperature=0.5, target_top_p=0.9),
    "top-k last": most_likely(
        20, target_top_k=5, target_top_p=0.9, target_order="temperature,top_p,top_k,min_p"
    ),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_the_most_likely_tokens_are_no_distributions(name):
    message = r"records: the target: got \(log-\)probabilities of some tokens .* logits of all V"
    with pytest.raises(ValueError, match=message):
        recorded_run(LISTS[name])


def test_other_lists_are_distributions():
    """All tokens with mass, a cut that needs no others, or logits that are no log-probabilities."""
    assert recorded_run(most_likely(60))
    assert recorded_run(most_likely(20, target_top_k=20, target_temperature=0.5, target_top_p=0.9))
    assert recorded_run(most_likely(20, target_temperature=0))
    raw = most_likely(20)
    raw[30]["target_logits"] = raw[30]["target_logits"] + 100
    assert recorded_run(raw)


def test_too_many_rows(monkeypatch, tmp_path):
    monkeypatch.setattr(records, "MOST_ROWS", 3)
    for rows in ([ROW] * 4, write(tmp_path / "a.parquet", [ROW] * 4)):
        with pytest.raises(ValueError, match="more than 3 rows: audit them in parts"):
            recorded_run(rows)


def test_a_line_without_an_end_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "run.jsonl"
    with path.open("wb") as stream:
        stream.truncate(1 << 33)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="row 1: got a line of more than"):
            recorded_run(path)
        assert tracemalloc.get_traced_memory()[1] < 4 * records.LONGEST_LINE
    finally:
        tracemalloc.stop()


def test_a_parquet_file_with_absurdly_many_values_is_refused(tmp_path):
    zeros = pa.array([0, 5 << 20], pa.int32()), pa.array(np.zeros(5 << 20, np.float32))
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"target_probs": pa.ListArray.from_arrays(*zeros)}), path)
    assert path.stat().st_size < 50_000
    with pytest.raises(ValueError, match="row 1: target_probs: got 5242880 numbers"):
        recorded_run(path)
