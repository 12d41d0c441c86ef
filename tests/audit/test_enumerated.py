"""The exact audit: against the twins, and what it says of the drafts to blame."""

from __future__ import annotations

import numpy as np
import pytest
import reference
from faulty_verifiers import RejectionFault, RejectionSteps
from strategies import instances

import otmd
from otmd import audit

P, Q = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.2, 0.6])


def test_it_is_the_twins():
    small = [x for x in instances(150, seed=11) if x.vocab_size <= 4 and x.num_drafts <= 3]
    for instance in small[:40]:
        p, q, n = np.array(instance.p), np.array(instance.q), instance.num_drafts
        drafts, law = otmd.WithReplacement(q, n), reference.with_replacement(instance.q, n)
        skipping = RejectionSteps(p, drafts, RejectionFault.DUPLICATES_SKIPPED)
        for rule, twin in (
            (skipping, reference.skipping_duplicates),
            (RejectionSteps(p, drafts), reference.rrs),
            (otmd.RecursiveRejection(), reference.rrs),
        ):
            rate, output = reference.judged(law, twin(instance.p, instance.q), p.size)
            found = audit.enumerated(rule, p, drafts, tol=1e-9)
            np.testing.assert_allclose(found.output_distribution, output, atol=1e-10)
            assert found.acceptance == pytest.approx(rate, abs=1e-10)
            assert found.faulty == (np.abs(np.array(output) - p).max() > 1e-9)


def test_the_parts_of_the_total_variation_sum_to_it():
    """Few enough tuples that all of them are shown."""
    rule = lambda drafts: np.eye(3)[drafts[0]]  # noqa: E731
    found = audit.enumerated(rule, P, otmd.WithReplacement(Q, 1))
    assert found.total_variation == pytest.approx(0.5)
    assert [own.tokens for own in found.worst_drafts] == [(2,), (0,), (1,)]
    np.testing.assert_allclose(found.deviation, [-0.4, -0.1, 0.5], atol=1e-15)
    assert [own.token for own in found.worst] == [2, 0, 1]
    # Only the third token is emitted too often, and only where it was drafted.
    assert [own.excess for own in found.worst_drafts] == pytest.approx([0.5, 0, 0])
    assert found.worst_drafts[0].prob == pytest.approx(0.6)
    text = str(found)
    assert "(2,): drafted with probability 0.6, part of the total variation 0.5" in text
    assert "not lossless: total variation 0.5 from the target" in text
