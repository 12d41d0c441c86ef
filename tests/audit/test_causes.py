"""The cause that an audit names: right, or said to be the nearest, or unknown."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from faulty_engines import FAULTS, VOCAB_SIZE, Engine, draw, stale, verify
from scipy.stats import binom

from otmd.audit import causes
from otmd.audit.claims import DRAFTS
from otmd.audit.mistakes import Explanation, Fit
from otmd.audit.run_audit import recorded_run
from otmd.laws import WithReplacement
from otmd.probabilities import Processing

ROWS = 1_200
# These show late.
MORE_ROWS = {"accepted a little too often": 2_000, "duplicates skipped": 2_000}


def audited(rows, law="with-replacement", seed=1):
    # A rate of 0.01 takes a tenth of the draws for exact p-values.
    return recorded_run(rows, law, 0.01, rng=np.random.default_rng(seed))


def cause_of(report) -> Explanation | None:
    return next(iter(report.explanations.values()), None)


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.slow
def test_the_named_cause_is_right_or_said_not_to_be_all(name):
    engine, cause = FAULTS[name]
    report = audited(engine.run(MORE_ROWS.get(name, ROWS), seed=1))
    found, lines = cause_of(report), str(report)
    if found is None:
        assert cause is None or name == "a coarse coin"
        # Random numbers used twice pass: no claim of the audit sees them.
        unknown = "\nMost likely cause: unknown" in lines or "\nUsual cause of such rows: " in lines
        assert unknown == report.faulty
    elif found.stands:
        assert cause is not None
        assert cause in found.mistake
        assert f"\nMost likely cause: {found.mistake}; " in lines
    else:
        # A listed mistake is found, though these rows may be too few to confirm a small one.
        assert cause is None or (cause in found.mistake and not found.fit.refuted)
        heads = (
            "Most likely cause, not confirmed",
            "Nearest of the known mistakes, and not the whole cause",
        )
        assert f"\n{heads[found.fit.refuted]}: {found.mistake}; " in lines


def test_a_temperature_that_was_never_written_is_told_by_its_rows():
    """The fault of vLLM 0.32.0 on a CPU, see tests/engines_real/test_vllm.py."""
    engine, _ = FAULTS["temperature never written"]
    report = audited(engine.run(ROWS, seed=1))
    assert report.faulty
    assert "\nUsual cause of such rows: a buffer that was never written" in str(report)


def test_a_right_cause_is_refuted_at_the_stated_rate():
    """The test fails by chance with probability 1e-4 at most, were the seeds not fixed."""
    engine, cause = FAULTS["residual from q"]
    runs = [cause_of(audited(engine.run(400, seed), seed=seed)) for seed in range(8)]
    right = [own for own in runs if own is not None and cause in own.mistake]
    assert len(right) >= 6
    assert all(own.fit.level == 0.01 for own in right)
    assert sum(own.fit.refuted for own in right) <= binom.isf(1e-4, len(right), 0.01)


def outcomes(true: np.ndarray, assumed: np.ndarray, number: int, rng: np.random.Generator):
    """Held-out rows whose token is drawn from one distribution and ranked among draws of another."""
    for _ in range(number):
        drawn = rng.choice(assumed.size, causes._DRAWS, p=assumed)
        tokens = np.append(rng.choice(true.size, p=true), drawn)
        statistics = np.array([tokens, assumed[tokens], tokens * causes._GOLDEN % 1.0])
        yield causes._Outcome(("all",), causes._ranks(statistics, rng), False, 0.5)


def test_the_test_of_a_cause_keeps_its_level_and_its_power():
    rng = np.random.default_rng(3)
    assumed = np.full(20, 0.05)
    refuted = [causes._fit([*outcomes(assumed, assumed, 300, rng)], rng).refuted for _ in range(40)]
    assert sum(refuted) <= binom.isf(1e-4, 40, 0.01)
    detectable = causes._fit([*outcomes(assumed, assumed, 300, rng)], rng).detectable
    # Mass moves from the last tokens to the first: a total variation of 1.2 times what is said to be found.
    other = assumed + np.where(np.arange(20) < 10, 1.0, -1.0) * 1.2 * detectable / 10
    found = [causes._fit([*outcomes(other, assumed, 300, rng)], rng).refuted for _ in range(20)]
    assert sum(found) >= binom.ppf(1e-4, 20, 0.9)


def test_a_cause_that_excludes_what_came_out_is_refuted():
    rng = np.random.default_rng(0)
    ranks = rng.integers(0, 16, (200, 3))
    rows = [causes._Outcome(("all",), own, i < 5, 0.5) for i, own in enumerate(ranks)]
    assert causes._fit(rows, rng).refuted
    assert not causes._fit([own._replace(impossible=False) for own in rows], rng).refuted


def test_too_few_rows_confirm_nothing():
    rng = np.random.default_rng(0)
    ranks = rng.integers(0, 16, (12, 3))
    fit = causes._fit([causes._Outcome(("all",), own, False, 0.5) for own in ranks], rng)
    explanation = Explanation("a mistake", 10.0, fit)
    assert not fit.refuted
    assert not explanation.stands
    assert str(explanation).startswith(
        "Most likely cause, not confirmed: a mistake; 12 held-out rows"
    )
    assert causes._fit([], rng) == Fit(0, 1.0, 0.01, 1.0, 0.0)


def test_drafts_from_the_distribution_of_the_row_before():
    rows = Engine(verify).run(1_200, seed=3)
    drafted = [row for row in rows if "draft_probs" in row]
    for row, later in pairwise(drafted):
        row["draft_probs"] = later["draft_probs"]
    found = audited(rows[:-4]).explanations[DRAFTS]
    assert found.mistake == "taken from another row (the row before)"
    assert found.stands


def test_drafts_at_a_temperature_that_was_not_applied():
    rng = np.random.default_rng(5)
    logits = rng.normal(0, 2, (20, VOCAB_SIZE))
    rows = []
    for number in range(800):
        own = logits[number % 20]
        row = {"draft_logits": own, "draft_temperature": 0.55, "target_logits": own}
        tokens = WithReplacement(Processing()(own), 2).sample(rng=rng)
        rows.append(row | {"draft_tokens": tokens, "output_token": draw(Processing()(own), rng)})
    found = audited(rows).explanations[DRAFTS]
    assert found.mistake == "processed otherwise (without the temperature)"
    assert found.stands


def test_drafts_of_two_temperatures_in_turn_are_no_single_mistake():
    rng = np.random.default_rng(6)
    rows = Engine(verify).run(1_600, seed=3)
    for number, row in enumerate(row for row in rows if "draft_probs" in row):
        if number % 3 == 0:
            row["draft_tokens"] = np.array([row["draft_probs"].argmax()])
        else:
            row["draft_tokens"] = rng.choice(VOCAB_SIZE, 1, p=row["draft_probs"])
    found = audited(rows).explanations[DRAFTS]
    assert found.fit is not None
    assert not found.stands


def test_a_fault_of_fixed_drafts_is_named():
    """The draft is the most likely token, and after a rejection the token is drawn from p with it."""
    rng = np.random.default_rng(8)
    rows = []
    for _ in range(1_000):
        p = Processing(0.7)(rng.normal(0, 2, VOCAB_SIZE))
        token = int(p.argmax())
        output = token if rng.random() < p[token] else draw(p, rng)
        rows.append({"target_probs": p, "draft_tokens": [token], "output_token": output})
    found = cause_of(audited(rows, "fixed"))
    assert found is not None
    assert found.stands
    assert "after all rejections the token is drawn from p" in found.mistake


def test_neighbours_are_padded_to_the_same_tokens():
    """Rows of the most likely tokens alone have vocabularies of unequal sizes."""
    rows = Engine(lambda at: verify(at, stale("p", at))).run(ROWS, seed=2)
    for row in rows:
        ids = np.flatnonzero(row["target_probs"] > 1e-5)
        row["target_ids"], row["target_probs"] = ids, row["target_probs"][ids]
        if "draft_probs" in row:
            row["draft_ids"] = np.arange(VOCAB_SIZE)
        row["target_probs"] = row["target_probs"] / row["target_probs"].sum()
    found = cause_of(audited(rows))
    assert found is not None
    assert "the target is taken from another row (the row before)" in found.mistake
