"""Texts alone: where a fault is, proofs, and every prefix is evaluated once. Verdicts: tests/golden.json."""

from __future__ import annotations

import numpy as np
from golden import chain_texts

from otmd.audit import texts

SIZE = 20
TABLE = np.random.default_rng(7).dirichlet(np.full(SIZE, 0.5), size=SIZE)
LOGITS = np.log(TABLE)


def oracle(prefixes):
    return LOGITS[[prefix[-1] for prefix in prefixes]]


def written(count, seed, wrong_at=-1):
    return chain_texts(np.random.default_rng([11, seed]), TABLE, count, wrong_at)


def test_the_power_is_stated():
    report = texts(written(100, 0), oracle, bias=0.15)
    assert 0.1 < report.detectable < 0.15
    assert "800 tokens" in report.verdict
    assert "depth" not in str(report)


def test_a_fault_at_one_token_index_is_found_there():
    report = texts(written(200, 2, wrong_at=3), oracle)
    assert report.faulty
    assert "token index 3" in report.verdict
    assert "token index 2" not in report.verdict


def test_tokens_that_cannot_come_out_are_proof():
    report = texts(written(20, 3), oracle, top_k=2)
    assert report.faulty
    assert [event.kind for event in report.events] == ["output_impossible"]
    beyond = {"prompt_tokens": [0], "output_tokens": [99]}
    assert texts([*written(1, 6), beyond], oracle).faulty


def test_a_prefix_is_evaluated_once_and_batches_do_not_matter():
    rows = written(60, 4)
    reports = set()
    for size in (1, 7, 10_000):
        asked = []

        def counting(prefixes):
            asked.extend(prefixes)  # noqa: B023
            return oracle(prefixes)

        reports.add(str(texts(rows, counting, batch_size=size)))
        prefixes = {(0, *row["output_tokens"][:i]) for row in rows for i in range(8)}
        assert len(asked) == len(prefixes)
    assert len(reports) == 1
