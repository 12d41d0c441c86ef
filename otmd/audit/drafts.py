"""Audit whether drafts were drawn from the declared law."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from otmd.audit.base import Report, derived_rng, validate_level
from otmd.audit.statistics import exact_p_value, make_cells, p_value_of_exchangeable
from otmd.laws import DraftLaw
from otmd.laws.base import RngLike, validate_one_position
from otmd.probabilities import FloatArray, IntArray, from_tensor, wrong

# Drafts that depend on each other come from related parts of the vocabulary; so many, about equally likely.
_PARTS = 4
_MOST_LISTED = 20_000
_CELLS = 64
# Smaller differences of two containments, which are sums over the vocabulary, are rounding.
_LEAST_CELL = 1e-9
_MOST_PATTERNS = 4
CellCounts = tuple[IntArray, FloatArray]
"""Observed counts (K,) in cells, and the cells' probabilities (K,)."""


@dataclass(frozen=True)
class DraftLawAudit(Report):
    """The result of an audit of draft samples.

    The tests share ``false_alarm`` equally.

    Attributes
    ----------
    impossible : int
        The number of samples that the declared law never draws. One is proof.
    p_values : tuple of float
        Exact G-tests of the tuples if they can be listed; else of the rank of each tuple's least likely
        draft, of its most likely, and of its first.
    independence : dict of str to float
        P-values by what drafts have in common, within a draw and from draw to draw.
    """

    num_samples: int
    false_alarm: float
    impossible: int
    p_values: tuple[float, ...]
    independence: dict[str, float]

    @property
    def faulty(self) -> bool:
        """Whether the declared law is refuted."""
        return self.impossible > 0 or min(self.p_values) <= self.level or bool(self.dependent)

    @property
    def level(self) -> float:
        """The false-alarm rate of each test."""
        return self.false_alarm / (len(self.p_values) + len(self.independence))

    @property
    def dependent(self) -> tuple[str, ...]:
        """The keys of :attr:`independence` for which the p-value is an alarm."""
        return tuple(name for name, p in self.independence.items() if p <= self.level)

    @property
    def verdict(self) -> str:
        """One sentence."""
        if not self.faulty:
            return f"no deviation from the declared law found in {self.num_samples} samples"
        never = f" ({self.impossible} of them it never draws)" if self.impossible else ""
        fault = f"the {self.num_samples} samples were not drawn from the declared law{never}"
        if self.dependent:
            fault += f"; they depend on one another ({'; '.join(self.dependent)})"
        return fault

    @property
    def details(self) -> list[str]:
        """The tests."""
        values = ", ".join(f"{value:.1e}" for value in self.p_values)
        return [
            f"p-values {values}; false-alarm rate of the whole {self.false_alarm:.0e}",
            f"p-values of drafts that depend on one another (alarm at {self.level:.1e}):",
            *(f"  {p:>14.1e}  {name}" for name, p in self.independence.items()),
        ]


def draft_law(
    samples: ArrayLike, law: DraftLaw, false_alarm: float = 1e-3, *, rng: RngLike = 0
) -> DraftLawAudit:
    """Audit whether draft tokens were drawn from the declared law.

    Parameters
    ----------
    samples : array_like of int, shape (N, n)
        Independent draws of drafts, in the order in which they were drawn.
    law : DraftLaw
        The declared law, without leading axes.
    false_alarm : float
        Probability, at most, that samples of the declared law are called faulty.
    rng : int, sequence of int, numpy.random.Generator or None
        A seed or a generator. It seeds the one that draws drafts and counts for the exact tests, so equal
        seeds give equal audits, and so do calls that give none; the samples may come from an equal seed.

    Returns
    -------
    DraftLawAudit
        ``print`` shows the verdict and the tests.

    Raises
    ------
    ValueError, TypeError
        For invalid input; for a class in place of an instance, or swapped arguments.

    Examples
    --------
    >>> import numpy as np, otmd
    >>> law = otmd.WithoutReplacement([0.2, 0.2, 0.6], 2)
    >>> drafts = np.sort(law.sample(1_000, rng=0), axis=1)
    >>> otmd.audit.draft_law(drafts, law, rng=0).dependent[0]
    'neighbouring drafts of a draw'
    """
    validate_one_position(law, samples)
    tokens = law.validate_tokens(from_tensor(samples), "samples")
    if tokens.ndim != 2 or not len(tokens):
        raise wrong("samples", f"shape {tokens.shape}", "(N, n) with N ≥ 1")
    validate_level(false_alarm)
    generator = derived_rng(rng, "draft_law")
    tuples, counts = np.unique(tokens, axis=0, return_counts=True)
    tests = counts_of_tuples(law, tuples, counts) or counts_of_extremes(law, tokens)
    # There are also four tests of independence, two for a single draft.
    level = false_alarm / (len(tests) + (4 if law.num_drafts > 1 else 2))
    return DraftLawAudit(
        num_samples=len(tokens),
        false_alarm=false_alarm,
        impossible=int(counts[law.tuple_prob(tuples) == 0].sum()),
        p_values=tuple(exact_p_value(*test, level, rng=generator) for test in tests),
        independence=independence_p_values(tokens, law, level, rng=generator),
    )


