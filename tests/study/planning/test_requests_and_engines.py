"""Plans for a number of concurrent requests, for one engine, and with a draft that is cut to its top k."""

from __future__ import annotations

import json

import numpy as np
import pytest
from planning.test_make_plan import write_texts

from otmd.cli import main
from otmd.engines import ENGINES
from otmd.models import open_dataset
from otmd.probabilities import Processing
from otmd.study.planning import Latency, make_plan, read_latency

DEPTH = 4


def times(numbers=(1, 8, 32), target=1e-4, draft=2e-5):
    """Times that are linear in tokens and in requests, and in both."""
    rows = lambda base, slope: [  # noqa: E731
        {"tokens": n, "context": 64, "requests": r, "seconds": base + slope * n * r}
        for n in (1, 4, 17)
        for r in numbers
    ]
    return {"target": rows(0.02, target), "draft": rows(0.002, draft), "verification": 1e-6}


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("requests") / "texts")


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "times.json"
    path.write_text(json.dumps(times()))
    return path


@pytest.mark.parametrize("requests", [1, 3, 8, 20, 32])
def test_interpolation_is_exact_on_a_bilinear_table(table, requests):
    latency = read_latency(table, requests=requests)
    # Two calls of the draft on one token of each request, and the target on three.
    expected = 2 * (0.002 + 2e-5 * requests) + 0.02 + 1e-4 * 3 * requests + 1e-6 * 2 * requests
    assert latency.step((1, 1)) == pytest.approx(expected, rel=1e-12)
    assert latency.alone == pytest.approx(0.02 + 1e-4 * requests, rel=1e-12)
    assert latency.requests == requests


def test_a_number_in_the_table_is_read_as_it_is(table):
    exact = [(n, 0.02 + 1e-4 * n * 8) for n in (1, 4, 17)]
    assert read_latency(table, requests=8).target == exact


def test_tokens_are_not_extrapolated(tmp_path):
    path = tmp_path / "times.json"
    content = times((1, 3))
    content["target"] = [row for row in content["target"] if row["tokens"] * row["requests"] < 20]
    path.write_text(json.dumps(content))
    latency = read_latency(path, requests=2)
    assert [size for size, _ in latency.target] == [1, 4]
    with pytest.raises(ValueError, match="target reaches 4 tokens"):
        latency.check(16)


@pytest.mark.parametrize("requests", [1, 64])
def test_requests_beyond_the_table_are_refused(tmp_path, requests):
    path = tmp_path / "times.json"
    path.write_text(json.dumps(times((2, 32))))
    said = f"target has times for 2 to 32 concurrent requests, got {requests}"
    with pytest.raises(ValueError, match=said):
        read_latency(path, requests=requests)


def test_more_requests_draft_less(dump, tmp_path, capsys):
    """Where the target is bound by arithmetic, each further draft costs more at larger batches."""
    (tmp_path / "times.json").write_text(json.dumps(times(target=4e-4)))
    config = tmp_path / "vllm.json"
    command = ["plan", str(dump), "--depth", str(DEPTH), "--workers", "1", "--engine", "vllm"]
    command += ["--latency", str(tmp_path / "times.json"), "--requests", "1,8,32"]
    command += ["--output", str(tmp_path / "out"), "--config", str(config)]
    assert main([*command, "--quiet"]) == 0
    said = capsys.readouterr()
    assert "By concurrent requests" in said.out
    assert "Written: " in said.err
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["by_requests"]["1"] == found["ranking"]
    assert {row["rule"] for row in found["ranking"]} == set(ENGINES["vllm"].rules)
    best = max(found["ranking"], key=lambda row: row["fitted"])
    written = json.loads(config.read_text())
    assert written["rule"] == best["rule"]
    lengths = []
    for number, rows in found["by_requests"].items():
        row = max((row for row in rows if row["rule"] == best["rule"]), key=lambda r: r["fitted"])
        alone = 1.0 / (0.02 + 4e-4 * int(number))
        lengths.append(len(row["choice"]["shape"]) if row["value"] > alone else 0)
    ranges = written["run"]["num_speculative_tokens_per_batch_size"]
    assert [levels for *_, levels in ranges] == lengths
    assert lengths[0] > lengths[-1]
    assert written["time"]["synthetic_acceptance_rates"] == pytest.approx(
        best["acceptance"], abs=1e-6
    )


def test_each_ranking_is_that_of_its_times(dump, table, tmp_path):
    options = {"rules": ["one-hot", "rejection"], "budgets": (4,), "depth": DEPTH, "workers": 1}
    dataset = open_dataset(dump)
    latencies = [read_latency(table, requests=number) for number in (1, 32)]
    plan = make_plan(dataset, tmp_path / "out", latency=latencies, **options)
    for ranking, latency in zip(plan.rankings, latencies, strict=True):
        alone = make_plan(dataset, tmp_path / "out", latency=latency, **options)
        assert [row.to_dict() for row in ranking.rows] == [row.to_dict() for row in alone.rows]
    assert plan.about["concurrent requests"] == "1, 32"
    assert plan.rows is plan.rankings[0].rows


