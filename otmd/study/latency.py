"""The cost of a step: times by tokens that a model reads at once, context and concurrent requests."""

from __future__ import annotations

import timeit
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from otmd.laws import Stratified
from otmd.probabilities import Processing
from otmd.storage.files import parse_json
from otmd.verifiers import Preference

REPEATS = 5
TABLE_EXAMPLE = (
    '{"target": [{"tokens": 1, "context": 512, "seconds": 0.02}], "draft": […], "verification": 0}'
)


Times = list[tuple[int, float]]


class Latency(NamedTuple):
    """Seconds of a step's parts after a text of one length, for a number of concurrent requests.

    ``target`` and ``draft`` are the tokens that a call reads at once for each request, ascending from one,
    and its seconds; ``verification`` the seconds for each drafted token of a request.
    """

    target: Times
    draft: Times
    verification: float
    requests: int = 1

    @property
    def alone(self) -> float:
        """Seconds a token of a request without drafts."""
        return self.target[0][1]

    def step(self, shape: tuple[int, ...], budget: int = 0) -> float:
        """Seconds of a step on a tree with ``shape`` drafts at a node, by level.

        With a ``budget``, the tree has that many tokens, and the draft reads ``shape`` of them, by level. It
        is called once a level, and the target once with all tokens. Times between those of the table are
        interpolated.
        """
        sizes = np.array(shape) if budget else np.cumprod(shape)
        reads = [1, *sizes[:-1].tolist()]
        nodes = budget or int(sizes.sum())
        calls = np.interp(reads, *np.transpose(self.draft)).sum()
        calls += np.interp(nodes + 1, *np.transpose(self.target))
        return float(calls + self.requests * nodes * self.verification)


def read_latency(path: Path, budget: int, context: int | None = None, requests: int = 1) -> Latency:
    """Read a JSON table of times as docs/plan.md shows it.

    Of several contexts the nearest to ``context`` is taken, by default the smallest. Times between those of
    the table are interpolated, and so are those for numbers of concurrent requests; a row without such a
    number is for one request. ValueError for a file of another form, times that are no positive numbers, and
    a table that does not reach ``requests`` or trees of ``budget`` tokens.
    """
    try:
        content = parse_json(path.read_text("utf-8"))
        smallest = min(int(row["context"]) for row in content["target"])
        length = context or smallest
        tables = {name: _tables(content[name], length) for name in ("target", "draft")}
        verification = float(content["verification"])
        if not 0.0 <= verification < np.inf:
            raise ValueError(f"verification is {verification}")
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise ValueError(f"{path}: no latency table ({error!r}), expected {TABLE_EXAMPLE}") from error
    times = {name: _for_requests(name, by_number, requests) for name, by_number in tables.items()}
    for name, most in (("target", budget + 1), ("draft", budget)):
        reached, _ = times[name][-1]
        if reached < most:
            raise ValueError(
                f"latency: {name} reaches {reached} tokens, the budget needs {most}; add a row, or ask for "
                "smaller trees: --tree-budget"
            )
    return Latency(**times, verification=verification, requests=requests)


def _tables(rows: list[dict[str, Any]], context: int) -> dict[int, Times]:
    """The times at the nearest context, by number of concurrent requests."""
    nearest = min((int(row["context"]) for row in rows), key=lambda length: abs(length - context))
    tables: dict[int, Times] = {}
    for row in rows:
        if int(row["context"]) == nearest:
            times = tables.setdefault(int(row.get("requests", 1)), [])
            times.append((int(row["tokens"]), float(row["seconds"])))
    for times in tables.values():
        times.sort()
        if times[0][0] != 1 or not all(0.0 < seconds < np.inf for _, seconds in times):
            raise ValueError("each model needs a row of 1 token, and seconds above 0")
    return tables


def _for_requests(name: str, tables: dict[int, Times], requests: int) -> Times:
    """The times for a number of requests, interpolated between the numbers of the table."""
    fewest, most = min(tables), max(tables)
    if not fewest <= requests <= most:
        raise ValueError(
            f"latency: {name} has times for {fewest} to {most} concurrent requests, got {requests}; add rows"
        )
    low = max(number for number in tables if number <= requests)
    high = min(number for number in tables if number >= requests)
    reached = min(tables[low][-1][0], tables[high][-1][0])
    sizes = sorted({n for end in (low, high) for n, _ in tables[end] if n <= reached})
    before, after = (np.interp(sizes, *np.transpose(tables[end])) for end in (low, high))
    share = (requests - low) / max(high - low, 1)
    return list(zip(sizes, ((1.0 - share) * before + share * after).tolist(), strict=True))


def measure_times(target: str, draft: str, sizes: list[int], context: int) -> dict[str, Any]:
    """Time two models on this machine for one request: a table as :func:`read_latency` reads it.

    Each time is the median of five calls that read so many tokens of ``sizes`` after a text of ``context``.
    """
    from otmd.models import load_draft, load_target
    from otmd.models.collection import held_out_corpus

    model = load_target(target)
    fitted = load_draft(draft, model, held_out_corpus(draft, model, (), progress=False))
    times: dict[str, Any] = {"verification": _verification(model.token_count)}
    for role, timed in (("target", model), ("draft", fitted)):
        rows = [(size, _call(timed, size, context)) for size in sizes]
        times[role] = [{"tokens": n, "context": context, "seconds": t} for n, t in rows]
    return times


def _call(model: Any, size: int, context: int) -> float:
    """Median seconds of a call that reads so many tokens below a text, once warm."""
    from otmd.models.continuations import continuations

    text = continuations(model, np.random.default_rng(0).integers(model.vocab_size, size=context).tolist())
    seconds = []
    # As in a step: the last token that was emitted, and drafts below it. The first call reads the text.
    drafts = [(token,) for token in range(size - 1)]
    for token in range(size, size + 2 + REPEATS):
        begun = perf_counter()
        text.logits([(), *drafts])
        seconds.append(perf_counter() - begun)
        text.extend([token])
    return float(np.median(seconds[2:]))


def _verification(vocab_size: int) -> float:
    """Median seconds that the preference rule takes for each draft, with both softmaxes, once warm."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0.0, 3.0, (2, vocab_size))
    drafts = 4

    def verify() -> None:
        p, q = Processing()(logits)
        law = Stratified(q, drafts)
        Preference().prepare(p, law).verify(law.sample(rng=rng), rng=rng)

    seconds = timeit.repeat(verify, number=1, repeat=REPEATS + 2)
    return float(np.median(seconds[2:])) / drafts
