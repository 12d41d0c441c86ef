"""Metrics against counts by hand, and what is said of rows that no sound engine writes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from otmd.audit import recorded_run
from otmd.audit.claims import EVENTS, MISTAKES
from otmd.probabilities import Processing

HALVES = {"target_probs": [0.5, 0.5, 0.0], "draft_probs": [0.5, 0.5, 0.0]}


def audited(rows, law="with-replacement", **options):
    return recorded_run(rows, law, rng=np.random.default_rng(0), **options)


def chain_row(step, depth, drafts, output):
    return HALVES | {"step": step, "depth": depth, "draft_tokens": drafts, "output_token": output}


CHAINS = [
    chain_row(0, 0, [0], 0),
    chain_row(0, 1, [1], 1),
    chain_row(0, 2, [], 0),
    chain_row(1, 0, [0], 1),
    chain_row(1, 1, [1], None),
    chain_row(2, 0, [1], 1),
    chain_row(2, 1, [1], 0),
]


def test_metrics_are_what_their_definitions_say():
    assert audited(CHAINS).metrics == pytest.approx(
        {
            "acceptance rate": 3 / 5,
            "optimal acceptance rate": 1.0,
            "draft acceptance rate": 3 / 6,
            "accepted drafts per step": 1.0,
            "tokens per step": 2.0,
            "conditional acceptance at depth 0": 2 / 3,
            "acceptance per step at depth 0": 2 / 3,
            "conditional acceptance at depth 1": 1 / 2,
            "acceptance per step at depth 1": 1 / 3,
        }
    )


def test_steps_begin_at_depth_0_where_no_step_is_given():
    rows = [{name: own for name, own in row.items() if name != "step"} for row in CHAINS]
    assert audited(rows).metrics == audited(CHAINS).metrics


def test_requests_may_be_interleaved():
    first = [row | {"request": "a"} for row in CHAINS[:3]]
    second = [row | {"request": 7} for row in CHAINS[5:]]
    mixed = [first[0], second[0], first[1], second[1], first[2]]
    assert not audited(mixed).events
    unnamed = [{name: own for name, own in row.items() if name != "request"} for row in mixed]
    assert [event.kind for event in audited(unnamed).events] == ["depth_gap"]


ROW = HALVES | {"draft_tokens": [0], "output_token": 0}
NAN, INF = float("nan"), float("inf")
WRONG_ROWS = {
    "target_nan": ROW | {"target_probs": [0.5, NAN, 0.5]},
    "target_sum": ROW | {"target_probs": [0.5, 0.4, 0.0]},
    "target_negative": ROW | {"target_probs": [1.5, -0.5, 0.0]},
    "target_infinite": {"target_logits": [0.0, INF, 0.0], "output_token": 0},
    "target_empty": {"target_logits": [-INF, -INF], "output_token": 0},
    "target_id": {"target_probs": [1.0], "target_ids": [5], "draft_probs": [0.5, 0.5]},
    "draft_nan": ROW | {"draft_probs": [NAN, 0.5, 0.5]},
    "draft_sum": ROW | {"draft_probs": [2.0, 1.0, 0.5]},
    "draft_missing": {"target_probs": [0.5, 0.5], "draft_tokens": [1], "output_token": 0},
    "draft_out_of_range": ROW | {"draft_tokens": [3]},
    "output_out_of_range": ROW | {"output_token": 3},
    "draft_impossible": ROW | {"draft_tokens": [2]},
    "output_impossible": ROW | {"output_token": 2},
    "impossible_accepted": ROW | {"draft_probs": [0.5, 0.0, 0.5], "draft_tokens": [2], "output_token": 2},
    "depth_gap": ROW | {"depth": 2},
}


@pytest.mark.parametrize("kind", WRONG_ROWS)
def test_rows_that_no_sound_engine_writes_are_counted(kind):
    row = WRONG_ROWS[kind]
    report = audited([ROW, row, row])
    assert not audited([ROW]).events
    event = next(event for event in report.events if event.kind == kind)
    assert (event.num_rows, event.first_rows) == (2, (2, 3))
    assert report.outcome == ("INCONCLUSIVE" if kind in MISTAKES else "FAULTY")
    assert EVENTS[kind][1] in str(report)


UNEQUAL = {"target_probs": [0.5, 0.3, 0.2], "draft_probs": [0.6, 0.4, 0.0], "output_token": 0}
GREEDY = {"target_logits": [1.0, 1.0, 0.0], "target_temperature": 0}
EDGE = {"target_logits": [2.5, 0.8, 0.7, 0.7], "target_top_p": 0.85}
DRAFTED_EDGE = {"draft_logits": [2.5, 0.8, 0.7, 0.7], "draft_top_p": 0.85, "target_probs": [0.25] * 4}
COLD = {"target_logits": [3.0, 2.0, 1.0], "target_temperature": 0.5, "target_top_p": 0.8, "output_token": 1}
BOTH = {"target_logits": [2.0, 1.0, 0.0], "draft_logits": [2.0, 1.0, 0.0]}
BOTH |= {"draft_tokens": [2], "output_token": 2}
OFF = np.array([0.5, 0.5 + 1e-5])
IN_BFLOAT16 = (np.array([0.3, 0.3, 0.4], np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
CUTS = {"target_processing": Processing(top_k=2), "draft_processing": Processing(top_k=1)}
LLAMA_CPP = Processing(0.5, top_p=0.8, order="llama.cpp")
PLAIN = {"target_logits": COLD["target_logits"], "output_token": 1}
# Rows, the law and the settings that they are audited with, and what is seen.
SEEN = [
    # Drafts that a law never draws. Ties leave it open which of them are the most likely.
    *(([UNEQUAL | {"draft_tokens": tokens}], {"law": law}, kinds) for law, tokens, kinds in (
        ("without-replacement", [0, 0], ["draft_never"]), ("without-replacement", [1, 0], []),
        ("greedy", [1, 0], ["draft_never"]), ("greedy", [0, 1], []),
        ("with-replacement", [0, 0], []), ("fixed", [2, 2], []))),
    *(([ROW | {"draft_tokens": [1, 0]}], {"law": law}, [])
      for law in ("without-replacement", "greedy", "with-replacement", "fixed")),
    # A cut may keep any of tied tokens, as the engine chooses, and no more than it keeps.
    *(([GREEDY | {"output_token": y}], {}, kinds) for y, kinds in enumerate(([], [], ["output_impossible"]))),
    *(([EDGE | {"output_token": y}], {}, []) for y in range(4)),
    ([DRAFTED_EDGE | {"draft_tokens": [2, 2], "output_token": 0}], {}, []),
    ([DRAFTED_EDGE | {"draft_tokens": [2, 3], "output_token": 0}], {}, ["draft_impossible"]),
    # Settings of each side, of the row or of the run; the order of the cuts.
    ([BOTH], {}, []),
    ([BOTH | {"target_top_k": -1, "draft_top_k": 0}], {}, []),
    ([BOTH | {"target_top_k": 2, "draft_top_k": 1, "draft_top_p": None}], {},
     ["draft_impossible", "impossible_accepted"]),
    ([BOTH], CUTS, ["draft_impossible", "impossible_accepted"]),
    ([COLD], {}, ["output_impossible"]),
    *(([COLD | {"target_order": order}], {}, []) for order in (
        "llama.cpp", "top_k,top_p,min_p,temperature", ["top_k", "top_p", "min_p", "temperature"])),
    ([PLAIN], {"target_processing": LLAMA_CPP}, []),
    # The tolerance of a sum follows the type of the numbers.
    *(([{"target_probs": probs, "output_token": 1}], {}, kinds) for probs, kinds in (
        (OFF, ["target_sum"]), (OFF.astype(np.float32), []), (OFF.tolist(), []),
        (IN_BFLOAT16, []), (IN_BFLOAT16 + np.array([0, 0, 0.003], np.float32), ["target_sum"]))),
    # A position that was decided after a rejection.
    ([chain_row(0, 0, [0], 1), chain_row(0, 1, [1], 1)], {}, ["after_rejection"]),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "options", "kinds"), SEEN)
def test_what_is_seen_in_rows(rows, options, kinds):
    assert [event.kind for event in audited(rows, **options).events] == kinds


def test_a_position_decided_after_a_rejection_is_not_tested():
    rows = [chain_row(0, 0, [0], 1), chain_row(0, 1, [1], 1)]
    assert audited(rows).claims[0].num_samples == 1


def test_sparse_rows_agree_with_full_ones():
    rng = np.random.default_rng(5)
    full, sparse = [], []
    for _ in range(50):
        row = {"draft_tokens": [int(rng.integers(3))], "output_token": int(rng.integers(3))}
        p, q = rng.dirichlet(np.ones(3), 2)
        full.append(row | {"target_probs": np.append(p, 0), "draft_probs": np.append(q, 0)})
        order = rng.permutation(3)
        own = {"target_ids": order, "target_probs": p[order]}
        sparse.append(row | own | {"draft_ids": [2, 1, 0], "draft_probs": q[::-1].copy()})
    assert str(audited(full)) == str(audited(sparse))


def test_rows_of_several_vocabularies_are_named():
    other = {"target_probs": [0.5, 0.5], "output_token": 0}
    report = audited([ROW, other, ROW, other])
    assert report.vocabularies == {3: (2, (1, 3)), 2: (2, (2, 4))}
    assert "  2 tokens: 2 rows (2, 4)" in str(report)
    assert "several vocabularies" not in str(audited([ROW]))


def test_a_report_has_no_empty_headings_and_says_how_many_rows_would_do():
    report = audited([{"target_probs": [0.5, 0.5]}])
    assert report.outcome == "INCONCLUSIVE"
    assert "nothing to test" in report.verdict
    assert not [line for line in str(report).splitlines() if line.endswith(":")]
    assert "A bias of" not in str(report)
    assert "but 1 row is too few to find a bias of 0.1; about" in audited([ROW]).verdict
    few = audited([ROW] * 10, bias=0.2)
    assert str(few).startswith("INCONCLUSIVE: no fault found, but 10 rows are too few to find a bias")
    assert f"about {few.rows_needed:,} would do" in few.verdict
    rng = np.random.default_rng(1)
    tokens = rng.integers(2, size=(few.rows_needed, 2)).tolist()
    rows = [HALVES | {"draft_tokens": [x], "output_token": y} for x, y in tokens]
    enough = audited(rows, bias=0.2)
    assert enough.outcome == "PASS"
    assert audited(rows).outcome == "INCONCLUSIVE"
    assert enough.to_dict()["outcome"] == "PASS"
    assert "Without an alarm above they mean nothing" in str(enough)


def test_only_the_first_rows_are_listed():
    found = audited([WRONG_ROWS["target_nan"]] * 8)
    assert [str(event) for event in found.events] == ["8 rows have NaN in the target"]
    assert "8 rows (1, 2, 3, 4, 5, …): NaN in the target; usually" in str(found)


def test_the_values_for_json_are_finite_and_labels_are_short():
    row = {"target_logits": [5.0, -np.inf, 0.0], "target_top_k": 1, "output_token": 1}
    rows = [row | {"request": f"{'x' * 900}{i % 2}"} for i in range(200)]
    found = recorded_run(rows, "none")
    assert np.isinf(found.gaps).all()
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["gaps"] == [None] * 200
    biased = [x | {"target_logits": [0.0, 0.0, 0.0], "target_top_k": 0} for x in rows]
    assert "x" * 30 in (report := str(recorded_run(biased, "none")))
    assert "x" * 60 not in report
