"""A rule for blocks is sound: audited as one for tokens it is called faulty, and the report says why."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from otmd.audit import Recorder, recorded_run
from otmd.probabilities import probs_from_logits
from otmd.testing.referee import block

DEPTH = 6
TARGET = probs_from_logits(np.random.default_rng(0).normal(0, 1.5, (20, 40)))
DRAFT = probs_from_logits(np.log(TARGET) + np.random.default_rng(1).normal(size=TARGET.shape))


@cache
def steps() -> list[dict]:
    rng = np.random.default_rng(2)
    path = rng.integers(40, size=(500, 1))
    for _ in range(DEPTH):
        drafts = [[rng.choice(40, p=DRAFT[last % 20])] for last in path[:, -1]]
        path = np.append(path, drafts, axis=1)
    p, q = TARGET[path % 20], DRAFT[path[:, :-1] % 20]
    columns = {"target_probs": p, "draft_probs": q, "draft_tokens": path[:, 1:]}
    columns |= {"output_tokens": block(p, q, path[:, 1:], rng), "step": range(500)}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@cache
def rows() -> list[dict]:
    """Rows of the positions that were reached, with their drafts."""
    listed = []
    for step in steps():
        for depth, output in enumerate(step["output_tokens"][step["output_tokens"] >= 0]):
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
