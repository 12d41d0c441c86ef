"""The answers of a user's class are checked."""

from __future__ import annotations

import numpy as np
import pytest

import otmd
from otmd.verifiers.prepared import PreparedVerifier

P, Q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])


@pytest.mark.parametrize("faulty", ["accept_probs", "residual"])
def test_an_answer_that_is_no_probability_is_named(faulty: str) -> None:
    class Broken(PreparedVerifier):
        def accept_probs(self, draft_tokens):
            return np.full(draft_tokens.size, 1.7 if faulty == "accept_probs" else 0.5)

        def residual(self, draft_tokens):
            return 2.0 * self.target if faulty == "residual" else self.target

    class Breaking(otmd.KSequential):
        def prepare_position(self, target, law):
            return Broken(target, law)

    law = otmd.WithReplacement(Q, 2)
    with pytest.raises(ValueError, match=rf"Broken\.{faulty}: got"):
        Breaking().output_distribution(P, law)
    with pytest.raises(ValueError, match=rf"Broken\.{faulty}: got"):
        Breaking().verify(P, law, np.tile([0, 1], (50, 1)), rng=0)
