"""Rows that no sound engine writes, by kind, with the usual cause."""

from __future__ import annotations

from dataclasses import dataclass

_OF_A_SIDE = {
    "nan": ("NaN in the {}",
        "an overflow, or a buffer that was never written"),
    "infinite": ("+inf in the {}",
        "an overflow in the forward pass or in a division"),
    "negative": ("negative {} probabilities",
        "logits or logarithms under the name of probabilities"),
    "sum": ("{} probabilities that do not sum to 1 within the rounding of their type",
        "recorded before they were normalised, or only in part, or logits under the name of "
        "probabilities"),
    "empty": ("no {} token with mass",
        "a mask that removed every token"),
    "id": ("a {} id beyond the vocabulary",
        "two tokenizers, or a padded vocabulary"),
}  # fmt: skip
# Kinds of faults of a row: in words, with the usual cause.
KINDS = {
    f"{side}_{kind}": (what.format(side), usually)
    for side in ("target", "draft")
    for kind, (what, usually) in _OF_A_SIDE.items()
} | {
    "draft_missing": ("drafts without the distribution they were drawn from",
        "a deterministic drafter, which is audited under the law 'fixed'"),
    "draft_out_of_range": ("a draft token beyond the vocabulary",
        "two tokenizers, or ids shifted by special tokens"),
    "output_out_of_range": ("an output token beyond the vocabulary",
        "a search in running sums that ran past the end, or two tokenizers"),
    "draft_impossible": ("a draft of draft probability zero",
        "q recorded after top-k or top-p and drafts drawn before, or q of another position"),
    "draft_never": ("drafts that the declared law never draws",
        "another law than declared: duplicates, or tokens that are not the most likely or in another "
        "order"),
    "output_impossible": ("an output token of target probability zero that is none of the drafts",
        "sampled without the top-k, top-p or min-p of the record; a few at the edge of top-p, or ties at "
        "temperature 0, may be logits cut in another precision"),
    "impossible_accepted": ("an accepted draft of target probability zero",
        "a coin compared with ≤ in place of <, or a verifier that did not see the processed target"),
    "output_improbable": ("an output token that is too improbable for this number of rows",
        "a buffer that was never written or is of another position, or sampled without the top-k, top-p "
        "or min-p of the record"),
    "draft_improbable": ("a draft that is too improbable for this number of rows",
        "q of another position, or drafts drawn before q was cut"),
    "output_missing": ("a position that was reached, and has no output token",
        "rows that were lost, or a last step that ended the text early: leave such a step out; what is left "
        "out by its outcome can hide a fault"),
    "after_rejection": ("a position decided after a rejection in the same step",
        "rows out of order, or positions that were not reached: those have no output token"),
    "depth_gap": ("a depth that does not follow the one before it in its step",
        "rows left out or out of order; no test is valid on rows chosen by their outcome"),
}  # fmt: skip
# Rows of this kind are no proof of a fault, but rule out a PASS.
OUTPUT_MISSING = "output_missing"


@dataclass(frozen=True)
class BoundaryCase:
    """A kind of row that no sound engine writes: one such row is a fault, or else rules out a PASS.

    Attributes
    ----------
    kind : str
        A key of ``otmd.audit.boundary_cases.KINDS``.
    count : int
        The number of such rows.
    first_rows : tuple of int
        The first of them, counted from 1.
    """

    kind: str
    count: int
    first_rows: tuple[int, ...]

    @property
    def what(self) -> str:
        """The fault of these rows, in words."""
        return KINDS[self.kind][0]

    @property
    def usually(self) -> str:
        """The usual cause, in words."""
        return KINDS[self.kind][1]

    @property
    def rows(self) -> str:
        """The number of rows, and the first of them, in words."""
        return rows_in_words(self.count, self.first_rows)

    def __str__(self) -> str:
        return f"{self.rows}: {self.what}; usually {self.usually}"


def rows_in_words(count: int, first_rows: tuple[int, ...]) -> str:
    """A number of rows, and the first of them."""
    more = ", …" if count > len(first_rows) else ""
    return f"{count} row{'s' if count > 1 else ''} ({', '.join(map(str, first_rows))}{more})"
