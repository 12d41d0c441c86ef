"""Plans: candidates that write steps of their own, a ranking, a decision, and what is said of bad input."""

import json

import numpy as np
import polars as pl
import pytest
from models.conftest import WORDS, make_pair

from otmd.cli import main
from otmd.models import Prompt
from otmd.probabilities import Processing
from otmd.study import tree_comparison
from otmd.study.estimate import Estimate, ratios
from otmd.study.latency import Latency
from otmd.study.plan import MEANS, SCHEMA, candidates, plan_table
from otmd.study.ranking import decision, rank, ranking_table
from otmd.trees import TableModel
from otmd.trees.base import Context
from otmd.trees.random_choices import Sampled

PROMPTS = [Prompt(f"p{i}", "code", " ".join(WORDS[i : i + 5])) for i in range(3)]
WAYS = candidates([4], 2, 1.0)
FAST = Latency([(1, 1.0), (99, 1.1)], [(1, 0.01), (99, 0.01)], 0.0)
SLOW = Latency([(1, 1.0), (99, 1.1)], [(1, 3.0), (99, 3.0)], 0.0)
TIMES = {
    "target": [{"tokens": n, "context": 64, "seconds": 0.02} for n in (1, 17)],
    "draft": [{"tokens": n, "context": 64, "seconds": 0.9} for n in (1, 17)],
    "verification": 0.0,
}


@pytest.fixture
def tiny_pair(monkeypatch):
    pair = make_pair()
    monkeypatch.setattr(tree_comparison, "loaded_pair", lambda *_: pair)
    return pair


def test_trees_are_within_the_budget_and_cost_what_is_drawn():
    draft = TableModel.random(30, 1, rng=0)
    ways = candidates([4, 16], 8, 1.0)
    assert len({(way.law, way.tree) for way in ways}) == len(ways)
    for way in ways:
        law = way.make(draft)
        assert law.depth == len(way.levels) <= 8
        tree = law.draft_tree(Context(draft, law), Sampled(np.random.default_rng(0)))
        drafts = way.budget or int(np.cumprod(way.levels).sum())
        assert len(tree.prefixes()) - 1 <= drafts <= 16
    assert {way.law for way in candidates([4], 2, 0.0)} == {"most likely paths"}


def test_every_candidate_has_steps_of_every_prompt_and_a_finished_run_is_read(
    tiny_pair, tmp_path, monkeypatch
):
    options = {"processing": Processing(), "workers": 1}
    table = plan_table("tiny", "skip:1,3", PROMPTS, tmp_path / "plan", WAYS, **options)
    rules = {(way.law, way.tree, rule) for way in WAYS for rule in way.rules}
    assert set(table.select("law", "tree", "rule").iter_rows()) == rules
    assert table["steps"].max() == 5
    assert (table["tokens"] >= table["steps"]).all()
    adaptive = table["law"] == "strata, adaptive"
    assert table["bound"].is_null().to_list() == adaptive.to_list()
    monkeypatch.setattr(tree_comparison, "loaded_pair", None)
    assert plan_table("tiny", "skip:1,3", PROMPTS, tmp_path / "plan", WAYS, **options).equals(table)
    with pytest.raises(ValueError, match="at least 2"):
        plan_table("tiny", "skip:1,3", PROMPTS[:1], tmp_path / "one", WAYS, **options)


