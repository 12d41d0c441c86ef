"""The table of exact values: held by the twins in fractions, by the package in floats."""

from __future__ import annotations

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

import otmd

TOLERANCE = 1e-12
OPTIMA = {
    "iid": (otmd.WithReplacement, reference.with_replacement),
    "wor": (otmd.WithoutReplacement, reference.without_replacement),
}
RATES = {
    "rrs": (otmd.RecursiveRejection, otmd.WithReplacement),
    "rrsw": (otmd.RecursiveRejection, otmd.WithoutReplacement),
    "greedy": (otmd.Preference, otmd.Greedy),
    "hub": (otmd.SpecHub, otmd.Hub),
    "target_only": (otmd.TargetOnly, otmd.WithReplacement),
}


def floats(text: str) -> np.ndarray:
    return np.array([float(value) for value in fractions(text)])


def entries(names: dict) -> list:
    return [pytest.param(row, name) for row in ROWS for name in row.values if name in names]


@pytest.mark.parametrize(("row", "name"), entries(OPTIMA))
def test_optimum(row: Row, name: str) -> None:
    family, twin = OPTIMA[name]
    rate, cut = reference.optimal_by_subsets(row.p, twin(row.q, row.num_drafts))
    assert rate == row.values[name]
    best = otmd.optimal_acceptance(floats(row.target), family(floats(row.draft), row.num_drafts))
    assert best.rate == pytest.approx(float(rate), rel=0, abs=TOLERANCE)
    if name == "iid" and row.cut is not None:
        assert cut == tuple(np.flatnonzero(best.subset)) == row.cut


@pytest.mark.parametrize(("row", "name"), entries(RATES))
def test_verifiers(row: Row, name: str) -> None:
    p, q, n = row.p, row.q, row.num_drafts
    with_replacement = reference.with_replacement(q, n)
    law, decide = {
        "rrs": lambda: (with_replacement, reference.rrs(p, q)),
        "rrsw": lambda: (reference.without_replacement(q, n), reference.rrsw(p, q)),
        "greedy": lambda: (reference.greedy(q, n), reference.greedy_coupling(p, q, n)),
        "hub": lambda: (reference.hub(q), reference.spec_hub(p, q)),
        "target_only": lambda: (with_replacement, reference.target_only(p)),
    }[name]()
    rate, output = reference.judged(law, decide, len(p))
    assert (rate, output) == (row.values[name], p)
    verifier, family = RATES[name]
    given = verifier().acceptance_rate(
        floats(row.target), family(floats(row.draft), num_drafts=row.num_drafts)
    )
    assert given == pytest.approx(float(rate), rel=0, abs=TOLERANCE)


def test_k_sequential() -> None:
    p, q = floats("1/3,0,2/3"), floats("1/3,1/3,1/3")
    law, verifier = otmd.WithReplacement(q, num_drafts=2), otmd.KSequential()
    assert reference.k_seq_rho(p, q, 2) == pytest.approx(K_SEQ_RHO, abs=1e-6)
    assert verifier.acceptance_rate(p, law) == pytest.approx(K_SEQ_RATE, abs=1e-6)
    # The first draft shows the scale: token 0 is accepted with probability p/(ρ q).
    accepted = verifier.prepare(p, law).accept_probs(np.array([0, 0]))[0]
    assert accepted == pytest.approx(1 / K_SEQ_RHO, rel=0, abs=1e-6)


def test_a_subset_law_and_one_after_another_are_kept_apart() -> None:
    q, inside = fractions(SUBSET_Q), np.isin(np.arange(3), SUBSET)
    for family, twin, exact in (
        (otmd.ConditionalPoisson, reference.conditional_poisson, CONDITIONAL_POISSON),
        (otmd.WithoutReplacement, reference.without_replacement, ONE_AFTER_ANOTHER),
    ):
        assert reference.containment(twin(q, 2), SUBSET) == exact
        contained = family(floats(SUBSET_Q), num_drafts=2).containment(inside)
        assert contained == pytest.approx(float(exact), rel=0, abs=TOLERANCE)


def test_skipped_duplicates_are_not_lossless() -> None:
    """The standing negative control: a rule that looks right and is not."""
    p, q = fractions(SKIPPED_TARGET), fractions(SKIPPED_DRAFT)
    law = reference.with_replacement(q, 2)
    _, output = reference.judged(law, reference.skipping_duplicates(p, q), 3)
    assert output == SKIPPED_OUTPUT
    assert sum(abs(a - b) for a, b in zip(output, p, strict=True)) / 2 == Fraction(6, 100)
    assert reference.judged(law, reference.rrs(p, q), 3)[1] == p
