"""Options that several commands share, and how their values are read."""

import re
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Parameter

from otmd.cli import UsageError

if TYPE_CHECKING:
    from otmd.probabilities import Processing

LAWS = {
    "with-replacement": "WithReplacement",
    "without-replacement": "WithoutReplacement",
    "conditional-poisson": "ConditionalPoisson",
    "greedy": "Greedy",
    "hub": "Hub",
}
VERIFIERS = {
    "maximal-coupling": "MaximalCoupling",
    "recursive-rejection": "RecursiveRejection",
    "k-sequential": "KSequential",
    "spec-hub": "SpecHub",
    "greedy-coupling": "GreedyCoupling",
    "target-only": "TargetOnly",
    "optimal": "Optimal",
}

Json = Annotated[bool, Parameter(name="--json")]
Value = TypeVar("Value")


def classes(option: str, text: str, known: dict[str, str], module: Any) -> list[Any]:
    """Read ``greedy,hub`` as classes of a module."""
    names = split(option, text)
    for name in names:
        if name not in known:
            raise UsageError(f"{option}: got {name!r}, wanted some of {', '.join(known)}")
    return [getattr(module, known[name]) for name in names]


def counts(option: str, text: str) -> list[int]:
    """Read ``1,2,4`` or ``1-4`` as whole numbers ≥ 1."""
    from otmd.drafts.base import MOST_DRAFTS

    found: list[int] = []
    for piece in split(option, text):
        ends = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", piece)
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (0, 0)
        if not 1 <= first <= last <= MOST_DRAFTS:
            raise UsageError(
                f"{option}: got {piece!r}, wanted numbers such as 1,2,4 or 1-4, from 1 to "
                f"{MOST_DRAFTS}"
            )
        found += range(first, last + 1)
    return sorted(set(found))


def steps(
    temperature: str, top_k: int | None, top_p: float | None, min_p: float | None
) -> "list[Processing]":
    """Read ``0.6,1`` as one processing a temperature."""
    from otmd.probabilities import Processing

    values = [
        _number("--temperature", piece, float, "0.6 or 0.6,1.0")
        for piece in split("--temperature", temperature)
    ]
    try:
        return [Processing(value, top_k, top_p, min_p) for value in dict.fromkeys(values)]
    except ValueError as error:
        raise UsageError(str(error)) from error


def fractions(option: str, text: str) -> list[float]:
    """Read ``1/3,0,2/3`` or ``0.2,0.8`` as numbers, exact until the last rounding."""
    pieces = split(option, text)
    example = "1/3,0,2/3 or 0.2,0.8"
    return [_number(option, piece, lambda text: float(Fraction(text)), example) for piece in pieces]


def split(option: str, text: str) -> list[str]:
    """Read comma-separated values."""
    pieces = [piece.strip() for piece in text.split(",") if piece.strip()]
    if not pieces:
        raise UsageError(f"{option}: got {text!r}, wanted at least one value")
    return pieces


def _number(option: str, text: str, read: Callable[[str], Value], example: str) -> Value:
    try:
        return read(text)
    except (ValueError, ArithmeticError) as error:
        raise UsageError(f"{option}: got {text!r}, wanted numbers such as {example}") from error
