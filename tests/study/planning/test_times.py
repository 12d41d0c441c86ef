"""Plans by tokens per second: tables of times, concurrent requests, and a draft that is cut to its top k."""

from __future__ import annotations

import json

import pytest
from planning.test_make_plan import write_texts

from otmd.cli import main
from otmd.models import open_dataset
from otmd.probabilities import Processing
from otmd.study.planning import Latency, make_plan, read_latency
from otmd.study.planning.latency import measure_latency
from otmd.study.planning.tree_choices import Choice

NUMBERS = (1, 8, 32)


def rows(base, slope, numbers=NUMBERS):
    """Times that are linear in tokens and in requests, and in both."""
    return [
        {"tokens": n, "context": 64, "requests": r, "seconds": base + slope * n * r}
        for n in (1, 4, 17)
        for r in numbers
    ]


TIMES = {"target": rows(0.02, 1e-4), "draft": rows(0.002, 2e-5), "verification": 1e-6}


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("times") / "texts")


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "times.json"
    path.write_text(json.dumps(TIMES))
    return path


@pytest.mark.parametrize("requests", [1, 3, 8, 20, 32])
def test_interpolation_is_exact_on_a_bilinear_table(table, requests):
    latency = read_latency(table, requests=requests)
    # Two calls of the draft on one token of each request, and the target on three.
    expected = 2 * (0.002 + 2e-5 * requests) + 0.02 + 1e-4 * 3 * requests + 1e-6 * 2 * requests
    assert latency.step((1, 1)) == pytest.approx(expected, rel=1e-12)
    assert latency.alone == pytest.approx(0.02 + 1e-4 * requests, rel=1e-12)


def test_a_tree_costs_what_both_models_read():
    times = Latency([(1, 1.0), (9, 1.8)], [(1, 0.1), (9, 0.9)], 0.01, 1)
    likely = Choice("", 1.0, (4, 4, 4), 6)
    # Calls of the draft on 1, 4 and 4 tokens, and of the target on 7.
    assert times.step(likely.shape, likely.budget) == pytest.approx(0.1 + 0.8 + 1.6 + 0.06)
    assert (likely.drafts, likely.tree) == (6, "6 nodes, 3 deep")
    static = Choice("", 1.0, (2, 1), 3, ((0,), (1,), (0, 0)))
    assert times.step(static.shape, static.budget) == pytest.approx(0.1 + 0.2 + 1.3 + 0.03)
    assert (static.drafts, static.tree) == (3, "2+1")


def test_each_ranking_is_that_of_its_times(dump, table, tmp_path):
    options = {"rules": ["one-hot", "rejection"], "budgets": (4,), "depth": 4, "workers": 1}
    dataset = open_dataset(dump)
    latencies = [read_latency(table, requests=number) for number in (1, 32)]
    plan = make_plan(dataset, tmp_path / "out", latency=latencies, **options)
    for ranking, latency in zip(plan.rankings, latencies, strict=True):
        alone = make_plan(dataset, tmp_path / "out", latency=latency, **options)
        assert [row.to_dict() for row in ranking.rows] == [row.to_dict() for row in alone.rows]
        for row in ranking.rows:
            assert row.value == pytest.approx(
                row.tokens_per_step / latency.step(row.choice.shape, row.choice.budget)
            )
    assert plan.about["concurrent requests"] == "1, 32"
    assert plan.rows is plan.rankings[0].rows
    assert "tokens per second" in plan.said[0]
    (by_requests,) = [x for x in plan.tables() if x.title == "By concurrent requests"]
    assert [row[0] for row in by_requests.rows] == [1, 32]
    slow = Latency([(1, 0.001), (99, 0.2)], [(1, 0.01), (99, 0.01)], 0.0, 1)
    plan = make_plan(dataset, tmp_path / "slow", latency=slow, **options | {"rules": ["rejection"]})
    assert [(row.choice.shape, row.most_tried) for row in plan.rows] == [((1,), 4)]
    assert plan.said[0].startswith("Do not draft: rejection with a chain of 1 (draft T 1)")


def test_the_top_k_of_the_draft_is_that_of_the_law(dump, tmp_path):
    """Rejection with q cut to ten tokens is llama.cpp's rule, which cuts q itself."""
    options = {"rules": ["rejection", "rejection-top-10"], "depth": 4, "workers": 1}
    dataset = open_dataset(dump)

    def values(folder, **more):
        plan = make_plan(dataset, tmp_path / folder, budgets=(4,), **options, **more)
        return {row.rule: (row.value, row.bound, row.rate) for row in plan.rows}

    whole, cut = values("whole"), values("cut", draft_top_k=10)
    assert cut["rejection"] == pytest.approx(cut["rejection-top-10"], rel=1e-9)
    assert cut["rejection"] == pytest.approx(whole["rejection-top-10"], rel=1e-9)
    assert whole["rejection"] != pytest.approx(cut["rejection"], rel=1e-9)
    assert Processing(top_k=5, top_p=0.9).cut_to(10) == Processing(top_k=5, top_p=0.9)
    assert Processing().cut_to(None) == Processing()


def test_times_are_measured(monkeypatch, tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    from otmd import models

    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 90}

    class Tokenizer:
        eos_token_id, chat_template = 1, None

        def get_vocab(self):
            return {str(i): i for i in range(90)}

    model = models.LanguageModel(
        LlamaForCausalLM(LlamaConfig(**shape, **heads)), Tokenizer(), "tiny", "sha256:made-here"
    )
    monkeypatch.setattr(models, "load_target", lambda *_: model)
    monkeypatch.setattr(models, "load_draft", lambda *_: model)
    names = {"target": {"name": "tiny"}, "draft": {"name": "tiny"}}
    (tmp_path / "times.json").write_text(json.dumps(measure_latency(names, [1, 4], 8)))
    times = read_latency(tmp_path / "times.json")
    times.check(3)
    assert times.step((2, 1)) > times.alone > 0
    with pytest.raises(ValueError, match="names no models"):
        measure_latency({}, [1], 8)


TOO_FEW = {**TIMES, "target": [row for row in TIMES["target"] if row["tokens"] < 17]}


@pytest.mark.parametrize(
    ("times", "options", "said"),
    [
        (None, ["--requests", "8"], "--requests: got it without times, expected --latency"),
        (None, ["--requests", "8", "--measure-latency", "t.json"], "--measure-latency times one request"),
        (TIMES, ["--requests", "64"], "target has times for 1 to 32 concurrent requests, got 64"),
        (TOO_FEW, ["--requests", "3"], "target reaches 4 tokens, the budget needs 17"),
        ({"target": []}, [], "no latency table"),
        ({**TIMES, "verification": float("nan")}, [], "verification is nan"),
        ({**TIMES, "draft": [{"tokens": 2, "context": 1, "seconds": 1}]}, [], "a row of 1 token"),
    ],
)  # fmt: skip
def test_bad_times_are_one_line(dump, tmp_path, capsys, times, options, said):
    command = ["plan", str(dump), "--workers", "1", "--quiet", "--output", str(tmp_path / "out")]
    if times:
        (tmp_path / "times.json").write_text(json.dumps(times))
        command += ["--latency", str(tmp_path / "times.json")]
    assert main([*command, *options]) != 0
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
