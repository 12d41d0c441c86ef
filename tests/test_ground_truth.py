"""The table of exact values: held by the twins in fractions, by the package in floats."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import reference
from reference import fractions

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
# p, q, n, the exact values by what is measured, and the best subset of "iid" where it is unique or empty.
ROWS: list[tuple[str, str, int, dict[str, str], tuple[int, ...] | None]] = [
    ("309/500,177/500,7/250", "373/1000,29/50,47/1000", 2,
     {"iid": "988871/1000000", "rrs": "169277/200000"}, (1, 2)),
    ("469/1000,31/250,407/1000", "201/1000,11/40,131/250", 3,
     {"iid": "1", "rrs": "207227133/250000000"}, ()),
    ("777/1000,223/1000", "937/1000,63/1000", 2, {"wor": "1", "rrsw": "1"}, None),
    ("1/3,0,2/3", "1/3,1/3,1/3", 2,
     {"iid": "8/9", "rrs": "7/9", "wor": "1", "rrsw": "5/6", "greedy": "5/6", "hub": "5/6"}, None),
    ("1/2,1/4,1/4", "1/4,1/4,1/2", 2,
     {"iid": "15/16", "wor": "1", "rrs": "13/16", "rrsw": "7/8", "greedy": "1", "target_only": "33/64"},
     (1, 2)),
    *(("1/2,1/2", "1,0", n, {"iid": "1/2"}, (0,)) for n in (1, 2, 3, 4)),
]  # fmt: skip


def entries(names: dict) -> list:
    return [
        pytest.param(fractions(p), fractions(q), n, name, Fraction(values[name]), cut)
        for p, q, n, values, cut in ROWS
        for name in values
        if name in names
    ]


columns = ("p", "q", "n", "name", "value", "cut")


@pytest.mark.parametrize(columns, entries(OPTIMA))
def test_optimum(p, q, n: int, name: str, value: Fraction, cut) -> None:
    law, twin = OPTIMA[name]
    rate, subset = reference.optimal_by_subsets(p, twin(q, n))
    assert rate == value
    best = otmd.optimal_acceptance(np.array(p, float), law(np.array(q, float), n))
    assert best.rate == pytest.approx(float(value), rel=0, abs=TOLERANCE)
    if name == "iid" and cut is not None:
        assert subset == tuple(np.flatnonzero(best.subset)) == cut


@pytest.mark.parametrize(columns, entries(RATES))
def test_verifiers(p, q, n: int, name: str, value: Fraction, cut) -> None:
    with_replacement = reference.with_replacement(q, n)
    twin, decide = {
        "rrs": lambda: (with_replacement, reference.rrs(p, q)),
        "rrsw": lambda: (reference.without_replacement(q, n), reference.rrsw(p, q)),
        "greedy": lambda: (reference.greedy(q, n), reference.greedy_coupling(p, q, n)),
        "hub": lambda: (reference.hub(q), reference.spec_hub(p, q)),
        "target_only": lambda: (with_replacement, reference.target_only(p)),
    }[name]()
    assert reference.judged(twin, decide, len(p)) == (value, p)
    verifier, law = RATES[name]
    drafts = law(np.array(q, float), num_drafts=n)
    rate = verifier().acceptance_rate(np.array(p, float), drafts)
    assert rate == pytest.approx(float(value), rel=0, abs=TOLERANCE)


def test_k_sequential() -> None:
    p, q = fractions("1/3,0,2/3"), fractions("1/3,1/3,1/3")
    prepared = otmd.KSequential().prepare(np.array(p, float), otmd.WithReplacement(np.array(q, float), 2))
    # The first draft shows the scale: token 0 is accepted with probability p/(ρ q).
    for rho in (reference.k_seq_rho(p, q, 2), 1 / prepared.accept_probs(np.array([0, 0]))[0]):
        assert rho == pytest.approx(1.434259, abs=1e-6)


def test_a_subset_law_and_one_after_another_are_kept_apart() -> None:
    """The two laws that secondary sources take for one another."""
    q = fractions("1/2,3/10,1/5")
    for family, twin, exact in (
        (otmd.ConditionalPoisson, reference.conditional_poisson, Fraction(15, 31)),
        (otmd.WithoutReplacement, reference.without_replacement, Fraction(18, 35)),
    ):
        assert reference.containment(twin(q, 2), (0, 1)) == exact
        contained = family(np.array(q, float), num_drafts=2).containment([True, True, False])
        assert contained == pytest.approx(float(exact), rel=0, abs=TOLERANCE)


def test_skipped_duplicates_are_not_lossless() -> None:
    """The standing negative control: a rule that looks right and is not."""
    p, q = fractions("3/5,3/10,1/10"), fractions("1/5,1/5,3/5")
    law = reference.with_replacement(q, 2)
    _, output = reference.judged(law, reference.skipping_duplicates(p, q), 3)
    assert output == fractions("27/50,9/25,1/10")
    assert sum(abs(a - b) for a, b in zip(output, p, strict=True)) / 2 == Fraction(6, 100)
    assert reference.judged(law, reference.rrs(p, q), 3)[1] == p
