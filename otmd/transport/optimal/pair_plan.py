"""The optimal plan for two drafts without replacement."""

from dataclasses import dataclass

import numpy as np

from otmd.drafts import WithoutReplacement
from otmd.kernels.pair_places import locate_pairs, pair_values
from otmd.kernels.ratio_groups import ratios_of
from otmd.probabilities import BoolArray, FloatArray, IntArray
from otmd.transport.optimal.pair_position import PairPosition
from otmd.transport.optimal.pair_search import Found, PairTokens, search
from otmd.transport.optimal.plan import ChoicePlan, Side
from otmd.transport.optimal.times import times_for_weights

# Longer tails are rehearsed with cells before they are played, to the end: a round of cells costs little.
_LONG, _REHEARSED = 4096, 1e-12


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
    sides = [_solve(position, inner, 0.25 * tol) for inner in (True, False)]
    return ChoicePlan(target, position.cut.subset, position.cut.rate, *sides)


def _solve(position: PairPosition, inner: bool, tol: float) -> PairSide | None:
    """Find the places and weights of one side; None where nothing may be chosen."""
    tokens, light, cells = position.side(inner, tol)
    if light.tokens.size == 0 and not tokens.able.any():
        return None
    found = None
    if light.tokens.size > _LONG:
        found = search(tokens, cells, _REHEARSED)
    found = search(tokens, light, tol, found)
    ringing = np.append(found.weights, found.rejection)
    times = times_for_weights(np.log(ringing[ringing > 0]), 2)
    masses = position.target, position.draft
    return PairSide(found.weights, found.rejection, *times, tokens, found, *masses)
