"""The audit of a server by its outputs alone: texts against the target's own probabilities."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from otmd.audit import verifiers
from otmd.audit.observer import Observer
from otmd.audit.records import (
    Row,
    Source,
    numbered_rows,
    read_ids,
    records_of,
)
from otmd.audit.run_audit import audit_observations
from otmd.audit.run_report import RecordedRunAudit
from otmd.audit.tally import Tally
from otmd.laws.base import RngLike
from otmd.probabilities import Processing, from_tensor, validate_count, wrong

Tokens = tuple[int, ...]
Oracle = Callable[[list[Tokens]], ArrayLike]
FIELDS = ("prompt_tokens", "output_tokens", "request")
# So many logits are kept for prefixes that later texts may share.
_MOST_KEPT = 1 << 28


def texts(
    source: Source,
    oracle: Oracle,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    order: str | tuple[str, ...] = "transformers",
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
        A ``.jsonl`` or ``.parquet`` file, or rows. ``prompt_tokens`` and ``output_tokens`` are token ids: the
        prompt's with those that the chat template adds, the output's with the token that ended the text.
        ``request`` may name the text. Give all texts of a period: leave none out for its content.
    oracle : callable
        Takes prefixes, tuples of token ids, and returns the target's raw logits (len(prefixes), V) of the
        next token: such as :meth:`otmd.models.LanguageModel.logits_after`.
    temperature, top_k, top_p, min_p, order
        The sampling settings that were asked for, see :class:`otmd.Processing`.
    false_alarm, bias
        As for :func:`otmd.audit.recorded_run`.
    batch_size : int
        Texts are evaluated together in batches of about this many output tokens.
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
    A prefix that texts share is evaluated once while its logits are among the latest 2^28. In the tests by
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
    processing = Processing(temperature, top_k, top_p, min_p, order)
    validate_count("batch_size", batch_size)
    rows, name = numbered_rows(source, "texts")
    evaluated = _tokens_with_logits(_read_texts(rows, name), _Logits(oracle), batch_size)
    records = records_of(enumerate(evaluated, start=1), name, {"target": processing})
    tally = Tally(verifiers.derived_rng(rng, "texts"), of_texts=True)
    observations = map(Observer(None, of_texts=True).observe, records)
    return audit_observations(observations, name, tally, "", false_alarm, bias)


class _Text(NamedTuple):
    """A text, and its name."""

    prompt: Tokens
    output: Tokens
    request: Any


def _read_texts(rows: Iterable[tuple[int, Row]], name: str) -> Iterator[_Text]:
    for number, row in rows:
        given = {field: value for field, value in row.items() if value is not None}
        if unknown := sorted(map(str, given.keys() - set(FIELDS))):
            raise wrong(
                f"{name}: row {number}: {unknown[0]}", "an unknown field", ", ".join(FIELDS)
            )
        try:
            prompt, output = (
                tuple(read_ids(field, given.get(field)).tolist()) for field in FIELDS[:2]
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}: row {number}: {error}") from error
        yield _Text(prompt, output, given.get("request", number))


def _tokens_with_logits(
    listed: Iterator[_Text], logits: _Logits, batch_size: int
) -> Iterator[dict[str, Any]]:
    """A row for each token of the texts, in their order."""
    for batch in _batches(listed, batch_size):
        prefixes = [
            text.prompt + text.output[:i] for text in batch for i in range(len(text.output))
        ]
        numbers = iter(logits.after(prefixes))
        for text in batch:
            for index, token in enumerate(text.output):
                yield {
                    "target_logits": next(numbers),
                    "output_token": token,
                    "request": text.request,
                    "depth": index,
                }


def _batches(listed: Iterator[_Text], batch_size: int) -> Iterator[list[_Text]]:
    """Texts in their order, each batch as short as it may be to have ``batch_size`` tokens."""
    batch: list[_Text] = []
    for text in listed:
        batch.append(text)
        if sum(len(text.output) for text in batch) >= batch_size:
            yield batch
            batch = []
    yield batch


class _Logits:
    """The oracle's answers; the latest are kept."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._kept: OrderedDict[Tokens, NDArray] = OrderedDict()

    def after(self, prefixes: list[Tokens]) -> list[NDArray]:
        """The logits (V,) after each prefix."""
        missing = [prefix for prefix in dict.fromkeys(prefixes) if prefix not in self._kept]
        if missing:
            answer = np.asarray(from_tensor(self._oracle(missing)))
            if answer.ndim != 2 or len(answer) != len(missing):
                raise wrong(
                    "oracle",
                    f"logits of shape {answer.shape}",
                    f"({len(missing)}, V) of {len(missing)} prefixes",
                )
            self._kept |= dict(zip(missing, answer, strict=True))
        for prefix in prefixes:
            self._kept.move_to_end(prefix)
        asked = [self._kept[prefix] for prefix in prefixes]
        while asked and len(self._kept) * asked[0].size > _MOST_KEPT:
            self._kept.popitem(last=False)
        return asked
