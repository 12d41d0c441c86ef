"""The twins agree with each other in fractions, beyond the table of test_ground_truth.py."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import reference
from reference import fractions
from strategies import LAWS, Instance, instances

SMALL = [x for x in instances(120, seed=11) if x.vocab_size <= 4 and x.num_drafts <= 3][:15]


@pytest.mark.parametrize("rho", [Fraction(1), Fraction(3, 2), Fraction(2)])
def test_k_sequential_is_lossless_above_the_root_alone(rho: Fraction) -> None:
    p, q = fractions("1/3,0,2/3"), fractions("1/3,1/3,1/3")
    law = reference.with_replacement(q, 2)
    _, output = reference.judged(law, reference.k_seq(p, q, 2, rho), 3)
    assert (output == p) == (rho > 1)


def laws_of(p: list, q: list, table: list, n: int, support: int) -> list:
    """Every law that exists for (q, n), with a verifier and whether it attains the optimum."""
    laws = [
        (reference.with_replacement(q, n), reference.rrs(p, q), n == 1),
        (reference.with_replacement(q, n), reference.target_only(p), False),
        (reference.independent(table), reference.rrs_independent(p, table), n == 1),
    ]
    if support >= n:
        laws += [
            (reference.without_replacement(q, n), reference.rrsw(p, q), n == 1),
            (reference.conditional_poisson(q, n), reference.target_only(p), False),
            (reference.greedy(q, n), reference.greedy_coupling(p, q, n), True),
        ]
    if support >= 2:
        laws.append((reference.hub(q), reference.spec_hub(p, q), True))
    return laws


@pytest.mark.parametrize("instance", SMALL, ids=str)
def test_verifiers_are_exactly_lossless_and_below_the_optimum(instance: Instance) -> None:
    p, q = reference.exact(instance.p), reference.exact(instance.q)
    table = [reference.exact(row.tolist()) for row in instance.table]
    for law, decide, optimal in laws_of(p, q, table, instance.num_drafts, instance.draft_support):
        assert sum(law.values()) == 1
        best, cut = reference.optimal_by_subsets(p, law)
        assert best == 1 + sum(p[y] for y in cut) - reference.containment(law, cut)
        rate, output = reference.judged(law, decide, len(p))
        assert output == p
        assert rate == best if optimal else rate <= best


@pytest.mark.parametrize("instance", SMALL, ids=str)
def test_closed_forms_are_exact(instance: Instance) -> None:
    p, q, n = reference.exact(instance.p), reference.exact(instance.q), instance.num_drafts
    law = reference.with_replacement(q, n)
    assert reference.rrs_by_curve(p, q, n) == reference.judged(law, reference.rrs(p, q), len(p))[0]
    assert reference.inclusion(law, len(p)) == [1 - (1 - mass) ** n for mass in q]
    value, cut = reference.smallest_best_cut(p, q, n)
    assert (1 + value, cut) == reference.optimal_by_subsets(p, law)


def test_instances_are_seeded_hostile_and_complete() -> None:
    first, second = instances(500, seed=3), instances(500, seed=3)
    for left, right in zip(first, second, strict=True):
        assert str(left) == str(right)
        np.testing.assert_array_equal(left.table, right.table)
    assert {instance.law for instance in first} == set(LAWS)
    assert {instance.vocab_size for instance in first} == set(range(1, 8))
    assert {instance.num_drafts for instance in first} == {1, 2, 3, 4}
    assert any(instance.num_drafts > instance.draft_support for instance in first)
    assert {x.target_probs.dtype.name for x in first} == {"float16", "float32", "float64"}
