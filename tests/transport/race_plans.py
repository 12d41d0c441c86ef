"""Plans for drafts without replacement, and whether they are lossless by every set of drafts."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest
from strategies import Array

import otmd
from otmd.choice import ChoicePlan, pair_plan, race_side
from otmd.verifiers.optimal import _OptimalRule


def prepared(
    tol: float, target: Array, law: otmd.WithoutReplacement
) -> tuple[otmd.PreparedVerifier, ChoicePlan]:
    rule = otmd.Optimal(tol).prepare(target, law)
    assert isinstance(rule, _OptimalRule)
    assert rule._plan is not None
    return rule, rule._plan


def assert_lossless(
    rule: otmd.PreparedVerifier, plan: ChoicePlan, law: otmd.WithoutReplacement
) -> None:
    """What is accepted of each token is held to its own size, however small.

    The rule sees the set of drafts alone, so that the orders of a set are summed.
    """
    output, accepted = np.zeros(law.vocab_size), np.zeros(law.vocab_size)
    every = np.array(list(combinations(np.flatnonzero(law.draft_probs), law.num_drafts)))
    probs = np.zeros(len(every))
    for order in permutations(range(law.num_drafts)):
        probs += law.tuple_prob(every[:, list(order)])
    for tokens, prob in zip(every, probs, strict=True):
        output += prob * rule.conditional_law(tokens)
        accepted[tokens] += prob * plan.chances(tokens)
    np.testing.assert_allclose(output, rule.target, rtol=0, atol=1e-12)
    np.testing.assert_allclose(accepted, plan.accepted, rtol=1e-11, atol=1e-300)


def rehearse_from(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rehearse tails that are longer than this."""
    for module in (race_side, pair_plan):
        monkeypatch.setattr(module, "_LONG", size)
