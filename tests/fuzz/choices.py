"""Random choices of hostile inputs: numbers, texts, arrays of any dtype, values of any type."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

import numpy as np

Option = TypeVar("Option")
NUMBERS = (0.0, -0.0, 1.0, 0.5, -1.0, 1e-320, 1e-300, 1e300, 1.7e308, np.inf, -np.inf, np.nan, 1e16)
WHOLE = (0, 1, 2, 3, 4, 7, -1, 64, 2**31, 2**62, 2**63 - 1, 2**63, -(2**63), 2**64, 10**400)
DTYPES = (
    "f8", "f4", "f2", ">f8", "g", "?", "i1", "u1", "i4", "i8", "u8", "c16", "U3", "S4", "M8[s]",
)  # fmt: skip


class Choices:
    """Choices of a generator, which Hypothesis makes smaller where an input fails."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def bytes(self, most: int) -> bytes:
        """At most so many bytes."""
        return self._random.randbytes(self.below(most + 1))

    def below(self, count: int) -> int:
        """A whole number in [0, count)."""
        return self._random.randrange(count)

    def pick(self, options: Sequence[Option]) -> Option:
        return options[self.below(len(options))]

    def often(self) -> bool:
        """True in seven of eight cases."""
        return bool(self.below(8))

    def rarely(self) -> bool:
        """True in one of sixteen cases."""
        return self.below(16) == 7

    def number(self) -> float:
        """Any float: a hostile one, one of few digits, or eight raw bytes."""
        kind = self.below(4)
        if kind == 0:
            return self.pick(NUMBERS)
        return self.below(256) / 64 if kind < 3 else struct.unpack("<d", self._random.randbytes(8))[0]

    def whole(self) -> int:
        return self.below(6) if self.often() else self.pick(WHOLE)

    def text(self, longest: int = 8) -> str:
        return self.bytes(longest).decode("utf-8", "replace")

    def value(self, depth: int = 2) -> Any:
        """Anything that a caller may hand over in place of what is wanted."""
        flat = (self.whole, self.number, self.text, self._numpy_number, lambda: None, lambda: True)
        nested = (
            lambda: [self.value(depth - 1) for _ in range(self.below(4))],
            lambda: self.bytes(3),
            lambda: {self.text(): self.value(0)},
        )
        return self.pick(flat + nested if depth else flat)()

    def _numpy_number(self) -> np.generic:
        with np.errstate(all="ignore"):
            return np.float64(self.number()).astype(self.pick(DTYPES[:5]))

    def array(self) -> Any:
        """An array of any dtype, shape and content, laid out in any way; now and then no array."""
        if not self.often():
            return self.value()
        dtype = np.dtype(self.pick(DTYPES))
        shape = tuple(self.below(5) for _ in range(self.below(4)))
        count = int(np.prod(shape))
        array = np.frombuffer(self._random.randbytes(count * dtype.itemsize), dtype).reshape(shape)
        layout = self.below(4)
        if layout == 1:
            return np.asfortranarray(array)
        return array[..., ::-1] if layout == 2 and shape else array.astype(dtype)

    def masses(self, vocab_size: int, axes: tuple[int, ...] = ()) -> np.ndarray:
        """Distributions (*axes, V), nearly always valid: ties, zeros, masses of any magnitude."""
        weights = np.empty((*axes, vocab_size))
        for index in np.ndindex(weights.shape):
            exponent = -self.below(320) if self.below(4) == 0 else 0
            weights[index] = self.below(9) * 10.0**exponent
        weights[..., 0] += ~weights.any(axis=-1)
        total = weights.sum(axis=-1, keepdims=True)
        dtype = self.pick(("f8", "f8", "f4", "f2"))
        return (weights / total).astype(dtype)
