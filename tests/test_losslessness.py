"""Losslessness at a vocabulary that cannot be enumerated: draw drafts, verify them, count the output."""

from __future__ import annotations

import numpy as np
import pytest

import otmd
from otmd.testing import assert_rate

V, NUM_SAMPLES = 2000, 4_000
ALARM = 1e-6
LARGE = [
    (otmd.RecursiveRejection, otmd.WithReplacement),
    (otmd.RecursiveRejection, otmd.WithoutReplacement),
    (otmd.KSequential, otmd.WithReplacement),
    (otmd.Preference, otmd.Greedy),
    (otmd.Preference, otmd.Stratified),
    (otmd.SpecHub, otmd.Hub),
]


@pytest.mark.parametrize(("verifier", "family"), LARGE)
def test_a_large_vocabulary(verifier: type, family: type) -> None:
    """A heavy head and a long thin tail, as a language model's."""
    rng = np.random.default_rng(505)
    zipf = 1 / np.arange(1, V + 1) ** 1.3
    target, draft = (zipf * rng.gamma(2.0, size=V) for _ in range(2))
    target, draft = target / target.sum(), draft / draft.sum()
    law = family(draft, 2 if family is otmd.Hub else 4)
    drafts = otmd.audit.draft_law(law.sample(NUM_SAMPLES, rng=rng), law, ALARM * 100, rng=rng)
    assert not drafts.faulty, drafts
    audit = otmd.audit.losslessness(verifier(), target, law, NUM_SAMPLES, ALARM * 10, rng=rng)
    assert not audit.faulty, audit
    accepted = round(audit.acceptance.rate * NUM_SAMPLES)
    assert_rate(accepted, NUM_SAMPLES, otmd.acceptance_bounds(verifier(), target, law, 1e-3), ALARM)
