"""The recorder, with which an engine writes the table of its run, and the reader of what it wrote."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from otmd.audit.claims import CLASS_COLUMNS, DRAFTS, ORDERED
from otmd.audit.declared import LawMaker, law_name
from otmd.audit.rows import DEEPEST, LONGEST_LABEL, MOST_ROWS, NOT_DECIDED, PER_TOKEN, read_ids, read_row
from otmd.audit.source import Fields
from otmd.audit.table import (
    COLUMNS,
    LINES_OF_PART,
    POSITION,
    RULES,
    Line,
    Table,
    Tabulator,
    joined,
    table_of,
)
from otmd.probabilities import IntArray, from_tensor, wrong
from otmd.storage.arrays import read_npz
from otmd.storage.files import folder_lock, one_line, parse_json, shortened, write_atomically

RECORD = "run.json"
_FORMAT = 1
_ROUNDING = 1e-6
_OF_Q = ("draft_logits", "draft_probs")


class Declared(NamedTuple):
    """The law, rule and end tokens that were declared for a recorded run."""

    law: str
    rule: str
    end_tokens: tuple[int, ...]


class Recorder:
    """Writes the recorded run of an engine, for :func:`recorded_run` and ``otmd audit``.

    Parameters
    ----------
    path : str or Path
        A folder, which is made if missing. It must not hold a recorded run.
    law : str or callable
        The law of the drafts, as for :func:`recorded_run`; the audit then need not be given it again.
    rule : {"token", "block", "tree"}
        As for :func:`recorded_run`.
    end_tokens : sequence of int
        The ids of the tokens that end a text.

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
    A recorder is for one process and one thread, and has its own folder. Of a row, the numbers are kept that
    the tests need, about 0.3 kB. They are written in parts of about 4,096 lines, as ``.npz``, each whole or
    not at all, the last at :meth:`close`. A process that is killed loses at most the part it was filling. If
    a part cannot be written, its rows are kept for the next attempt: do not add them again.

    Examples
    --------
    >>> import tempfile
    >>> import otmd
    >>> folder = tempfile.mkdtemp()
    >>> with otmd.audit.Recorder(folder) as recorder:
    ...     recorder.add_step(
    ...         target_logits=[[0.0, 1.0, 2.0], [1.0, 0.5, 0.0]],
    ...         draft_logits=[[0.0, 1.0, 2.0]],
    ...         draft_tokens=[2],
    ...         output_tokens=[2, 1],
    ...         target_temperature=0.8,
    ...     )
    >>> print(otmd.audit.recorded_run(folder).verdict)
    INCONCLUSIVE: no fault found, but 2 rows are too few to find a bias of 0.1; about 1,291 would do
    """

    def __init__(
        self,
        path: str | Path,
        law: str | LawMaker = "with-replacement",
        *,
        rule: str = "token",
        end_tokens: Sequence[int] = (),
    ) -> None:
        ends = tuple(read_ids("end_tokens", list(end_tokens)).tolist())
        self._tabulator = Tabulator(law, rule, ends)
        folder = Path(path)
        resources = ExitStack()
        resources.enter_context(folder_lock(folder))
        with resources:
            if (folder / RECORD).exists():
                raise wrong("path", f"{folder}, which has a recorded run", "a new folder")
            declared = Declared(law_name(law), rule, ends)._asdict()
            record = {"otmd_run": _FORMAT, **declared}
            write_atomically(folder / RECORD, json.dumps(record).encode() + b"\n")
            self._folder = folder
            self._num_rows = self._num_parts = 0
            self._lines: list[Line] = []
            resources.callback(self._write)
            # At exit as well, of a process of multiprocessing too; not in a process that this one forks.
            self._close = Finalize(self, resources.pop_all().close, exitpriority=0)
        self._process = os.getpid()

    def add(self, **fields: Any) -> None:
        """Record one position.

        Parameters
        ----------
        **fields
            The fields of a row (``docs/howto/audit_an_engine.md``): NumPy arrays, torch tensors, lists,
            numbers or strings. None is the same as leaving the field out.
        """
        self._add([fields], all_drafts=False)

    def add_step(self, *, draft_tokens: Any, output_tokens: Any, ended: bool = False, **fields: Any) -> None:
        """Record a step of a chain: a row for each draft, and one for the bonus token if it was reached.

        Parameters
        ----------
        draft_tokens : array_like
            The n tokens of the chain (n,). Here and in the output, −1 stands for no token.
        output_tokens : array_like
            The 1 to n + 1 tokens that the step emitted, else ValueError: the accepted ones, and one more.
        ended : bool
            Whether the text ended in this step, so that it emitted fewer tokens than it decided: at an end
            token that was not declared, a length limit or a stop string.
        **fields
            The fields of a row. ``target_logits`` or ``target_probs`` has the shape (n + 1, V),
            ``draft_logits`` or ``draft_probs`` (n, V), or (n + 1, V) with the q behind the last draft; with
            ``target_ids`` or ``draft_ids``, K takes the place of V. Fields such as ``request``, ``step`` and
            ``target_temperature`` hold for all rows of the step.
        """
        drafts = _tokens("draft_tokens", draft_tokens)
        outputs = _tokens("output_tokens", output_tokens)
        if not 1 <= outputs.size <= drafts.size + 1:
            expected = f"1 to {drafts.size + 1} for {drafts.size} drafts"
            raise wrong("output_tokens", f"{outputs.size} tokens", expected)
        blocks = {
            name: _block(name, value, drafts.size)
            for name, value in fields.items()
            if name.endswith(PER_TOKEN) and value is not None
        }
        rows = []
        for depth in range(drafts.size + (outputs.size > drafts.size)):
            row = fields | {"depth": depth, "draft_tokens": drafts[depth : depth + 1]}
            row |= {name: block[depth] for name, block in blocks.items() if depth < len(block)}
            if depth < outputs.size:
                row |= {
                    "output_token": int(outputs[depth]),
                    "ended": ended and depth == outputs.size - 1,
                }
            if depth == drafts.size and not any(len(blocks.get(x, ())) > depth for x in _OF_Q):
                row = {name: value for name, value in row.items() if not name.startswith("draft")}
            rows.append(row)
        # The drafts of a step are recorded whatever was accepted.
        self._add(rows, all_drafts=True)

    def close(self) -> None:
        """Write the remaining rows, and unlock the folder. A second call does nothing."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, rows: Sequence[Fields], all_drafts: bool) -> None:
        if os.getpid() != self._process:
            raise wrong("recorder", f"a call from process {os.getpid()}", f"its own, {self._process}")
        if not self._close.still_active():
            raise wrong("recorder", "a row after it was closed", "a recorder that is open")
        name = str(self._folder)
        # All rows of a step are read before one of them is kept.
        checked = [read_row(self._num_rows + index, row, name, {}) for index, row in enumerate(rows, 1)]
        self._num_rows += len(checked)
        # An interrupt leaves no part of a step.
        self._lines += [x for row in checked for x in self._tabulator.lines(row, all_drafts)]
        if len(self._lines) >= LINES_OF_PART:
            self._write()

    def _write(self) -> None:
        if self._lines:
            table = table_of(self._lines)
            # Objects would be pickled.
            columns: dict[str, Any] = table | {"request": table["request"].astype(str)}
            buffer = io.BytesIO()
            np.savez_compressed(buffer, **columns)
            write_atomically(self._folder / f"part-{self._num_parts:05}.npz", buffer.getvalue())
            self._num_parts += 1
            self._lines = []


