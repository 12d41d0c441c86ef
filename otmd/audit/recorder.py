"""A recorder, with which an engine writes a recorded run: whole rows, or only the numbers that tests need."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from otmd.audit import declared
from otmd.audit.numbers import NUMBERS, header, line_of
from otmd.audit.observer import Observer
from otmd.audit.records import NOT_DECIDED, TENSORS, as_recorded, read_ids, record_of
from otmd.audit.shards import MOST_ROWS_OF_SHARD, shards_of, write_shard
from otmd.probabilities import IntArray, from_tensor, wrong
from otmd.storage.files import advice_on_failure, folder_lock

_BYTES_OF_SHARD = 64 << 20
Rows = Sequence[dict[str, Any]]


class Recorder:
    """Writes the recorded run of an engine, for :func:`recorded_run` and ``otmd audit``.

    Parameters
    ----------
    path : str or Path
        A folder, which is made if missing. It must not hold a recorded run.
    keep : {"rows", "numbers"}
        ``rows`` keeps whole rows, in safetensors files of about 64 MB. ``numbers`` keeps only the numbers
        that the tests need, a line of about a kilobyte for each row. The verdict is the same.
    law : str or callable
        The law of the drafts, as for :func:`recorded_run`; the audit then need not be given it again.

    Raises
    ------
    ValueError
        For invalid arguments, and for a folder with a recorded run. The methods raise it for an invalid
        field, after :meth:`close`, and in another process than the one that made the recorder.
    FolderLockedError
        If another recorder writes into the folder.
    OSError
        If the disk is full or the folder cannot be written to; methods raise it too.

    Notes
    -----
    A recorder is for one process and one thread, and has its own folder. Arrays are copied, so the engine may
    reuse its buffers. A list of floats is kept as float32, an array in its own type.

    A file of whole rows is written when the rows have 64 MB, at 4,096 rows and at :meth:`close`, whole or not
    at all. A process that is killed loses the rows after its last file. A line of numbers is handed to
    the operating system before :meth:`add` returns.

    Examples
    --------
    >>> import tempfile
    >>> import otmd
    >>> folder = tempfile.mkdtemp()
    >>> with otmd.audit.Recorder(folder, keep="numbers") as recorder:
    ...     recorder.add_step(
    ...         target_logits=[[0.0, 1.0, 2.0], [1.0, 0.5, 0.0]],
    ...         draft_logits=[[0.0, 1.0, 2.0]],
    ...         draft_tokens=[2],
    ...         output_tokens=[2, 1],
    ...         target_temperature=0.8,
    ...     )
    >>> print(otmd.audit.recorded_run(folder).verdict)
    INCONCLUSIVE: no fault found, but 2 rows are too few to find a bias of 0.1; about 1,288 would do
    """

    def __init__(
        self,
        path: str | Path,
        keep: str = "rows",
        law: str | declared.LawMaker = "with-replacement",
    ) -> None:
        writers = {"rows": _RowWriter, "numbers": _NumberWriter}
        if keep not in writers:
            raise wrong("keep", repr(keep), " or ".join(writers))
        make_law = declared.law_maker(law)
        folder = Path(path)
        resources = ExitStack()
        resources.enter_context(folder_lock(folder))
        with resources:
            if shards_of(folder) or (folder / NUMBERS).exists():
                raise wrong("path", f"{folder}, which has a recorded run", "a new folder")
            self._writer: _Writer = writers[keep](folder, declared.law_name(law), make_law)
            resources.callback(self._writer.close)
            # At exit as well, of a process of multiprocessing too; not in a process that this one forks.
            self._close = Finalize(self, resources.pop_all().close, exitpriority=0)
        self._process = os.getpid()

    def add(self, **fields: Any) -> None:
        """Record one position.

        Parameters
        ----------
        **fields
            The fields of a row (``docs/howto/audit_an_engine.md``): NumPy arrays, torch tensors, lists,
            numbers or texts. None is the same as leaving the field out.
        """
        self._add([as_recorded(fields)])

    def add_step(self, *, draft_tokens: Any, output_tokens: Any, **fields: Any) -> None:
        """Record a step of a chain: a row for each draft, and one for the extra token if it was reached.

        Parameters
        ----------
        draft_tokens : array_like
            The n tokens of the chain (n,). Here and in the output, −1 stands for no token.
        output_tokens : array_like
            The 1 to n + 1 tokens that the step emitted, else ValueError: the accepted ones, and one more.
        **fields
            The fields of a row. ``target_logits`` or ``target_probs`` has the shape (n + 1, V),
            ``draft_logits`` or ``draft_probs`` (n, V); with ``target_ids`` or ``draft_ids``, K takes the
            place of V. Fields such as ``request``, ``step`` and ``target_temperature`` hold for all rows of
            the step.
        """
        drafts = _tokens("draft_tokens", draft_tokens)
        outputs = _tokens("output_tokens", output_tokens)
        if not 1 <= outputs.size <= drafts.size + 1:
            expected = f"1 to {drafts.size + 1} for {drafts.size} drafts"
            raise wrong("output_tokens", f"{outputs.size} tokens", expected)
        blocks = {
            name: _block(name, value, drafts.size + name.startswith("target"))
            for name, value in fields.items()
            if name.endswith(TENSORS) and value is not None
        }
        rows = []
        for depth in range(drafts.size + (outputs.size > drafts.size)):
            row = fields | {"depth": depth}
            row |= {name: block[depth] for name, block in blocks.items() if depth < len(block)}
            row |= {"draft_tokens": drafts[depth : depth + 1]}
            row |= {"output_token": int(outputs[depth])} if depth < outputs.size else {}
            if depth == drafts.size:
                row = {name: value for name, value in row.items() if not name.startswith("draft")}
            rows.append(as_recorded(row))
        self._add(rows)

    def close(self) -> None:
        """Write the remaining rows, and unlock the folder. A second call does nothing."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, rows: Rows) -> None:
        if os.getpid() != self._process:
            raise wrong(
                "recorder", f"a call from process {os.getpid()}", f"its own, {self._process}"
            )
        if not self._close.still_active():
            raise wrong("recorder", "a row after it was closed", "a recorder that is open")
        self._writer.add(rows)


