"""Audits of recorded runs of simulated engines: sound ones pass, faulty ones are caught."""

from __future__ import annotations

import numpy as np
import pytest
from faulty_verifiers import RejectionFault, RejectionSteps
from recorded_engine import Engine
from scipy.stats import binom

import otmd
from otmd.audit import recorded_run
from otmd.probabilities import Processing

SOUND = {
    "K-SEQ": (Engine(num_drafts=2, rule=otmd.KSequential(), vocab_size=100), "with-replacement"),
    "without replacement": (
        Engine(num_drafts=2, law=otmd.WithoutReplacement, rule=otmd.RecursiveRejection()),
        "without-replacement",
    ),
    "stratified": (Engine(num_drafts=3, law=otmd.Stratified, rule=otmd.Preference()), "stratified"),
    "hub": (Engine(num_drafts=2, law=otmd.Hub, rule=otmd.SpecHub()), "hub"),
    "chain, all positions recorded": (Engine(depth=3, record_unreached=True), "with-replacement"),
    "the most likely token": (
        Engine(draft=Processing(temperature=0), recorded_draft=Processing()),
        "fixed",
    ),
    "top-k and top-p": (
        Engine(target=Processing(0.8, top_p=0.9), draft=Processing(top_k=10), depth=2),
        "with-replacement",
    ),
}
OUTPUT, OUTPUT_BY_MASS = (
    f"output tokens follow the target (in order of {order})" for order in ("p/q", "p")
)
DRAFTS = "drafts follow their distribution"


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


def as_independent(p, law):
    return RejectionSteps(p, otmd.WithReplacement(law.draft_probs, law.num_drafts))


# An engine, its law, the claims that the run refutes all of, and those of which it refutes one.
PLAIN, EITHER = Processing(), {OUTPUT, OUTPUT_BY_MASS}
KNOWN_FAULTS = {
    "transformers #47932: raw q verified where drafts are cut by top-k": (
        Engine(draft=Processing(top_k=3), recorded_draft=PLAIN, verified_draft=PLAIN),
        "with-replacement", {DRAFTS}, EITHER,
    ),
    "vLLM #10198: the rows say 0.7, and the engine verified at 1": (
        Engine(recorded_target=Processing(0.7)), "with-replacement", EITHER, EITHER,
    ),
    "stratified drafts verified with the law of independent ones": (
        Engine(num_drafts=3, law=otmd.Stratified, rule=as_independent), "stratified", set(), EITHER,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN_FAULTS)
def test_claims_of_known_faults(name):
    engine, law, every, either = KNOWN_FAULTS[name]
    report = audited(engine, law, rows=1200 if every == EITHER else 500)
    found = {claim.name for claim in report.claims if claim.refuted}
    assert every <= found
    assert found & either
    if every == EITHER:
        assert [statement.outcome for statement in report.statements] == ["FAULTY", "INCONCLUSIVE"]


def test_a_target_that_ignores_top_p():
    report = audited(Engine(recorded_target=Processing(top_p=0.9)), rows=300)
    assert {event.kind for event in report.events} == {"output_impossible", "impossible_accepted"}
    assert report.faulty
    most = max(report.events, key=lambda event: event.num_rows)
    assert f"Usual cause of such rows: {most.usually}" in str(report)


def test_a_coin_that_accepts_a_draft_of_target_probability_zero():
    """SGLang #35771, with a coin of so few bits that it shows."""

    def few_bits(p, law):
        return RejectionSteps(p, law, RejectionFault.COARSE_COIN, coin_values=64)

    report = audited(Engine(target=Processing(top_k=5), rule=few_bits), rows=1000)
    assert [event.kind for event in report.events] == ["impossible_accepted"]


def test_a_rule_that_accepts_every_draft_is_above_the_ceiling():
    engine = Engine(rule=lambda p, law: lambda tokens: np.eye(p.size)[tokens[0]], disagreement=2)
    report = audited(engine)
    assert report.acceptance is not None
    assert report.acceptance.too_high
    assert any("a lossless verifier accepts at most" in reason for reason in report.reasons)
    assert report.claims[0].total_variation_bound > 0


def test_rows_chosen_by_their_outcome_are_no_sample_of_the_target():
    """The negative control of what the page says of such rows."""
    rows = [row for row in Engine().run(700, 1) if row["depth"] == 0]
    chosen = [row for row in rows if row["output_token"] in row["draft_tokens"]]
    assert recorded_run(chosen, false_alarm=0.01).faulty
    assert not recorded_run(rows, false_alarm=0.01).faulty