def _tokens(name: str, value: Any) -> IntArray:
    tokens = read_ids(name, value)
    return tokens[tokens != NOT_DECIDED]


def _block(name: str, value: Any, num_drafts: int) -> Any:
    """The rows of a block, copied from its device at once."""
    block = from_tensor(value)
    allowed = [num_drafts + 1] if name.startswith("target") else [num_drafts, num_drafts + 1]
    if not isinstance(block, list | tuple | np.ndarray) or len(block) not in allowed:
        size = f"{len(block)} rows" if hasattr(block, "__len__") else type(block).__name__
        raise wrong(name, size, f"{' or '.join(map(str, allowed))} rows")
    return block


def read_folder(folder: Path) -> tuple[Declared, Table]:
    """Read the folder of a recorder; a ValueError names the file at fault."""
    declared = _read_declared(folder / RECORD)
    parts: list[Table] = []
    num_lines, last_row = 0, 0
    for number, path in enumerate(sorted(folder.glob("part-*"))):
        if path.name != f"part-{number:05}.npz":
            raise wrong(folder, path.name, f"part-{number:05}.npz")
        if not path.is_file():
            raise wrong(path, "no regular file", "one")
        part = _read_part(path)
        num_lines += part["row"].size
        if num_lines > MOST_ROWS:
            raise wrong(folder, f"more than {MOST_ROWS} lines", "fewer: audit the run in parts")
        # A part that was copied under another name repeats rows.
        if part["row"][0] <= last_row:
            raise wrong(path, f"row {part['row'][0]}", f"rows after {last_row}")
        last_row = int(part["row"][-1])
        parts.append(part)
    return declared, joined(parts)


