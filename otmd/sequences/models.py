"""Models: callables from a prefix of token ids to the distribution of the next one, and tables for theory."""

from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from otmd.probabilities import FloatArray, validate_count, validate_probs

Prefix = tuple[int, ...]
Model = Callable[[Prefix], ArrayLike]


class TableModel:
    """A model that looks up what comes next by the last tokens of the prefix.

    Parameters
    ----------
    tables : sequence of array_like
        Table d has shape (V,)·d + (V,): the laws after d tokens. The last one serves longer prefixes too,
        by their last tokens, so that ``[initial, transition]`` is a Markov chain.

    Raises
    ------
    ValueError
        For no tables, tables of other shapes, or rows that are no distributions.
    """

    def __init__(self, tables: Sequence[ArrayLike]) -> None:
        if len(tables) == 0:
            raise ValueError("tables: got none, wanted at least one")
        self.tables = [validate_probs(f"tables[{d}]", table) for d, table in enumerate(tables)]
        self.vocab_size = self.tables[0].shape[-1]
        for d, table in enumerate(self.tables):
            wanted = (self.vocab_size,) * (d + 1)
            if table.shape != wanted:
                raise ValueError(f"tables[{d}]: got the shape {table.shape}, wanted {wanted}")

    @classmethod
    def random(
        cls, vocab_size: int, order: int, rng: np.random.Generator, concentration: float = 1.0
    ) -> Self:
        """Draw every row from a Dirichlet distribution.

        Parameters
        ----------
        vocab_size : int
            V.
        order : int
            How many of the last tokens matter.
        rng : numpy.random.Generator
            Equal seeds give equal models.
        concentration : float
            The smaller, the more peaked.
        """
        validate_count("order", order, minimum=0)
        alpha = np.full(validate_count("vocab_size", vocab_size, minimum=1), concentration)
        return cls([rng.dirichlet(alpha, size=(vocab_size,) * d) for d in range(order + 1)])

    def __call__(self, prefix: Prefix) -> FloatArray:
        """The law of the token after a prefix, shape (V,)."""
        known = min(len(prefix), len(self.tables) - 1)
        return self.tables[known][tuple(prefix[len(prefix) - known :])]
