"""Counters of speculative decoding that engines keep, read into one set of numbers.

The same run has many acceptance rates. A step drafts tokens, accepts the first few of them along one path,
and adds one more token, the extra token. Accepted drafts never include the extra token here.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from otmd.probabilities import wrong
from otmd.storage.files import parse_json, shortened

_SAMPLE = re.compile(r"^vllm:spec_decode_num_(\w+?)(?:_total)?(?:\{(.*)\})?\s+(\S+)(?:\s+\d+)?$")
_POSITION = re.compile(r'(?:^|,)position="(\d+)"')


@dataclass(frozen=True)
class AcceptanceCounts:
    """Steps of a run, and what was drafted and accepted in them.

    Attributes
    ----------
    source : str
        The format that was read.
    steps, accepted : float
        The number of calls of the target that had drafts, and the number of drafts accepted in all of them.
        llama.cpp has no such count: its steps include calls without drafts.
    drafted : float or None
        The number of drafts in all steps; None if it was not counted.
    at_least : tuple of float
        The numbers of steps that accepted at least 1, 2, … drafts; empty if they were not counted.

    Examples
    --------
    >>> from otmd.engines import AcceptanceCounts
    >>> counts = AcceptanceCounts("mine", steps=100, accepted=120, drafted=200, at_least=(70, 50))
    >>> counts.tokens_per_step, counts.draft_acceptance_rate
    (2.2, 0.6)
    >>> counts.per_step, [round(rate, 3) for rate in counts.conditional]
    ([0.7, 0.5], [0.7, 0.714])
    """

    source: str
    steps: float
    accepted: float
    drafted: float | None = None
    at_least: tuple[float, ...] = ()

    @property
    def accepted_per_step(self) -> float:
        """Accepted drafts per step, without the extra token."""
        return self.accepted / self.steps

    @property
    def tokens_per_step(self) -> float:
        """Tokens per step, with the extra token: block efficiency, mean acceptance length."""
        return 1.0 + self.accepted_per_step

    @property
    def draft_acceptance_rate(self) -> float | None:
        """Accepted drafts / all drafts, those after a rejection too; None if drafts were not counted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def per_step(self) -> list[float]:
        """P(a step accepts at least k drafts), k = 1, 2, …: the meaning of synthetic acceptance rates."""
        return [count / self.steps for count in self.at_least]

    @property
    def conditional(self) -> list[float]:
        """P(at least k accepted | at least k − 1): the acceptance rate at depth k, where it is reached."""
        reached = (self.steps, *self.at_least)
        return [
            count / before if before else 0.0
            for before, count in zip(reached, self.at_least, strict=False)
        ]

    @property
    def histogram(self) -> list[float]:
        """Share of the steps that accept exactly 0, 1, 2, … drafts."""
        reached = [1.0, *self.per_step, 0.0]
        return (
            [reached[k] - reached[k + 1] for k in range(len(reached) - 1)] if self.at_least else []
        )


def read_counts(path: str | Path, *, without_extra_token: bool = False) -> AcceptanceCounts:
    """Read the acceptance counters of an engine from a file.

    ============  =========================================================================================
    vLLM          the text of ``/metrics``: the counters ``vllm:spec_decode_num_…``
    SGLang        answers of ``/generate``, as JSON or JSON Lines: ``spec_accept_histogram`` or
                  ``spec_correct_drafts_histogram`` in ``meta_info``
    llama.cpp     answers of the server, as JSON or JSON Lines: ``draft_n``, ``draft_n_accepted`` and
                  ``predicted_n`` in ``timings``
    Spec-Bench    its answer files, JSON Lines: ``accept_lengths`` in ``choices``, with the extra token
    ============  =========================================================================================

    Parameters
    ----------
    path : str or Path
        The file.
    without_extra_token : bool
        Whether ``accept_lengths`` leave out the extra token; those of Spec-Bench include it.

    Returns
    -------
    AcceptanceCounts
        The sums over all samples, answers or lines of the file.

    Raises
    ------
    ValueError
        If the file has none of these formats, no step with drafts, or counts that contradict each other.

    Examples
    --------
    >>> import json
    >>> import tempfile
    >>> from pathlib import Path
    >>> import otmd
    >>> path = Path(tempfile.mkdtemp()) / "answer.json"
    >>> timings = {"draft_n": 30, "draft_n_accepted": 14, "predicted_n": 24}
    >>> _ = path.write_text(json.dumps({"timings": timings}))
    >>> counts = otmd.engines.read_counts(path)
    >>> counts.source, counts.tokens_per_step
    ('llama.cpp', 2.4)
    """
    text = Path(path).read_text()
    if re.search("^vllm:", text, re.MULTILINE):
        counts = _from_vllm(text)
    else:
        answers = list(_answers(str(path), text))
        readers = {
            "meta_info": _from_sglang,
            "timings": _from_llama_cpp,
            "accept_lengths": lambda listed: _from_lengths(listed, without_extra_token),
        }
        values = {
            name: [x for answer in answers for x in _values(answer, name)] for name in readers
        }
        names = [name for name, listed in values.items() if listed]
        if len(names) != 1:
            expected = "metrics of vLLM, or JSON with meta_info, timings or accept_lengths"
            raise wrong(
                str(path), " and ".join(names) or shortened(text or "an empty file"), expected
            )
        counts = readers[names[0]](values[names[0]])
    if counts.steps <= 0:
        raise wrong(str(path), "no step with drafts", "at least one")
    most = counts.accepted if counts.drafted is None else counts.drafted
    if not 0 <= counts.accepted <= most or sorted(counts.at_least, reverse=True) != [
        *counts.at_least
    ]:
        raise wrong(
            str(path), f"counts that contradict each other ({counts})", "accepted ≤ drafted"
        )
    return counts


