"""The optimal plan for two drafts without replacement."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from otmd.choice.pair_places import locate_pairs, pair_values
from otmd.choice.pair_position import PairPosition
from otmd.choice.pair_search import Found, LightTokens, PairTokens, search
from otmd.choice.pair_tokens import tokens_of_side
from otmd.choice.plan import ChoicePlan, Side
from otmd.choice.times import times_for_weights
from otmd.curve.ratio_groups import ratios_of
from otmd.drafts import WithoutReplacement
from otmd.probabilities import BoolArray, FloatArray, IntArray

# Larger vocabularies are rehearsed with cells before they are played: to the end, as a round of cells costs
# little, or to where cells do not know better.
_LONG, _REHEARSED = 4096, (1e-12, 1e-6)
# By so much of them the nodes' values may then still change, lest tokens leave their runs.
_MARGIN = 1e-5


@dataclass(frozen=True, eq=False)
class PairSide(Side):
    """A side whose heavy tokens are classes of their own.

    Attributes
    ----------
    tokens : PairTokens
        Who takes part.
    found : Found
        The places and the weights.
    target, draft : ndarray of float64, shape (V,)
        p and q.
    """

    tokens: PairTokens
    found: Found
    target: FloatArray
    draft: FloatArray

    def locate(self, tokens: IntArray) -> tuple[IntArray, FloatArray]:
        """See :class:`Side`."""
        heavy, number = self._heavy(tokens)
        lower, share = np.empty(tokens.size, np.int64), np.empty(tokens.size)
        places = self.found.before, self.tokens.lowest, lower, share
        ratio = ratios_of(self.target, self.draft, tokens)
        locate_pairs(np.where(heavy, 0.0, self.draft[tokens]), ratio, *places)
        lower[heavy], share[heavy] = self.tokens.nodes.size + number[heavy], 1.0
        return lower, share

    def offered(self, tokens: IntArray) -> FloatArray:
        """See :class:`Side`."""
        heavy, number = self._heavy(tokens)
        lower, share = self.locate(tokens)
        draft, values = self.draft[tokens], np.zeros(tokens.size)
        lower[heavy], draft[heavy] = 0, 0.0
        pair_values(draft, lower, share, self.found.terms, values)
        values[heavy] = self.found.rates[self.tokens.nodes.size + number[heavy]]
        return values

    def _heavy(self, tokens: IntArray) -> tuple[BoolArray, IntArray]:
        """Which of the tokens are heavy, and their places among these."""
        heavy = self.tokens.heavy
        number = np.searchsorted(heavy, tokens)
        found = number < heavy.size
        found[found] = heavy[number[found]] == tokens[found]
        return found, number


def plan_of_pairs(target: FloatArray, law: WithoutReplacement, tol: float) -> ChoicePlan:
    """Find the optimal plan for two drafts without replacement.

    Parameters
    ----------
    target : ndarray of float64, shape (V,)
        p; it may sum to less than 1, the rest being no draft's.
    law : WithoutReplacement
        The law of 2 drafts, without leading axes.
    tol : float
        How much acceptance may be lost; never correctness.

    Returns
    -------
    ChoicePlan
    """
    position = PairPosition.of(target, law)
    # Both sides share the tolerance, and in each one the classes and the weights do.
    tol = 0.25 * tol
    sides = [tokens_of_side(position, inner, tol) for inner in (True, False)]
    found: list[Found | None] = [None, None]
    if target.size > _LONG:
        found = [search(own, own.cells, *_REHEARSED) if own.chosen else None for own in sides]
    parts = position.parts_of_runs(sides, [own and own.terms for own in found], _MARGIN)
    found = _play(sides, position.light(sides, parts), tol, found)
    fitting = position.parts_of_runs(sides, [own and own.before for own in found])
    if not all(_within(own, others) for own, others in zip(parts, fitting, strict=True)):
        # So bad a rehearsal is none: each token is placed for itself.
        alone = position.light(sides, position.parts_of_runs(sides, (None, None)))
        found = _play(sides, alone, tol, [None, None])
    plans = [
        None if own is None else _plan_of_side(position, side, own)
        for side, own in zip(sides, found, strict=True)
    ]
    return ChoicePlan(target, position.cut.subset, position.cut.rate, *plans)


def _play(
    sides: list[PairTokens], light: Sequence[LightTokens], tol: float, starts: list[Found | None]
) -> list[Found | None]:
    """Search for the places and weights of both sides; None where nothing may be chosen."""
    every = zip(sides, light, starts, strict=True)
    return [
        search(side, own, tol, start=start) if side.chosen else None for side, own, start in every
    ]


def _within(own: IntArray, others: IntArray) -> bool:
    """Whether each of these ranges (G, 2) is empty or in the other."""
    inside = (others[:, 0] <= own[:, 0]) & (own[:, 1] <= others[:, 1])
    return bool((inside | (own[:, 0] >= own[:, 1])).all())


def _plan_of_side(position: PairPosition, tokens: PairTokens, found: Found) -> PairSide:
    """Return the side that plays what was found."""
    ringing = np.append(found.weights, found.rejection)
    times = times_for_weights(np.log(ringing[ringing > 0]), 2)
    masses = position.target, position.draft
    return PairSide(found.weights, found.rejection, *times, tokens, found, *masses)
