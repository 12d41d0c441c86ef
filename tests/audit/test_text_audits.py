"""Texts alone: sound ones pass, each fault of a server is found, and every prefix is evaluated once."""

from __future__ import annotations

import numpy as np
import pytest

import otmd
from otmd.audit import texts

SIZE, LENGTH = 20, 8
TABLE = np.random.default_rng(7).dirichlet(np.full(SIZE, 0.5), size=SIZE)
LOGITS = np.log(TABLE)


def oracle(prefixes):
    return LOGITS[[prefix[-1] for prefix in prefixes]]


def written(count, seed, temperature=1.0, wrong_at=None):
    """Texts of a Markov chain; at the index ``wrong_at`` the token before the last decides."""
    rng = np.random.default_rng([11, seed])
    table = [otmd.Processing(temperature)(logits) for logits in LOGITS]
    rows = []
    for _ in range(count):
        text = [0]
        for index in range(LENGTH):
            context = text[-2] if index == wrong_at else text[-1]
            text.append(int(rng.choice(SIZE, p=table[context])))
        rows.append({"prompt_tokens": text[:1], "output_tokens": text[1:]})
    return rows


def test_sound_texts_pass_and_the_power_is_stated():
    report = texts(written(300, 0), oracle)
    assert report.outcome == "PASS"
    assert 0.05 < report.detectable < 0.1
    assert "2,400 tokens" in report.verdict
    assert "depth" not in str(report)


def test_sound_texts_are_called_faulty_at_most_at_the_stated_rate():
    # P(more than 4 of 20 false alarms) at a rate of 0.05 is 0.003.
    rows = [written(40, seed) for seed in range(20)]
    assert sum(texts(x, oracle, false_alarm=0.05, rng=i).faulty for i, x in enumerate(rows)) <= 4


def test_another_temperature_is_found_and_named():
    rows = written(600, 1, temperature=0.8)
    report = texts(rows, oracle)
    assert report.outcome == "FAULTY"
    [explanation] = report.explanations.values()
    assert "temperature" in explanation.mistake
    assert texts(rows, oracle, temperature=0.8).outcome == "PASS"


def test_a_fault_at_one_token_index_is_found_there():
    report = texts(written(300, 2, wrong_at=3), oracle)
    assert report.faulty
    assert "token index 3" in report.verdict
    assert "token index 2" not in report.verdict


def test_a_token_that_cannot_come_out_is_proof():
    rows = written(50, 3)
    assert texts(rows, oracle, top_k=2).faulty
    assert [case.kind for case in texts(rows, oracle, top_k=2).cases] == ["output_impossible"]


def test_a_prefix_is_evaluated_once():
    asked = []

    def counting(prefixes):
        asked.extend(prefixes)
        return oracle(prefixes)

    rows = written(200, 4)
    texts(rows, counting)
    prefixes = {(0, *row["output_tokens"][:i]) for row in rows for i in range(LENGTH)}
    assert len(asked) == len(prefixes)


def test_order_and_batches_do_not_matter_to_the_numbers():
    rows = written(60, 5)
    reports = [texts(rows, oracle, batch_size=size) for size in (1, 7, 10_000)]
    assert len({str(report) for report in reports}) == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt_tokens": [0]}, "output_tokens: got None"),
        ({"prompt_tokens": [0], "output_tokens": [1], "text": "a"}, "text: got an unknown field"),
        ({"prompt_tokens": [0.5], "output_tokens": [1]}, "prompt_tokens: got float64"),
        ({"prompt_tokens": [0], "output_tokens": [99]}, None),
    ],
)
def test_bad_rows_are_named(row, message):
    rows = [*written(1, 6), row]
    if message is None:
        # A token beyond the vocabulary is a fault of the server.
        assert texts(rows, oracle).faulty
        return
    with pytest.raises(ValueError, match="row 2: " + message):
        texts(rows, oracle)


def test_an_oracle_of_the_wrong_shape_is_named():
    with pytest.raises(ValueError, match=r"oracle: got logits of shape \(20,\)"):
        texts(written(1, 0), lambda prefixes: LOGITS[0])
