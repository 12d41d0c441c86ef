"""Means with 95% intervals over prompts, by the jackknife.

Positions of one prompt resemble each other, so prompts are the independent units, and a mean over positions
is a ratio of two sums over prompts. The jackknife leaves out one prompt at a time. Its standard error, with
the quantiles of Student's t for the prompts less one, keeps the level over few prompts, where the percentiles
of a bootstrap are too narrow (Tukey 1958; Miller, "The jackknife: a review", Biometrika 1974).

Functions pass an estimate as an array (1 + N,): the value, then the value without each of N prompts. A
ratio or a difference of two such arrays over the same prompts is again an estimate, paired by prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from otmd.probabilities import FloatArray

if TYPE_CHECKING:
    import polars as pl

PROMPT = ["domain", "prompt_id"]
CONFIDENCE = 0.95
# Over fewer prompts an interval is wide, and skewed values make it miss the truth more often than it says.
FEW_PROMPTS = 12


class Estimate(NamedTuple):
    """A value, and the ends of its interval: None where there is none, with fewer than two prompts."""

    value: float
    low: float | None
    high: float | None

    @classmethod
    def of(
        cls, values: FloatArray, low: FloatArray | None = None, high: FloatArray | None = None
    ) -> Estimate:
        """The value and its interval from an array (1 + N,).

        With arrays of guaranteed bounds, the interval runs from the lower end for ``low`` to the upper end
        for ``high``.
        """
        prompts = values.size - 1
        if prompts < 2:
            return cls(float(values[0]), None, None)
        quantile = float(stdtrit(prompts - 1, 0.5 + CONFIDENCE / 2))
        low, high = (values if bound is None else bound for bound in (low, high))
        below, above = (quantile * float(np.sqrt((prompts - 1) * bound[1:].var())) for bound in (low, high))
        return cls(float(values[0]), float(low[0]) - below, float(high[0]) + above)

    def columns(self, name: str, ends: str = "") -> dict[str, float | None]:
        """The value as ``name``, and its interval as ``low`` and ``high`` behind the prefix ``ends``."""
        return {name: self.value, f"{ends}low": self.low, f"{ends}high": self.high}


def ratios(totals: FloatArray, sizes: FloatArray) -> FloatArray:
    """The ratio Σ totals/Σ sizes over N prompts, and that without each of them: shape (1 + N,)."""
    above, below = (np.append(sums.sum(), sums.sum() - sums) for sums in (totals, sizes))
    # Without the only prompt nothing is left.
    with np.errstate(invalid="ignore"):
        return above / below


def estimate(
    frame: pl.DataFrame, by: Sequence[str], columns: Sequence[str], sizes: str | None = None
) -> Iterator[tuple[dict[str, Any], dict[str, FloatArray]]]:
    """Means of columns for each group of rows, in the order of the groups.

    The groups are those of the columns ``by``; prompts are told by ``domain`` and ``prompt_id``. A mean is a
    sum over the number of rows, or over that of the column ``sizes``.

    Yields
    ------
    group : dict
        The values of ``by``.
    means : dict of str to ndarray
        For each column an array (1 + N,), from which :meth:`Estimate.of` makes an interval. Prompts are in
        the same order in all groups.
    """
    import polars as pl

    size = (pl.col(sizes).sum() if sizes else pl.len()).cast(float).alias("size")
    groups = [*by, *(name for name in PROMPT if name not in by)]
    sums = frame.group_by(groups, maintain_order=True).agg(pl.col(columns).sum(), size)
    for key, rows in sums.group_by(by, maintain_order=True):
        ordered = rows.sort(PROMPT)
        below = ordered["size"].to_numpy()
        means = {name: ratios(ordered[name].to_numpy(), below) for name in columns}
        yield dict(zip(by, key, strict=True)), means


def few_prompts(count: int) -> list[str]:
    """The warning that intervals are over few prompts, if they are."""
    few = f"Only {count} prompts: intervals over so few are wide, and may miss the truth."
    return [few] * (count < FEW_PROMPTS)
