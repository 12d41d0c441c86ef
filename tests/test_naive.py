"""The twins are held to the exact table first; nothing else may lean on them before that."""

from __future__ import annotations

import math
from fractions import Fraction

import naive
import numpy as np
import pytest
from naive_fractions import (
    CONDITIONAL_POISSON,
    K_SEQ_RATE,
    K_SEQ_RHO,
    ONE_AFTER_ANOTHER,
    ROWS,
    SKIPPED_DRAFT,
    SKIPPED_OUTPUT,
    SKIPPED_TARGET,
    SUBSET,
    SUBSET_Q,
    Row,
    fractions,
)
from strategies import LAWS, instances


def exact_value(row: Row, name: str) -> tuple[Fraction, list[Fraction] | None]:
    """The value by enumeration, and the output law where the name is a verifier's."""
    p, q, n = row.p, row.q, row.num_drafts
    iid, V = naive.with_replacement(q, n), len(row.p)
    if name == "iid":
        return naive.optimal_by_subsets(p, iid)[0], None
    if name == "wor":
        return naive.optimal_by_subsets(p, naive.without_replacement(q, n))[0], None
    law, rule = {
        "rrs": lambda: (iid, naive.rrs(p, q)),
        "rrsw": lambda: (naive.without_replacement(q, n), naive.rrsw(p, q)),
        "greedy": lambda: (naive.greedy(q, n), naive.greedy_coupling(p, q, n)),
        "hub": lambda: (naive.hub(q), naive.spec_hub(p, q)),
        "target_only": lambda: (iid, naive.target_only(p)),
    }[name]()
    return naive.judged(law, rule, V)


@pytest.mark.parametrize(("row", "name"), [(row, name) for row in ROWS for name in row.values])
def test_exact_value_of_the_table(row: Row, name: str) -> None:
    rate, output = exact_value(row, name)
    assert rate == row.values[name]
    assert isinstance(rate, (Fraction, int))
    if name == "rrs":
        assert naive.rrs_by_curve(row.p, row.q, row.num_drafts) == rate
    assert output is None or output == row.p


@pytest.mark.parametrize("row", [row for row in ROWS if row.cut is not None], ids=str)
def test_exact_cut_of_the_table(row: Row) -> None:
    law = naive.with_replacement(row.q, row.num_drafts)
    assert naive.optimal_by_subsets(row.p, law)[1] == row.cut


def test_k_sequential_of_the_table() -> None:
    p, q = [1 / 3, 0, 2 / 3], [1 / 3] * 3
    assert naive.k_seq_rho(p, q, 2) == pytest.approx(K_SEQ_RHO, abs=1e-6)
    rate, output = naive.judged(naive.with_replacement(q, 2), naive.k_seq(p, q, 2), 3)
    assert rate == pytest.approx(K_SEQ_RATE, abs=1e-6)
    assert output == pytest.approx(p, abs=1e-15)


@pytest.mark.parametrize("rho", [Fraction(3, 2), Fraction(7, 4), Fraction(2)])
def test_k_sequential_is_exactly_lossless_above_the_root(rho: Fraction) -> None:
    p, q = fractions("1/3,0,2/3"), fractions("1/3,1/3,1/3")
    rate, output = naive.judged(naive.with_replacement(q, 2), naive.k_seq(p, q, 2, rho), 3)
    beta = naive.k_seq_beta(p, q, rho)
    assert output == p
    assert rate >= 1 - (1 - beta) ** 2


def test_k_sequential_below_the_root_is_caught() -> None:
    p, q = fractions("1/3,0,2/3"), fractions("1/3,1/3,1/3")
    _, output = naive.judged(naive.with_replacement(q, 2), naive.k_seq(p, q, 2, Fraction(1)), 3)
    assert output != p


def test_subset_law_is_not_one_after_another() -> None:
    q = fractions(SUBSET_Q)
    assert naive.containment(naive.conditional_poisson(q, 2), SUBSET) == CONDITIONAL_POISSON
    assert naive.containment(naive.without_replacement(q, 2), SUBSET) == ONE_AFTER_ANOTHER