def _tokens(name: str, value: Any) -> IntArray:
    tokens = read_ids(name, value)
    return tokens[tokens != NOT_DECIDED]


def _block(name: str, value: Any, num_rows: int) -> Any:
    """The rows of a block, copied from its device at once."""
    block = from_tensor(value)
    if not isinstance(block, list | tuple | np.ndarray) or len(block) != num_rows:
        size = f"{len(block)} rows" if hasattr(block, "__len__") else type(block).__name__
        raise wrong(name, size, f"{num_rows} rows")
    return block


class _Writer(Protocol):
    def __init__(self, folder: Path, law: str, make_law: declared.LawMaker | None) -> None: ...

    def add(self, rows: Rows) -> None: ...

    def close(self) -> None: ...


class _RowWriter:
    """Whole rows, in shards."""

    def __init__(self, folder: Path, law: str, make_law: declared.LawMaker | None) -> None:
        self._folder = folder
        self._law = law
        self._shards = 0
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0

    def add(self, rows: Rows) -> None:
        for row in rows:
            self._rows.append(row)
            self._bytes += sum(x.nbytes for x in row.values() if isinstance(x, np.ndarray))
            if self._bytes >= _BYTES_OF_SHARD or len(self._rows) >= MOST_ROWS_OF_SHARD:
                self._write()

    def close(self) -> None:
        if self._rows:
            self._write()

    def _write(self) -> None:
        write_shard(self._folder, self._shards, self._law, self._rows)
        self._shards += 1
        self._rows = []
        self._bytes = 0


class _NumberWriter:
    """The numbers of rows, in lines."""

    def __init__(self, folder: Path, law: str, make_law: declared.LawMaker | None) -> None:
        self._path = folder / NUMBERS
        self._observer = Observer(make_law)
        self._num_rows = 0
        with advice_on_failure(self._path):
            self._stream = self._path.open("w", encoding="utf-8")
            self._write([header(law)])

    def add(self, rows: Rows) -> None:
        lines = []
        for row in rows:
            record = record_of(self._num_rows + 1, row, str(self._path), {})
            lines.append(line_of(self._observer.observe(record)))
            self._num_rows += 1
        with advice_on_failure(self._path):
            self._write(lines)

    def close(self) -> None:
        self._stream.close()

    def _write(self, lines: Sequence[str]) -> None:
        self._stream.write("".join(lines))
        self._stream.flush()
