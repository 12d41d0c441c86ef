"""Settings of a measurement, and the rows of one position: α* and every verifier's rate for each law."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from otmd.laws import DraftLaw
from otmd.optimum.acceptance import optimal_acceptance
from otmd.probabilities import (
    Processing,
    validate_counts,
    validate_probs,
    validate_tol,
    wrong,
    wrong_type,
)
from otmd.registry import LAWS, VERIFIERS, Entry, LawEntry, find
from otmd.storage.files import one_line
from otmd.verifiers import UnsupportedLaw, Verifier
from otmd.verifiers.base import IN_FLOAT32, as_verifier

LawFactory = Callable[[np.ndarray, int], DraftLaw]
Key = tuple[str, int, str]
Rates = dict[str, Any]

DEFAULT_LAWS: tuple[LawFactory, ...] = tuple(entry.load() for entry in LAWS.values() if entry.measured)
DEFAULT_VERIFIERS: tuple[type[Verifier], ...] = tuple(
    entry.load() for entry in VERIFIERS.values() if entry.measured
)
# The columns of a measurement, in order. Polars takes the Python types as its own of 64 bits.
SCHEMA: dict[str, type] = {
    **{"index": int, "prompt_id": str, "domain": str, "position": int},
    **{"temperature": float, "top_k": int, "top_p": float, "min_p": float, "order": str},
    **{"law": str, "num_drafts": int, "verifier": str},
    **{"optimal": float, "rate": float, "rate_low": float, "rate_high": float},
    **{"gap": float, "gap_low": float, "gap_high": float, "status": str},
}
# Sums of the same terms in different orders may differ by this much.
ROUNDING = 1e-12


class Settings(NamedTuple):
    """One measurement's settings, checked.

    ``served[law name, n]`` holds a law and the (name, verifier) pairs that serve it, in the rows' order.
    ``description`` has all settings in JSON's types: equal descriptions mean equal measurements.
    """

    served: dict[tuple[str, int], tuple[LawFactory, tuple[tuple[str, Verifier], ...]]]
    processing: tuple[Processing, ...]
    tol: float
    description: dict[str, Any]

    def rows_per_position(self) -> int:
        """Number of rows of a position and processing."""
        return sum(len(rules) for _, rules in self.served.values())


def make_settings(
    laws: str | Iterable[Any],
    verifiers: str | Iterable[Any],
    num_drafts: int | Iterable[int],
    processing: Iterable[Processing] = (Processing(),),
    tol: float = 1e-4,
) -> Settings:
    """Check the settings, and find which verifiers serve which laws; ValueError if none does."""
    named_laws = _named("laws", laws, LAWS)
    named_verifiers = tuple(
        (name, as_verifier(rule, "verifiers")) for name, rule in _named("verifiers", verifiers, VERIFIERS)
    )
    counts = _distinct("num_drafts", sorted(validate_counts("num_drafts", num_drafts)))
    steps = _distinct("processing", list(processing))
    tol = float(validate_tol(tol))
    refusals: list[str] = []
    served = {
        (name, n): (law, rules)
        for (name, law), n in product(named_laws, counts)
        if (rules := _serving(name, law, n, named_verifiers, refusals))
    }
    if not served:
        raise ValueError(
            f"laws, verifiers, num_drafts: got {[name for name, _ in named_laws]}, "
            f"{[name for name, _ in named_verifiers]}, {list(counts)}, expected at least one law "
            f"that a verifier serves ({'; '.join(refusals) or 'none does'})"
        )
    description = {
        "laws": [_described(*named) for named in named_laws],
        "verifiers": [_described(*named) for named in named_verifiers],
        "num_drafts": list(counts),
        "processing": [asdict(step) for step in steps],
        "tol": tol,
    }
    return Settings(served, steps, tol, description)


def uniform_law(law: LawFactory, num_drafts: int) -> DraftLaw:
    """The law of a uniform distribution over enough tokens: what fails there fails at every position."""
    size = num_drafts + 16
    try:
        drafts = law(np.full(size, 1.0 / size), num_drafts)
    except TypeError as reason:
        expected = "a function of draft_probs and num_drafts, such as Stratified"
        raise wrong_type("laws", law, f"{expected} ({reason})") from reason
    if not isinstance(drafts, DraftLaw):
        raise wrong_type("laws", drafts, "functions that return a DraftLaw")
    if (drafts.num_drafts, drafts.vocab_size) != (num_drafts, size):
        raise wrong("laws", repr(drafts), f"{num_drafts} drafts of {size} tokens")
    return drafts


def _serving(
    name: str,
    law: LawFactory,
    num_drafts: int,
    verifiers: Iterable[tuple[str, Verifier]],
    refusals: list[str],
) -> tuple[tuple[str, Verifier], ...]:
    """The verifiers that serve a law, each rule once, by the name that it reports unless it was given one.

    ``refusals`` gets the reasons of a law or a verifier that refuses so many drafts.
    """
    try:
        drafts = uniform_law(law, num_drafts)
    except ValueError as error:
        refusals.append(f"{name} with {num_drafts}: {error}")
        return ()
    serving: dict[str, Verifier] = {}
    for label, verifier in verifiers:
        if not verifier.supports(drafts):
            continue
        if label == type(verifier).__name__:
            label = verifier.reported_name(drafts.position_structure)
        try:
            if label not in serving and not type(verifier).__module__.startswith("otmd."):
                # It loads the audits, a fifth of a second that other calls need not wait.
                from otmd.testing.verifiers import require_lossless

                require_lossless(verifier, law, num_drafts, f"{label} for {name}")
            serving.setdefault(label, verifier)
        except UnsupportedLaw as error:
            refusals.append(f"{label} for {name} with {num_drafts}: {error}")
    return tuple(serving.items())


def _named(argument: str, entries: object, registry: Mapping[str, Entry]) -> tuple[tuple[str, Any], ...]:
    """Pairs (name, object) of one entry or several: names of the registry, objects or such pairs."""
    if isinstance(entries, str) or not isinstance(entries, Iterable):
        entries = [entries]
    named = []
    for entry in entries:
        if isinstance(entry, str):
            registered = find(argument, entry, registry)
            if isinstance(registered, LawEntry) and not registered.audited:
                expected = f"a function of draft_probs and num_drafts that makes {registered.class_name}(…)"
                raise wrong(argument, f"{entry!r}, which has parameters of its own", expected)
            entry = registered.load()
        if not isinstance(entry, tuple):
            entry = getattr(entry, "__name__", type(entry).__name__), entry
        if len(entry) != 2 or not isinstance(entry[0], str):
            raise wrong(argument, repr(entry), "a pair of a name and what it names")
        if entry[0] == "<lambda>":
            raise wrong(argument, "a lambda", "a name with it: ('name', lambda …)")
        named.append(entry)
    _distinct(argument, [name for name, _ in named])
    return tuple(named)


def _distinct(argument: str, values: list) -> tuple:
    if not values:
        raise wrong(argument, "nothing", "at least one")
    for i, value in enumerate(values):
        if value in values[:i]:
            raise wrong(argument, f"{value} twice", "each once")
    return tuple(values)


def _described(name: str, thing: Any) -> str:
    """The name; where it is not that of a law or verifier of otmd's, with its origin in brackets."""
    values = thing.keywords if isinstance(thing, partial) else {}
    thing = thing.func if isinstance(thing, partial) else thing
    if not hasattr(thing, "__qualname__"):
        values = values | getattr(thing, "__dict__", {})
        thing = type(thing)
    given = (f", {k}={v!r}" for k, v in sorted(values.items()) if not k.startswith("_"))
    origin = f"{thing.__module__}.{thing.__qualname__}{''.join(given)}"
    is_ours = origin.startswith("otmd.") and origin.rpartition(".")[2] == name
    return name if is_ours else f"{name} ({origin})"


