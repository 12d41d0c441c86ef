"""Tree verifiers on drafts of hardly any mass, and on drafts that the draft model did not draw: exactly.

tests/test_conformance.py runs the checks over all tree verifiers, test_cases_on_record.py over faulty ones.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import otmd
from otmd.trees import (
    BlockVerification,
    MostLikelyTree,
    TableModel,
    TokenTree,
    Traversal,
    TreeLaw,
    TreeVerifier,
    output_distribution,
    target_distribution,
    tokens_per_step,
)
from otmd.trees.base import Model

ROUNDING = 1e-12


def deviation(rule: TreeVerifier, target: Model, law: TreeLaw) -> float:
    """The largest difference of a sequence's probability from the target's."""
    wanted = target_distribution(target, law.depth + 1)
    return float(np.abs(output_distribution(rule, target, law) - wanted).max())


@pytest.mark.parametrize(
    ("p", "q"),
    [
        ([0.3, 0.3, 0.4], [1.0, 1e-310, 1e-310]),
        ([0.3, 0.3, 0.4], [1.0, 5e-324, 1e-323]),
        *(
            [otmd.probs_from_logits(np.array(x), temperature=0.02) for x in logits]
            for logits in (([0, 0.01, 0.02], [15, 0.5, 0.51]), ([0, 0, -0.01], [14.7, 0, 0.01]))
        ),
    ],
)
@pytest.mark.parametrize("width", [2, 3])
def test_traversal_is_lossless_where_hardly_any_draft_mass_is_left(p, q, width: int) -> None:
    target = TableModel([p, np.tile(p, (3, 1))])
    for shape in ((width,), (width, 2)):
        law = TokenTree(TableModel([q]), shape)
        assert deviation(Traversal(), target, law) <= ROUNDING


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda q: MostLikelyTree(q, 1, 1, 1), 1.5),
        (lambda q: TokenTree(q, (1,), partial(otmd.Stratified, sharpness=2.0)), 1.6),
        (lambda q: TokenTree(q, (1,), otmd.Stratified), 1.75),
    ],
)
@pytest.mark.parametrize("rule", [BlockVerification(), Traversal()])
def test_a_draft_is_verified_by_the_law_that_drew_it(rule, make, expected: float) -> None:
    target, law = TableModel([[0.5, 0.5]]), make(TableModel([[0.75, 0.25]]))
    assert deviation(rule, target, law) <= ROUNDING
    assert tokens_per_step(rule, target, law).value == pytest.approx(expected, abs=1e-12)
