"""Wrong arguments of laws: the error and what it names."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import otmd

Q = np.array([0.5, 0.3, 0.2])
TWO = np.stack([Q, Q])


def verify(law: otmd.DraftLaw, tokens: list[int]) -> Callable[[], object]:
    return lambda: otmd.TargetOnly().verify(Q, law, tokens, rng=0)


NEVER_DRAWN = "never draws"
REFUSALS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: otmd.WithReplacement(Q, 2).next_draft_probs((4,)), ValueError, "prefix: got 4"),
    (lambda: otmd.WithReplacement(Q, 2).next_draft_probs((-1,)), ValueError, "prefix: got -1"),
    (lambda: otmd.WithReplacement(Q, 2).next_draft_probs((0, 1)), ValueError, "fewer than 2"),
    (lambda: otmd.Greedy(Q, 2).next_draft_probs((1,)), ValueError, "with which no draw of"),
    (lambda: otmd.WithReplacement(TWO, 2).next_draft_probs(()), ValueError, r"leading axes \(2,\)"),
    (lambda: otmd.WithReplacement(Q, 2)[(0,)], IndexError, "too many indices"),
    (lambda: otmd.Independent(TWO)[(0,)], IndexError, "too many indices"),
    (verify(otmd.WithoutReplacement(Q, 2), [0, 0]), ValueError, NEVER_DRAWN),
    (verify(otmd.Greedy(Q, 2), [1, 0]), ValueError, NEVER_DRAWN),
    (verify(otmd.Hub(Q), [1, 2]), ValueError, NEVER_DRAWN),
    (verify(otmd.Independent([[1, 0, 0], [0, 0.5, 0.5]]), [1, 0]), ValueError, NEVER_DRAWN),
    (verify(otmd.Joint([[0, 1], [1, 2]], [0.5, 0.5], 3), [1, 0]), ValueError, NEVER_DRAWN),
    (lambda: otmd.Stratified(Q, 3, sharpness=0.0), ValueError, "^sharpness: "),
    (lambda: otmd.Stratified(Q, 3, sharpness=np.inf), ValueError, "^sharpness: "),
    (lambda: otmd.Stratified(Q, 3, sharpness="1"), TypeError, "^sharpness: "),  # type: ignore[arg-type]
    (lambda: otmd.Stratified(Q, 3, shares=[1, 1]), ValueError, "^shares: "),
    (lambda: otmd.Stratified(Q, 3, shares=[1, 1, 0]), ValueError, "^shares: "),
    (lambda: otmd.Stratified(Q, 3, shares="equal"), TypeError, "^shares: "),  # type: ignore[arg-type]
    (lambda: otmd.Stratified(Q, 2, shares=[1, 2]).with_num_drafts(3), ValueError, "shares"),
    (lambda: otmd.Stratified(Q, 2).with_num_drafts(4), ValueError, "num_drafts"),
    (lambda: otmd.RatioCurve(Q, Q).hockey_stick(-1.0), ValueError, "^C: "),
    (lambda: otmd.RatioCurve(Q, Q).hockey_stick([0.5, np.nan]), ValueError, "^C: "),
    (lambda: otmd.RatioCurve(np.stack([Q] * 4), TWO), ValueError, "^target_probs: "),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSALS)
def test_refusals(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