def test_nothing_is_written_where_drafts_do_not_pay(dump, tmp_path):
    slow = Latency([(1, 0.001), (99, 0.2)], [(1, 0.01), (99, 0.01)], 0.0, 1)
    plan = make_plan(
        open_dataset(dump), tmp_path, depth=2, workers=1, rules=["one-hot"], latency=slow
    )
    assert plan.said[0].startswith("Do not draft")
    with pytest.raises(ValueError, match="a plan that does not draft"):
        plan.configuration("vllm")
    with pytest.raises(ValueError, match=r"engine: got 'vLLM', expected one of vllm"):
        plan.configuration("vLLM")


def test_trees_of_most_likely_paths_for_sglang(dump, tmp_path):
    plan = make_plan(
        open_dataset(dump), tmp_path, depth=3, workers=1, rules=["most-likely"], budgets=(7,)
    )
    choice = plan.rows[0].choice
    arguments = plan.configuration("sglang")["run"]["arguments"]
    assert [int(value) for value in arguments[1::2]] == [len(choice.shape), 4, 8]


def test_the_top_k_of_the_draft_is_that_of_the_law(dump, tmp_path):
    """Rejection with q cut to ten tokens is llama.cpp's rule, which cuts q itself."""
    options = {"rules": ["rejection", "rejection-top-10"], "depth": DEPTH, "workers": 1}
    dataset = open_dataset(dump)

    def values(folder, **more):
        rows = make_plan(dataset, tmp_path / folder, budgets=(4,), **options, **more).rows
        return {row.rule: (row.value, row.bound, row.rate) for row in rows}

    whole, cut = values("whole"), values("cut", draft_top_k=10)
    assert cut["rejection"] == pytest.approx(cut["rejection-top-10"], rel=1e-9)
    assert cut["rejection"] == pytest.approx(whole["rejection-top-10"], rel=1e-9)
    assert whole["rejection"] != pytest.approx(cut["rejection"], rel=1e-9)


def test_an_engine_drafts_at_the_temperature_alone(tmp_path, capsys):
    """Without the cuts of the texts; at temperature 0 its sampled draft is the argmax."""
    recorded = {"temperature": 0.0, "top_k": 5, "order": "vllm"}
    drawn = open_dataset(write_texts(tmp_path / "drawn"))
    certain = drawn.arrays(np.arange(len(drawn)))[0].copy()
    certain[np.arange(len(certain)), [row.token for row in drawn.positions]] += 50.0
    path = write_texts(tmp_path / "texts", target_logits=certain, metadata=recorded)
    command = ["plan", str(path), "--workers", "1", "--depth", "3", "--json", "--output"]

    def ranked(folder, *options):
        assert main([*command, str(tmp_path / folder), *options]) == 0
        plan = json.loads(capsys.readouterr().out)
        return plan["about"], {row["rule"]: row["value"] for row in reversed(plan["ranking"])}

    about, values = ranked("engine", "--engine", "vllm")
    assert values["rejection"] == values["block"] == pytest.approx(values["one-hot"], abs=1e-12)
    assert about["draft temperatures"] == "0"
    assert "draft top-k" not in about
    about, values = ranked("free", "--rules", "one-hot,rejection")
    assert values["rejection"] != pytest.approx(values["one-hot"], abs=1e-3)
    assert (about["draft temperatures"], about["draft top-k"]) == ("1", "5")


def test_the_processing_of_the_draft_keeps_the_smaller_cut():
    assert Processing(top_k=40).cut_to(10) == Processing(top_k=10)
    assert Processing(top_k=5, top_p=0.9).cut_to(10) == Processing(top_k=5, top_p=0.9)
    assert Processing().cut_to(None) == Processing()


def test_drawn_trees_are_not_those_of_a_cut_draft(dump, tmp_path):
    with pytest.raises(ValueError, match="without --draft-top-k"):
        make_plan(
            open_dataset(dump), tmp_path, depth=2, workers=1, rules=["stratified-layer"],
            draft_top_k=3,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--config", "out.json"], "--config: got it without --engine, expected one of vllm"),
        (["--engine", "mlx"], "--engine: got 'mlx', expected one of vllm, sglang"),
        (["--engine", "vllm", "--rules", "stratified"], "expected some of one-hot, rejection, block"),
        (["--engine", "vllm", "--draft-temperature", "1"], "--draft-temperature: got it with --engine"),
        (["--engine", "vllm", "--draft-top-k", "10"], "--draft-top-k: got it with --engine"),
        (["--requests", "8"], "--requests: got it without times, expected --latency"),
        (["--requests", "8", "--measure-latency", "t.json"], "--measure-latency times one request"),
        (["--requests", "64", "--latency", "TABLE"], "has times for 1 to 32 concurrent requests"),
    ],
)  # fmt: skip
def test_refusals_are_one_line(dump, table, tmp_path, capsys, options, said):
    named = [str(table) if option == "TABLE" else option for option in options]
    command = ["plan", str(dump), "--workers", "1", "--output", str(tmp_path / "out"), "--quiet"]
    assert main([*command, *named]) != 0
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_each_engine_is_configured_from_the_command_line(dump, tmp_path):
    for engine, entry in ENGINES.items():
        config = tmp_path / f"{engine}.json"
        command = ["plan", str(dump), "--depth", "3", "--workers", "1", "--quiet"]
        command += ["--engine", engine, "--output", str(tmp_path / engine)]
        assert main([*command, "--config", str(config)]) == 0
        written = json.loads(config.read_text())
        assert written["engine"] == entry.title
        assert written["rule"] in entry.rules
        assert np.size(written["run"]) > 0
