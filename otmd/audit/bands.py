"""Tokens by class: how many came out, how many are expected, and the rows of the class that deviates most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from otmd.audit.claims import CLASSES, ORDERED, OUTPUTS
from otmd.audit.judge import PARTS, Claim, classes_of, is_tested
from otmd.audit.table import Table
from otmd.probabilities import FloatArray, IntArray

_EXAMPLES = 10


class Band(NamedTuple):
    """A class of tokens: how many came out, how many are expected, the difference in standard deviations."""

    name: str
    observed: int
    expected: float
    deviations: float


class Example(NamedTuple):
    """A tested token of a row with its p and q; q is NaN if it is unknown."""

    row: int
    request: str
    depth: int
    token: int
    p: float
    q: float


def bands_and_examples(
    table: Table, judged: Sequence[Claim]
) -> tuple[tuple[Band, ...], tuple[str, tuple[Example, ...]]]:
    """The classes by p/q and by p and those of refuted claims, and the first tokens of the worst class."""
    refuted = sorted(
        (claim for claim in judged if claim.refuted and claim.order),
        key=lambda claim: min(claim.p_value, claim.betting_p_value),
    )
    shown = [(OUTPUTS, "p/q"), (OUTPUTS, "p"), *((claim.side, claim.order) for claim in refuted)]
    bands = (band for side, order in dict.fromkeys(shown) for band in _bands(table, side, order))
    return tuple(bands), _examples(table, refuted[0]) if refuted else ("", ())


def _bands(table: Table, side: str, order: str) -> tuple[Band, ...]:
    """The classes of the tokens of a side in this order, without those that cannot vary."""
    names, labels, probs = _classes_in_order(table, side, order)
    observed = np.bincount(labels, minlength=len(names))
    expected = probs.sum(axis=0)
    spread = np.sqrt((probs * (1.0 - probs)).sum(axis=0))
    difference = observed - expected
    deviations = np.divide(difference, spread, out=np.zeros(difference.size), where=spread > 1e-6)
    bands = map(Band, names, observed.tolist(), expected.tolist(), deviations.tolist())
    varies = (spread > 0) | (observed != expected)
    return tuple(band for band, shown in zip(bands, varies, strict=True) if shown)


def _examples(table: Table, claim: Claim) -> tuple[str, tuple[Example, ...]]:
    """The class that holds most tokens too many in the order of a claim, and the first of its tokens."""
    names, labels, probs = _classes_in_order(table, claim.side, claim.order)
    expected = probs.sum(axis=0)
    excess = np.bincount(labels, minlength=len(names)) - expected
    worst = int(np.argmax(excess / np.sqrt(np.maximum(expected, 1.0))))
    shown = np.flatnonzero(is_tested(table, claim.side))[labels == worst][:_EXAMPLES]
    columns = ("row", "request", "depth", "token", "mass", "draft_mass")
    entries = zip(*(table[name][shown].tolist() for name in columns), strict=True)
    return names[worst], tuple(Example(*entry) for entry in entries)


def _classes_in_order(table: Table, side: str, order: str) -> tuple[Sequence[str], IntArray, FloatArray]:
    """Names, labels (M,) and probabilities (M, K) of classes: quarters of the order if it has no others."""
    lines = is_tested(table, side)
    if side == OUTPUTS and order in CLASSES:
        labels, probs = classes_of(table, order)
        return CLASSES[order], labels[lines], probs[lines]
    claim = next(claim for claim in ORDERED[side] if claim.order == order)
    # The quarter in which the middle of the token's mass lies.
    middle = table[claim.name][lines] + 0.5 * table["mass"][lines]
    labels = np.minimum((PARTS * middle).astype(np.int64), PARTS - 1)
    names = [f"{side}, quarter {k + 1} in order of {order}" for k in range(PARTS)]
    return names, labels, np.full((labels.size, PARTS), 1 / PARTS)
