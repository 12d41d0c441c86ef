"""The laws that recorded drafts may have: each draft's law given those before it, and the ceiling."""

import numpy as np

from otmd.audit.acceptance import acceptance_ceiling
from otmd.drafts import Greedy, ProposalLaw, WithoutReplacement, WithReplacement
from otmd.probabilities import FloatArray, IntArray

FIXED = "fixed"
"""Drafts that the text before them decides: n-grams, the argmax, the likeliest tokens of a tree."""
_CLASSES: dict[str, type[ProposalLaw]] = {
    "with-replacement": WithReplacement,
    "without-replacement": WithoutReplacement,
    "greedy": Greedy,
}
DUMP_LAWS = (*_CLASSES, FIXED)
# What rounding may take from a ceiling.
_SLACK = 1e-9


def validate_law(law: object) -> str:
    """Return the name, or raise ValueError unless it is one of :data:`DUMP_LAWS`."""
    if law not in DUMP_LAWS:
        raise ValueError(f"law: got {law!r}, wanted one of {', '.join(DUMP_LAWS)}")
    return str(law)


def declared_law(law: str, draft_probs: FloatArray, num_drafts: int) -> ProposalLaw:
    """The law of so many drafts as an object; for drafts that it can draw."""
    # One draft has one law, and this one is quick.
    return (WithReplacement if num_drafts == 1 else _CLASSES[law])(draft_probs, num_drafts)


def wrong_with_drafts(law: str, draft_probs: FloatArray, tokens: IntArray) -> str | None:
    """What proves that drafts (n,) are not from q (V,), as a kind of boundary case; None if nothing."""
    if (draft_probs[tokens] == 0).any():
        return "draft_impossible"
    if law == "with-replacement":
        return None
    forced = tokens[:-1] if law == "greedy" else tokens[:0]
    # By their masses, as engines break ties in their own ways.
    likeliest = np.sort(draft_probs)[::-1][: forced.size]
    distinct = np.unique(tokens).size == tokens.size
    return None if distinct and (draft_probs[forced] == likeliest).all() else "draft_never"


def next_draft_laws(
    law: str, draft_probs: FloatArray, tokens: IntArray
) -> list[tuple[FloatArray, int]]:
    """Each drawn draft with the distribution (V,) that it has, given the drafts before it.

    Parameters
    ----------
    law : str
        One of :data:`DUMP_LAWS` other than :data:`FIXED`.
    draft_probs : ndarray of float64, shape (V,)
        q.
    tokens : ndarray of int64, shape (n,)
        Drafts with which nothing is wrong.
    """
    if law == "with-replacement":
        return [(draft_probs, int(token)) for token in tokens]
    first = tokens.size - 1 if law == "greedy" else 0
    return [(_without(draft_probs, tokens[:i]), int(tokens[i])) for i in range(first, tokens.size)]


def ceiling(
    law: str, target: FloatArray, draft_probs: FloatArray | None, tokens: IntArray
) -> float:
    """What no lossless rule's acceptance exceeds at a position, rounded up.

    For greedy drafts Σ over the likeliest of p and Σ over the rest of min(p, q/(1 − q(likeliest))), for
    fixed ones Σ p over the drafts: given the drafts that were forced, as ties leave the law itself open.
    """
    if draft_probs is None or law == FIXED:
        return min(1.0, float(target[np.unique(tokens)].sum()) + _SLACK)
    if law == "greedy":
        rest = _without(draft_probs, tokens[:-1])
        beside = np.delete(np.minimum(target, rest), tokens[:-1])
        return min(1.0, float(target[tokens[:-1]].sum() + beside.sum()) + _SLACK)
    return acceptance_ceiling(target, declared_law(law, draft_probs, tokens.size))


def _without(probs: FloatArray, tokens: IntArray) -> FloatArray:
    if tokens.size == 0:
        return probs
    left = probs.copy()
    left[tokens] = 0.0
    return left / left.sum()
