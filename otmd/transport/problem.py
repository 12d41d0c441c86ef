"""The transport problem of one position: which draft sets supply mass, and which tokens take it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from otmd.laws import DraftLaw
from otmd.laws.base import validate_one_position, validate_target
from otmd.optimum.minimum_cut import draft_sets
from otmd.probabilities import BoolArray, FloatArray, IntArray, wrong


@dataclass(frozen=True, eq=False)
class TransportProblem:
    """Mass to be moved from draft sets to the tokens that they contain.

    Set i consists of the tokens ``tokens[starts[i]:starts[i + 1]]``, each once. A pair of a set and one of
    its tokens is called an arc. Use :meth:`of` to make a problem.

    Attributes
    ----------
    target : ndarray of float64, shape (V,)
        p, the mass that each token takes.
    starts : ndarray of int64, shape (S + 1,)
        The first arc of each set, and E at the end.
    tokens : ndarray of int64, shape (E,)
        The token of each arc.
    supply : ndarray of float64, shape (S,)
        The probability of each set. All are positive, and they sum to 1.
    law : DraftLaw
        The law that the sets come from.
    tuples : ndarray of int64, shape (S, n), or None
        The drafts of each row in their order; None where tuples with equal token sets were merged.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithReplacement([0.25, 0.25, 0.5], num_drafts=2)
    >>> problem = otmd.TransportProblem.of([0.5, 0.25, 0.25], law)
    >>> dict(zip(problem.rows, problem.supply.tolist()))
    {(0, 1): 0.125, (0, 2): 0.25, (0,): 0.0625, (1, 2): 0.25, (1,): 0.0625, (2,): 0.25}
    """

    target: FloatArray
    starts: IntArray
    tokens: IntArray
    supply: FloatArray
    law: DraftLaw
    tuples: IntArray | None = None

    @classmethod
    def of(cls, target_probs: ArrayLike, law: DraftLaw, merge: bool = True) -> Self:
        """Set up the problem of a target distribution and a law of drafts.

        Parameters
        ----------
        target_probs : array_like, shape (V,)
            p.
        law : DraftLaw
            A law without leading axes that can be enumerated, else ValueError. Tuples without mass are
            dropped.
        merge : bool
            Make one row of all tuples with the same set of tokens; the optimum is the same.
        """
        validate_one_position(law, target_probs)
        target = validate_target(target_probs, law)
        if target.ndim != 1:
            raise wrong("target_probs", f"leading axes {target.shape[:-1]}", "one position")
        tuples, probs = law.enumerate()
        starts, tokens, supply = draft_sets(tuples, probs, merge)
        return cls(target, starts, tokens, supply, law, None if merge else tuples)

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.target.size

    @property
    def num_sets(self) -> int:
        """S, the number of draft sets with positive probability."""
        return self.supply.size

    @property
    def num_arcs(self) -> int:
        """E, the number of pairs of a set and one of its tokens."""
        return self.tokens.size

    @cached_property
    def arc_sets(self) -> IntArray:
        """The set of each arc, shape (E,)."""
        return np.repeat(np.arange(self.num_sets), np.diff(self.starts))

    @cached_property
    def rows(self) -> dict[tuple[int, ...], int]:
        """The row of each draft set by its sorted tokens, or by its tuple if tuples are not merged."""
        if self.tuples is not None:
            keys = self.tuples.tolist()
        else:
            keys = [part.tolist() for part in np.split(self.tokens, self.starts[1:-1])]
        return {tuple(key): row for row, key in enumerate(keys)}

    def row_of(self, draft_tokens: IntArray) -> int:
        """Return the row of drafts (n,), or raise ValueError where the law never draws them."""
        ids = draft_tokens.tolist()
        key = tuple(ids) if self.tuples is not None else tuple(sorted(set(ids)))
        if key not in self.rows:
            raise ValueError(f"draft_tokens: got {ids}, which {self.law!r} never draws")
        return self.rows[key]

    def by_set(self, mass: FloatArray) -> FloatArray:
        """Sum a mass on the arcs (E,) over the arcs of each set, shape (S,)."""
        return np.add.reduceat(mass, self.starts[:-1])

    def by_token(self, mass: FloatArray) -> FloatArray:
        """Sum a mass on the arcs (E,) over the arcs of each token, shape (V,)."""
        return np.bincount(self.tokens, mass, minlength=self.vocab_size).astype(np.float64)

    def cut_value(self, subset: BoolArray) -> float:
        """1 + p(H) − g(H) of a subset H (V,): an upper bound on every acceptance rate."""
        outside = np.logical_or.reduceat(~subset[self.tokens], self.starts[:-1])
        return float(self.target[subset].sum() + self.supply[outside].sum())
