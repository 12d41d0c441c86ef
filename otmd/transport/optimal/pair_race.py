"""How often each class is chosen of two drafts without replacement: no integral over the race's time.

Tokens i ≠ j are drawn, in either order, with probability a_i b_j + a_j b_i, where a = q and b = q/(1 − q):
a product of two sums over all tokens, less its diagonal.
"""

from dataclasses import dataclass

import numpy as np

from otmd.probabilities import FloatArray
from otmd.transport.optimal.race_model import RaceChoice, tail_sums


@dataclass(frozen=True, eq=False)
class PairRace:
    """A race for two drafts.

    Attributes
    ----------
    heavy_rates : ndarray of float64, shape (M,)
        q of the heavy tokens, in any unit.
    blocked : float
        Rate of the tokens that must not arrive.
    """

    heavy_rates: FloatArray
    blocked: float

    def choice(
        self, heavy_silent: FloatArray, node_silent: FloatArray, moments: FloatArray
    ) -> RaceChoice:
        """See :meth:`~otmd.transport.optimal.race_model.TimedRace.choice`."""
        light = self.blocked + float(moments[:, 0, 1].sum())
        total = light + float(self.heavy_rates.sum())
        first = self.heavy_rates / total
        second = self.heavy_rates / (light + _without_each(self.heavy_rates))
        # q/(1 − q) = q + q² + …; these are all powers that the moments hold.
        scale = total ** -np.arange(float(moments.shape[2]))
        once = tail_sums(1, node_silent, moments) * scale
        twice = tail_sums(2, node_silent, moments) * scale
        tail_first, tail_second = once[:, 1], once[:, 1:].sum(axis=1)
        same = twice[:, 2:].sum(axis=1)
        others_first = _without_each(first * heavy_silent)
        others_second = _without_each(second * heavy_silent)
        # Sums over the others, not differences from the sum of all: one token may outweigh the rest.
        slopes = first * (tail_second[:, None] + others_second)
        slopes += second * (tail_first[:, None] + others_first)
        both = 0.5 * (first * others_second + second * others_first)
        mixed = first * tail_second[:, None] + second * tail_first[:, None]
        expected = ((both + mixed) * heavy_silent).sum(axis=1)
        expected += tail_first * tail_second - same
        all_first = tail_first + heavy_silent @ first
        all_second = tail_second + heavy_silent @ second
        tail = np.zeros((2, moments.shape[2], node_silent.shape[0]))
        tail[0, 1:] = np.outer(scale[1:], all_first)
        tail[0, 1] += scale[1] * all_second
        tail[1, 2:] = -2.0 * scale[2:, None]
        return RaceChoice(expected, slopes, tail)


def _without_each(values: FloatArray) -> FloatArray:
    """The sum of all other values along the last axis, same shape."""
    zeros = np.zeros((*values.shape[:-1], 1))
    before = np.concatenate([zeros, values[..., :-1].cumsum(axis=-1)], axis=-1)
    after = np.concatenate([values[..., :0:-1].cumsum(axis=-1)[..., ::-1], zeros], axis=-1)
    return before + after[..., : values.shape[-1]]