def process(name: str, values: np.ndarray, kind: str, step: Processing) -> np.ndarray:
    """Turn stored rows into probabilities in float64. Stored probabilities are only validated."""
    if kind == "logits":
        return step(values)
    if step != Processing():
        expected = "Processing() (to process probabilities, store their logarithms as logits)"
        raise wrong("processing", f"{step} for a dataset of probabilities", expected)
    return validate_probs(name, values)


def position_rows(
    target_probs: np.ndarray,
    draft_probs: np.ndarray,
    settings: Settings,
    computed: Mapping[Key, Rates] = MappingProxyType({}),
) -> Iterator[dict[str, Any]]:
    """Measure every law, number of drafts and verifier on one pair of valid distributions (V,).

    Where a law is undefined or a verifier raises ValueError, the status says why. ``computed`` has rates that
    were computed elsewhere. ValueError for bounds that contradict each other.
    """
    for (name, n), (law, rules) in settings.served.items():
        missing = [pair for pair in rules if (name, n, pair[0]) not in computed]
        rates = _rates(target_probs, draft_probs, law, n, missing, settings.tol)
        for label, _ in rules:
            columns = rates.get(label) or computed[name, n, label]
            yield {"law": name, "num_drafts": n, "verifier": label} | columns


def _rates(
    target_probs: np.ndarray,
    draft_probs: np.ndarray,
    law: LawFactory,
    num_drafts: int,
    verifiers: list[tuple[str, Verifier]],
    tol: float,
) -> dict[str, Rates]:
    """Rate the (name, verifier) pairs of a law; a ValueError is the status of all, or of one verifier."""
    if not verifiers:
        return {}
    failure = "undefined"
    try:
        drafts = law(draft_probs, num_drafts)
        failure = "unrated"
        optimal = float(optimal_acceptance(target_probs, drafts).rate)
    except ValueError as error:
        return {label: {"status": f"{failure}: {one_line(error)}"} for label, _ in verifiers}
    rates: dict[str, Rates] = {}
    for label, verifier in verifiers:
        try:
            low, high = map(float, verifier.acceptance_bounds(target_probs, drafts, tol))
        except ValueError as error:
            rates[label] = {"optimal": optimal, "status": f"unrated: {one_line(error)}"}
            continue
        if not low <= min(high + ROUNDING, optimal + IN_FLOAT32):
            raise ValueError(
                f"verifiers: {verifier!r} gave the bounds {low!r} and {high!r} for {type(drafts).__name__}, "
                f"n = {num_drafts}, expected the first no larger than the second and α* = {optimal!r}"
            )
        rates[label] = rate_columns(low, high, optimal, tol)
    return rates


def rate_columns(low: float, high: float, optimal: float, tol: float) -> Rates:
    """The columns from ``optimal`` to ``status`` for a rate between two guaranteed bounds."""
    rate = (low + high) / 2
    wide = high - low > tol * (1 + 1e-9)
    return {
        "optimal": optimal,
        "rate": rate,
        "rate_low": low,
        "rate_high": high,
        "gap": optimal - rate,
        "gap_low": optimal - high,
        "gap_high": optimal - low,
        "status": f"bounds {high - low:.2g} apart, expected {tol:g}" if wide else "ok",
    }