def counts_of_tuples(law: DraftLaw, tuples: IntArray, counts: IntArray) -> list[CellCounts]:
    """Counts in cells of tuples; none if the tuples cannot be listed."""
    if law.position_structure.num_tuples > _MOST_LISTED:
        return []
    possible, probs = law.enumerate()
    cells = make_cells(probs, np.lexsort((probs, _num_distinct(possible))), _CELLS)
    observed = dict(zip(map(tuple, tuples.tolist()), counts.tolist(), strict=True))
    by_tuple = [observed.get(tuple(row), 0) for row in possible.tolist()]
    return [(np.bincount(cells.labels, by_tuple).astype(np.int64), cells.probs)]


def counts_of_extremes(law: DraftLaw, tokens: IntArray) -> list[CellCounts]:
    """Counts in cells of the rank of each tuple's least likely, most likely and first draft."""
    descending = np.argsort(-law.inclusion_probs(), kind="stable")
    tests = []
    numbers = np.unique(np.geomspace(1, descending.size, _CELLS).astype(np.int64))
    for order in (descending, descending[::-1]):
        rank = np.argsort(order)
        ends, reached, contained = [], [0.0], 0.0
        # A cell ends where enough probability has come together since the last one.
        for number in numbers:
            contained = float(law.containment(rank < number))
            if contained - reached[-1] >= _LEAST_CELL:
                ends.append(number)
                reached.append(contained)
        # The last cell takes what is left, which may be too little for a cell by itself.
        ends[-1] = order.size
        reached[-1] = contained
        cell = np.searchsorted(ends, rank[tokens].max(axis=-1), side="right")
        probs = np.diff(reached)
        tests.append((np.bincount(cell, minlength=probs.size), probs / probs.sum()))
    # Drafts that were sorted have the same extremes.
    first = make_cells(law.position_structure.next_draft_probs(tokens[0, :0]), descending, _CELLS)
    return [*tests, (first.counts(first.labels[tokens[:, 0]]), first.probs)]


def independence_p_values(
    samples: IntArray, law: DraftLaw, level: float, *, rng: np.random.Generator
) -> dict[str, float]:
    """Exact p-values by what drafts (N, n) have in common, compared with drafts drawn here from the law.

    The tests compare which drafts of a draw are equal, which parts of the vocabulary neighbouring drafts come
    from, and both for drafts of consecutive draws. ``level`` is the smallest p-value that must be resolved.
    """
    num_reference = max(1_000, min(4 * len(samples), max(len(samples), 50_000)))
    reference = law.sample(num_reference, rng=rng)
    masses = law.inclusion_probs()
    middle = (np.cumsum(masses) - 0.5 * masses) / masses.sum()
    part = np.minimum((_PARTS * middle).astype(np.int64), _PARTS - 1)
    drawn = dict(_labels(reference, part))
    p_values = {}
    for name, labels in _labels(samples, part):
        size = 1 + int(max(labels.max(initial=0), drawn[name].max(initial=0)))
        observed = np.bincount(labels, minlength=size)
        expected = np.bincount(drawn[name], minlength=size)
        p_values[name] = p_value_of_exchangeable(observed, expected, level, rng=rng)
    return p_values


def _labels(tokens: IntArray, part: IntArray) -> Iterator[tuple[str, IntArray]]:
    """Labels of each draw, or of each pair of draws, by name of what the drafts (N, n) have in common."""
    rows = np.arange(len(tokens))
    n = tokens.shape[1]
    parts = part[tokens]
    if n > 1:
        slot = rows % (n - 1)
        pattern = _num_distinct(tokens)
        if n <= _MOST_PATTERNS:
            # The index of the first draft that each is equal to, as the digits of a number.
            first = (tokens[:, :, None] == tokens[:, None, :]).argmax(axis=2)
            pattern = first @ n ** np.arange(n)
        yield "equal drafts in a draw", pattern
        yield "neighbouring drafts of a draw", _PARTS * parts[rows, slot] + parts[rows, slot + 1]
    for start, name in enumerate(("draws 1 and 2, 3 and 4, …", "draws 2 and 3, 4 and 5, …")):
        before, after = rows[start:-1:2], rows[start + 1 :: 2]
        slot = np.arange(after.size) % n
        agreements = np.minimum((tokens[before] == tokens[after]).sum(axis=1), 2)
        yield name, _PARTS * (_PARTS * agreements + parts[before, slot]) + parts[after, slot]


def _num_distinct(tokens: IntArray) -> IntArray:
    return 1 + np.count_nonzero(np.diff(np.sort(tokens, axis=-1), axis=-1), axis=-1)
