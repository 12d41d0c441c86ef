"""Evidence of whether drafts depend on one another."""

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from otmd.audit.evidence import Evidence
from otmd.probabilities import FloatArray

_PARTS = 4
_SHOWN_SLOTS = 8
# Equal drafts have close numbers: this moves a difference of 0 to the middle of the first of 16 cells.
_SHIFT = 1 / 32


class DrawnToken(NamedTuple):
    """A draft token, and its distribution (V,) given those before it."""

    probs: FloatArray
    token: int


class _NumberedToken(NamedTuple):
    """A token, and a number that is uniform given the past."""

    token: int
    number: float


class Dependence:
    """Evidence of whether drafts depend on one another.

    ``slots`` compares each draft with the earlier drafts of its position, ``rows`` with the same slot at the
    position before. ``pairs`` has, for two slots, the number of equal drafts and its expectation.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._last: list[_NumberedToken] = []
        self.slots = Evidence.empty(2)
        self.rows = Evidence.empty(2)
        self.pairs: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0])

    def add(self, drawn: list[DrawnToken]) -> None:
        """Look at a position's drafts, in turn."""
        drafts: list[_NumberedToken] = []
        for slot, (probs, token) in enumerate(drawn):
            # The mass of smaller ids, and a random part of the token's own mass.
            number = float(probs[:token].sum() + probs[token] * self._rng.random())
            if drafts:
                earlier = np.unique([draft.token for draft in drafts])
                _link(self.slots, number, drafts[-1].number, token in earlier, probs[earlier].sum())
                for i, draft in enumerate(drafts[:_SHOWN_SLOTS]):
                    pair = self.pairs[i + 1, slot + 1]
                    pair[0] += draft.token == token
                    pair[1] += float(probs[draft.token])
            if slot < len(self._last) and self._last[slot].token < probs.size:
                before = self._last[slot]
                _link(self.rows, number, before.number, token == before.token, probs[before.token])
            drafts.append(_NumberedToken(token, number))
        self._last = drafts

    def most_repeated(self) -> str:
        """The two slots whose drafts are equal too often, in words; empty if none are."""
        slots = max(self.pairs, key=lambda pair: self.pairs[pair][0] - self.pairs[pair][1])
        observed, expected = self.pairs[slots]
        if observed <= expected:
            return ""
        first, second = slots
        return (
            f"drafts {first} and {second} are equal {observed:,.0f} times, expected {expected:,.1f}"
        )


def _link(
    links: Evidence, number: float, earlier_number: float, repeats: bool, repeat_prob: float
) -> None:
    """Add a draft by its number, an earlier draft's, and whether it repeats one, with its probability.

    Of independent drafts, the difference of numbers modulo 1 is uniform, and so is that of their quarters.
    """
    prob = min(1.0, float(repeat_prob))
    quarter = (int(_PARTS * number) - int(_PARTS * earlier_number)) % _PARTS
    by_repeat = (int(repeats), (1.0 - prob, prob))
    by_quarter = (quarter, (1 / _PARTS,) * _PARTS)
    links.add((number - earlier_number + _SHIFT) % 1.0, False, by_repeat, by_quarter)