def test_skipped_duplicates_are_caught() -> None:
    p, q = fractions(SKIPPED_TARGET), fractions(SKIPPED_DRAFT)
    law = naive.with_replacement(q, 2)
    _, output = naive.judged(law, naive.skipping_duplicates(p, q), 3)
    assert output == SKIPPED_OUTPUT
    assert sum(abs(a - b) for a, b in zip(output, p, strict=True)) / 2 == Fraction(6, 100)
    assert naive.judged(law, naive.rrs(p, q), 3)[1] == p


def test_kept_residual_is_caught() -> None:
    p, q = fractions(SKIPPED_TARGET), fractions(SKIPPED_DRAFT)
    assert naive.judged(naive.with_replacement(q, 2), naive.residual_kept(p, q), 3)[1] != p


def laws_of(p: list, q: list, table: list, n: int, found: int) -> dict[str, tuple[naive.Law, dict]]:
    """Every law that exists for (q, n), with the verifiers that serve it."""
    target_only = naive.target_only(p)
    both = {"rrs": naive.rrs(p, q), "target only": target_only}
    laws: dict[str, tuple[naive.Law, dict]] = {
        "with": (naive.with_replacement(q, n), both),
        "independent": (naive.independent(table), {"rrs": naive.rrs_independent(p, table)}),
    }
    if n == 1:
        laws["with"][1]["maximal coupling"] = naive.maximal_coupling(p, q)
    if found >= n:
        laws["without"] = naive.without_replacement(q, n), {"rrsw": naive.rrsw(p, q)}
        laws["poisson"] = naive.conditional_poisson(q, n), {"target only": target_only}
        laws["greedy"] = naive.greedy(q, n), {"greedy": naive.greedy_coupling(p, q, n)}
    if found >= 2:
        laws["hub"] = naive.hub(q), {"hub": naive.spec_hub(p, q)}
    return laws


SMALL = [one for one in instances(400, seed=11) if one.vocab_size <= 4 and one.num_drafts <= 3]


@pytest.mark.parametrize("instance", SMALL[:60], ids=str)
def test_every_verifier_is_exactly_lossless_and_below_the_optimum(instance) -> None:
    p, q = naive.exact(instance.p), naive.exact(instance.q)
    table = [naive.exact(row.tolist()) for row in instance.table]
    laws = laws_of(p, q, table, instance.num_drafts, instance.draft_support)
    for law, rules in laws.values():
        assert sum(law.values()) == 1
        best, cut = naive.optimal_by_subsets(p, law)
        assert best == 1 + sum(p[y] for y in cut) - naive.containment(law, cut)
        for rule in rules.values():
            rate, output = naive.judged(law, rule, len(p))
            assert output == p
            assert rate <= best


@pytest.mark.parametrize("instance", SMALL[:60], ids=str)
def test_closed_forms_are_exact(instance) -> None:
    """Rates that the theory gives in closed form, in rational arithmetic."""
    p, q, n = naive.exact(instance.p), naive.exact(instance.q), instance.num_drafts
    V, found = len(p), instance.draft_support
    iid = naive.with_replacement(q, n)
    assert naive.rrs_by_curve(p, q, n) == naive.judged(iid, naive.rrs(p, q), V)[0]
    assert naive.optimal_by_prefixes(p, iid, q) == naive.optimal_by_subsets(p, iid)[0]
    drafted = naive.inclusion(iid, V)
    assert drafted == [1 - (1 - mass) ** n for mass in q]
    hit = sum(a * b for a, b in zip(p, drafted, strict=True))
    assert naive.judged(iid, naive.target_only(p), V)[0] == hit
    if found >= n:
        head = naive.likeliest(q, n - 1)
        rest = naive.without(q, head)
        value = sum(p[y] if y in head else min(p[y], rest[y]) for y in range(V))
        law = naive.greedy(q, n)
        assert naive.optimal_by_subsets(p, law)[0] == value
        assert naive.judged(law, naive.greedy_coupling(p, q, n), V)[0] == value
        for family in (naive.without_replacement, naive.conditional_poisson):
            law = family(q, n)
            assert naive.optimal_by_prefixes(p, law, q) == naive.optimal_by_subsets(p, law)[0]
    if found >= 2:
        best = naive.optimal_by_subsets(p, naive.hub(q))[0]
        assert naive.judged(naive.hub(q), naive.spec_hub(p, q), V)[0] == best
        assert naive.optimal_by_subsets(p, naive.greedy(q, 2))[0] == best


