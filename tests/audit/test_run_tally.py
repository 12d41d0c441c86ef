"""Places of tokens, laws of drafts and ceilings at a single position, against their other definitions."""

from __future__ import annotations

import numpy as np
import pytest

import otmd
from otmd.audit.claims import OUTPUT, OUTPUT_BY_MASS, bands_of
from otmd.audit.declared import declared_law
from otmd.audit.observer import BY_MASS, BY_RATIO, Observer
from otmd.audit.records import read_records
from otmd.audit.statistics import mass_before, masses_before, ratio_order, ratios
from otmd.audit.tally import Tally
from otmd.audit.verifiers import acceptance_ceiling
from otmd.testing import hostile_pairs

P, Q = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.15, 0.35, 0.3, 0.2])
CLASSES = {
    "with-replacement": otmd.WithReplacement,
    "without-replacement": otmd.WithoutReplacement,
    "greedy": otmd.Greedy,
    "stratified": otmd.Stratified,
    "conditional-poisson": otmd.ConditionalPoisson,
    "top-k": lambda q, n: otmd.TopThen(q, n, n),
    "top-then": lambda q, n: otmd.TopThen(q, n, 1, rest=otmd.ConditionalPoisson),
}


def test_places_without_a_sort_are_those_of_the_sorted_tokens():
    for pair in [*hostile_pairs(), (np.full(5, 0.2), np.full(5, 0.2))]:
        p, q = (otmd.validate_probs("pair", own) for own in pair)
        ratio = ratios(p, q)
        by_mass = masses_before(p, np.argsort(-p, kind="stable"))
        distinct = np.unique(ratio[p > 0]).size == np.count_nonzero(p)
        for token in np.flatnonzero(p):
            assert mass_before(p, -p, token) == pytest.approx(by_mass[token], abs=1e-12)
            if distinct:
                wanted = masses_before(p, ratio_order(p, q))[token]
                assert mass_before(p, ratio, token) == pytest.approx(wanted, abs=1e-12)
    assert ratio_order(P, Q).tolist() == [1, 0, 2, 3]


def test_the_ceiling_of_fixed_drafts_is_their_mass():
    law = otmd.Joint(np.array([[1, 3]]), np.array([1.0]), 4)
    best = otmd.optimal_acceptance(P, law).rate
    row = {"target_probs": P, "draft_tokens": [1, 3, 3], "output_token": 1}
    report = otmd.audit.recorded_run([row], "fixed", rng=np.random.default_rng(0))
    assert report.acceptance.ceiling == pytest.approx(best, abs=2e-9)


def test_ties_are_broken_as_the_engine_did():
    target, q = np.array([0.1, 0.8, 0.05, 0.05]), np.array([0.4, 0.4, 0.2, 0.0])
    for drafts, best in (([0, 1], 0.1 + 2 / 3 + 0.05), ([1, 0], 0.8 + 0.1 + 0.05)):
        found = declared_law(otmd.Greedy, q, np.array(drafts))
        assert not isinstance(found, str)
        assert acceptance_ceiling(target, found[0]) == pytest.approx(best)


def tallied(rows: list[dict]) -> Tally:
    tally = Tally(np.random.default_rng(0))
    observer = Observer(otmd.WithReplacement)
    for record in read_records(rows, {}):
        tally.add(observer.observe(record))
    return tally


def test_classes_are_partitions_and_their_table_counts():
    p, q = [0.1, 0.2, 0.1, 0.2, 0.2, 0.2, 0.0], [0.4, 0.3, 0.1, 0.1, 0.0, 0.05, 0.05]
    row = {"target_probs": p, "draft_probs": q, "draft_tokens": [0]}
    tally = tallied([row | {"output_token": token} for token in (0, 1, 2, 3, 5, 4)])
    found = bands_of(BY_RATIO, tally.evidence[OUTPUT])
    assert [(own.name, own.observed) for own in found] == [(name, 1) for name in BY_RATIO[:-1]]
    assert [own.expected / 6 for own in found] == pytest.approx(p[:4] + p[5:3:-1])
    row = {"target_probs": np.array([0.5, 0.3, 0.15, 0.0495, 0.0005])}
    tally = tallied([row | {"output_token": token} for token in (0, 0, 4)])
    found = bands_of(BY_MASS, tally.evidence[OUTPUT_BY_MASS])
    assert [(own.name, own.observed) for own in found] == list(
        zip(np.delete(BY_MASS, [0, 1, 3]), (1, 0, 0, 2), strict=True)
    )
    assert [own.expected for own in found] == pytest.approx([0.0015, 0.1485, 1.35, 1.5])


@pytest.mark.parametrize("law", [*CLASSES, "fixed"])
def test_hostile_distributions_pass(law):
    """Drafts and output by the book at each of them; a warning would be an error."""
    rng = np.random.default_rng(6)
    rows = []
    for p, q in hostile_pairs():
        count = min(2, np.count_nonzero(q))
        drafts = CLASSES.get(law, otmd.WithReplacement)(q, count).sample(rng=rng)
        output = int(rng.choice(p.size, p=np.asarray(p, np.float64) / np.sum(p, dtype=np.float64)))
        own = {"target_probs": p, "draft_probs": q, "draft_tokens": drafts}
        rows.append(own | {"output_token": output})
    report = otmd.audit.recorded_run(rows, CLASSES.get(law, law), rng=rng)
    assert not report.cases
    assert report.num_rows == len(hostile_pairs())
