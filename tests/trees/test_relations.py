"""Numbers of tokens per step: against closed forms, one another, and the sequence-level optimum."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from itertools import product

import numpy as np
import pytest
import reference as naive
from small_models import KINDS, along, model_pair

import otmd
from otmd.trees import (
    BlockVerification,
    IIDPaths,
    TableModel,
    TokenLevel,
    TokenTree,
    Traversal,
    TreeLaw,
    TreeVerifier,
    optimal_block_efficiency,
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
        law, trees = TokenTree(draft, (2, 2)), list(naive.trees_without_replacement(draft, (2, 2)))
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
    """A path's first i tokens are kept with Π min(1, p/q) token by token, and with p_i as a block."""
    target, draft = model_pair(kind, 0)
    law = IIDPaths(draft, 1, 3)
    coupling = tokens_per_step(TokenLevel(otmd.Preference()), target, law).value
    token_wise = 1.0
    for path in (path for length in (1, 2, 3) for path in product(range(3), repeat=length)):
        token_wise += np.prod(np.minimum(along(target, path), along(draft, path)))
    assert coupling == pytest.approx(token_wise, abs=ROUNDING)
    block = tokens_per_step(BlockVerification(), target, law).value
    assert tokens_per_step(Traversal(), target, law).value == pytest.approx(block, abs=ROUNDING)
    best = optimal_block_efficiency(target, law)
    assert best.value == pytest.approx(block, abs=ROUNDING)
    assert best.certificate.worst <= 1e-9
    assert block >= coupling - 1e-12
