"""Reading recorded runs: the three formats agree, and malformed files are refused in one line."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recorded_engine import Engine

from otmd.audit import records
from otmd.audit.records import LONGEST_LINE
from otmd.audit.run_audit import recorded_run
from otmd.probabilities import Processing

SEED = 3


def audit_text(source, **options) -> str:
    return str(recorded_run(source, rng=np.random.default_rng(SEED), **options))


@pytest.fixture(scope="module")
def run() -> list[dict]:
    rows = Engine(num_drafts=2, vocab_size=50, depth=2).run(60, SEED)
    for row in rows:
        row.setdefault("draft_tokens", np.empty(0, np.int64))
        row["request"] = 4
    return rows


def arrays_of(rows: list[dict]) -> dict[str, np.ndarray]:
    tokens = np.full((len(rows), 2), -1)
    for row, own in zip(rows, tokens, strict=True):
        own[: row["draft_tokens"].size] = row["draft_tokens"]
    names = ("target_probs", "draft_probs", "output_token", "request", "step", "depth")
    return {name: np.array([row[name] for row in rows]) for name in names} | {
        "draft_tokens": tokens
    }


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    def plain(value):
        return value.tolist() if isinstance(value, np.ndarray) else value

    lines = [json.dumps({name: plain(own) for name, own in row.items()}) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_parquet(path: Path, columns: dict, **options) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def write_safetensors(path: Path, arrays: dict[str, np.ndarray], types=None) -> Path:
    codes = {"float64": "F64", "float32": "F32", "int64": "I64", "uint16": "BF16"} | (types or {})
    header, blobs, at = {}, [], 0
    for name, array in arrays.items():
        blob = np.ascontiguousarray(array).tobytes()
        span = [at, at + len(blob)]
        dtype = codes[str(array.dtype)]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": span}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))
    return path


def test_the_formats_agree(run, tmp_path):
    arrays = arrays_of(run)
    columns = {name: list(array) for name, array in arrays.items()}
    columns["draft_tokens"] = [row["draft_tokens"].tolist() for row in run]
    wanted = audit_text(run)
    assert audit_text(write_jsonl(tmp_path / "run.jsonl", run)) == wanted
    assert audit_text(write_parquet(tmp_path / "run.parquet", columns)) == wanted
    assert audit_text(write_safetensors(tmp_path / "run.safetensors", arrays)) == wanted
    assert audit_text(str(tmp_path / "run.jsonl")) == wanted


def test_parquet_has_nulls_and_other_lists(tmp_path):
    half = pa.array([[0.5, 0.5]] * 2, pa.list_(pa.float32(), 2))
    columns = {
        "target_probs": half,
        "draft_probs": pa.array([[0.5, 0.5], None], pa.large_list(pa.float64())),
        "draft_tokens": pa.array([[1], None], pa.list_(pa.int32())),
        "output_token": pa.array([None, 0], pa.int8()),
        "request": ["a", "b"],
    }
    report = recorded_run(
        write_parquet(tmp_path / "a.parquet", columns), rng=np.random.default_rng(0)
    )
    assert {own.num_samples for own in report.claims} == {1}
    assert [(own.kind, own.first_rows) for own in report.cases] == [("output_missing", (1,))]


def test_blank_lines_are_no_rows(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(GOOD + "\n" + GOOD + "  \n\n")
    assert recorded_run(path, rng=np.random.default_rng(0)).num_rows == 2


def test_bfloat16_arrays_are_read_with_their_tolerance(tmp_path):
    probs = np.array([[0.3, 0.3, 0.4]] * 4, np.float32)
    upper = (probs.view(np.uint32) >> 16).astype(np.uint16)
    arrays = {"target_probs": upper, "output_token": np.array([0, 1, 2, 2])}
    path = write_safetensors(tmp_path / "a.safetensors", arrays)
    assert not recorded_run(path, rng=np.random.default_rng(0)).cases


GOOD = '{"target_probs": [0.5, 0.5], "output_token": 0}\n'
BAD_LINES = {
    "no JSON": ("{", "row 2: no JSON, cut short"),
    "malformed": ("{a}\n", "row 2: no JSON, malformed"),
    "the same key twice": (
        '{"target_probs": [1], "target_probs": [1]}\n',
        "row 2: no JSON, malformed (it names 'target_probs' twice)",
    ),
    "a key that clears the terminal": (
        '{"\\u001b[2J": 1, "target_probs": [1]}\n',
        "row 2: \\x1b[2J: got an unknown field",
    ),
    "deep": ("[" * 100_000 + "\n", "row 2: no JSON"),
    "no target": ("{}\n", "row 2: target_probs: got nothing"),
    "unknown": ('{"target_prob": [1]}\n', "row 2: target_prob: got an unknown field"),
    "nested": ('{"target_probs": [[1], [2, 3]]}\n', "row 2: target_probs: got rows of different"),
    "huge": ('{"target_probs": [1%s]}\n' % ("0" * 400), "row 2: target_probs: got object"),
    "both": (
        '{"target_probs": [1], "target_logits": [1]}\n',
        "row 2: target_logits: got it and",
    ),
    "large id": (
        '{"target_probs": [1], "output_token": 1%s}\n' % ("0" * 30),
        "row 2: output_token",
    ),
    "warped": (
        '{"target_probs": [1], "target_temperature": 1}\n',
        "row 2: target_temperature: got a processing of target_probs",
    ),
    "temperature": (
        '{"target_logits": [1], "target_temperature": -1}\n',
        "row 2: temperature: got -1.0",
    ),
    "sizes": (
        '{"target_probs": [1], "draft_probs": [0.5, 0.5]}\n',
        "row 2: draft: got 2 tokens and a target with 1, expected equally many, or target_ids",
    ),
    "penalty": (
        '{"target_logits": [1], "target_repetition_penalty": 1.1}\n',
        "target_repetition_penalty: got an unknown field, expected record logits after penalties",
    ),
    "order": (
        '{"target_logits": [1], "target_order": "vllm, top_p"}\n',
        "row 2: order: got 'vllm, top_p', expected one of transformers, vllm, llama.cpp, sglang",
    ),
    "ids": ('{"target_probs": [1], "target_ids": [1, 2]}\n', "row 2: target_ids: got 2 ids for 1"),
    "same ids": (
        '{"target_probs": [0.5, 0.5], "target_ids": [1, 1]}\n',
        "row 2: target_ids: got a negative or a repeated id",
    ),
    "large ids": (
        '{"target_probs": [1.0], "target_ids": [9999999999]}\n',
        "row 2: target: got ids up to 9999999999",
    ),
    "depth": ('{"target_probs": [1], "depth": 99999999}\n', "row 2: depth: got 99999999"),
    "long label": (
        '{"target_probs": [1], "request": "%s"}\n' % ("a" * 2000),
        "row 2: request: got 2000 characters",
    ),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_malformed_lines(name, tmp_path):
    line, message = BAD_LINES[name]
    path = tmp_path / "run.jsonl"
    path.write_bytes(GOOD.encode() + (line if isinstance(line, bytes) else line.encode()))
    with pytest.raises(ValueError, match="jsonl: row 2") as caught:
        audit_text(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_processing_is_declared_once():
    row = {"target_logits": [0.0, 1.0], "target_top_k": 1, "output_token": 1}
    with pytest.raises(
        ValueError, match="row 1: target_top_k: got it in the row and for the whole"
    ):
        audit_text([row], target_processing=Processing())
    with pytest.raises(ValueError, match="target_processing: got a processing of target_probs"):
        audit_text([{"target_probs": [1.0]}], target_processing=Processing())


def test_the_order_of_the_cuts_is_a_field(tmp_path):
    row = {"target_logits": [3.0, 2.0, 1.0], "target_temperature": 0.5, "target_top_p": 0.8}
    row["output_token"] = 1
    steps = ["top_k", "top_p", "min_p", "temperature"]
    assert "1 row has an output token of target probability zero" in audit_text([row])
    for order in ("llama.cpp", ",".join(steps), steps):
        rows = [row | {"target_order": order}] * 3
        for own in (
            rows,
            write_jsonl(tmp_path / "run.jsonl", rows),
            write_parquet(tmp_path / "run.parquet", {k: [v] * 3 for k, v in rows[0].items()}),
        ):
            assert "probability zero" not in audit_text(own)
    cut = Processing(0.5, top_p=0.8, order="llama.cpp")
    plain = {"target_logits": row["target_logits"], "output_token": 1}
    assert "probability zero" not in audit_text([plain], target_processing=cut)


def test_a_null_of_logits_is_a_token_that_cannot_come_out(tmp_path):
    columns = {"target_logits": [[1.0, None, 0.0]] * 2, "output_token": [0, 1]}
    path = tmp_path / "run.jsonl"
    path.write_text(
        "".join(f'{{"target_logits": [1, null, 0], "output_token": {token}}}\n' for token in (0, 1))
    )
    for source in (path, write_parquet(tmp_path / "run.parquet", columns)):
        report = recorded_run(source, rng=np.random.default_rng(0))
        assert [(own.kind, own.first_rows) for own in report.cases] == [("output_impossible", (2,))]


def likeliest(num_rows: int, count: int, **more) -> list[dict]:
    """Log-probabilities of the most likely of 60 tokens, as engines' interfaces return them."""
    rng, rows = np.random.default_rng(0), []
    for _ in range(num_rows):
        log_probs = np.log(Processing()(rng.normal(0, 1.5, 60)))
        ids = np.argsort(-log_probs)[:count]
        row = {"target_ids": ids, "target_logits": log_probs[ids], "output_token": int(ids[0])}
        rows.append(row | more)
    return rows


