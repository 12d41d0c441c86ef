"""The audit of a server by its outputs alone: texts against the target's own probabilities."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from otmd.audit.declared import NO_DRAFTS
from otmd.audit.recorder import Declared
from otmd.audit.report import RecordedRunAudit
from otmd.audit.rows import (
    MOST_ROWS,
    Fields,
    Source,
    looks_like_probabilities,
    numbered,
    read_ids,
    read_row,
)
from otmd.audit.run import audit_table, validate_rates
from otmd.audit.table import Line, Tabulator, table_of_all
from otmd.audit.verifiers import derived_rng
from otmd.laws.base import RngLike
from otmd.probabilities import Processing, from_tensor, validate_count, wrong

Tokens = tuple[int, ...]
Oracle = Callable[[list[Tokens]], ArrayLike]
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
    logits = _Logits(oracle)
    positions = (at for number, row in rows for at in _positions(_read_text(number, row, name)))

    def lines() -> Iterator[list[Line]]:
        number = 0
        while batch := [*islice(positions, batch_size)]:
            for at, numbers in zip(batch, logits.after(batch), strict=True):
                number += 1
                if number > MOST_ROWS:
                    raise ValueError(f"{name}: got more than {MOST_ROWS} tokens: audit them in parts")
                fields = {
                    "target_logits": numbers,
                    "output_token": at.text.output[at.depth],
                    "request": at.text.request,
                    "depth": at.depth,
                    "context": at.key,
                }
                yield tabulator.lines(read_row(number, fields, name, processing))

    declared = Declared("", "", ends)
    generator = derived_rng(rng, "texts")
    table = table_of_all(lines())
    if looks_like_probabilities(table["target_unit"]):
        raise wrong("oracle", "probabilities after every prefix", "raw logits")
    return audit_table(table, name, declared, false_alarm, bias, rng=generator)


class _Text(NamedTuple):
    """A text, and its name."""

    prompt: Tokens
    output: Tokens
    request: str | int


class _Position(NamedTuple):
    """The prefix of a text before an output token; equal prefixes have equal keys."""

    text: _Text
    depth: int
    key: str

    @property
    def prefix(self) -> Tokens:
        return self.text.prompt + self.text.output[: self.depth]


def _read_text(number: int, fields: Fields, name: str) -> _Text:
    given = {field: value for field, value in fields.items() if value is not None}
    if unknown := sorted(map(str, given.keys() - set(FIELDS))):
        raise wrong(f"{name}: row {number}: {unknown[0]}", "an unknown field", ", ".join(FIELDS))
    try:
        prompt, output = (tuple(read_ids(x, given.get(x)).tolist()) for x in FIELDS[:2])
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: row {number}: {error}") from error
    return _Text(prompt, output, given.get("request", number))


def _positions(text: _Text) -> Iterator[_Position]:
    key = hashlib.blake2b(repr(text.prompt).encode(), digest_size=16)
    for depth, token in enumerate(text.output):
        yield _Position(text, depth, key.hexdigest())
        key.update(b" %d" % token)


class _Logits:
    """The oracle's answers; the latest are kept."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._kept: OrderedDict[str, NDArray] = OrderedDict()

    def after(self, positions: list[_Position]) -> list[NDArray]:
        """The logits (V,) at each position."""
        missing = {at.key: at.prefix for at in positions if at.key not in self._kept}
        if missing:
            answer = np.asarray(from_tensor(self._oracle([*missing.values()])))
            if answer.ndim != 2 or len(answer) != len(missing):
                raise wrong(
                    "oracle",
                    f"logits of shape {answer.shape}",
                    f"({len(missing)}, V) of {len(missing)} prefixes",
                )
            self._kept |= dict(zip(missing, answer, strict=True))
        for at in positions:
            self._kept.move_to_end(at.key)
        asked = [self._kept[at.key] for at in positions]
        while asked and len(self._kept) * asked[0].size > _MOST_KEPT:
            self._kept.popitem(last=False)
        return asked
