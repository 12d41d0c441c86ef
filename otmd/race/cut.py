"""The optimal cut for drafts without replacement: blocks of the ratio curve, g of an exponential race."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from otmd.curve._kernels import AT_A_TIME
from otmd.curve.blocks import BlockedCurve, Blocks, fill_groups
from otmd.kernel import kernel
from otmd.probabilities import FloatArray
from otmd.race.block_sums import POWER, add_tokens
from otmd.race.containment import ExponentialRace


class RaceCurve(BlockedCurve):
    """The ratio curve of one position, for drafts without replacement: p (V,) need not sum to 1.

    The numbers of drafts are at most the race's.
    """

    smallest_grouped = 65

    def __init__(self, target: FloatArray, race: ExponentialRace, counts: Sequence[int]) -> None:
        self.race = race
        self.width = race.width if max(counts) > 2 else POWER
        # g before each of the blocks that were last asked about, and these blocks' lower ends.
        self._known = np.empty(0), np.empty((len(counts), 1))
        super().__init__(target, race.draft, counts, coarse=True)

    def sum_groups(self, group: NDArray[np.int16], sums: FloatArray) -> None:
        """See :class:`~otmd.curve.blocks.BlockedCurve`."""
        _sum_groups(self.target, self.draft, self.race.scale, group, sums)

    def sum_tokens(
        self, tokens: NDArray[np.int32], block: NDArray[np.int16], sums: FloatArray
    ) -> None:
        """See :class:`~otmd.curve.blocks.BlockedCurve`."""
        _sum_tokens(self.target, self.draft, tokens, block, self.race.scale, sums)

    def containment(self, blocks: Blocks) -> Iterable[FloatArray]:
        """See :class:`~otmd.curve.blocks.BlockedCurve`."""
        low, known = self._known
        if blocks.low is low:
            return known
        # g is computed only where a new block begins. All blocks between two such places are summed up.
        place = np.searchsorted(low, blocks.low)
        old = np.append(low, np.nan)[place] == blocks.low
        old[0] = False
        contained = np.empty((len(self.counts), old.size + 1))
        contained[:, :-1][:, old] = known[:, place[old]]
        sums = np.add.reduceat(blocks.sums, np.flatnonzero(~old))
        found = self.race.contained(self.target, blocks.low[~old], sums, self.counts)
        contained[:, np.append(~old, True)] = found
        self._known = blocks.low, contained
        return contained


@kernel()
def _sum_groups(target, draft, scale, group, sums):
    """Fill the group of each token by p/q, and add the tokens to the groups' sums."""
    ratio, scratch = np.empty(AT_A_TIME), np.empty((2, AT_A_TIME))
    for start in range(0, target.size, AT_A_TIME):
        p, q = target[start : start + AT_A_TIME], draft[start : start + AT_A_TIME]
        own = group[start : start + AT_A_TIME]
        fill_groups(p, q, ratio, own)
        add_tokens(p, q, own, scale, scratch, sums)


@kernel()
def _sum_tokens(target, draft, tokens, block, scale, sums):
    """Add tokens to the sums of their blocks."""
    p, q, scratch = np.empty(AT_A_TIME), np.empty(AT_A_TIME), np.empty((2, AT_A_TIME))
    for start in range(0, tokens.size, AT_A_TIME):
        own = tokens[start : start + AT_A_TIME]
        for i in range(own.size):
            p[i], q[i] = target[own[i]], draft[own[i]]
        some = block[start : start + AT_A_TIME]
        add_tokens(p[: own.size], q[: own.size], some, scale, scratch, sums)