def by_hand(first=(12.0, 13.0, 14.0), second=(10.0, 10.5, 12.0)):
    """A table of two rules; all steps are five."""
    rows = [
        ("code", f"p{i}", "one draft", "chain of 2", rule, tokens, 1.1 * tokens, 5)
        for rule, of_prompts in (("block", first), ("token by token", second))
        for i, tokens in enumerate(of_prompts)
    ]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def test_means_are_those_of_the_steps_and_times_divide_them():
    first, second = rank(by_hand()).to_dicts()
    assert (first["rule"], second["rule"]) == ("block", "token by token")
    assert first["bound"] == pytest.approx(1.1 * 39 / 15)
    block, token = (
        ratios(np.array(sums), np.full(3, 5.0)) for sums in ((12, 13, 14), (10, 10.5, 12))
    )
    assert (first["tokens"], first["low"], first["high"]) == Estimate.of(block)
    assert first["tokens"] == pytest.approx(39 / 15)
    lead = Estimate.of(block / token - 1)
    assert (second["lead"], second["lead_low"], second["lead_high"]) == pytest.approx(lead)
    assert second["lead_low"] < second["lead"] < second["lead_high"]
    timed = rank(by_hand(), FAST, WAYS)
    speeds = timed["tokens_per_second"]
    assert speeds[0] == pytest.approx(39 / 15 / FAST.step((1, 1)))
    assert timed["law"][-1] == "no drafts"
    assert timed["lead"][-1] == pytest.approx(speeds[0] / speeds[-1] - 1)


def test_the_decision_comes_first_and_may_be_not_to_draft():
    taken, few = decision(rank(by_hand()))
    assert taken.startswith("Take one draft, chain of 2, block: 2.60 tokens per step [")
    assert "The bound of any lossless rule with these drafts: 2.86." in taken
    assert few.startswith("Only 3 prompts")
    assert "tokens per second" in decision(rank(by_hand(), FAST, WAYS))[0]
    slow = decision(rank(by_hand(), SLOW, WAYS))[0]
    assert slow.startswith("Do not draft: the target alone writes 1.0 tokens per second; one draft")
    alike = rank(by_hand(second=(12.5, 12.5, 13.9)))
    assert decision(alike)[1] == "Perhaps as good: one draft, chain of 2, token by token."
    shown = str(ranking_table(rank(by_hand()), "plan", MEANS))
    assert "20.0%" in shown
    assert "Means over 5 steps" in shown


def plan(tmp_path, *options):
    common = ["--per-domain", "1", "--prompts", "code,chat", "--workers", "1", "--quiet"]
    sizes = ["--tree-budget", "2", "--depth", "2", "--output", str(tmp_path / "out")]
    return main(["plan", *common, *sizes, *options])


def test_the_command_decides_ranks_and_writes(tiny_pair, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("otmd.models.load_prompts", lambda *_, **__: PROMPTS[:2])
    assert plan(tmp_path, "--html", str(tmp_path / "plan.html")) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Take ")
    assert "one draft, chain of 2, block" in printed
    assert "bound of" in printed
    assert "<table>" in (tmp_path / "plan.html").read_text()
    (tmp_path / "times.json").write_text(json.dumps(TIMES))
    assert plan(tmp_path, "--latency", str(tmp_path / "times.json"), "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["said"][0].startswith("Do not draft")
    assert shown["by_requests"]["1"][0]["law"] == "no drafts"


@pytest.mark.parametrize(
    ("times", "options", "said"),
    [
        (None, ["--requests", "8"], "--requests: got 8, expected --latency"),
        (None, ["--requests", "8", "--measure-latency", "t.json"], "--measure-latency times one request"),
        (TIMES, ["--requests", "64"], "target has times for 1 to 1 concurrent requests, got 64"),
        (TIMES, ["--tree-budget", "99"], "target reaches 17 tokens, the budget needs 100"),
        ({"target": []}, [], "no latency table"),
        ({**TIMES, "verification": float("nan")}, [], "verification is nan"),
        ({**TIMES, "draft": [{"tokens": 2, "context": 1, "seconds": 1}]}, [], "a row of 1 token"),
    ],
)  # fmt: skip
def test_bad_times_are_one_line(tmp_path, capsys, times, options, said):
    command = ["plan", "--quiet", "--output", str(tmp_path / "out")]
    if times:
        (tmp_path / "times.json").write_text(json.dumps(times))
        command += ["--latency", str(tmp_path / "times.json")]
    assert main([*command, *options]) != 0
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
