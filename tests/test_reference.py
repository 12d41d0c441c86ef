"""The twins are held to the exact table first; nothing else may lean on them before that."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import reference
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
    iid, V = reference.with_replacement(q, n), len(row.p)
    if name == "iid":
        return reference.optimal_by_subsets(p, iid)[0], None
    if name == "wor":
        return reference.optimal_by_subsets(p, reference.without_replacement(q, n))[0], None
    law, rule = {
        "rrs": lambda: (iid, reference.rrs(p, q)),
        "rrsw": lambda: (reference.without_replacement(q, n), reference.rrsw(p, q)),
        "greedy": lambda: (reference.greedy(q, n), reference.greedy_coupling(p, q, n)),
        "hub": lambda: (reference.hub(q), reference.spec_hub(p, q)),
        "target_only": lambda: (iid, reference.target_only(p)),
    }[name]()
    return reference.judged(law, rule, V)


@pytest.mark.parametrize(("row", "name"), [(row, name) for row in ROWS for name in row.values])
def test_exact_value_of_the_table(row: Row, name: str) -> None:
    rate, output = exact_value(row, name)
    assert rate == row.values[name]
    assert isinstance(rate, (Fraction, int))
    if name == "rrs":
        assert reference.rrs_by_curve(row.p, row.q, row.num_drafts) == rate
    assert output is None or output == row.p


@pytest.mark.parametrize("row", [row for row in ROWS if row.cut is not None], ids=str)
def test_exact_cut_of_the_table(row: Row) -> None:
    law = reference.with_replacement(row.q, row.num_drafts)
    assert reference.optimal_by_subsets(row.p, law)[1] == row.cut


def test_k_sequential_of_the_table() -> None:
    p, q = [1 / 3, 0, 2 / 3], [1 / 3] * 3
    assert reference.k_seq_rho(p, q, 2) == pytest.approx(K_SEQ_RHO, abs=1e-6)
    rate, output = reference.judged(reference.with_replacement(q, 2), reference.k_seq(p, q, 2), 3)
    assert rate == pytest.approx(K_SEQ_RATE, abs=1e-6)
    assert output == pytest.approx(p, abs=1e-15)


@pytest.mark.parametrize("rho", [Fraction(3, 2), Fraction(7, 4), Fraction(2)])
def test_k_sequential_is_exactly_lossless_above_the_root(rho: Fraction) -> None:
    p, q = fractions("1/3,0,2/3"), fractions("1/3,1/3,1/3")
    rate, output = reference.judged(
        reference.with_replacement(q, 2), reference.k_seq(p, q, 2, rho), 3
    )
    beta = reference.k_seq_beta(p, q, rho)
    assert output == p
    assert rate >= 1 - (1 - beta) ** 2


def test_k_sequential_below_the_root_is_caught() -> None:
    p, q = fractions("1/3,0,2/3"), fractions("1/3,1/3,1/3")
    _, output = reference.judged(
        reference.with_replacement(q, 2), reference.k_seq(p, q, 2, Fraction(1)), 3
    )
    assert output != p


def test_subset_law_is_not_one_after_another() -> None:
    q = fractions(SUBSET_Q)
    assert reference.containment(reference.conditional_poisson(q, 2), SUBSET) == CONDITIONAL_POISSON
    assert reference.containment(reference.without_replacement(q, 2), SUBSET) == ONE_AFTER_ANOTHER


def test_skipped_duplicates_are_caught() -> None:
    p, q = fractions(SKIPPED_TARGET), fractions(SKIPPED_DRAFT)
    law = reference.with_replacement(q, 2)
    _, output = reference.judged(law, reference.skipping_duplicates(p, q), 3)
    assert output == SKIPPED_OUTPUT
    assert sum(abs(a - b) for a, b in zip(output, p, strict=True)) / 2 == Fraction(6, 100)
    assert reference.judged(law, reference.rrs(p, q), 3)[1] == p


def test_kept_residual_is_caught() -> None:
    p, q = fractions(SKIPPED_TARGET), fractions(SKIPPED_DRAFT)
    assert (
        reference.judged(reference.with_replacement(q, 2), reference.residual_kept(p, q), 3)[1] != p
    )


def laws_of(
    p: list, q: list, table: list, n: int, found: int
) -> dict[str, tuple[reference.Law, dict]]:
    """Every law that exists for (q, n), with the verifiers that serve it."""
    target_only = reference.target_only(p)
    both = {"rrs": reference.rrs(p, q), "target only": target_only}
    laws: dict[str, tuple[reference.Law, dict]] = {
        "with": (reference.with_replacement(q, n), both),
        "independent": (reference.independent(table), {"rrs": reference.rrs_independent(p, table)}),
    }
    if n == 1:
        laws["with"][1]["maximal coupling"] = reference.maximal_coupling(p, q)
    if found >= n:
        laws["without"] = reference.without_replacement(q, n), {"rrsw": reference.rrsw(p, q)}
        laws["poisson"] = reference.conditional_poisson(q, n), {"target only": target_only}
        laws["greedy"] = reference.greedy(q, n), {"greedy": reference.greedy_coupling(p, q, n)}
    if found >= 2:
        laws["hub"] = reference.hub(q), {"hub": reference.spec_hub(p, q)}
    return laws


SMALL = [one for one in instances(400, seed=11) if one.vocab_size <= 4 and one.num_drafts <= 3]


@pytest.mark.parametrize("instance", SMALL[:60], ids=str)
def test_every_verifier_is_exactly_lossless_and_below_the_optimum(instance) -> None:
    p, q = reference.exact(instance.p), reference.exact(instance.q)
    table = [reference.exact(row.tolist()) for row in instance.table]
    laws = laws_of(p, q, table, instance.num_drafts, instance.draft_support)
    for law, rules in laws.values():
        assert sum(law.values()) == 1
        best, cut = reference.optimal_by_subsets(p, law)
        assert best == 1 + sum(p[y] for y in cut) - reference.containment(law, cut)
        for rule in rules.values():
            rate, output = reference.judged(law, rule, len(p))
            assert output == p
            assert rate <= best


@pytest.mark.parametrize("instance", SMALL[:60], ids=str)
def test_closed_forms_are_exact(instance) -> None:
    """Rates that the theory gives in closed form, in rational arithmetic."""
    p, q, n = reference.exact(instance.p), reference.exact(instance.q), instance.num_drafts
    V, found = len(p), instance.draft_support
    iid = reference.with_replacement(q, n)
    assert reference.rrs_by_curve(p, q, n) == reference.judged(iid, reference.rrs(p, q), V)[0]
    assert reference.optimal_by_prefixes(p, iid, q) == reference.optimal_by_subsets(p, iid)[0]
    drafted = reference.inclusion(iid, V)
    assert drafted == [1 - (1 - mass) ** n for mass in q]
    hit = sum(a * b for a, b in zip(p, drafted, strict=True))
    assert reference.judged(iid, reference.target_only(p), V)[0] == hit
    if found >= n:
        head = reference.likeliest(q, n - 1)
        rest = reference.without(q, head)
        value = sum(p[y] if y in head else min(p[y], rest[y]) for y in range(V))
        law = reference.greedy(q, n)
        assert reference.optimal_by_subsets(p, law)[0] == value
        assert reference.judged(law, reference.greedy_coupling(p, q, n), V)[0] == value
        for family in (reference.without_replacement, reference.conditional_poisson):
            law = family(q, n)
            assert (
                reference.optimal_by_prefixes(p, law, q) == reference.optimal_by_subsets(p, law)[0]
            )
    if found >= 2:
        best = reference.optimal_by_subsets(p, reference.hub(q))[0]
        assert reference.judged(reference.hub(q), reference.spec_hub(p, q), V)[0] == best
        assert reference.optimal_by_subsets(p, reference.greedy(q, 2))[0] == best


@pytest.mark.parametrize("instance", SMALL[:100], ids=str)
def test_subsets_masks_and_both_programs_agree(instance) -> None:
    p, q, n = instance.p, instance.q, instance.num_drafts
    table = [row.tolist() for row in instance.table]
    for law, _ in laws_of(p, q, table, n, instance.draft_support).values():
        best, cut = reference.optimal_by_subsets(p, law)
        assert reference.optimal_by_masks(p, law) == pytest.approx(best, abs=1e-14)
        assert reference.optimal_by_lp(p, law) == pytest.approx(best, abs=1e-11)
        assert reference.optimal_by_full_lp(p, law) == pytest.approx(best, abs=1e-11)
        mask = sum(1 << token for token in cut)
        assert reference.containment_of_all(law, len(p))[mask] == pytest.approx(
            reference.containment(law, cut), abs=1e-14
        )


@pytest.mark.parametrize("instance", SMALL[:100], ids=str)
def test_growing_sets_and_ordered_tuples_agree(instance) -> None:
    if instance.draft_support < instance.num_drafts:
        return
    sets = dict.fromkeys(range(2**instance.vocab_size), 0.0)
    for tokens, mass in reference.without_replacement(instance.q, instance.num_drafts).items():
        sets[sum(1 << token for token in tokens)] += mass
    grown = reference.drawn_set(instance.q, instance.num_drafts)
    assert grown == pytest.approx(list(sets.values()), rel=1e-12, abs=0)


def test_the_linear_program_can_fail() -> None:
    """A law that does not sum to one has no coupling, and the twin says so."""
    with pytest.raises(RuntimeError, match="status"):
        reference.optimal_by_full_lp([0.5, 0.5], {(0,): 0.25})


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
    assert reference.probs_from_logits(logits) == pytest.approx([0.4, 0.3, 0.2, 0.1])
    assert reference.probs_from_logits(logits, temperature=0.0) == [1, 0, 0, 0]
    assert reference.probs_from_logits([1.0, 1.0], temperature=0.0) == [1, 0]
    squares = [16 / 30, 9 / 30, 4 / 30, 1 / 30]
    assert reference.probs_from_logits(logits, temperature=0.5) == pytest.approx(squares)
    assert reference.probs_from_logits(logits, top_k=2) == pytest.approx([4 / 7, 3 / 7, 0, 0])
    assert reference.probs_from_logits([1.0, 0.0, 0.0], top_k=2)[1:] == pytest.approx(
        [0.2119416] * 2
    )
    assert reference.probs_from_logits(logits, top_p=0.6) == pytest.approx([4 / 7, 3 / 7, 0, 0])
    assert reference.probs_from_logits(logits, top_p=0.8) == pytest.approx([4 / 9, 3 / 9, 2 / 9, 0])
    assert reference.probs_from_logits(logits, min_p=0.6) == pytest.approx([4 / 7, 3 / 7, 0, 0])
    # top-k first changes what top-p sees: 4/7 and 3/7 are both needed for 0.6, only one for 0.5.
    assert reference.probs_from_logits(logits, top_k=2, top_p=0.5) == pytest.approx([1, 0, 0, 0])
