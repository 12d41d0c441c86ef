"""How many draft sets a law has and how many tokens they hold: counted, not listed."""

from collections.abc import Callable
from dataclasses import dataclass
from math import comb, perm, prod
from typing import Any, Self

import numpy as np

from otmd.drafts import (
    ConditionalPoisson,
    DraftLaw,
    Greedy,
    Hub,
    Independent,
    TopThen,
    WithoutReplacement,
    WithReplacement,
)
from otmd.optimum.minimum_cut import draft_sets
from otmd.probabilities import FloatArray


@dataclass(frozen=True)
class ProblemShape:
    """What the size of every form follows from; a TransportProblem has the same three numbers.

    Attributes
    ----------
    num_sets : int
        S, how many draft sets have mass: tuples, where those with equal token sets are kept apart.
    num_arcs : int
        E, how many pairs of a set and one of its tokens there are.
    vocab_size : int
        V.
    """

    num_sets: int
    num_arcs: int
    vocab_size: int

    @classmethod
    def of(cls, law: DraftLaw, merge: bool = True) -> Self:
        """Count the draft sets of a law.

        Parameters
        ----------
        law : DraftLaw
            A law without leading axes.
        merge : bool
            Count all tuples with the same set of tokens as one.

        Returns
        -------
        ProblemShape
            In closed form from the number of tokens with mass. A tuple whose probability is positive
            and underflows to 0 is counted, while a TransportProblem drops it.

        Raises
        ------
        ValueError
            For leading axes, or a law that has no closed form and too many tuples to enumerate.

        Notes
        -----
        There is none for :class:`Joint`, for the merged sets of :class:`Independent`, whose drafts have
        different supports, and for laws from elsewhere: these are enumerated and counted.
        """
        counts = closed_counts(law, merge)
        if counts is None:
            starts, tokens, _ = draft_sets(*law.enumerate(), merge)
            counts = starts.size - 1, tokens.size
        return cls(*counts, law.vocab_size)


def closed_counts(law: DraftLaw, merge: bool) -> tuple[int, int] | None:
    """Count the sets and arcs of a law; None where there is no closed form."""
    validate_one_position(law)
    # Not by isinstance: a subclass may draw other tuples.
    count = _COUNTS.get(type(law))
    return None if count is None else count(law, merge)


def validate_one_position(law: DraftLaw) -> None:
    """Raise ValueError unless ``law`` is a law without leading axes."""
    if not isinstance(law, DraftLaw):
        raise ValueError(f"law: got {type(law).__name__}, wanted a DraftLaw")
    if law.batch_shape:
        raise ValueError(
            f"law: got leading axes {law.batch_shape}, wanted one position: a linear program "
            "is solved for each"
        )


def _with_replacement(support: int, drawn: int, merge: bool) -> tuple[int, int]:
    if merge:
        sets = {size: comb(support, size) for size in range(1, min(drawn, support) + 1)}
        return sum(sets.values()), sum(size * number for size, number in sets.items())
    # Each token is in all tuples but those of the other tokens alone.
    return support**drawn, support * (support**drawn - (support - 1) ** drawn)


def _distinct(support: int, drawn: int, merge: bool) -> tuple[int, int]:
    sets = comb(support, drawn) if merge else perm(support, drawn)
    return sets, drawn * sets


def _top_then(law: TopThen, merge: bool) -> tuple[int, int]:
    left = _support(law.draft_probs) - law.top
    if law.top == law.num_drafts:
        return 1, law.top
    sets, arcs = _ON_THE_SUPPORT[law.rest](left, law.num_drafts - law.top, merge)
    return sets, arcs + law.top * sets


def _hub(law: Hub, merge: bool) -> tuple[int, int]:
    # A pair is the hub token and any other, in either order.
    sets = (_support(law.draft_probs) - 1) * (1 if merge else 2)
    return sets, 2 * sets


def _independent(law: Independent, merge: bool) -> tuple[int, int] | None:
    if merge and law.num_drafts > 1:
        return None
    has_mass = law.draft_probs > 0
    supports = has_mass.sum(axis=-1).tolist()
    tuples = prod(supports)
    patterns, uses = np.unique(has_mass, axis=1, return_counts=True)
    without = [
        prod(size - own for size, own in zip(supports, column, strict=True))
        for column in patterns.T.astype(int).tolist()
    ]
    return tuples, sum(u * (tuples - w) for u, w in zip(uses.tolist(), without, strict=True))


def _support(draft_probs: FloatArray) -> int:
    return int(np.count_nonzero(draft_probs))


_ON_THE_SUPPORT: dict[type, Callable[[int, int, bool], tuple[int, int]]] = {
    WithReplacement: _with_replacement,
    WithoutReplacement: _distinct,
    ConditionalPoisson: _distinct,
}


def _proposal(law: Any, merge: bool) -> tuple[int, int]:
    return _ON_THE_SUPPORT[type(law)](_support(law.draft_probs), law.num_drafts, merge)


_COUNTS: dict[type, Callable[[Any, bool], tuple[int, int] | None]] = {
    **dict.fromkeys(_ON_THE_SUPPORT, _proposal),
    TopThen: _top_then,
    Greedy: _top_then,
    Hub: _hub,
    Independent: _independent,
}
