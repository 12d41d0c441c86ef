"""The search for weights ends where the targets are met, also where Newton's steps make no progress."""

from __future__ import annotations

import numpy as np

from otmd.verifiers.optimal.independent_plan import ClassDrafts, class_weights

# Classes outside H* at a position of a real pair, at temperature 0.7: two of them have nearly all mass, and
# weights lie a factor e^{30} apart. Newton's steps alone ended with 5e-4 of the mass misplaced.
TARGETS = np.concatenate(
    [
        [4.387e-11, 1.016e-08, 1.967e-07, 9.748e-08, 7.373e-09, 1.098e-07, 2.163e-07],
        [2.092e-06, 1.105e-06, 5.602e-06, 1.733e-05, 9.698e-05, 5.161e-05, 1.092e-05],
        [2.120e-05, 9.766e-04, 9.235e-03, 4.104e-04, 4.621e-01, 5.270e-01, 3.482e-09],
    ]
)
MASSES = np.concatenate(
    [
        [4.492e-08, 1.032e-05, 1.983e-04, 9.679e-05, 7.106e-06, 9.996e-05, 1.772e-04],
        [1.428e-03, 5.838e-04, 1.995e-03, 3.735e-03, 1.168e-02, 3.303e-03, 3.607e-04],
        [3.619e-04, 8.621e-03, 4.222e-02, 9.729e-04, 5.688e-01, 3.373e-01, 1.161e-09],
    ]
)
DRAFTS, SHORT, TOLERANCE = 3, 1e-7, 2.5e-11


def test_weights_that_lie_far_apart_are_found() -> None:
    never = 1.0 - MASSES.sum()
    served = 1.0 - never**DRAFTS
    # Some class at the cap falls short of its target by this part of the total.
    targets = TARGETS * served * (1.0 + SHORT) / TARGETS.sum()
    curve = np.zeros(MASSES.size, np.int64)
    drafts = ClassDrafts(MASSES, curve, np.array([never]), np.array([DRAFTS]))
    log_weights, rates = class_weights(drafts, False, targets, True, TOLERANCE)
    assert log_weights.max() == 0.0
    assert np.maximum(rates - targets, 0.0).sum() <= TOLERANCE
    assert np.ptp(log_weights) > 20.0
