"""Small files of every format that is read: raw bytes, or a valid file that is then damaged."""

from __future__ import annotations

import atexit
import io
import json
import shutil
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fuzz.choices import Choices

NUMBERS = ("1e999", "-1e999", "NaN", "-0", "1e-400", "9" * 25, "9" * 5000, "[" * 2000, "{}", '"a"')
DTYPES = ("F32", "F16", "BF16", "I32", "U8", "C64", "", 3, None)


def honest(name: str, rows: int) -> np.ndarray:
    """Values that a file may hold under this name."""
    if "probs" in name:
        return np.tile([0.25, 0.5, 0.25], (rows, 1))
    if "logits" in name:
        return np.tile(np.float32([0, 1, 2]), (rows, 1))
    return np.tile([0, 1], (rows, 1)) if name == "draft_tokens" else np.arange(rows) % 3


@cache
def folder() -> Path:
    """A folder that lives as long as the process."""
    path = Path(tempfile.mkdtemp(prefix="otmd-fuzz-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def check_one_line(error: Exception) -> None:
    """Raise AssertionError for a message that is none, or longer than a line."""
    assert len(str(error).splitlines()) == 1


def damaged(content: bytes, choices: Choices) -> bytes:
    """The same with a few bytes changed, or cut short, in a quarter of all cases."""
    changed = bytearray(content)
    if choices.below(4) or not changed:
        return content
    for _ in range(choices.below(4)):
        changed[choices.below(65536) % len(changed)] = choices.below(256)
    # The end of most formats says what the rest is.
    for _ in range(choices.below(4)):
        changed[-1 - choices.below(min(256, len(changed)))] = choices.below(256)
    return bytes(changed if choices.often() else changed[: choices.below(65536) % len(changed)])


def json_value(choices: Choices, depth: int = 2) -> str:
    """JSON of any value, or what only looks like it."""
    plain = (
        lambda: choices.pick(NUMBERS),
        lambda: json.dumps(choices.number()),
        lambda: json.dumps(choices.text()),
        lambda: str(choices.whole()),
        lambda: choices.pick(("1", "0", "null", "true")),
    )
    nested = (
        lambda: f"[{','.join(json_value(choices, depth - 1) for _ in range(choices.below(4)))}]",
        lambda: f'{{"dtype":{json_value(choices, 0)},"shape":{json_value(choices, 0)}}}',
    )
    return choices.pick(plain + nested if depth else plain)()


def safetensors(choices: Choices, names: tuple[str, ...], rows: int) -> bytes:
    """A header of any shapes, types and places, most of them honest, and bytes."""
    header: dict[str, Any] = {}
    blob = b""
    for name in names:
        array = honest(name, rows)
        dtype: Any = {"f8": "F64", "f4": "F32", "i8": "I64"}[array.dtype.str[1:]]
        shape: list[Any] = [*array.shape]
        span: list[Any] = [len(blob), len(blob) + array.nbytes]
        if choices.rarely():
            dtype = choices.pick(DTYPES)
        if choices.rarely():
            shape = [choices.pick((0, -1, 2**40, 2**63, 1.5, None, "1", 10**30)), *shape]
        if choices.rarely():
            span[choices.below(2)] = choices.pick((0, -8, 1, 2**40, 2**63, 1.5, None, "1"))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": span}
        blob += array.tobytes()
    if choices.rarely():
        labels = {"domain": json_value(choices)}
        header["__metadata__"] = choices.pick((labels, {"domain": 3}, [], {"otmd": "{}"}, 1))
    text = json.dumps(header).encode()
    length = choices.whole() % 2**64 if choices.rarely() else len(text)
    return length.to_bytes(8, "little") + text + blob


def parquet() -> bytes:
    """A table that ``measure`` did not write."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"rate": [0.5, 1.0], "law": ["a", None]}), sink)
    return sink.getvalue()


def npz(choices: Choices, names: tuple[str, ...], rows: int) -> bytes:
    """Arrays in a zip archive, some of which are none, or are not as large as they say."""
    sink = io.BytesIO()
    method = choices.pick((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(sink, "w", method) as archive:
        for name in names:
            suffix = "" if choices.rarely() else ".npy"
            archive.writestr(name + suffix, npy(choices, honest(name, rows)))
    return sink.getvalue()


def npy(choices: Choices, array: np.ndarray) -> bytes:
    """The array, or a file of none."""
    sink = io.BytesIO()
    if not choices.rarely():
        dtype = choices.pick(("f2", "i8", "U3", "?")) if choices.rarely() else array.dtype
        np.save(sink, array.astype(dtype), allow_pickle=False)
        return damaged(sink.getvalue(), choices) if choices.rarely() else sink.getvalue()
    descr = choices.pick(("'<f8'", "'|O'", "'<U999999999'", "'|V0'", "'M8[s]'", "[('a','<f8')]"))
    shape = choices.pick(("(2,2)", "(1<<60,)", f"({2**60},)", "(-1,)", f"({2**40},3)", "()", "2"))
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(32)