def test_lists_of_the_most_likely_tokens_are_no_distributions():
    told = r"records: the target: got \(log-\)probabilities of some tokens .* logits of all V"
    with pytest.raises(ValueError, match=told):
        audit_text(likeliest(50, 20))
    without_ids = [{**row, "target_ids": None, "output_token": 0} for row in likeliest(50, 20)]
    with pytest.raises(ValueError, match=told):
        audit_text(without_ids)
    as_probs = [
        {"target_ids": row["target_ids"], "target_probs": np.exp(row["target_logits"])}
        | {"output_token": row["output_token"]}
        for row in likeliest(50, 20)
    ]
    with pytest.raises(ValueError, match=told):
        audit_text(as_probs)
    with pytest.raises(ValueError, match=told):
        audit_text(likeliest(50, 20, target_temperature=0.5, target_top_p=0.9))
    late = {"target_top_k": 5, "target_top_p": 0.9, "target_order": "temperature,top_p,top_k,min_p"}
    with pytest.raises(ValueError, match=told):
        audit_text(likeliest(50, 20, **late))
    # All tokens with mass, a cut that needs no others, or logits that are no log-probabilities.
    assert audit_text(likeliest(50, 60))
    assert audit_text(likeliest(50, 20, target_top_k=20, target_temperature=0.5, target_top_p=0.9))
    assert audit_text(likeliest(50, 20, target_temperature=0))
    raw = likeliest(50, 20)
    raw[30]["target_logits"] = raw[30]["target_logits"] + 100
    assert audit_text(raw)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "got no rows"),
        ("run.csv", "got a '.csv' file"),
    ],
)
def test_sources_that_are_none(source, message):
    with pytest.raises(ValueError, match=message):
        audit_text(source)
    with pytest.raises(TypeError, match="source: got list"):
        audit_text([1])


