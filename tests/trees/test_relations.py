"""Tree verifiers: against twins, closed forms, one another and the optimum, and where masses are hardly any.

tests/test_conformance.py runs the checks over all tree verifiers, test_cases_on_record.py over faulty ones.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from itertools import product

import numpy as np
import pytest
import reference as naive
from small_models import KINDS, along, model_pair

import otmd
from otmd.testing import check_tree_verifier
from otmd.trees import (
    BlockVerification,
    GreedyMultiPath,
    IIDPaths,
    InclusionBound,
    LayerVerification,
    MostLikelyTree,
    SubtreeVerification,
    TableModel,
    TokenLevel,
    TokenTree,
    Traversal,
    TreeLaw,
    TreeVerifier,
    optimal_block_efficiency,
    output_distribution,
    target_distribution,
    tokens_per_step,
)
from otmd.trees.base import Context
from otmd.trees.random_choices import every_outcome

ROUNDING = 1e-9


def emitted_by(rule: TreeVerifier, target: TableModel, law: TreeLaw) -> dict:
    """The law of what a step of the package emits."""
    found: dict = defaultdict(float)
    for tokens, prob in every_outcome(partial(rule.run, Context(target, law))):
        found[tokens] += prob
    return {tokens: prob for tokens, prob in found.items() if prob > 1e-15}


@pytest.mark.parametrize("kind", KINDS)
def test_every_rule_emits_what_its_twin_emits(kind: str) -> None:
    target, draft = model_pair(kind, 0)
    one, two = (list(naive.trees_of_paths(draft, k, 2)) for k in (1, 2))
    cases = [
        (rule, IIDPaths(draft, 1, 2), one, naive.traversal(target, draft))
        for rule in (BlockVerification(), Traversal())
    ]
    for rule, twin in (
        (otmd.KSequential(), naive.k_seq),
        (otmd.RecursiveRejection(), lambda p, q, _: naive.rrs(p, q)),
        (otmd.TargetOnly(), lambda p, *_: naive.target_only(p)),
    ):
        plain = naive.token_level(target, draft, twin)
        cases.append((TokenLevel(rule), IIDPaths(draft, 2, 2), two, plain))
    if kind != "certain" and min(np.count_nonzero(t, axis=-1).min() for t in draft.tables) > 1:
        law = TokenTree(draft, (2, 2))
        trees = list(naive.trees_by_layer(draft, (2, 2), naive.without_replacement))
        cases.append((Traversal(), law, trees, naive.traversal(target, draft)))
        plain = naive.token_level(target, draft, lambda p, q, _: naive.rrsw(p, q))
        cases.append((TokenLevel(otmd.RecursiveRejection()), law, trees, plain))
    for rule, law, trees, twin in cases:
        wanted = naive.emitted(trees, twin)
        found = emitted_by(rule, target, law)
        assert max(abs(found.get(u, 0) - wanted.get(u, 0)) for u in {*found, *wanted}) < 1e-12
        assert sum(len(u) * mass for u, mass in wanted.items()) == pytest.approx(
            tokens_per_step(rule, target, law).value, abs=1e-12
        )


@pytest.mark.parametrize("kind", KINDS)
def test_the_optimum_is_the_plain_programs(kind: str) -> None:
    target, draft = model_pair(kind, 0, vocab_size=2)
    for num_paths in (1, 2):
        law, trees = IIDPaths(draft, num_paths, 2), naive.trees_of_paths(draft, num_paths, 2)
        best = optimal_block_efficiency(target, law).value
        assert best == pytest.approx(naive.best_step(target, trees, 2), abs=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_one_path_verified_as_a_block_is_optimal(kind: str) -> None:
    """A path's first i tokens are kept with Π min(1, p/q) position by position, and with p_i as a block."""
    target, draft = model_pair(kind, 0)
    law = IIDPaths(draft, 1, 3)
    coupling = tokens_per_step(TokenLevel(otmd.Preference()), target, law).value
    token_wise = 1.0
    for path in (path for length in (1, 2, 3) for path in product(range(3), repeat=length)):
        token_wise += np.prod(np.minimum(along(target, path), along(draft, path)))
    assert coupling == pytest.approx(token_wise, abs=ROUNDING)
    block = tokens_per_step(BlockVerification(), target, law).value
    for rule in (Traversal(), LayerVerification(), SubtreeVerification(), InclusionBound()):
        assert tokens_per_step(rule, target, law).value == pytest.approx(block, abs=ROUNDING)
    best = optimal_block_efficiency(target, law)
    assert best.value == pytest.approx(block, abs=ROUNDING)
    assert best.certificate.worst <= 1e-9
    assert block >= coupling - 1e-12


# ---------------------------------------------------------------- hostile masses and other laws


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
        output = output_distribution(Traversal(), target, TokenTree(TableModel([q]), shape))
        expected = target_distribution(target, len(shape) + 1)
        np.testing.assert_allclose(output, expected, rtol=0, atol=1e-12)


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
    check_tree_verifier(rule, law, target)
    assert tokens_per_step(rule, target, law).value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("tiny", [1e-9, 1e-17, 1e-160, 1e-300])
def test_greedy_multi_path_picks_tokens_of_tiny_mass(tiny: float) -> None:
    target = TableModel([[0.5, 0.3, 0.2]])
    for masses in ([1.0, tiny, 0.0], [0.5, 0.5, tiny], [tiny, 1.0, tiny]):
        law = IIDPaths(TableModel([np.array(masses) / sum(masses)]), 2, 2)
        check_tree_verifier(GreedyMultiPath(), law, target)
