"""The claims about a recorded run: the table that the audit, its false-alarm rate and its report read.

A claim orders the tokens of a position by a key, and the order must be known before the token is drawn: it
may depend on p, q and the text so far, never on the drafts or on what came of them.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from otmd.audit.counts import ratios
from otmd.probabilities import FloatArray

OUTPUTS = "outputs"
DRAFT_TOKENS = "drafts"
# 2^64 divided by the golden ratio: multiples of it, modulo 2^64, are spread evenly and without an order.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class Before(NamedTuple):
    """The state of a position before a token is drawn, each of shape (V,).

    ``probs`` is the claimed distribution of the token, ``draft_probs`` is q (zeros where it is not recorded),
    and ``occurrences`` counts each token earlier in the request.
    """

    probs: FloatArray
    draft_probs: FloatArray
    occurrences: FloatArray


class Hypothesis(NamedTuple):
    """A claim on the ``side`` of outputs or drafts, by the tokens in ascending order of ``key``.

    ``key`` is None for links between drafts, which are not tested in an order of tokens. ``refuted`` says in
    words that it is false.
    """

    name: str
    side: str
    order: str
    key: Callable[[Before], FloatArray] | None
    refuted: str


@lru_cache(maxsize=4)
def _scattered(vocab_size: int) -> FloatArray:
    """A fixed number for each token, without relation to its id."""
    return (np.arange(vocab_size, dtype=np.uint64) * _SPREAD).astype(np.float64)


_FALSE_OUTPUTS = "the output tokens do not follow the target distribution"
_FALSE_DRAFTS = "the drafts were not drawn from the recorded draft distribution"
# Ties fall to the lower id, so a key of zeros is the order of token ids.
_KEYS: dict[str, Callable[[Before], FloatArray]] = {
    "p/q": lambda at: ratios(at.probs, at.draft_probs),
    "p": lambda at: -at.probs,
    "q": lambda at: -at.draft_probs,
    "token id": lambda at: np.zeros(at.probs.size),
    "a hash": lambda at: _scattered(at.probs.size),
    "earlier occurrences": lambda at: -at.occurrences,
}
_OF_OUTPUTS = tuple(
    Hypothesis(
        f"output tokens follow the target (in order of {order})",
        OUTPUTS,
        order,
        key,
        _FALSE_OUTPUTS,
    )
    for order, key in _KEYS.items()
)
_OF_DRAFTS = tuple(
    Hypothesis(
        f"drafts follow their distribution{words}", DRAFT_TOKENS, order, _KEYS[key], _FALSE_DRAFTS
    )
    # For a draft, Before.probs is its own distribution, so the key "p" orders by it.
    for words, order, key in (("", "q", "p"), (" (in order of token id)", "token id", "token id"))
)
SLOTS = "no link between the drafts of a position"
ROWS = "no link to the drafts of the position before"
_LINKS = (
    Hypothesis(SLOTS, DRAFT_TOKENS, "", None, "the drafts of a position depend on one another"),
    Hypothesis(ROWS, DRAFT_TOKENS, "", None,
        "drafts depend on those of the position before: are random numbers used twice?"),
)  # fmt: skip
CLAIMS = {claim.name: claim for claim in (*_OF_OUTPUTS, *_OF_DRAFTS, *_LINKS)}
OUTPUT, OUTPUT_BY_MASS, OUTPUT_BY_Q, _, _, OUTPUT_BY_OCCURRENCE = (x.name for x in _OF_OUTPUTS)
ORDERS_BY_DRAFT = (OUTPUT, OUTPUT_BY_Q)
DRAFTS = _OF_DRAFTS[0].name
# The statements that share the false-alarm rate equally: three about each claim, the acceptance, and the
# least likely output and draft.
NUM_STATEMENTS = 3 * len(CLAIMS) + 3


def claims_in_order(side: str) -> dict[str, Callable[[Before], FloatArray]]:
    """The key of each claim on this side that orders tokens."""
    return {x.name: x.key for x in CLAIMS.values() if x.side == side and x.key}
