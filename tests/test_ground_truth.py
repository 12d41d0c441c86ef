"""The table of exact values, through the public interface."""

from __future__ import annotations

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

import otmd

TOLERANCE = 1e-12
OPTIMA = {"iid": otmd.WithReplacement, "wor": otmd.WithoutReplacement}
RULES = {
    "rrs": (otmd.RecursiveRejection, otmd.WithReplacement),
    "rrsw": (otmd.RecursiveRejection, otmd.WithoutReplacement),
    "greedy": (otmd.Preference, otmd.Greedy),
    "hub": (otmd.SpecHub, otmd.Hub),
    "target_only": (otmd.TargetOnly, otmd.WithReplacement),
}


def floats(text: str) -> np.ndarray:
    return np.array([float(value) for value in fractions(text)])


def entries(names: dict) -> list:
    return [
        pytest.param(row, name, id=f"{name}, p={row.target}, q={row.draft}, n={row.num_drafts}")
        for row in ROWS
        for name in row.values
        if name in names
    ]


@pytest.mark.parametrize(("row", "name"), entries(OPTIMA))
def test_optimal_acceptance(row: Row, name: str) -> None:
    target = floats(row.target)
    drafts = OPTIMA[name](floats(row.draft), num_drafts=row.num_drafts)
    best = otmd.optimal_acceptance(target, drafts)
    assert best.rate == pytest.approx(float(row.values[name]), rel=0, abs=TOLERANCE)
    certified = 1 + target[best.subset].sum() - drafts.containment(best.subset)
    assert certified == pytest.approx(float(best.rate), rel=0, abs=1e-10)


@pytest.mark.parametrize("row", [row for row in ROWS if row.cut is not None], ids=str)
def test_the_cut(row: Row) -> None:
    drafts = otmd.WithReplacement(floats(row.draft), num_drafts=row.num_drafts)
    best = otmd.optimal_acceptance(floats(row.target), drafts)
    assert tuple(np.flatnonzero(best.subset)) == row.cut


@pytest.mark.parametrize(("row", "name"), entries(RULES))
def test_verifier(row: Row, name: str) -> None:
    rule, family = RULES[name]
    target = floats(row.target)
    drafts = family(floats(row.draft), num_drafts=row.num_drafts)
    rate = otmd.acceptance_rate(rule(), target, drafts)
    assert rate == pytest.approx(float(row.values[name]), rel=0, abs=TOLERANCE)
    np.testing.assert_allclose(
        rule().output_distribution(target, drafts), target, rtol=0, atol=TOLERANCE
    )
    low, high = otmd.acceptance_bounds(rule(), target, drafts)
    assert low <= float(row.values[name]) + TOLERANCE
    assert high >= float(row.values[name]) - TOLERANCE


def test_k_sequential() -> None:
    target, draft = floats("1/3,0,2/3"), floats("1/3,1/3,1/3")
    drafts = otmd.WithReplacement(draft, num_drafts=2)
    assert otmd.acceptance_rate(otmd.KSequential(), target, drafts) == pytest.approx(
        K_SEQ_RATE, rel=0, abs=1e-6
    )
    # At its root the rate is rho times beta, and beta is readable off the first draft's acceptance.
    rule = otmd.KSequential().prepare(target, drafts)
    assert rule.accept_probs(np.array([0, 0]))[0] == pytest.approx(1 / K_SEQ_RHO, rel=0, abs=1e-6)
    np.testing.assert_allclose(
        otmd.KSequential().output_distribution(target, drafts), target, rtol=0, atol=TOLERANCE
    )


def test_a_subset_law_and_one_after_another_are_kept_apart() -> None:
    q, inside = floats(SUBSET_Q), np.isin(np.arange(3), SUBSET)
    poisson = otmd.ConditionalPoisson(q, num_drafts=2).containment(inside)
    one_by_one = otmd.WithoutReplacement(q, num_drafts=2).containment(inside)
    assert poisson == pytest.approx(float(CONDITIONAL_POISSON), rel=0, abs=TOLERANCE)
    assert one_by_one == pytest.approx(float(ONE_AFTER_ANOTHER), rel=0, abs=TOLERANCE)


def skipping(target: np.ndarray, drafts: otmd.DraftLaw) -> np.ndarray:
    """Output law of recursive rejection that skips duplicates, built from the package's own rule.

    For a tuple with a repeated token, the faulty rule is the sound one on the tuple without it.
    """
    output = np.zeros(drafts.vocab_size)
    tuples, probs = drafts.enumerate()
    for tokens, chance in zip(tuples, probs, strict=True):
        distinct = np.array(list(dict.fromkeys(tokens.tolist())))
        shorter = otmd.RecursiveRejection().prepare(target, drafts.with_num_drafts(len(distinct)))
        output += chance * shorter.conditional_law(distinct)
    return output


def test_skipped_duplicates_are_not_lossless() -> None:
    target, draft = floats(SKIPPED_TARGET), floats(SKIPPED_DRAFT)
    drafts = otmd.WithReplacement(draft, num_drafts=2)
    faulty = skipping(target, drafts)
    np.testing.assert_allclose(faulty, [float(x) for x in SKIPPED_OUTPUT], rtol=0, atol=TOLERANCE)
    assert np.abs(faulty - target).sum() / 2 == pytest.approx(0.06, abs=TOLERANCE)
    sound = otmd.RecursiveRejection().output_distribution(target, drafts)
    np.testing.assert_allclose(sound, target, rtol=0, atol=TOLERANCE)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(faulty, target, rtol=0, atol=TOLERANCE)
