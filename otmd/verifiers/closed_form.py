"""Acceptance rates in closed form, by a kernel over the positions of a batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from otmd.parallel import in_threads
from otmd.probabilities import FloatArray, target_rows
from otmd.rows import Rows


@dataclass(frozen=True)
class ClosedForm:
    """The rates of a verifier for laws of one draft distribution that differ in the number of drafts alone.

    Attributes
    ----------
    draft_probs : ndarray of float64, shape (…, V)
        q.
    num_laws : int
        N.
    kernel : callable
        Called with rows of p and q, which of them each position reads, the arguments, and an array (B, N) to
        fill; see :mod:`otmd.curve.rate_rows`.
    arguments : tuple
        What the kernel needs beside them.
    """

    draft_probs: FloatArray
    num_laws: int
    kernel: Callable[..., None]
    arguments: tuple[Any, ...]

    def at_position(self, target: FloatArray) -> FloatArray:
        """The rates at a single position, of an unchecked target (V,), shape (N,)."""
        rates = np.empty((1, self.num_laws))
        self._fill(Rows.of(target), Rows.of(self.draft_probs), rates)
        return _inside(rates[0])

    def at_positions(self, target_probs: ArrayLike) -> FloatArray:
        """The rates at each position, leading axes broadcast, shape (…, N).

        Raises
        ------
        ValueError
            For an invalid target, or one that does not fit the drafts.
        """
        *leading, vocab_size = self.draft_probs.shape
        batch, target = target_rows(target_probs, vocab_size, tuple(leading))
        draft = Rows.of(self.draft_probs, batch)
        rates = np.empty((draft.row.size, self.num_laws))

        def work(start: int, stop: int) -> None:
            for own, p in target.blocks(start, stop):
                self._fill(p, draft[own], rates[own])

        in_threads(work, draft.row.size, vocab_size)
        return _inside(rates).reshape(*batch, self.num_laws)

    def _fill(self, target: Rows, draft: Rows, rates: FloatArray) -> None:
        rows = target.values, target.row, draft.values, draft.row
        self.kernel(*rows, *self.arguments, rates)


def _inside(rates: FloatArray) -> FloatArray:
    """The rates, where sums may have been rounded to beyond what a probability is."""
    return np.minimum(np.maximum(rates, 0.0), 1.0)