def _read_declared(path: Path) -> Declared:
    if not path.is_file():
        raise wrong(path.parent, f"a folder without {path.name}", "one that a Recorder wrote")
    try:
        record = parse_json(path.read_text("utf-8"))
        if not isinstance(record, dict) or record.pop("otmd_run", None) != _FORMAT:
            raise ValueError("no recorded run, or one of another version")
        declared = Declared(**record)
        law = declared.law
        is_law = isinstance(law, str) and 0 < len(law) <= LONGEST_LABEL and law.isprintable()
        if declared.rule not in RULES or not is_law:
            raise ValueError(f"rule {shortened(declared.rule)} of law {shortened(law)}")
        ends = read_ids("end_tokens", declared.end_tokens)
        return declared._replace(end_tokens=tuple(ends.tolist()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: torn, or not written by otmd ({one_line(error)})") from error


def _read_part(path: Path) -> Table:
    part = read_npz(path)
    if set(part) != set(COLUMNS):
        odd = sorted(map(str, set(part) ^ set(COLUMNS)))
        raise wrong(path, f"other columns ({shortened(', '.join(odd))})", "those of this version")
    if part["request"].dtype.kind == "U":
        part["request"] = part["request"].astype(object)
    if not part["row"].size:
        raise wrong(path, "no lines", "at least one")
    for name, (kind, _) in COLUMNS.items():
        if part[name].dtype != np.dtype(kind) or part[name].shape != part["row"].shape:
            shape = f"{part[name].dtype} of shape {part[name].shape}"
            raise wrong(f"{path}: {name}", shape, f"{np.dtype(kind)} of one axis")
    for fault, lines in _contradictions(part).items():
        if lines.any():
            raise wrong(f"{path}: line {1 + int(lines.argmax())}", fault, "a line of a Recorder")
    return part


def _contradictions(part: Table) -> dict[str, np.ndarray]:
    """Lines (M,) that no recorder writes, by what is wrong with them."""
    slot, row, token, mass = (part[name] for name in ("slot", "row", "token", "mass"))
    is_draft, is_tested = slot > POSITION, token >= 0
    before = np.roll(slot, 1)
    before[:1] = -2
    follows = (slot == before + 1) & (row == np.roll(row, 1))
    follows[:1] = False
    # NaN where there is no such number, but for the masses of a tested token.
    no_mass = np.zeros(row.size, bool)
    for name in ("ceiling", "agreement", "repeat_in_slots", "repeat_of_row"):
        no_mass |= (part[name] < 0) | (part[name] > 1 + _ROUNDING)
    for side, claims in ORDERED.items():
        tested = is_tested & (is_draft == (side == DRAFTS))
        for name in ("mass", "tail", *(claim.name for claim in claims)):
            no_mass |= tested & ~((part[name] >= 0) & (part[name] <= 1 + _ROUNDING))
    no_class = np.zeros(row.size, bool)
    for label, names in CLASS_COLUMNS.values():
        masses = np.stack([part[name] for name in names])
        is_sound = (part[label] >= 0) & (part[label] < len(names)) & (masses >= 0).all(axis=0)
        no_class |= ~is_sound | (np.abs(masses.sum(axis=0) - 1.0) > _ROUNDING)
    return {
        "a negative number": (row < 1) | (part["depth"] < 0) | (slot < POSITION) | (token < -1),
        "too large a depth": part["depth"] > DEEPEST,
        "rows that do not ascend": np.diff(row, prepend=0) < ~is_draft,
        "a draft without its position": is_draft & ~follows,
        "a draft without a token": is_draft & ~is_tested,
        "an output that was not decided": is_tested & ~is_draft & ~part["decided"],
        "drafts after one that cannot be drawn": is_draft & (slot > 0) & (np.roll(mass, 1) == 0),
        "a draft without its repetitions": (slot > 0) & np.isnan(part["repeat_in_slots"]),
        "a number that is no mass": no_mass,
        "a class that does not exist": is_tested & ~is_draft & no_class,
    }
