"""Numbers of tokens per step: against closed forms, one another, and the sequence-level optimum."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from small_models import KINDS, model_pair

import otmd
from otmd.sequences import (
    BlockVerification,
    IIDPaths,
    LikeliestTree,
    TableModel,
    TokenLevel,
    TokenTree,
    Traversal,
    block_efficiency,
    optimal_block_efficiency,
    sequence_program_size,
)

ROUNDING = 1e-9
SEEDS = range(4)


def along(model: TableModel, path: tuple[int, ...]) -> list[float]:
    """The probability of each token of a path, given those before it."""
    return [float(model(path[:i])[token]) for i, token in enumerate(path)]


@pytest.mark.parametrize("kind", KINDS)
def test_one_path_against_sums_over_paths(kind: str) -> None:
    """A path's first i tokens are kept with Π min(1, p/q) token by token, and with p_i as a block."""
    for seed in SEEDS:
        target, draft = model_pair(kind, seed)
        law = IIDPaths(draft, 1, 3)
        token_wise, block_wise = 1.0, 1.0
        for length in (1, 2, 3):
            for path in product(range(3), repeat=length):
                p, q = along(target, path), along(draft, path)
                if np.prod(q) > 0:
                    token_wise += float(np.prod(np.minimum(p, q)))
                    reached = 1.0
                    for one, other in zip(p, q, strict=True):
                        reached = min(reached * one / other, 1.0)
                    block_wise += float(np.prod(q)) * reached
        coupling = block_efficiency(TokenLevel(otmd.MaximalCoupling()), target, law)
        block = block_efficiency(BlockVerification(), target, law)
        assert coupling.value == pytest.approx(token_wise, abs=ROUNDING)
        assert block.value == pytest.approx(block_wise, abs=ROUNDING)
        traversal = block_efficiency(Traversal(), target, law)
        assert traversal.value == pytest.approx(block_wise, abs=ROUNDING)
        best = optimal_block_efficiency(target, law)
        assert best.value == pytest.approx(block_wise, abs=ROUNDING)
        assert best.certificate.worst <= 1e-9
        assert block_wise >= token_wise - 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_at_depth_one_the_optimum_is_one_and_the_acceptance_rate(kind: str) -> None:
    for seed in SEEDS:
        target, draft = model_pair(kind, seed)
        laws = {otmd.WithReplacement: IIDPaths(draft, 2, 1)}
        if np.count_nonzero(draft(())) > 1:
            laws[otmd.WithoutReplacement] = TokenTree(draft, (2,))
        for kind_of_law, law in laws.items():
            rate = float(otmd.optimal_acceptance(target(()), kind_of_law(draft(()), 2)).rate)
            best = optimal_block_efficiency(target, law).value
            optimal = block_efficiency(TokenLevel(otmd.Optimal()), target, law).value
            assert best == pytest.approx(1.0 + rate, abs=ROUNDING)
            assert optimal == pytest.approx(best, abs=ROUNDING)
        sequential = block_efficiency(TokenLevel(otmd.KSequential()), target, IIDPaths(draft, 2, 1))
        ceiling = optimal_block_efficiency(target, IIDPaths(draft, 2, 1)).value
        assert ceiling >= sequential.value - ROUNDING


@pytest.mark.parametrize("kind", ["any", "peaked"])
def test_no_rule_exceeds_the_optimum(kind: str) -> None:
    strict = 0
    for seed in SEEDS:
        target, draft = model_pair(kind, seed)
        for law, rules in [
            (IIDPaths(draft, 2, 2), ["Optimal", "KSequential", "RecursiveRejection", "TargetOnly"]),
            (TokenTree(draft, (2, 2)), ["Optimal", "RecursiveRejection", "TargetOnly"]),
            (TokenTree(draft, (2, 2), otmd.Hub), ["SpecHub", "Optimal"]),
            (LikeliestTree(draft, 4, 2, 2), ["TargetOnly", "Optimal"]),
        ]:
            best = optimal_block_efficiency(target, law).value
            own = [TokenLevel(getattr(otmd, name)()) for name in rules]
            if isinstance(law, TokenTree) and law.law is otmd.WithoutReplacement:
                own.append(Traversal())
            values = [block_efficiency(rule, target, law).value for rule in own]
            assert max(values) <= best + ROUNDING, (law, seed)
            assert values[0] <= 3.0 + ROUNDING
            strict += max(values) < best - 1e-3
    assert strict > 0, "trees leave something that no rule here attains"


def test_equal_models_accept_everything() -> None:
    target, draft = model_pair("equal", 0)
    for law in (IIDPaths(draft, 1, 3), IIDPaths(draft, 2, 2), TokenTree(draft, (2, 1))):
        best = optimal_block_efficiency(target, law).value
        assert best == pytest.approx(law.depth + 1.0, abs=ROUNDING)
        rule = TokenLevel(otmd.RecursiveRejection())
        assert block_efficiency(rule, target, law).value == pytest.approx(best, abs=ROUNDING)


def test_certain_drafts_are_accepted_as_often_as_the_target_draws_them() -> None:
    target, draft = model_pair("any", 1)
    law = LikeliestTree(draft, 6, 3, 3)
    value = block_efficiency(TokenLevel(otmd.TargetOnly()), target, law).value
    assert value == pytest.approx(optimal_block_efficiency(target, law).value, abs=ROUNDING)


def test_samples_agree_with_the_exact_number() -> None:
    """Twelve means within five standard errors: false alarm below 1e-5."""
    for seed in SEEDS:
        target, draft = model_pair("any", seed)
        for rule, law in [
            (BlockVerification(), IIDPaths(draft, 1, 3)),
            (TokenLevel(otmd.KSequential()), IIDPaths(draft, 3, 2)),
            (Traversal(), TokenTree(draft, (2, 2))),
        ]:
            exact = block_efficiency(rule, target, law)
            sampled = block_efficiency(rule, target, law, 2000, rng=np.random.default_rng(seed))
            assert exact.standard_error == 0.0
            assert sampled.num_samples == 2000
            assert abs(sampled.value - exact.value) <= 5.0 * sampled.standard_error
            assert 0.0 < sampled.standard_error < 0.1


def test_the_size_is_known_before_the_program_is_built() -> None:
    target, draft = model_pair("any", 0)
    for law in (IIDPaths(draft, 2, 2), TokenTree(draft, (2, 2)), LikeliestTree(draft, 4, 2, 2)):
        size = sequence_program_size(target, law)
        built = optimal_block_efficiency(target, law).size
        assert (size.variables, size.constraints) == (built.variables, built.constraints)
        assert size.nonzeros == built.nonzeros
    with pytest.raises(
        ValueError, match=r"law: got IIDPaths\(num_paths=2, depth=2\), whose program has"
    ):
        optimal_block_efficiency(target, IIDPaths(draft, 2, 2), max_bytes=1000.0)
