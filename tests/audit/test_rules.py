"""A rule for blocks is sound: audited as one for tokens it is called faulty, and the report says why."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from otmd.audit import Recorder, recorded_run
from otmd.probabilities import probs_from_logits

DEPTH = 6
TARGET = probs_from_logits(np.random.default_rng(0).normal(0, 1.5, (20, 40)))
DRAFT = probs_from_logits(np.log(TARGET) + np.random.default_rng(1).normal(size=TARGET.shape))


def block_step(last: int, rng: np.random.Generator) -> dict:
    """A step of block verification (Sun et al. 2024): the longest accepted prefix, and one token more."""
    path = [last]
    for _ in range(DEPTH):
        path.append(int(rng.choice(40, p=DRAFT[path[-1] % 20])))
    p, q = (table[np.array(path) % 20] for table in (TARGET, DRAFT))
    share, shares, accepted = 1.0, [1.0], 0
    for i, token in enumerate(path[1:], start=1):
        share = min(share * p[i - 1, token] / q[i - 1, token], 1.0)
        shares.append(share)
        left = np.maximum(share * p[i] - q[i], 0).sum()
        if rng.random() < (share if i == DEPTH else left / (left + 1 - share)):
            accepted = i
    weights = p[accepted]
    if accepted < DEPTH:
        weights = np.maximum(shares[accepted] * weights - q[accepted], 0)
    output = int(rng.choice(40, p=weights / weights.sum()))
    return {
        "target_probs": p,
        "draft_probs": q[:DEPTH],
        "draft_tokens": path[1:],
        "output_tokens": [*path[1 : accepted + 1], output],
    }


@cache
def steps() -> list[dict]:
    rng, last, listed = np.random.default_rng(2), 0, []
    for step in range(500):
        listed.append(block_step(last, rng) | {"step": step})
        last = listed[-1]["output_tokens"][-1]
    return listed


@cache
def rows() -> list[dict]:
    """Rows of the positions that were reached, with their drafts."""
    listed = []
    for step in steps():
        for depth, output in enumerate(step["output_tokens"]):
            row = {"step": step["step"], "depth": depth, "output_token": output}
            if depth < DEPTH:
                row["draft_probs"] = step["draft_probs"][depth]
                row["draft_tokens"] = step["draft_tokens"][depth : depth + 1]
            listed.append(row | {"target_probs": step["target_probs"][depth]})
    return listed


def num_drafts_tested(report) -> int:
    return next(claim.num_samples for claim in report.claims if claim.side == "drafts")


def test_block_verification_is_no_rule_for_tokens():
    found = recorded_run(rows(), false_alarm=0.01)
    assert found.acceptance is not None
    assert found.acceptance.too_high
    assert 'declare rule="block" or rule="tree"' in str(found)


@pytest.mark.parametrize("rule", ["block", "tree"])
def test_it_passes_as_what_it_is_and_drafts_of_depth_0_are_tested(rule):
    found = recorded_run(rows(), rule=rule, bias=0.15)
    assert found.outcome == "PASS"
    assert found.acceptance is not None
    assert num_drafts_tested(found) == found.acceptance.num_positions == len(steps())


def test_a_recorder_has_all_drafts_of_a_step_and_tests_them(tmp_path):
    with Recorder(tmp_path, rule="block") as recorder:
        for step in steps():
            recorder.add_step(**step)
    found = recorded_run(tmp_path, bias=0.15)
    assert found.outcome == "PASS"
    assert num_drafts_tested(found) == DEPTH * len(steps())
