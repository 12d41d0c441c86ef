"""The audit of a server by its outputs alone: texts against the target's own probabilities."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from otmd.audit.base import derived_rng
from otmd.audit.declared import NO_DRAFTS
from otmd.audit.recorder import Declared
from otmd.audit.report import RecordedRunAudit
from otmd.audit.rows import looks_like_probabilities, read_ids, read_row
from otmd.audit.run import audit_table, validate_rates
from otmd.audit.source import Fields, Source, numbered
from otmd.audit.table import Line, Tabulator, table_of_all
from otmd.laws.base import RngLike
from otmd.probabilities import Processing, from_tensor, validate_count, wrong

Tokens = tuple[int, ...]
Oracle = Callable[[list[Tokens]], ArrayLike]
_Position = tuple[Tokens, dict[str, Any]]
"""The prefix of an output token, and the fields of its row."""
FIELDS = ("prompt_tokens", "output_tokens", "request")
# So many logits are kept for prefixes that later texts may share.
_MOST_KEPT = 1 << 26


def texts(
    source: Source,
    oracle: Oracle,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    order: str | tuple[str, ...] = "transformers",
    end_tokens: Sequence[int] = (),
    false_alarm: float = 1e-3,
    bias: float = 0.1,
    batch_size: int = 256,
    rng: RngLike = 0,
) -> RecordedRunAudit:
    """Audit a server by its outputs alone.

    Whatever is drafted, a lossless engine emits tokens that follow the target. So the texts of any server can
    be tested against the target's own probabilities after each prefix, over all tokens and by token index.

    Parameters
    ----------
    source : str, Path or sequence of mapping
        A ``.jsonl`` or ``.jsonl.gz`` file, or rows. ``prompt_tokens`` and ``output_tokens`` are token ids:
        the prompt's with those that the chat template adds, the output's with the token that ended the text.
        ``request`` may name the text. Give all texts of a period: leave none out for its content.
    oracle : callable
        Takes prefixes, tuples of token ids, and returns the target's raw logits (len(prefixes), V) of the
        next token: such as :meth:`otmd.models.LanguageModel.logits_after`.
    temperature, top_k, top_p, min_p, order
        The sampling settings that were asked for, see :class:`otmd.Processing`.
    end_tokens : sequence of int
        The ids of the tokens that end a text: a text that goes on behind one is faulty.
    false_alarm, bias
        As for :func:`otmd.audit.recorded_run`.
    batch_size : int
        The oracle is asked for about this many prefixes at once.
    rng
        As for :func:`otmd.audit.recorded_run`.

    Returns
    -------
    RecordedRunAudit
        ``print`` shows the verdict, the bias that could have been found, and the tests.

    Raises
    ------
    ValueError
        For invalid arguments, and for a malformed file or row, which it names.

    Notes
    -----
    A prefix that texts share is evaluated once while its logits are among the latest 2^26. In the tests by
    token index, an index beyond 62 counts as 62. The logits of the oracle differ from the server's by
    rounding: over many tokens, a server of half precision can be told from an oracle in float32.

    Examples
    --------
    >>> import numpy as np
    >>> import otmd
    >>> rng = np.random.default_rng(0)
    >>> outputs = rng.choice(3, (500, 4), p=[0.5, 0.3, 0.2])
    >>> written = [{"prompt_tokens": [0], "output_tokens": tokens} for tokens in outputs]
    >>> def oracle(prefixes):
    ...     return np.log([[0.5, 0.3, 0.2]] * len(prefixes))
    >>> otmd.audit.texts(written, oracle).outcome
    'PASS'
    >>> otmd.audit.texts(written, oracle, temperature=0.7).outcome
    'FAULTY'
    """
    processing = {"target": Processing(temperature, top_k, top_p, min_p, order)}
    validate_count("batch_size", batch_size)
    validate_rates(false_alarm, bias)
    ends = tuple(read_ids("end_tokens", list(end_tokens)).tolist())
    rows, name = numbered(source, "texts")
    tabulator = Tabulator(NO_DRAFTS, end_tokens=ends)
    kept: OrderedDict[str, NDArray] = OrderedDict()
    positions = (at for number, row in rows for at in _positions(number, row, name))

    def lines() -> Iterator[list[Line]]:
        numbers = count(1)
        while batch := [*islice(positions, batch_size)]:
            for (_, fields), logits in zip(batch, _logits_after(oracle, batch, kept), strict=True):
                row = fields | {"target_logits": logits}
                yield tabulator.lines(read_row(next(numbers), row, name, processing))

    declared = Declared("", "", ends)
    generator = derived_rng(rng, "texts")
    table = table_of_all(lines(), name)
    if looks_like_probabilities(table["target_unit"]):
        raise wrong("oracle", "probabilities after every prefix", "raw logits")
    return audit_table(table, name, declared, false_alarm, bias, rng=generator)


def _positions(number: int, fields: Fields, name: str) -> Iterator[_Position]:
    given = {field: value for field, value in fields.items() if value is not None}
    if unknown := sorted(map(str, given.keys() - set(FIELDS))):
        raise wrong(f"{name}: row {number}: {unknown[0]}", "an unknown field", ", ".join(FIELDS))
    try:
        prompt, output = (tuple(read_ids(x, given.get(x)).tolist()) for x in FIELDS[:2])
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: row {number}: {error}") from error
    # Equal prefixes have equal keys.
    key = hashlib.blake2b(repr(prompt).encode(), digest_size=16)
    for depth, token in enumerate(output):
        row = {"output_token": token, "depth": depth, "context": key.hexdigest()}
        yield prompt + output[:depth], row | {"request": given.get("request", number)}
        key.update(b" %d" % token)


def _logits_after(
    oracle: Oracle, positions: list[_Position], kept: OrderedDict[str, NDArray]
) -> list[NDArray]:
    """The logits (V,) at each position; the latest answers of the oracle are kept."""
    keys = [row["context"] for _, row in positions]
    missing = {key: prefix for key, (prefix, _) in zip(keys, positions, strict=True) if key not in kept}
    if missing:
        answer = np.asarray(from_tensor(oracle([*missing.values()])))
        if answer.ndim != 2 or len(answer) != len(missing):
            expected = f"({len(missing)}, V) of {len(missing)} prefixes"
            raise wrong("oracle", f"logits of shape {answer.shape}", expected)
        kept |= dict(zip(missing, answer, strict=True))
    for key in keys:
        kept.move_to_end(key)
    asked = [kept[key] for key in keys]
    while asked and len(kept) * asked[0].size > _MOST_KEPT:
        kept.popitem(last=False)
    return asked
