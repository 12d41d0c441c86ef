"""Weights and places that give every token of two drafts its p.

Heavy tokens are classes of their own. The others lie between nodes, where p/q is hardly more than a start: a
token competes with all others but not with itself, which moves its place by a little.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otmd.choice.pair_places import BOTH, TERMS
from otmd.choice.pair_rounds import search_pairs
from otmd.probabilities import BoolArray, FloatArray, IntArray


class LightTokens(NamedTuple):
    """Tokens of small q, or cells of such tokens, that may be chosen.

    Attributes
    ----------
    target, mass : ndarray of float64, shape (V,) or (K,)
        p and q of each token, or the sums of each cell.
    draft : ndarray of float64, shape (V,) or (K,)
        q of a single token.
    alone : ndarray of int32, shape (T,)
        Those that are placed one by one.
    runs : ndarray of int32, shape (R,)
        Others, run by run: each of a run lies between the same two nodes.
    starts : ndarray of int64, shape (G,)
        Where the run between each node and the next one begins, and the end of the last.
    beyond : ndarray of float64, shape (CELL_SUMS,)
        Σ q, Σ p and Σ q²/(1 − q) of further ones, whose p/q are beyond what any node gives.
    """

    target: FloatArray
    mass: FloatArray
    draft: FloatArray
    alone: NDArray[np.int32]
    runs: NDArray[np.int32]
    starts: IntArray
    beyond: FloatArray


@dataclass(frozen=True, eq=False)
class PairTokens:
    """Who takes part on one side.

    Attributes
    ----------
    inner : bool
        Whether the side is H*.
    nodes : ndarray of float64, shape (G,)
        Ascending places of the light tokens, beginning with 0.
    inert : tuple of float
        Σ q and Σ q²/(1 − q) of the light tokens that are never chosen.
    heavy : ndarray of int64, shape (M,)
        The heavy tokens that are drafted, ascending.
    first, second, target : ndarray of float64, shape (M,)
        Their q, q/(1 − q) and p.
    able : ndarray of bool, shape (M,)
        Which of them may be chosen.
    cells : LightTokens
        The light tokens that may be chosen, those that are alike as one.
    """

    inner: bool
    nodes: FloatArray
    inert: tuple[float, float]
    heavy: IntArray
    first: FloatArray
    second: FloatArray
    target: FloatArray
    able: BoolArray
    cells: LightTokens

    @property
    def chosen(self) -> bool:
        """Whether any token may be."""
        return self.cells.alone.size > 0 or bool(self.able.any())

    @property
    def lowest(self) -> int:
        """The lowest node below a token: beside H* whatever may be chosen has a clock that rings."""
        return 0 if self.inner else 1


class Found(NamedTuple):
    """The end of a round: tokens were placed by ``before``, and then the weights were solved for.

    The first G of C classes are nodes, between which light tokens are spread; the others are heavy tokens.

    Attributes
    ----------
    before, terms : ndarray of float64, shape (G, TERMS)
        What tokens are chosen with at the nodes, before and after, see :mod:`otmd.choice.pair_places`.
    weights : ndarray of float64, shape (C,)
        The rates of the classes' clocks.
    rejection : float
        That of the clock that rejects both drafts; 0 for none.
    rates : ndarray of float64, shape (C,)
        How often each class is chosen.
    """

    before: FloatArray
    terms: FloatArray
    weights: FloatArray
    rejection: float
    rates: FloatArray


def search(
    tokens: PairTokens,
    light: LightTokens,
    tol: float,
    enough: float = 0.0,
    start: Found | None = None,
) -> Found:
    """Take turns between places and weights until no round helps.

    Parameters
    ----------
    tokens : PairTokens
        Who takes part.
    light : LightTokens
        The light tokens, or what stands for them.
    tol : float
        How much mass may be misplaced.
    enough : float
        With how much of it the search may end where it is slow.
    start : Found, optional
        What was found for others like these.

    Returns
    -------
    Found
        The best of the rounds.
    """
    if start is None:
        # Let places be ratios, for want of anything better.
        terms = np.zeros((tokens.nodes.size, TERMS))
        terms[:, BOTH] = tokens.nodes
        first = terms, np.zeros(tokens.nodes.size + tokens.heavy.size), 0.0
    else:
        first = start.terms, start.weights, start.rejection
    heavy = tokens.first, tokens.second, tokens.target, tokens.able
    who = tuple(light), heavy, tokens.nodes, tokens.lowest, tokens.inert, tokens.inner
    return Found(*search_pairs(*who, tol, enough, *first))
