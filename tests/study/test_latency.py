"""Tables of times, for one request or many."""

import json

import pytest
from models.conftest import make_tiny

from otmd.study.latency import Latency, measure_times, read_latency

NUMBERS = (1, 8, 32)


def rows(base, slope, numbers=NUMBERS):
    """Times that are linear in tokens and in requests, and in both."""
    return [
        {"tokens": n, "context": 64, "requests": r, "seconds": base + slope * n * r}
        for n in (1, 4, 17)
        for r in numbers
    ]


TIMES = {"target": rows(0.02, 1e-4), "draft": rows(0.002, 2e-5), "verification": 1e-6}


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "times.json"
    path.write_text(json.dumps(TIMES))
    return path


@pytest.mark.parametrize("requests", [1, 3, 8, 20, 32])
def test_interpolation_is_exact_on_a_bilinear_table(table, requests):
    latency = read_latency(table, 16, requests=requests)
    # Two calls of the draft on one token of each request, and the target on three.
    expected = 2 * (0.002 + 2e-5 * requests) + 0.02 + 1e-4 * 3 * requests + 1e-6 * 2 * requests
    assert latency.step((1, 1)) == pytest.approx(expected, rel=1e-12)
    assert latency.alone == pytest.approx(0.02 + 1e-4 * requests, rel=1e-12)


def test_a_tree_costs_what_both_models_read():
    times = Latency([(1, 1.0), (9, 1.8)], [(1, 0.1), (9, 0.9)], 0.01)
    # Calls of the draft on 1, 4 and 4 tokens, and of the target on 7.
    assert times.step((4, 4, 4), 6) == pytest.approx(0.1 + 0.8 + 1.6 + 0.06)
    # Of the draft on 1 and 2 tokens, and of the target on 5.
    assert times.step((2, 1)) == pytest.approx(0.1 + 0.2 + 1.4 + 0.04)


@pytest.mark.parametrize("draft", ["skip:1,3", "ngram"])
def test_times_are_measured(draft, monkeypatch, tmp_path):
    monkeypatch.setattr("otmd.models.load_target", lambda *_: make_tiny())
    monkeypatch.setattr("otmd.models.collection.held_out_corpus", lambda *_, **__: [[3, 4, 5, 6] * 5])
    (tmp_path / "times.json").write_text(json.dumps(measure_times("tiny", draft, [1, 4], 8)))
    times = read_latency(tmp_path / "times.json", 3)
    assert min(times.alone, times.step((2, 1))) > 0
