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
DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "U8", "I8", "C64", "", 3, None)
COLUMNS = (
    *map(pa.list_, (pa.float64(), pa.float32(), pa.float16())),
    pa.large_list(pa.int32()),
    pa.list_(pa.float64(), 2),
    *(pa.int64(), pa.float64(), pa.string(), pa.null(), pa.bool_(), pa.uint64()),
    pa.dictionary(pa.int32(), pa.string()),
    *map(pa.list_, (pa.list_(pa.float64()), pa.string())),
    *(pa.decimal128(20, 2), pa.timestamp("s"), pa.struct([("a", pa.int32())])),
)


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
    """The same with a few bytes changed, or cut short; as it is in half of all cases."""
    changed = bytearray(content)
    if choices.below(2) == 0 or not changed:
        return content
    for _ in range(choices.below(4)):
        changed[choices.below(65536) % len(changed)] = choices.below(256)
    # The end of most formats says what the rest is.
    for _ in range(choices.below(4)):
        changed[-1 - choices.below(min(256, len(changed)))] = choices.below(256)
    return bytes(changed if choices.often() else changed[: choices.below(65536) % len(changed)])


def json_value(choices: Choices, depth: int = 2) -> str:
    """JSON of any value, or what only looks like it."""
    kind = choices.below(8)
    if kind == 0:
        return choices.pick(NUMBERS)
    if kind == 1:
        return json.dumps(choices.number())
    if kind == 2 and depth:
        return "[" + ",".join(json_value(choices, depth - 1) for _ in range(choices.below(4))) + "]"
    if kind == 3 and depth:
        pairs = (f'"{key}":{json_value(choices, 0)}' for key in ("dtype", "shape", "x"))
        return "{" + ",".join(pairs) + "}"
    if kind == 4:
        return json.dumps(choices.text())
    return str(choices.whole()) if kind == 5 else choices.pick(("1", "0", "null", "true"))


def safetensors(choices: Choices, names: tuple[str, ...], rows: int) -> bytes:
    """A header of any shapes, types and places, most of them honest, and bytes."""
    header: dict[str, Any] = {}
    blobs, at = [], 0
    for name in names:
        shape: list[Any] = [rows, 1 + choices.below(3)][: 1 + choices.below(2)]
        dtype = choices.pick(DTYPES[:5])
        width = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8}[str(dtype)]
        size = int(np.prod(shape)) * width
        span: list[Any] = [at, at + size]
        if not choices.often():
            dtype = choices.pick(DTYPES)
        if not choices.often():
            shape = [choices.pick((0, -1, 2**40, 2**63, 1.5, None, "1", 10**30)), *shape]
        if not choices.often():
            span[choices.below(2)] = choices.pick((0, -8, 1, 2**40, 2**63, 1.5, None, "1"))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": span}
        blobs.append(_numbers(choices, size, width))
        at += size
    if choices.below(4) == 1:
        labels = {"domain": json_value(choices), "metadata": json_value(choices)}
        header["__metadata__"] = choices.pick((labels, {"domain": 3}, [], {"otmd": "{}"}, 1))
    text = json.dumps(header).encode()
    length = len(text) if choices.often() else choices.whole() % 2**64
    return length.to_bytes(8, "little") + text + b"".join(blobs)


def _numbers(choices: Choices, size: int, width: int) -> bytes:
    if choices.below(2):
        return choices.take(size)
    return {8: np.float64, 4: np.float32, 2: np.float16}[width](0.5).tobytes() * (size // width)


def parquet(choices: Choices, names: tuple[str, ...], metadata: str | None = None) -> bytes:
    """A table of columns of any type, in row groups of any size."""
    rows = choices.below(4)
    columns, fields = [], []
    for name in names:
        kind = choices.pick(COLUMNS[:6] if choices.often() else COLUMNS)
        values = [_cell(kind, choices) for _ in range(rows)]
        columns.append(pa.array(values, kind))
        fields.append(pa.field(name, kind))
    schema = pa.schema(fields, {"otmd": metadata} if metadata else None)
    sink = io.BytesIO()
    pq.write_table(
        pa.Table.from_arrays(columns, schema=schema),
        sink,
        row_group_size=1 + choices.below(3),
        compression=choices.pick(("none", "snappy", "zstd", "gzip")),
        use_dictionary=bool(choices.below(2)),
        data_page_version=choices.pick(("1.0", "2.0")),
    )
    return sink.getvalue()


def _cell(kind: pa.DataType, choices: Choices) -> Any:
    if not choices.often() or pa.types.is_null(kind):
        return None
    if pa.types.is_fixed_size_list(kind):
        return [0.5, 0.5]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_cell(kind.value_type, choices) for _ in range(choices.below(4))]
    if pa.types.is_string(kind) or pa.types.is_dictionary(kind):
        return choices.text().replace("\0", "a")
    if pa.types.is_floating(kind):
        number = choices.pick((0.5, 1.0, 0.0, 0.25, np.nan, np.inf, -1.0))
        return np.float16(number) if kind == pa.float16() else number
    if pa.types.is_boolean(kind):
        return True
    return {"a": 1} if pa.types.is_struct(kind) else choices.below(6)


def npz(choices: Choices, names: tuple[str, ...], rows: int) -> bytes:
    """Arrays in a zip archive, some of which are none, or are not as large as they say."""
    sink = io.BytesIO()
    method = choices.pick((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(sink, "w", method) as archive:
        for name in names:
            archive.writestr(f"{name}{choices.pick(('.npy', '.npy', ''))}", _npy(choices, rows))
    return sink.getvalue()


def _npy(choices: Choices, rows: int) -> bytes:
    sink = io.BytesIO()
    if choices.below(3):
        shape = (rows, 1 + choices.below(3))[: 1 + choices.below(2)]
        array = np.full(shape, 0.5).astype(choices.pick(("f8", "f4", "f2", "i8", "U3", "?")))
        np.save(sink, array, allow_pickle=False)
        return damaged(sink.getvalue(), choices)
    descr = choices.pick(("'<f8'", "'|O'", "'<U999999999'", "'|V0'", "'M8[s]'", "[('a','<f8')]"))
    shape = choices.pick(("(2,2)", "(1<<60,)", f"({2**60},)", "(-1,)", f"({2**40},3)", "()", "2"))
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(32)