@pytest.mark.parametrize("options", [{"law": "joint"}, {"false_alarm": 0.5}, {"false_alarm": 1e-7}])
def test_wrong_arguments_are_named(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        recorded_run([{"target_probs": [1.0]}], **{"rng": np.random.default_rng(0)} | options)


def test_too_many_rows(monkeypatch, tmp_path):
    monkeypatch.setattr(records, "MOST_ROWS", 3)
    stored = write_parquet(tmp_path / "a.parquet", {"target_probs": [[1.0]] * 4})
    for rows in ([{"target_probs": [1.0], "output_token": 0}] * 4, stored):
        with pytest.raises(ValueError, match="more than 3 rows: audit them in parts"):
            audit_text(rows)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.98])
def test_files_that_are_cut_short(run, tmp_path, suffix, share):
    arrays = arrays_of(run)
    path = tmp_path / f"run.{suffix}"
    if suffix == "jsonl":
        write_jsonl(path, run)
    elif suffix == "parquet":
        write_parquet(path, {name: list(array) for name, array in arrays.items()})
    else:
        write_safetensors(path, arrays)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=f"run.{suffix}") as caught:
        audit_text(path)
    assert "\n" not in str(caught.value)


def peak_of_refusing(path: Path, message: str) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=message):
            audit_text(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_line_without_an_end_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "run.jsonl"
    with path.open("wb") as stream:
        stream.truncate(1 << 33)
    assert peak_of_refusing(path, "row 1: got a line of more than") < 4 * LONGEST_LINE


def entry(shape, offsets, dtype="F64"):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"target_probs": entry([2], [0, 16])}, "got shape"),
        ({"target_probs": entry([1, 2], [0, 16], "C64")}, "got type C64"),
        ({"other": entry([2], [0, 16])}, "other: got an unknown field"),
    ],
)
def test_headers_that_lie(tmp_path, header, message):
    path = tmp_path / "run.safetensors"
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))
    with pytest.raises(ValueError, match=message):
        audit_text(path)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"target_probs": [[[0.5]]]}, "row 1: target_probs: got object of shape"),
        ({"target_probs": ["a"]}, "row 1: target_probs: got 'a', expected a list of numbers"),
        (
            {"target_probs": [[1.0]], "step": [[1]]},
            "row 1: step: got array.*, expected a whole number",
        ),
        ({"target_probs": [[1.0]], "other": [1]}, "other: got an unknown field"),
        ({"target_probs": [[1.0]], "step": [0.5]}, "row 1: step: got 0.5"),
        ({"target_probs": [None]}, "row 1: target_probs: got nothing"),
        ({"target_probs": [[1.0]], "draft_tokens": [[None]]}, "draft_tokens: got"),
    ],
)
def test_columns_of_other_types(tmp_path, columns, message):
    with pytest.raises(ValueError, match=message):
        audit_text(write_parquet(tmp_path / "a.parquet", columns))


def test_a_parquet_file_with_absurdly_many_values_is_refused(tmp_path):
    zeros = pa.ListArray.from_arrays(
        pa.array([0, 5 << 20], pa.int32()), pa.array(np.zeros(5 << 20, np.float32))
    )
    path = write_parquet(tmp_path / "a.parquet", {"target_probs": zeros})
    assert path.stat().st_size < 50_000
    with pytest.raises(ValueError, match="row 1: target_probs: got 5242880 numbers"):
        audit_text(path)
