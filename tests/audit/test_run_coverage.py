"""Faults that a single order of the tokens hides, and sound runs that must not be called faulty."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from recorded_engine import Engine
from scipy.stats import binom

import otmd
from otmd import audit
from otmd.audit import recorded_run
from otmd.audit.claims import CLAIMS, NUM_STATEMENTS, SLOTS
from otmd.audit.drafts import independence_p_values
from otmd.audit.judge import Evidence, Grouping, judge_claim, judge_rate

P, Q = np.array([0.4, 0.35, 0.25]), np.array([0.3, 0.3, 0.4])
LOGITS = np.random.default_rng(0).normal(scale=1.5, size=(20, 50))
DRAFT_LOGITS = LOGITS + np.random.default_rng(1).normal(size=LOGITS.shape)
LAW = otmd.WithReplacement(Q, 1)
# It would print a line "PASS: ...", clear the terminal and open a tag.
EVIL = "evil\nPASS: no fault found\x1b[2J\ud800"


def improbable(sound=False):
    """Five tokens of probability 1e-22, in a vocabulary where tokens below 0.001 are common."""
    rng = np.random.default_rng(0)
    target = np.repeat([5e-4, 0.475, 1e-22], [100, 2, 1])
    target /= target.sum()
    wrong = rng.choice(2000, 5, replace=False)
    outputs = [102 if i in wrong and not sound else int(rng.choice(103, p=target)) for i in range(2000)]
    return [{"target_probs": target, "output_token": output} for output in outputs], np.sort(wrong) + 1


@cache
def audited_improbable():
    return recorded_run(improbable()[0])


def test_improbable_rows_are_listed():
    found = audited_improbable()
    (event,) = found.events
    assert (event.kind, event.num_rows) == ("output_improbable", 5)
    assert event.first_rows == tuple(improbable()[1])
    assert "5 rows have an output token that is too improbable for this number of rows" in found.verdict
    sound = recorded_run(improbable(sound=True)[0], "none")
    assert sound.outcome == "PASS"
    assert "would have been found with probability 0.9 if it shows over all 2,000" in str(sound)
    row = {"target_probs": [0.5, 0.5], "draft_probs": [1 - 1e-22, 1e-22], "draft_tokens": [1]}
    (event,) = recorded_run([row | {"output_token": 1}]).events
    assert event.kind == "draft_improbable"


def test_a_request_cannot_write_into_the_report():
    rows = [
        {"target_probs": P, "output_token": i % 4 % 3, "request": EVIL if i % 4 else 1} for i in range(400)
    ]
    found = recorded_run(rows, "none")
    assert "request evil PASS: no fault found\\x1b[2J\\ud800" in found.verdict
    text = str(found)
    assert not [line for line in text.splitlines() if line.startswith("PASS")]
    assert "\x1b" not in text
    assert text.encode()


def grouped(number, group_of, rng):
    """Uniform numbers, each in a group that ``group_of`` chooses by the number before and this number."""
    numbers = rng.random(number)
    pairs = zip(np.append(0.5, numbers[:-1]), numbers, strict=True)
    labels = np.array([group_of(before, now) for before, now in pairs])
    return numbers, Grouping("group", labels, {x: f"group {x}" for x in set(labels.tolist())}, True)


@pytest.mark.parametrize(
    ("group_of", "fair"),
    [(lambda before, now: int(4 * before), True), (lambda before, now: int(2 * now), False)],
    ids=["what came before", "the outcome"],
)
def test_groups_may_depend_on_what_came_before_and_not_on_the_outcome(group_of, fair):
    """The negative control: why accepted, corrected and rejected tokens are no groups of the audit."""
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(40):
        numbers, grouping = grouped(150, group_of, rng)
        never = np.zeros(numbers.size, bool)
        evidence = Evidence(CLAIMS[1], numbers, never, [], [grouping])
        claim = judge_claim(evidence, 0.01, rng=rng)
        alarms += claim.betting_p_value <= 0.1
    assert (alarms <= binom.isf(1e-6, 40, 0.1)) == fair


def test_every_claim_has_its_share():
    assert 3 * len(CLAIMS) + 4 == NUM_STATEMENTS
    assert {claim.level for claim in audited_improbable().claims} == {1e-3 / NUM_STATEMENTS}


class TestSeeds:
    """A sound engine may draw from the seed that the audit is given."""

    def test_of_a_recorded_run(self):
        numbers = np.random.default_rng(1).random(500)
        tokens = np.searchsorted(P.cumsum(), numbers, side="right").tolist()
        rows = [{"target_probs": P, "output_token": token} for token in tokens]
        assert not recorded_run(rows, rng=np.random.default_rng(1)).faulty

    def test_of_a_black_box(self):
        """Maximal coupling, with coins that would be the numbers that drew the drafts."""

        def engine(drafts):
            rng = np.random.default_rng(0)
            accepted = rng.random(len(drafts)) * Q[drafts[:, 0]] < P[drafts[:, 0]]
            residual = np.maximum(P - Q, 0)
            corrected = rng.choice(3, size=len(drafts), p=residual / residual.sum())
            return np.where(accepted, drafts[:, 0], corrected)

        rng = np.random.default_rng(0)
        assert not audit.losslessness(engine, P, LAW, 2_000, batched=True, rng=rng).faulty
        otmd.testing.assert_lossless(engine, P, LAW, returns="tokens", num_samples=2_000)

    def test_of_drafts(self):
        """The reference must not be drawn with the numbers that drew the samples."""
        law = otmd.WithReplacement(P, 2)
        samples = law.sample(rng=np.random.default_rng(4), size=1_000)
        found, again = (audit.draft_law(samples, law, rng=np.random.default_rng(4)) for _ in "ab")
        rng = np.random.default_rng(4)
        dependent = independence_p_values(samples, law, found.level, rng=rng)
        assert found.independence == again.independence != dependent
        assert not found.faulty


def test_a_lost_output_rules_out_a_pass():
    rng, whole = np.random.default_rng(0), Engine(depth=2).run(900, 0)
    assert recorded_run(whole, bias=0.2).outcome == "PASS"
    rejected = [row["output_token"] not in row.get("draft_tokens", row) for row in whole]
    lost = np.array(rejected) & (rng.random(len(whole)) < 0.1)
    pairs = zip(whole, lost, strict=True)
    found = recorded_run([row | {"output_token": -1} if gone else row for row, gone in pairs], bias=0.2)
    (event,) = found.events
    assert (event.kind, event.num_rows) == ("output_missing", lost.sum())
    assert event.first_rows == tuple(np.flatnonzero(lost)[:5] + 1)
    assert not found.faulty
    assert found.outcome == "INCONCLUSIVE"
    assert f"but {lost.sum()} rows" in found.verdict
    # After a lost output it is unknown whether the next depth was reached.
    first = {"target_probs": P, "draft_probs": Q, "draft_tokens": [0], "step": 10**6, "depth": 0}
    whole += [first, {"target_probs": P, "output_token": 1, "step": 10**6, "depth": 1}]
    report = recorded_run(whole, bias=0.2)
    assert [event.kind for event in report.events] == ["output_missing"]
    assert report.outcome == "INCONCLUSIVE"


def test_a_position_after_a_rejection_is_not_missing():
    rows = Engine(depth=3, record_unreached=True).run(100, 1)
    assert any(row["output_token"] is None for row in rows)
    assert not recorded_run(rows).events


def test_drafts_alone_are_judged_and_do_not_pass():
    drafts = np.random.default_rng(1).choice(3, (500, 1), p=Q)
    rows = [{"target_probs": P, "draft_probs": Q, "draft_tokens": tokens} for tokens in drafts]
    found = recorded_run(rows, bias=0.2)
    assert [(x.subject, x.outcome) for x in found.statements] == [("drafts", "PASS")]
    assert found.outcome == "INCONCLUSIVE"


def plain(number: int, rng: np.random.Generator) -> list[dict]:
    return [{"target_probs": P, "output_token": int(rng.choice(3, p=P))} for _ in range(number)]


def test_a_pass_rests_on_the_outputs_of_steps_with_drafts():
    """An n-gram run: few positions have drafts, at first too few."""
    rng = np.random.default_rng(2)
    rows = plain(700, rng)
    none = recorded_run(rows, bias=0.2)
    assert none.outcome == "INCONCLUSIVE"
    assert "no drafts were recorded: nothing about speculation was tested" in none.verdict
    drafted = {"draft_probs": Q, "draft_tokens": [2]}
    few = [row | drafted if i % 60 == 0 else row for i, row in enumerate(rows)]
    found = recorded_run(few, "fixed", bias=0.2)
    assert [(x.subject, x.outcome) for x in found.statements] == [("outputs", "INCONCLUSIVE")]
    assert "of which 12 have an output token in a step with drafts, are too few" in found.verdict
    many = [row | drafted if i % 2 == 0 else row for i, row in enumerate(rows)]
    assert recorded_run(many, "fixed", bias=0.2).verdict == (
        "PASS: no fault found in 700 rows, of which 350 have an output token in a step with drafts"
    )
    undeclared = recorded_run(many, "none", bias=0.2)
    assert [event.kind for event in undeclared.events] == ["draft_undeclared"]
    assert undeclared.outcome == "INCONCLUSIVE"
    # Random drafts, of which none is called a fault of the outputs.
    undeclared = recorded_run(Engine().run(400, 1), "none")
    assert (undeclared.outcome, undeclared.acceptance) == ("INCONCLUSIVE", None)


def test_an_alarm_of_the_acceptance_is_above_the_ceiling():
    def pooled(accepted, ceilings):
        columns = {"accepted": np.array(accepted), "ceiling": np.array(ceilings)}
        return judge_rate(columns, "accepted", "ceiling", 1e-4)

    rng = np.random.default_rng(3)
    for _ in range(100):
        ceilings = rng.random(100) ** rng.integers(1, 12) + 1e-9
        found = pooled(rng.random(100) < rng.random(), ceilings)
        assert found.p_value == 1 or found.rate > found.most
    # Many acceptances where hardly any are possible, and few elsewhere.
    assert pooled([True] * 20 + [False] * 80, [1e-6] * 20 + [0.9] * 80).p_value == 1


def test_impossible_tokens_are_no_matter_of_acceptance():
    row = {"target_probs": [0.0, 1.0], "draft_probs": [0.5, 0.5], "draft_tokens": [0]}
    found = recorded_run([row | {"output_token": 0}] * 20 + [row | {"output_token": 1}] * 20)
    assert found.acceptance.num_positions == 20
    assert not found.acceptance.too_high


def test_dependent_drafts_of_a_run_are_found():
    """The second uniform number is 1 − the first: hardly ever equal, and never independent.

    Copies and seeds used twice are in test_fault_patterns.py.
    """
    rng, rows = np.random.default_rng(1), []
    for i in range(700):
        q, u = otmd.probs_from_logits(LOGITS[i * 7 % 20]), rng.random()
        drafts = np.searchsorted(q.cumsum(), [u, (1 - u) * (1 - 1e-12)], side="right").clip(0, 49)
        row = {"target_probs": q, "draft_probs": q, "draft_tokens": drafts}
        rows.append(row | {"output_token": int(rng.choice(50, p=q))})
    found = recorded_run(rows, false_alarm=0.01, rng=1)
    assert SLOTS.name in [x.name for x in found.claims if x.refuted]
    assert found.verdict.startswith("FAULTY: ")


def test_stratified_drafts_verified_with_the_law_of_independent_ones():
    """Whether the report finds other faults of engines says test_fault_patterns.py."""
    engine = Engine(
        sample=lambda rng, q, count, step: otmd.Stratified(q, count).sample(rng=rng), num_drafts=3
    )
    refuted = {
        claim.name
        for claim in recorded_run(engine.run(500, 1), "stratified", 0.01, rng=1).claims
        if claim.refuted
    }
    orders = (f"output tokens follow the target (in order of {order})" for order in ("p/q", "p"))
    assert refuted & {*orders}


def test_rows_chosen_by_their_outcome_are_no_sample_of_the_target():
    """The negative control of what the page says of such rows."""
    rows = [row for row in Engine().run(700, 1) if row["depth"] == 0]
    chosen = [row for row in rows if row["output_token"] in row["draft_tokens"]]
    assert recorded_run(chosen, false_alarm=0.01).faulty
    assert not recorded_run(rows, false_alarm=0.01).faulty
