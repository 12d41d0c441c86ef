"""Claims about a recorded run: orders and classes of tokens, and events that no sound engine records.

A claim orders the tokens of a position by a key, and the order must be known before the token is drawn: it
may depend on p, q and the text so far, never on the drafts or on what came of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otmd.audit import statistics
from otmd.probabilities import FloatArray

OUTPUTS, DRAFTS = "outputs", "drafts"
# 2^64 divided by the golden ratio: multiples of it, modulo 2^64, are spread evenly and without an order.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


Key = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]
"""From p, q (zeros where it is not recorded) and the occurrences of each token earlier in the request."""


class Hypothesis(NamedTuple):
    """A claim on the ``side`` of outputs or drafts, by the tokens in ascending order of ``key``.

    ``key`` is None for links between drafts, which are not tested in an order of tokens. ``refuted`` says in
    words that it is false.
    """

    name: str
    side: str
    order: str
    key: Key | None
    refuted: str


@lru_cache(maxsize=4)
def _scattered(vocab_size: int) -> FloatArray:
    """A fixed number for each token, without relation to its id."""
    return (np.arange(vocab_size, dtype=np.uint64) * _SPREAD).astype(np.float64)


def _of_outputs(order: str, key: Key) -> Hypothesis:
    name = f"output tokens follow the target (in order of {order})"
    refuted = "the output tokens do not follow the target distribution"
    return Hypothesis(name, OUTPUTS, order, key, refuted)


_FOLLOW = "drafts follow their distribution"
_BY_ID = f"{_FOLLOW} (in order of token id)"
_NOT_DRAWN = "the drafts were not drawn from the recorded draft distribution"
_LINKED = "the drafts of a position depend on one another"
_USED_TWICE = "drafts depend on those of the position before: are random numbers used twice?"
SLOTS = Hypothesis("no link between the drafts of a position", DRAFTS, "", None, _LINKED)
ROWS = Hypothesis("no link to the drafts of the position before", DRAFTS, "", None, _USED_TWICE)
# With a key of zeros, ties fall to the lower id. For a draft, p is its own distribution.
CLAIMS = (
    _of_outputs("p/q", lambda p, q, seen: statistics.ratios(p, q)),
    _of_outputs("p", lambda p, q, seen: -p),
    _of_outputs("q", lambda p, q, seen: -q),
    _of_outputs("token id", lambda p, q, seen: np.zeros(p.size)),
    _of_outputs("a hash", lambda p, q, seen: _scattered(p.size)),
    _of_outputs("earlier occurrences", lambda p, q, seen: -seen),
    Hypothesis(_FOLLOW, DRAFTS, "q", lambda p, q, seen: -p, _NOT_DRAWN),
    Hypothesis(_BY_ID, DRAFTS, "token id", lambda p, q, seen: np.zeros(p.size), _NOT_DRAWN),
    SLOTS,
    ROWS,
)
ORDERED = {side: [x for x in CLAIMS if x.side == side and x.key] for side in (OUTPUTS, DRAFTS)}
BY_Q = ("p/q", "q")
# The statements that share the false-alarm rate equally: three about each claim, the acceptance, repeated
# contexts, and the least likely output and draft.
NUM_STATEMENTS = 3 * len(CLAIMS) + 4

# The classes of output tokens, by the order of the claim whose bets also look at them.
CLASSES = {
    "p/q": (
        "drafted much too often (p/q < 1/2)",
        "drafted too often (1/2 ≤ p/q < 1)",
        "drafted too rarely (1 ≤ p/q < 2)",
        "drafted half as often (2 ≤ p/q < 4)",
        "drafted much too rarely (p/q ≥ 4)",
        "never drafted (q = 0)",
        "at positions without drafts",
    ),
    "p": (
        "p below 1e-9",
        "p from 1e-9 to 1e-6",
        "p from 1e-6 to 0.001",
        "p from 0.001 to 0.01",
        "p from 0.01 to 0.1",
        "p of 0.1 or more, not the most likely",
        "the most likely token",
    ),
    "earlier occurrences": ("new in the request", "came out earlier in the request"),
}
# The columns of a class and of the masses of all classes, by order.
CLASS_COLUMNS = {
    order: (f"class by {order}", [f"mass of class {k} by {order}" for k in range(len(names))])
    for order, names in CLASSES.items()
}
# The bounds of these classes; where q = 0 the ratio is infinite.
_RATIOS = (0.5, 1.0, 2.0, 4.0, np.inf)
_MASSES = (1e-9, 1e-6, 0.001, 0.01, 0.1)


def classify(
    p: FloatArray, q: FloatArray, seen: FloatArray, has_drafts: bool, token: int
) -> tuple[list[int], list[FloatArray]]:
    """The class of an output token in each of :data:`CLASSES`, and the masses (K,) of the classes."""
    by_mass = _cells(p, _MASSES)
    # The most likely token is a class of its own.
    by_mass[p.argmax()] = len(_MASSES) + 1
    by_ratio = np.full(p.size, len(_RATIOS) + 1, np.int8)
    if has_drafts:
        by_ratio = _cells(statistics.ratios(p, q), _RATIOS)
    # One number for all three, so that their masses are added in one pass.
    sizes = tuple(map(len, CLASSES.values()))
    joint = (by_ratio * sizes[1] + by_mass) * sizes[2] + (seen > 0)
    masses = np.bincount(joint, p, minlength=int(np.prod(sizes))).reshape(sizes)
    labels = np.unravel_index(int(joint[token]), sizes)
    marginals = [masses.sum(axis=axes) for axes in ((1, 2), (0, 2), (0, 1))]
    return [int(label) for label in labels], [x / x.sum() for x in marginals]


def _cells(values: FloatArray, bounds: tuple[float, ...]) -> NDArray:
    """The number of bounds that are not above each value; few comparisons are faster than np.digitize."""
    labels = np.zeros(values.size, np.int8)
    for bound in bounds:
        labels += values >= bound
    return labels


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
# Events by kind: in words, with the usual cause.
FAULTS = {
    f"{side}_{kind}": (words.format(side), usually)
    for side in ("target", "draft")
    for kind, (words, usually) in _OF_A_SIDE.items()
} | {
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
        "sampled without the top-k, top-p or min-p of the record; where the logits are close, cut in "
        "another precision"),
    "impossible_accepted": ("an accepted draft of target probability zero",
        "a coin compared with ≤ in place of <, or a verifier that did not see the processed target; where "
        "the logits are close, cut in another precision"),
    "output_improbable": ("an output token that is too improbable for this number of rows",
        "a buffer that was never written or is of another position, or sampled without the top-k, top-p "
        "or min-p of the record"),
    "draft_improbable": ("a draft that is too improbable for this number of rows",
        "q of another position, or drafts drawn before q was cut"),
    "after_rejection": ("a position decided after a rejection in the same step",
        "rows out of order, or positions that were not reached: those have no output token. A rule that "
        'decides on a block or tree as a whole is declared: rule="block" or rule="tree"'),
    "after_end": ("an output token after the token that ends a text",
        "a server that was told to ignore the end, or another end token than declared"),
}  # fmt: skip
# Rows of these kinds are mistakes of the record. They prove no fault, but rule out a PASS.
MISTAKES = {
    "output_missing": ("a position that was reached, and has no output token",
        "rows that were lost, or a step that ended the text early: record it as ended, or declare the end "
        "tokens"),
    "depth_gap": ("a depth that does not follow the one before it in its step",
        "rows left out or out of order, or one number of a step for all rows; no test is valid on rows "
        "chosen by their outcome"),
    "draft_missing": ("drafts without the distribution they were drawn from",
        "a deterministic drafter, which is audited under the law 'fixed'"),
    "draft_undeclared": ("drafts in plain decoding",
        "another law than declared: 'none' is for runs without drafts"),
}  # fmt: skip
EVENTS = FAULTS | MISTAKES
