"""What is measured: laws, verifiers, numbers of drafts, processing; checked and named once."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from otmd.drafts import DraftLaw, Greedy, Hub, WithoutReplacement, WithReplacement
from otmd.probabilities import Processing
from otmd.verifiers import (
    GreedyCoupling,
    KSequential,
    MaximalCoupling,
    RecursiveRejection,
    SpecHub,
    TargetOnly,
    Verifier,
)

LawFactory = Callable[[np.ndarray, int], DraftLaw]

DEFAULT_LAWS: tuple[LawFactory, ...] = (WithReplacement, WithoutReplacement, Greedy, Hub)
DEFAULT_VERIFIERS: tuple[type[Verifier], ...] = (
    MaximalCoupling,
    RecursiveRejection,
    KSequential,
    SpecHub,
    GreedyCoupling,
    TargetOnly,
)


@dataclass(frozen=True)
class Settings:
    """One measurement's settings, checked.

    Attributes
    ----------
    laws, verifiers : tuple of (name, object)
        In the order in which rows come.
    num_drafts : tuple of int
    processing : tuple of Processing
    tol : float
        How far apart the certain bounds of a rate may lie.
    served : dict
        ``served[law name, n]``: the (name, verifier) pairs that serve that law; a law that cannot
        be made with n drafts, or that no verifier serves, is not in it.
    """

    laws: tuple[tuple[str, LawFactory], ...]
    verifiers: tuple[tuple[str, Verifier], ...]
    num_drafts: tuple[int, ...]
    processing: tuple[Processing, ...]
    tol: float
    served: dict[tuple[str, int], tuple[tuple[str, Verifier], ...]]

    def describe(self) -> dict[str, Any]:
        """Return the settings in JSON's types; equal descriptions mean equal measurements."""
        return {
            "laws": [f"{name} ({_origin(law)})" for name, law in self.laws],
            "verifiers": [f"{name} ({_origin(v)}{_parameters(v)})" for name, v in self.verifiers],
            "num_drafts": list(self.num_drafts),
            "processing": [asdict(step) for step in self.processing],
            "tol": self.tol,
        }


def make_settings(
    laws: Iterable[Any],
    verifiers: Iterable[Any],
    num_drafts: Iterable[int],
    processing: Iterable[Processing],
    tol: float,
) -> Settings:
    """Check the settings, name the laws and verifiers, and find who serves what.

    Raises
    ------
    ValueError
        For an empty or repeated entry, num_drafts < 1, tol ≤ 0, or where no law that can be made
        with one of the numbers of drafts is served by a verifier.
    """
    named_laws = _named("laws", laws)
    named_verifiers = tuple(
        (name, rule() if isinstance(rule, type) else rule)
        for name, rule in _named("verifiers", verifiers)
    )
    counts = _distinct("num_drafts", sorted(_as_count(n) for n in num_drafts))
    steps = _distinct("processing", list(processing))
    if not tol > 0:
        raise ValueError(f"tol: got {tol}, wanted a number > 0")
    served: dict[tuple[str, int], tuple[tuple[str, Verifier], ...]] = {}
    refusals: list[str] = []
    for name, law in named_laws:
        served |= _served(name, law, named_verifiers, counts, refusals)
    if not served:
        raise ValueError(
            f"laws, verifiers, num_drafts: got {[name for name, _ in named_laws]}, "
            f"{[name for name, _ in named_verifiers]}, {list(counts)}, wanted at least one law "
            f"that a verifier serves ({'; '.join(refusals) or 'none does'})"
        )
    return Settings(named_laws, named_verifiers, counts, steps, float(tol), served)


def _served(
    name: str,
    law: LawFactory,
    verifiers: Sequence[tuple[str, Verifier]],
    counts: Sequence[int],
    refusals: list[str],
) -> dict[tuple[str, int], tuple[tuple[str, Verifier], ...]]:
    # A uniform draft with tokens enough for everyone: what fails here fails at every position.
    vocab_size = max(counts) + 62
    uniform = np.full(vocab_size, 1.0 / vocab_size)
    found = {}
    for n in counts:
        try:
            drafts = law(uniform, n)
        except ValueError as error:
            refusals.append(f"{name} with {n}: {error}")
            continue
        rules = tuple((label, rule) for label, rule in verifiers if rule.supports(drafts))
        if rules:
            found[name, n] = rules
    return found


def _named(argument: str, entries: Iterable[Any]) -> tuple[tuple[str, Any], ...]:
    named = []
    for entry in entries:
        if isinstance(entry, tuple):
            name, thing = entry
        else:
            name, thing = getattr(entry, "__name__", type(entry).__name__), entry
        if name == "<lambda>":
            raise ValueError(f"{argument}: got a lambda, wanted a name with it: ('name', lambda …)")
        named.append((name, thing))
    _distinct(argument, [name for name, _ in named])
    return tuple(named)


def _distinct(argument: str, values: list) -> tuple:
    if not values:
        raise ValueError(f"{argument}: got nothing, wanted at least one")
    for i, value in enumerate(values):
        if value in values[:i]:
            raise ValueError(f"{argument}: got {value} twice, wanted each once")
    return tuple(values)


def _as_count(value: int) -> int:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
        raise ValueError(f"num_drafts: got {value!r}, wanted whole numbers ≥ 1")
    return int(value)


def _origin(thing: Any) -> str:
    if not hasattr(thing, "__qualname__"):
        thing = getattr(thing, "func", type(thing))
    return f"{thing.__module__}.{thing.__qualname__}"


def _parameters(verifier: Verifier) -> str:
    held = {
        k: v for k, v in sorted(getattr(verifier, "__dict__", {}).items()) if not k.startswith("_")
    }
    return "".join(f", {key}={value!r}" for key, value in held.items())
