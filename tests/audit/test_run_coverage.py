"""Faults that a single order of the tokens hides, and sound runs that must not be called faulty.

Each control is a run with one fault and, with ``sound=True``, the same run without it.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from recorded_engine import Engine
from scipy.stats import binom

import otmd
from otmd import audit
from otmd.audit.claims import (
    CLAIMS,
    DRAFTS,
    NUM_STATEMENTS,
    ROWS,
    SLOTS,
    Evidence,
    Grouping,
    judge_claim,
)
from otmd.audit.draft_samples import independence_p_values
from otmd.audit.metrics import PooledAcceptance
from otmd.audit.run_audit import recorded_run
from otmd.audit.samples import derived_rng
from otmd.audit.tally import Tally

P, Q = np.array([0.4, 0.35, 0.25]), np.array([0.3, 0.3, 0.4])
EVEN_AND_ODD = ([0.2, 0.35, 0.45], [0.6, 0.35, 0.05])
LOGITS = np.random.default_rng(0).normal(scale=1.5, size=(20, 50))
DRAFT_LOGITS = LOGITS + np.random.default_rng(1).normal(size=LOGITS.shape)


def alternating(rng, sound):
    """The bias of even rows is the opposite of that of odd rows."""
    for i in range(2000):
        output = rng.choice(3, p=P if sound else EVEN_AND_ODD[i % 2])
        yield {"target_probs": P, "output_token": int(output)}


def one_number_for_draft_and_coin(rng, sound):
    """The total variation is about 0.14."""
    context = 0
    for _ in range(1300):
        p, q = (otmd.probs_from_logits(own[context]) for own in (LOGITS, DRAFT_LOGITS))
        number = rng.random()
        draft = min(int(np.searchsorted(q.cumsum(), number, side="right")), 49)
        coin = rng.random() if sound else number
        residual = np.maximum(p - q, 0)
        output = int(rng.choice(50, p=residual / residual.sum()))
        if coin < p[draft] / q[draft]:
            output = draft
        yield {"target_probs": p, "draft_probs": q, "draft_tokens": [draft], "output_token": output}
        context = output % 20


def penalty_ignored(rng, sound):
    """The record subtracts 0.6 from the logits of tokens that came out before: total variation about 0.08."""
    for request in range(10):
        came_out, context = np.zeros(50), 0
        for _ in range(200):
            meant = otmd.probs_from_logits(LOGITS[context] - 0.6 * came_out)
            used = meant if sound else otmd.probs_from_logits(LOGITS[context])
            output = int(rng.choice(50, p=used))
            yield {"target_probs": meant, "output_token": output, "request": request}
            came_out[output], context = 1.0, output % 20


def rare(rng, sound, prob, count):
    """Some of 2,000 tokens have this probability, in a vocabulary where tokens below 0.001 are common."""
    target, wrong = (
        np.repeat([5e-4, 0.475, prob], [100, 2, 1]),
        rng.choice(2000, count, replace=False),
    )
    target /= target.sum()
    for i in range(2000):
        output = 102 if i in wrong and not sound else int(rng.choice(103, p=target))
        yield {"target_probs": target, "output_token": output}


def improbable(rng, sound):
    yield from rare(rng, sound, 1e-22, 5)


def extra_tokens(rng, sound):
    """About fifty extra tokens of some 2,000 rows are off by a total variation of 0.67."""
    target = np.array([0.67, 0.22, 0.11])
    accept = otmd.Preference()
    law = otmd.WithReplacement(Q, 1)
    for step in range(2000):
        drafts = law.sample(rng=rng)
        output = int(accept.verify(P, law, drafts, rng=rng).token)
        row = {"target_probs": P, "draft_probs": Q, "draft_tokens": drafts, "step": step}
        yield row | {"output_token": output, "depth": 0}
        if step % 35 == 0 and output == drafts[0]:
            extra = rng.choice(3, p=target if sound else [0, 0.5, 0.5])
            yield {"target_probs": target, "output_token": int(extra), "step": step, "depth": 1}


def one_request(rng, sound):
    """One of eight requests is sampled at another temperature."""
    for i in range(4000):
        request = i // 3 % 8
        p = P if sound or request != 3 else otmd.probs_from_logits(4 * np.log(P))
        yield {"target_probs": P, "output_token": int(rng.choice(3, p=p)), "request": request}


def drafts_of_low_ids(rng, sound):
    """A quarter of the drafts are drawn from the lower half of the ids alone."""
    for i in range(1500):
        p, q = (otmd.probs_from_logits(own[i % 20]) for own in (LOGITS, DRAFT_LOGITS))
        low = np.where(np.arange(50) < 25, q, 0)
        used = q if sound or rng.random() < 0.75 else low / low.sum()
        row = {"target_probs": p, "draft_probs": q, "draft_tokens": [int(rng.choice(50, p=used))]}
        yield row | {"output_token": int(rng.choice(50, p=p))}


CONTROLS = [
    alternating,
    one_number_for_draft_and_coin,
    penalty_ignored,
    improbable,
    extra_tokens,
    one_request,
    drafts_of_low_ids,
]
by_control = pytest.mark.parametrize("control", CONTROLS, ids=lambda own: own.__name__)


@cache
def audited(control, seed, sound=False, **options):
    rows = list(control(np.random.default_rng(seed), sound))
    return recorded_run(rows, rng=np.random.default_rng(seed), **options)


@by_control
@pytest.mark.slow
def test_the_fault_is_found(control):
    assert audited(control, 0).outcome == "FAULTY"


@by_control
def test_the_run_without_the_fault_passes(control):
    """An alarm has a probability of 1e-3 at most, were the seeds not fixed."""
    found = audited(control, 3, sound=True)
    assert found.outcome == "PASS", found
    assert "would have been found with probability 0.9 if it shows over all" in str(found)


def test_the_report_says_where_the_fault_shows():
    told = {
        alternating: "each position in the batch by itself",
        one_number_for_draft_and_coin: "in order of token id",
        penalty_ignored: "in order of earlier occurrences",
        extra_tokens: "extra tokens (no drafts)",
        one_request: "request 3",
        improbable: "5 rows have an output token that is too improbable for this number of rows",
    }
    for control, words in told.items():
        assert words in audited(control, 0).verdict


def test_improbable_rows_are_listed():
    wrong = np.random.default_rng(0).choice(2000, 5, replace=False) + 1
    (case,) = audited(improbable, 0).cases
    assert (case.kind, case.count) == ("output_improbable", 5)
    assert case.first_rows == tuple(sorted(wrong))
    row = {"target_probs": [0.5, 0.5], "draft_probs": [1 - 1e-22, 1e-22], "draft_tokens": [1]}
    (case,) = recorded_run([row | {"output_token": 1}], rng=np.random.default_rng(0)).cases
    assert case.kind == "draft_improbable"


@pytest.mark.slow
def test_depths_are_told_apart():
    """An engine that verifies with the right target at depth 0 alone."""
    rows = Engine(vocab_size=20, depth=3).run(1500, 1)
    rng = np.random.default_rng(2)
    for row in rows:
        if row["depth"] > 0:
            row["target_probs"] = rng.permutation(row["target_probs"])
    found = recorded_run(rows, false_alarm=0.01, rng=rng)
    alarms = {(row[0], row[1]): row[2] for row in found.tables[1].rows}
    assert found.tables[1].title == "Tests by depth"
    assert alarms["depth 0", "outputs"] == "none"
    assert alarms["depth 1", "outputs"] == alarms["depth 2", "outputs"] == "REFUTED"
    assert {row[2] for row in found.tables[1].rows if row[1] == "drafts"} == {"none"}


def test_sound_runs_raise_alarms_at_the_stated_rate():
    """Of 10 runs at a rate of 0.2 two alarms are expected at most; more than isf has probability 1e-4."""
    rate, runs = 0.2, 10
    engine = Engine(vocab_size=12, depth=2, num_drafts=2)
    alarms = 0
    for seed in range(runs):
        rows = [row | {"request": row["step"] % 5} for row in engine.run(200, seed)]
        alarms += recorded_run(rows, false_alarm=rate, rng=np.random.default_rng(seed)).faulty
    assert alarms <= binom.isf(1e-4, runs, rate)


def grouped(number, group_of, rng):
    """Uniform numbers, each in a group that ``group_of`` chooses by the number before and this number."""
    numbers, grouping = rng.random(number), Grouping("group", listed=True)
    for before, own in zip(np.append(0.5, numbers[:-1]), numbers, strict=True):
        label = group_of(before, own)
        grouping.add(label, f"group {label}")
    return Evidence(numbers, np.zeros(number, bool), groupings=[grouping])


def alarms_of_bets(group_of, level=0.1, runs=60):
    rng = np.random.default_rng(5)
    claims = (
        judge_claim("uniform", grouped(150, group_of, rng), 0.01, rng=rng) for _ in range(runs)
    )
    return sum(own.betting_p_value <= level for own in claims), binom.isf(1e-6, runs, level)


def test_groups_may_depend_on_what_came_before():
    alarms, most = alarms_of_bets(lambda before, own: int(4 * before))
    assert alarms <= most


def test_groups_that_look_at_the_outcome_are_not_fair():
    """The negative control: why accepted, corrected and rejected tokens are no groups of the audit."""
    alarms, most = alarms_of_bets(lambda before, own: int(2 * own))
    assert alarms > most


def test_every_claim_and_its_share_are_in_one_table():
    tally = Tally(np.random.default_rng(0))
    assert set(tally.evidence) == set(CLAIMS)
    assert 3 * len(CLAIMS) + 3 == NUM_STATEMENTS
    found = audited(extra_tokens, 3, sound=True, false_alarm=0.01)
    assert {own.level for own in found.claims} == {0.01 / NUM_STATEMENTS}


class TestSeeds:
    """A sound engine may draw from the seed that the audit is given."""

    def test_of_a_recorded_run(self):
        seed = 1
        numbers = np.random.default_rng(seed).random(500)
        tokens = np.searchsorted(P.cumsum(), numbers, side="right").tolist()
        rows = [{"target_probs": P, "output_token": token} for token in tokens]
        assert not recorded_run(rows, rng=np.random.default_rng(seed)).faulty

    def test_of_a_black_box(self):
        """Maximal coupling, with coins that would be the numbers that drew the drafts."""

        def engine(drafts):
            rng = np.random.default_rng(0)
            accepted = rng.random(len(drafts)) * Q[drafts[:, 0]] < P[drafts[:, 0]]
            residual = np.maximum(P - Q, 0)
            corrected = rng.choice(3, size=len(drafts), p=residual / residual.sum())
            return np.where(accepted, drafts[:, 0], corrected)

        law, rng = otmd.WithReplacement(Q, 1), np.random.default_rng(0)
        assert not audit.losslessness(engine, P, law, 2_000, batched=True, rng=rng).faulty
        otmd.testing.assert_lossless(engine, P, law, returns="tokens", num_samples=2_000)

    def test_of_drafts(self):
        """The reference must not be drawn with the numbers that drew the samples."""
        law = otmd.WithReplacement(P, 2)
        samples = law.sample(rng=np.random.default_rng(4), size=1_000)
        found = audit.draft_law(samples, law, rng=np.random.default_rng(4))
        again = audit.draft_law(samples, law, rng=np.random.default_rng(4))
        rng = np.random.default_rng(4)
        dependent = independence_p_values(samples, law, found.level, rng=rng)
        assert found.independence == again.independence != dependent
        assert not found.faulty

    def test_of_two_audits(self):
        numbers = {derived_rng(np.random.default_rng(0), own).random() for own in ("a", "b", "a")}
        assert len(numbers | {np.random.default_rng(0).random()}) == 3
        assert derived_rng(0, "a").random() in numbers


def chain(rng, steps, lost=0.0, depth=2):
    law, accept = otmd.WithReplacement(Q, 1), otmd.Preference()
    for step in range(steps):
        for level in range(depth + 1):
            row = {"target_probs": P, "step": step, "depth": level}
            if level == depth:
                yield row | {"output_token": int(rng.choice(3, p=P))}
                break
            drafts = law.sample(rng=rng)
            output = int(accept.verify(P, law, drafts, rng=rng).token)
            rejected = output != drafts[0]
            if rejected and rng.random() < lost:
                output = -1
            yield row | {"draft_probs": Q, "draft_tokens": drafts, "output_token": output}
            if rejected:
                break


def test_a_lost_output_rules_out_a_pass():
    rows = list(chain(np.random.default_rng(0), 800, lost=0.1))
    missing = [i for i, row in enumerate(rows, start=1) if row["output_token"] == -1]
    found = recorded_run(rows, rng=np.random.default_rng(0))
    (case,) = found.cases
    assert (case.kind, case.count) == ("output_missing", len(missing))
    assert case.first_rows == tuple(missing[:5])
    assert {rows[i - 1]["depth"] for i in missing} == {0, 1}
    assert not found.faulty
    assert found.outcome == "INCONCLUSIVE"
    assert f"but {len(missing)} rows" in found.verdict
    whole = recorded_run(list(chain(np.random.default_rng(0), 800)), rng=np.random.default_rng(0))
    assert whole.outcome == "PASS"


def test_after_a_lost_output_it_is_unknown_what_was_reached():
    rows = list(chain(np.random.default_rng(0), 800))
    first = {"target_probs": P, "draft_probs": Q, "draft_tokens": [0], "step": 800, "depth": 0}
    rows += [first, {"target_probs": P, "output_token": 1, "step": 800, "depth": 1}]
    report = recorded_run(rows, rng=np.random.default_rng(0))
    assert [case.kind for case in report.cases] == ["output_missing"]
    assert report.outcome == "INCONCLUSIVE"


def test_a_position_after_a_rejection_is_not_missing():
    rows = Engine(depth=3, record_unreached=True).run(100, 1)
    assert any("output_token" not in row for row in rows)
    assert not recorded_run(rows, rng=np.random.default_rng(0)).cases


def test_drafts_alone_are_judged_and_do_not_pass():
    rng = np.random.default_rng(1)
    rows = [
        {"target_probs": P, "draft_probs": Q, "draft_tokens": [int(rng.choice(3, p=Q))]}
        for _ in range(2000)
    ]
    found = recorded_run(rows, rng=rng)
    assert [(own.subject, own.outcome) for own in found.statements] == [("drafts", "PASS")]
    assert found.outcome == "INCONCLUSIVE"


@pytest.mark.parametrize("law", ["fixed", "with-replacement"])
def test_outputs_and_drafts_are_two_statements(law):
    """An n-gram run: few positions have drafts."""
    rng, rows = np.random.default_rng(2), []
    for i in range(2051):
        row = {"target_probs": P, "output_token": int(rng.choice(3, p=P))}
        if i % 60 == 0:
            row |= {"draft_probs": Q, "draft_tokens": [int(rng.choice(3, p=Q))]}
        rows.append(row)
    found = recorded_run(rows, law, rng=rng)
    outcomes = {own.subject: own.outcome for own in found.statements}
    assert found.outcome == outcomes["outputs"] == "PASS"
    assert found.detectable < 0.08
    assert outcomes.get("drafts") == (None if law == "fixed" else "INCONCLUSIVE")
    assert "\nOutputs: PASS. A bias of 0.0" in str(found)


def test_a_fault_of_the_drafts_is_theirs_alone():
    found = audited(drafts_of_low_ids, 0)
    assert [own.outcome for own in found.statements] == ["PASS", "FAULTY"]
    assert found.outcome == "FAULTY"


def pooled(accepted, ceilings) -> PooledAcceptance:
    tally = Tally(np.random.default_rng(0))
    tally._accepted, tally.ceilings = list(accepted), list(ceilings)
    found = tally.acceptance(1e-4)
    assert found is not None
    return found


def test_an_alarm_of_the_acceptance_is_above_the_ceiling():
    rng = np.random.default_rng(3)
    for _ in range(100):
        ceilings = rng.random(100) ** rng.integers(1, 12) + 1e-9
        found = pooled(rng.random(100) < rng.random(), ceilings)
        assert found.p_value == 1 or found.rate > found.ceiling
    # Many acceptances where hardly any are possible, and few elsewhere.
    apart = pooled([True] * 20 + [False] * 80, [1e-6] * 20 + [0.9] * 80)
    assert apart.p_value == 1


def test_impossible_tokens_are_no_matter_of_acceptance():
    row = {"target_probs": [0.0, 1.0], "draft_probs": [0.5, 0.5], "draft_tokens": [0]}
    rows = [row | {"output_token": 0}] * 20 + [row | {"output_token": 1}] * 20
    found = recorded_run(rows, rng=np.random.default_rng(0))
    assert found.acceptance is not None
    assert found.acceptance.num_positions == 20
    assert not found.acceptance.too_high


DRAFT_PROBS = [otmd.probs_from_logits(own) for own in LOGITS]
LAWS = {id(q): otmd.WithReplacement(q, 2) for q in DRAFT_PROBS}


def rows(draw, number: int, seed: int) -> list[dict]:
    """Positions with laws of their own; what ``draw(q, before, rng)`` draws, and a token of the target."""
    rng, before, made = np.random.default_rng(seed), None, []
    for i in range(number):
        q = DRAFT_PROBS[i * 7 % 20]
        before = draw(q, before, rng)
        given = {"target_probs": q, "draft_probs": q, "draft_tokens": before}
        made.append(given | {"output_token": int(rng.choice(50, p=q))})
    return made


def sound(q, before, rng):
    return LAWS[id(q)].sample(rng=rng)


def copied(q, before, rng):
    return sound(q, before, rng)[[0, 0]]


def mirrored(q, before, rng):
    """The second uniform number is 1 − the first: hardly ever equal, and never independent."""
    u = rng.random()
    return np.searchsorted(q.cumsum(), [u, (1 - u) * (1 - 1e-12)], side="right").clip(0, 49)


class SharedSeeds:
    """Two positions in turn use the same random numbers."""

    def __init__(self):
        self.calls = 0

    def __call__(self, q, before, rng):
        if self.calls % 2 == 0:
            self.numbers = rng.random(2)
        self.calls += 1
        return np.searchsorted(q.cumsum(), self.numbers, side="right").clip(0, 49)


DEPENDENT = {
    "the second a copy of the first": (copied, 1500, SLOTS),
    "mirrored numbers": (mirrored, 1500, SLOTS),
    "seeds used twice": (SharedSeeds(), 1500, ROWS),
}


@pytest.mark.parametrize("name", DEPENDENT)
def test_dependent_drafts_of_a_run_are_found(name):
    draw, number, claim = DEPENDENT[name]
    found = recorded_run(rows(draw, number, 1), false_alarm=0.01, rng=np.random.default_rng(1))
    assert claim in [own.name for own in found.claims if own.refuted]
    assert found.verdict.startswith("FAULTY: ")
    if name == "the second a copy of the first":
        assert "Most likely cause: one draw repeated for every draft" in str(found)


def test_independent_drafts_of_runs_raise_alarms_at_the_stated_rate():
    alarms = counted = 0
    for seed in range(12):
        found = recorded_run(
            rows(sound, 150, seed), false_alarm=0.2, rng=np.random.default_rng(seed)
        )
        alarms += found.faulty
        counted += {DRAFTS, SLOTS, ROWS} <= {own.name for own in found.claims}
    assert counted == 12
    assert alarms <= binom.isf(1e-4, 12, 0.2)