def _answers(name: str, text: str) -> Iterator[Any]:
    """The values of a JSON file, or of the lines of a JSON Lines file."""
    try:
        yield parse_json(text)
        return
    except ValueError:
        lines = [line for line in text.splitlines() if line.strip()]
    for number, line in enumerate(lines, start=1):
        try:
            yield parse_json(line)
        except ValueError as error:
            raise ValueError(f"{name}: line {number} is no JSON ({error})") from error


def _values(answer: Any, name: str) -> Iterator[Any]:
    """The values of all entries of this name, however deep."""
    if isinstance(answer, Mapping):
        for key, value in answer.items():
            yield from [value] if key == name else _values(value, name)
    elif isinstance(answer, list):
        for value in answer:
            yield from _values(value, name)


def _from_vllm(text: str) -> AcceptanceCounts:
    sums: defaultdict[str, float] = defaultdict(float)
    by_position: defaultdict[int, float] = defaultdict(float)
    for match in filter(None, map(_SAMPLE.match, text.splitlines())):
        name, labels, value = match.groups()
        if name == "accepted_tokens_per_pos" and (position := _POSITION.search(labels or "")):
            by_position[int(position[1])] += float(value)
        else:
            sums[name] += float(value)
    at_least = tuple(by_position[k] for k in range(max(by_position, default=-1) + 1))
    return AcceptanceCounts(
        "vLLM", sums["drafts"], sums["accepted_tokens"], sums["draft_tokens"], at_least
    )


def _from_sglang(answers: list[Any]) -> AcceptanceCounts:
    names = ("spec_correct_drafts_histogram", "spec_accept_histogram")
    histogram: Counter[int] = Counter()
    drafted = 0.0
    for about in answers:
        listed = next((about[name] for name in names if about.get(name)), [])
        histogram.update(dict(enumerate(listed)))
        drafted += about.get("spec_proposed_drafts", about.get("spec_draft_token_num", 0))
    return _of_histogram("SGLang", histogram, drafted or None)


def _from_llama_cpp(timings: list[Any]) -> AcceptanceCounts:
    with_drafts = [x for x in timings if x.get("draft_n")]
    accepted, drafted, written = (
        float(sum(x[name] for x in with_drafts))
        for name in ("draft_n_accepted", "draft_n", "predicted_n")
    )
    # Every call emits one token that was not drafted. Calls without drafts cannot be told from the others.
    return AcceptanceCounts("llama.cpp", written - accepted, accepted, drafted)


def _from_lengths(listed: list[Any], without_extra_token: bool) -> AcceptanceCounts:
    lengths = [length for of_choice in listed for length in of_choice]
    extra = 0 if without_extra_token else 1
    if min(lengths, default=0) < extra:
        raise wrong("accept_lengths", min(lengths, default="none"), f"lengths of at least {extra}")
    return _of_histogram("Spec-Bench", Counter(length - extra for length in lengths), None)


def _of_histogram(
    source: str, histogram: Mapping[int, float], drafted: float | None
) -> AcceptanceCounts:
    """From the number of steps that accepted exactly 0, 1, 2, … drafts."""
    deepest = max(histogram, default=0)
    at_least = [
        float(sum(count for length, count in histogram.items() if length >= k))
        for k in range(1, deepest + 1)
    ]
    steps = float(sum(histogram.values()))
    return AcceptanceCounts(source, steps, float(sum(at_least)), drafted, tuple(at_least))
