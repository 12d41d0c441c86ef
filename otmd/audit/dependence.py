"""Do drafts depend on one another, where they should not: within a position, and between positions.

A seed used twice, a cached draw or a broadcast in the wrong place leaves each draft with its declared law,
and makes the drafts equal more often than independent ones are.
"""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from otmd.audit.counts import p_value_of_exchangeable
from otmd.audit.evidence import Evidence
from otmd.drafts import DraftLaw
from otmd.probabilities import FloatArray, IntArray

_PARTS = 4
_MOST_PATTERNS = 4
_SHOWN_SLOTS = 8
# Centres the numbers of equal drafts in the first of 16 cells.
_SHIFT = 1 / 32


class RunDependence:
    """Links between the drafts of a recorded run, as its rows go by.

    A draft's number is the mass of the tokens with smaller ids and a random part of its own. It is uniform
    given everything before, whatever the distribution is.

    Attributes
    ----------
    slots : Evidence
        Each draft and those before it at its position; the number is compared with that of the last of them.
    rows : Evidence
        Each draft and the one in its place at the drafted position before.
    pairs : dict of (int, int) to list of float
        For two places among the drafts, from 1: how often they were equal, and how often they should have
        been.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._last: list[tuple[int, float]] = []
        self.slots, self.rows = Evidence.empty(2), Evidence.empty(2)
        self.pairs: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0])

    def add(self, drawn: list[tuple[FloatArray, int]]) -> None:
        """Look at a position's drafts, each with its law (V,) given those before it."""
        own: list[tuple[int, float]] = []
        for slot, (probs, token) in enumerate(drawn):
            number = float(probs[:token].sum() + probs[token] * self._rng.random())
            if own:
                earlier = np.unique([before for before, _ in own])
                _link(self.slots, number, own[-1][1], token in earlier, probs[earlier].sum())
                for i, (before, _) in enumerate(own[:_SHOWN_SLOTS]):
                    seen = self.pairs[i + 1, slot + 1]
                    seen[0] += before == token
                    seen[1] += float(probs[before])
            if slot < len(self._last) and self._last[slot][0] < probs.size:
                before, its_number = self._last[slot]
                _link(self.rows, number, its_number, token == before, probs[before])
            own.append((token, number))
        self._last = own

    def most_repeated(self) -> str:
        """The two drafts of a position that are equal too often, in words; empty where none are."""
        gains = {own: (seen - wanted) for own, (seen, wanted) in self.pairs.items()}
        if not gains or max(gains.values()) <= 0:
            return ""
        first, second = max(gains, key=lambda own: gains[own])
        seen, wanted = self.pairs[first, second]
        return f"drafts {first} and {second} are equal {seen:,.0f} times, expected {wanted:,.1f}"


def _link(links: Evidence, number: float, before: float, repeated: bool, chance: float) -> None:
    """Add a draft by its number, that of an earlier draft, and how likely it repeats one.

    The difference of the numbers, modulo 1, is uniform if the later one is independent. The difference of
    their quarters of [0, 1) also shows the number 1 − u after u, whose difference from u is uniform.
    """
    chance = min(1.0, float(chance))
    quarter = (int(_PARTS * number) - int(_PARTS * before)) % _PARTS
    repeats, quarters = (int(repeated), (1.0 - chance, chance)), (quarter, (1 / _PARTS,) * _PARTS)
    links.add((number - before + _SHIFT) % 1.0, False, repeats, quarters)


def independence_p_values(
    samples: IntArray, law: DraftLaw, level: float, *, rng: np.random.Generator
) -> dict[str, float]:
    """Tests of what drafts (N, n) of a position have in common, against drafts drawn here from the law.

    Returns from what was tested to an exact p-value: which drafts of a draw are equal, which parts of the
    vocabulary neighbouring drafts come from, and the same of draws that follow one another. ``level`` is the
    smallest p-value that must be told apart.
    """
    number = len(samples)
    reference = law.sample(rng, max(1_000, min(4 * number, max(number, 50_000))))
    masses = law.inclusion_probs()
    middle = (np.cumsum(masses) - 0.5 * masses) / masses.sum()
    part = np.minimum((_PARTS * middle).astype(np.int64), _PARTS - 1)
    found = {}
    for (name, seen), (_, wanted) in zip(
        _labels(samples, part), _labels(reference, part), strict=True
    ):
        size = 1 + max(int(seen.max(initial=0)), int(wanted.max(initial=0)))
        counts = np.bincount(seen, minlength=size), np.bincount(wanted, minlength=size)
        found[name] = p_value_of_exchangeable(*counts, level, rng=rng)
    return found


def _labels(tokens: IntArray, part: IntArray) -> Iterator[tuple[str, IntArray]]:
    """What is counted of draws (N, n), by name: a label for each draw, or for each pair of draws."""
    n = tokens.shape[1]
    if n > 1:
        yield "equal drafts in a draw", _pattern(tokens)
        first = np.arange(len(tokens)) % (n - 1)
        yield "neighbouring drafts of a draw", _parts(tokens, first, tokens, first + 1, part)
    for start, name in enumerate(("draws 1 and 2, 3 and 4, …", "draws 2 and 3, 4 and 5, …")):
        before, after = tokens[start:-1:2], tokens[start + 1 :: 2]
        slot = np.arange(len(after)) % n
        agreements = np.minimum((before == after).sum(axis=1), 2)
        label = _parts(before, slot, after, slot, part)
        yield name, _PARTS**2 * agreements + label


def _pattern(tokens: IntArray) -> IntArray:
    """Which drafts of each draw are equal; only how many distinct ones there are, where n is large."""
    equal = tokens[:, :, None] == tokens[:, None, :]
    first = equal.argmax(axis=2)
    n = tokens.shape[1]
    if n > _MOST_PATTERNS:
        return (first == np.arange(n)).sum(axis=1)
    return first @ n ** np.arange(n)


def _parts(
    before: IntArray, own: IntArray, after: IntArray, other: IntArray, part: IntArray
) -> IntArray:
    rows = np.arange(len(after))
    return _PARTS * part[before[rows, own]] + part[after[rows, other]]
