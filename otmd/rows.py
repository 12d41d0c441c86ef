"""Which row of an array each position of a batch reads."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Rows:
    """A distribution for each position of a batch, where one may serve several positions.

    Attributes
    ----------
    values : ndarray of float64, shape (R, V)
        The distributions.
    row : ndarray of int64, shape (B,)
        Which of them each position reads.
    """

    values: NDArray[np.float64]
    row: NDArray[np.int64]

    @classmethod
    def of(cls, values: NDArray[np.float64], batch: tuple[int, ...] = ()) -> Self:
        """The positions of ``batch``, flattened, to whose axes those of ``values`` (…, V) are broadcast."""
        leading = values.shape[:-1]
        row = np.arange(math.prod(leading))
        if row.size != math.prod(batch):
            row = np.broadcast_to(row.reshape(leading), batch).ravel()
        return cls(values.reshape(-1, values.shape[-1]), row)

    def __getitem__(self, own: slice) -> "Rows":
        return Rows(self.values, self.row[own])

    def blocks(self, start: int, stop: int) -> Iterator[tuple[slice, "Rows"]]:
        """The positions from start to stop, as one block."""
        own = slice(start, stop)
        yield own, self[own]
