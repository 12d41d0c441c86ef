"""Rows that no sound engine writes: each kind in words, with what it usually means."""

from dataclasses import dataclass

import numpy as np

from otmd.audit.records_laws import RecordedLaw
from otmd.probabilities import FloatArray

_ROWS_SHOWN = 5
_OF_A_SIDE = {
    "nan": ("NaN in what was recorded", "an overflow, or a buffer that was never written"),
    "infinite": ("+inf in what was recorded", "an overflow in the forward pass or in a division"),
    "negative": ("negative probabilities", "logits or logarithms under the name of probabilities"),
    "sum": (
        "probabilities whose sum is further from 1 than their type allows",
        "recorded before they were normalised, or only in part, or logits under the name of probabilities",
    ),
    "empty": ("no token with mass", "a mask that removed every token"),
    "id": (
        "an id beyond the vocabulary of the other side",
        "two tokenizers, or a padded vocabulary",
    ),
}
KINDS = {
    **{
        f"{side}_{kind}": (f"{side}: {what}", usually)
        for side in ("target", "draft")
        for kind, (what, usually) in _OF_A_SIDE.items()
    },
    "draft_missing": (
        "drafts without the distribution they were drawn from",
        "a deterministic drafter, which is audited under the law 'fixed'",
    ),
    "draft_out_of_range": (
        "a draft token beyond the vocabulary",
        "two tokenizers, or ids shifted by special tokens",
    ),
    "output_out_of_range": (
        "an output token beyond the vocabulary",
        "a search in running sums that ran past the end, or two tokenizers",
    ),
    "draft_impossible": (
        "a draft of draft probability zero: proof that it was not drawn from the recorded distribution",
        "q recorded after top-k or top-p and drafts drawn before, or q of another position",
    ),
    "draft_never": (
        "drafts that the declared law never draws: proof",
        "another law than declared: duplicates, or greedy drafts that are not the likeliest",
    ),
    "output_impossible": (
        "an output token of target probability zero, none of the drafts: proof",
        "the engine sampled without the top-k, top-p or min-p of the record; a few at the edge of top-p, or "
        "ties at temperature 0, may be logits cut in another precision",
    ),
    "impossible_accepted": (
        "an accepted draft of target probability zero: proof",
        "a coin compared with ≤ in place of <, or a verifier that did not see the processed target",
    ),
    "after_rejection": (
        "a position that was decided after a rejection in the same step",
        "rows out of order, or positions that were not reached: those have no output token",
    ),
    "depth_gap": (
        "a depth that does not follow the one before it in its step",
        "rows left out or out of order; no test is valid on rows chosen by their outcome",
    ),
}
"""What may be wrong with a row: in words, and what it usually means."""


@dataclass(frozen=True)
class BoundaryCase:
    """A kind of row that no sound engine writes.

    Attributes
    ----------
    kind : str
        A key of :data:`KINDS`.
    count : int
        In how many rows it was seen.
    first_rows : tuple of int
        The first of them, from 1.
    """

    kind: str
    count: int
    first_rows: tuple[int, ...]

    @property
    def what(self) -> str:
        """The kind, in words."""
        return KINDS[self.kind][0]

    @property
    def usually(self) -> str:
        """What it usually means."""
        return KINDS[self.kind][1]

    def __str__(self) -> str:
        rows = ", ".join(map(str, self.first_rows))
        more = ", …" if self.count > len(self.first_rows) else ""
        number = f"{self.count} row{'s' if self.count > 1 else ''} ({rows}{more})"
        return f"{number}: {self.what}; usually {self.usually}"


class BoundaryCases:
    """Counts of the kinds, as rows go by."""

    def __init__(self) -> None:
        self._rows: dict[str, list[int]] = {}
        self._counts: dict[str, int] = {}

    def add(self, kind: str, row: int) -> None:
        """Count one row."""
        self._counts[kind] = self._counts.get(kind, 0) + 1
        first = self._rows.setdefault(kind, [])
        if len(first) < _ROWS_SHOWN:
            first.append(row)

    def found(self) -> tuple[BoundaryCase, ...]:
        """Those that were seen, in the order of :data:`KINDS`."""
        return tuple(
            BoundaryCase(kind, self._counts[kind], tuple(self._rows[kind]))
            for kind in KINDS
            if kind in self._counts
        )


def law_of(recorded: RecordedLaw, vocab_size: int) -> FloatArray | str:
    """The distribution (V,) that was recorded, or what is wrong with it: a kind without its side.

    Parameters
    ----------
    recorded : RecordedLaw
    vocab_size : int
        V, at least as large as the recorded numbers are many.
    """
    numbers = recorded.numbers.astype(np.float64)
    if np.isnan(numbers).any():
        return "nan"
    if (numbers == np.inf).any():
        return "infinite"
    if recorded.is_logits:
        if numbers.max() == -np.inf:
            return "empty"
        numbers = recorded.processing(numbers)
    elif (numbers < 0).any():
        return "negative"
    else:
        total = numbers.sum()
        if abs(total - 1.0) > recorded.tolerance:
            return "sum"
        numbers = numbers / total
    if recorded.ids is None:
        return numbers
    if recorded.ids[-1] >= vocab_size:
        return "id"
    spread = np.zeros(vocab_size)
    spread[recorded.ids] = numbers
    return spread