@pytest.mark.parametrize("instance", SMALL[:100], ids=str)
def test_subsets_masks_and_both_programs_agree(instance) -> None:
    p, q, n = instance.p, instance.q, instance.num_drafts
    table = [row.tolist() for row in instance.table]
    for law, _ in laws_of(p, q, table, n, instance.draft_support).values():
        best, cut = naive.optimal_by_subsets(p, law)
        assert naive.optimal_by_masks(p, law) == pytest.approx(best, abs=1e-14)
        assert naive.optimal_by_lp(p, law) == pytest.approx(best, abs=1e-11)
        assert naive.optimal_by_full_lp(p, law) == pytest.approx(best, abs=1e-11)
        mask = sum(1 << token for token in cut)
        assert naive.containment_of_all(law, len(p))[mask] == pytest.approx(
            naive.containment(law, cut), abs=1e-14
        )


@pytest.mark.parametrize("instance", SMALL[:100], ids=str)
def test_growing_sets_and_ordered_tuples_agree(instance) -> None:
    if instance.draft_support < instance.num_drafts:
        return
    sets = dict.fromkeys(range(2**instance.vocab_size), 0.0)
    for tokens, mass in naive.without_replacement(instance.q, instance.num_drafts).items():
        sets[sum(1 << token for token in tokens)] += mass
    grown = naive.drawn_set(instance.q, instance.num_drafts)
    assert grown == pytest.approx(list(sets.values()), rel=1e-12, abs=0)


def test_the_linear_program_can_fail() -> None:
    """A law that does not sum to one has no coupling, and the twin says so."""
    with pytest.raises(RuntimeError, match="status"):
        naive.optimal_by_full_lp([0.5, 0.5], {(0,): 0.25})


def test_instances_are_seeded_hostile_and_complete() -> None:
    first, second = instances(500, seed=3), instances(500, seed=3)
    for one, two in zip(first, second, strict=True):
        assert str(one) == str(two)
        np.testing.assert_array_equal(one.table, two.table)
        np.testing.assert_array_equal(one.joint[1], two.joint[1])
    assert str(instances(40, seed=3)[39]) == str(first[39])
    assert {found.law for found in first} == set(LAWS)
    assert max(found.vocab_size for found in first) == 7
    assert min(found.vocab_size for found in first) == 1
    assert {found.num_drafts for found in first} == {1, 2, 3, 4}
    assert any(found.num_drafts > found.draft_support for found in first)
    assert {found.target_probs.dtype.name for found in first} == {"float16", "float32", "float64"}


def test_logits_by_hand() -> None:
    logits = [math.log(4.0), math.log(3.0), math.log(2.0), math.log(1.0)]
    assert naive.probs_from_logits(logits) == pytest.approx([0.4, 0.3, 0.2, 0.1])
    assert naive.probs_from_logits(logits, temperature=0.0) == [1, 0, 0, 0]
    assert naive.probs_from_logits([1.0, 1.0], temperature=0.0) == [1, 0]
    squares = [16 / 30, 9 / 30, 4 / 30, 1 / 30]
    assert naive.probs_from_logits(logits, temperature=0.5) == pytest.approx(squares)
    assert naive.probs_from_logits(logits, top_k=2) == pytest.approx([4 / 7, 3 / 7, 0, 0])
    assert naive.probs_from_logits([1.0, 0.0, 0.0], top_k=2)[1:] == pytest.approx([0.2119416] * 2)
    assert naive.probs_from_logits(logits, top_p=0.6) == pytest.approx([4 / 7, 3 / 7, 0, 0])
    assert naive.probs_from_logits(logits, top_p=0.8) == pytest.approx([4 / 9, 3 / 9, 2 / 9, 0])
    assert naive.probs_from_logits(logits, min_p=0.6) == pytest.approx([4 / 7, 3 / 7, 0, 0])
    # top-k first changes what top-p sees: 4/7 and 3/7 are both needed for 0.6, only one for 0.5.
    assert naive.probs_from_logits(logits, top_k=2, top_p=0.5) == pytest.approx([1, 0, 0, 0])
