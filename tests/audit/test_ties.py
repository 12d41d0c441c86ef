"""A cut may keep any of tied tokens, as the engine chooses: audits allow each, and find all other faults."""

from __future__ import annotations

import numpy as np
import pytest
from faulty_verifiers import RejectionSteps

from otmd.audit import recorded_run
from otmd.audit.declared import law_name
from otmd.audit.rows import read_row
from otmd.laws import Stratified, WithReplacement
from otmd.probabilities import Processing, probs_from_logits, ties_at_edge

GREEDY = {"target_logits": [1.0, 1.0, 0.0], "target_temperature": 0}


def test_accepted_tied_tokens_are_possible_and_within_the_acceptance():
    draft = {name.replace("target", "draft"): value for name, value in GREEDY.items()}
    row = GREEDY | draft | {"draft_tokens": [1], "output_token": 1}
    for law in ("with-replacement", "fixed", "top-k"):
        report = recorded_run([row] * 200, law)
        assert not report.faulty, law
        assert report.acceptance.rate == report.acceptance.most == 1.0


def test_ties_at_the_edge_are_those_that_a_cut_splits():
    logits = np.array([1.0, 2.0, 1.0, 0.0, 1.0])
    for options, tied in (
        ({"top_p": 0.6}, [0, 2, 4]),
        ({"top_p": 0.99}, []),
        ({"top_k": 2}, []),
        ({"temperature": 0}, []),
        ({"min_p": 0.5}, []),
    ):
        probs = probs_from_logits(logits, **options)
        assert ties_at_edge(logits, probs).tolist() == tied


def lowest_ids(processing: Processing, logits: np.ndarray) -> np.ndarray:
    """An engine that keeps the lowest ids of tied logits."""
    return processing(logits[::-1])[::-1]


def run(num_rows: int, seed: int, cut: Processing, fault: float = 0.0) -> list[dict]:
    """Logits of few values, so that most edges have ties; a part of the outputs is drawn from q."""
    rng, rows = np.random.default_rng(seed), []
    for _ in range(num_rows):
        target = rng.integers(-6, 7, 24) / 4
        draft = target + rng.integers(-2, 3, 24) / 4
        law = WithReplacement(lowest_ids(cut, draft), 2)
        tokens = law.sample(rng=rng)
        output = RejectionSteps(lowest_ids(cut, target), law)(tokens)
        output = law.draft_probs if rng.random() < fault else output
        row = {"target_logits": target, "draft_logits": draft, "draft_tokens": tokens}
        rows.append(row | {"output_token": int(rng.choice(24, p=output / output.sum()))})
    return rows


@pytest.mark.parametrize("cut", [Processing(0.7, top_p=0.8), Processing(0.5, top_p=0.6)], ids=str)
def test_a_sound_engine_with_another_rule_for_ties(cut):
    alarms = 0
    for seed in range(2):
        rows = run(250, seed, cut)
        sides = {"target": cut, "draft": cut}
        ties = [read_row(i, row, "", sides).target.ties.size for i, row in enumerate(rows, 1)]
        assert np.mean(np.array(ties) > 0) > 0.3
        options = {"target_processing": cut, "draft_processing": cut}
        report = recorded_run(rows, false_alarm=0.01, rng=seed, **options)
        assert not report.events
        alarms += report.faulty
    # At most 0.01 a run: both have probability 1e-4.
    assert alarms < 2


def test_faults_are_still_found():
    cut = Processing(0.7, top_p=0.8)
    options = {"target_processing": cut, "draft_processing": cut}
    rows = run(400, 0, cut, fault=0.7)
    assert recorded_run(rows, false_alarm=0.01, **options).faulty


@pytest.mark.parametrize("law", [WithReplacement, Stratified], ids=lambda law: law.__name__)
def test_drafts_of_an_engine_with_another_rule_for_ties(law):
    """Two of three tied tokens are kept, so that one draft in two has mass here."""
    rng, rows = np.random.default_rng(0), []
    cut = Processing(top_p=0.6)
    for _ in range(300):
        logits = np.where(np.isin(np.arange(6), rng.permutation(6)[:3]), 30.0, 0.0)
        tokens = law(lowest_ids(cut, logits), 1).sample(rng=rng)
        rows.append({"target_probs": np.full(6, 1 / 6), "draft_logits": logits})
        rows[-1]["draft_tokens"] = tokens
    report = recorded_run(rows, law_name(law), draft_processing=cut)
    assert not report.faulty
    assert (report.statements != ()) == (law is WithReplacement)
