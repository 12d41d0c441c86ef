"""Audits of recorded runs of simulated engines: sound ones pass, faulty ones are caught."""

from __future__ import annotations

import pytest
from recorded_engine import Engine
from scipy.stats import binom

import otmd
from otmd.audit import recorded_run
from otmd.probabilities import Processing

SOUND = {
    "K-SEQ": (
        Engine(num_drafts=2, law=otmd.WithReplacement, verifier=otmd.KSequential()),
        "with-replacement",
    ),
    "without replacement": (
        Engine(num_drafts=2, law=otmd.WithoutReplacement, verifier=otmd.RecursiveRejection()),
        "without-replacement",
    ),
    "stratified": (
        Engine(num_drafts=3, law=otmd.Stratified, verifier=otmd.Preference()),
        "stratified",
    ),
    "hub": (Engine(num_drafts=2, law=otmd.Hub, verifier=otmd.SpecHub()), "hub"),
    "chain, all positions recorded": (Engine(depth=3, record_unreached=True), "with-replacement"),
    "the most likely token": (
        Engine(draft=Processing(temperature=0)),
        "fixed",
    ),
    "top-k and top-p": (
        Engine(target=Processing(0.8, top_p=0.9), draft=Processing(top_k=10), depth=2),
        "with-replacement",
    ),
}


def audited(engine, law: str = "with-replacement", rows: int = 500, seed: int = 1):
    # A rate of 0.01 takes a tenth of the draws for exact p-values.
    return recorded_run(engine.run(rows, seed), law, 0.01, rng=seed)


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_engine_is_not_called_faulty(name):
    """An alarm has a probability of 1e-2 at most, were the seeds not fixed."""
    engine, law = SOUND[name]
    assert not audited(engine, law, rows=150).faulty


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_sound_engines_raise_alarms_at_the_stated_rate(name):
    """One such test fails by chance with probability 1e-4 at most, were the seeds not fixed."""
    engine, law = SOUND[name]
    runs = [engine.run(100, seed) for seed in range(20)]
    alarms = sum(recorded_run(rows, law, 0.05, rng=seed).faulty for seed, rows in enumerate(runs))
    assert alarms <= binom.isf(1e-4, 20, 0.05)


def test_stratified_drafts_verified_with_the_law_of_independent_ones():
    """Whether the report finds other faults of engines says test_fault_patterns.py."""
    engine = Engine(
        sample=lambda rng, q, count, step: otmd.Stratified(q, count).sample(rng=rng), num_drafts=3
    )
    refuted = {claim.name for claim in audited(engine, "stratified").claims if claim.refuted}
    orders = (f"output tokens follow the target (in order of {order})" for order in ("p/q", "p"))
    assert refuted & {*orders}


def test_rows_chosen_by_their_outcome_are_no_sample_of_the_target():
    """The negative control of what the page says of such rows."""
    rows = [row for row in Engine().run(700, 1) if row["depth"] == 0]
    chosen = [row for row in rows if row["output_token"] in row["draft_tokens"]]
    assert recorded_run(chosen, false_alarm=0.01).faulty
    assert not recorded_run(rows, false_alarm=0.01).faulty
