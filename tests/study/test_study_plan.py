"""Plans: candidates that write steps of their own, the command, and what is said of bad input."""

import json

import numpy as np
import pytest
from models.conftest import make_pair, make_prompts

from otmd.cli import main
from otmd.probabilities import Processing
from otmd.study import plan as planning
from otmd.study.plan import candidates, plan_table
from otmd.trees import TableModel
from otmd.trees.base import Context
from otmd.trees.random_choices import Sampled

PROMPTS = make_prompts(3, "code")
WAYS = candidates([4], 2, 1.0)
TIMES = {
    "target": [{"tokens": n, "context": 64, "seconds": 0.02} for n in (1, 17)],
    "draft": [{"tokens": n, "context": 64, "seconds": 0.9} for n in (1, 17)],
    "verification": 0.0,
}


@pytest.fixture
def tiny_pair(monkeypatch):
    pair = make_pair()
    monkeypatch.setattr(planning, "loaded_pair", lambda *_: pair)
    return pair


def test_trees_are_within_the_budget_and_cost_what_is_drawn():
    draft = TableModel.random(30, 1, rng=0)
    ways = candidates([4, 16], 8, 1.0, short=[1, 2, 8])
    assert len({(way.law, way.tree) for way in ways}) == len(ways)
    for way in ways:
        law = way.make(draft)
        assert law.depth == len(way.levels) <= 8
        tree = law.draft_tree(Context(draft, law), Sampled(np.random.default_rng(0)))
        drafts = way.budget or int(np.cumprod(way.levels).sum())
        assert len(tree.prefixes()) - 1 <= drafts <= 16
    chains = {way.tree: [*way.rules] for way in ways if way.law == "one draft"}
    both = ["position by position", "block"]
    assert chains == {f"chain of {n}": both[: 1 if n == 1 else 2] for n in (1, 2, 4, 8)}
    cold = candidates([4], 2, 0.0, short=[1, 2])
    assert {(way.law, way.tree) for way in cold} == {("most likely paths", f"{n} nodes") for n in (1, 4)}


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
    first = {"starts": [8], "num_steps": 1, "left_out": 0} | options
    single = plan_table("tiny", "skip:1,3", PROMPTS, tmp_path / "single", WAYS, **first)
    assert set(single["steps"]) == {1}
    monkeypatch.setattr(planning, "loaded_pair", None)
    assert plan_table("tiny", "skip:1,3", PROMPTS, tmp_path / "plan", WAYS, **options).equals(table)
    with pytest.raises(ValueError, match="draft: stored skip:1,3, asked skip:2"):
        plan_table("tiny", "skip:2", PROMPTS, tmp_path / "plan", WAYS, **options)
    with pytest.raises(ValueError, match="at least 2"):
        plan_table("tiny", "skip:1,3", PROMPTS[:1], tmp_path / "one", WAYS, **options)


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
    assert "chain of 1" not in printed
    assert "bound of" in printed
    assert "<table>" in (tmp_path / "plan.html").read_text()
    (tmp_path / "times.json").write_text(json.dumps(TIMES))
    assert plan(tmp_path, "--latency", str(tmp_path / "times.json"), "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["said"][0].startswith("Do not draft")
    assert shown["by_requests"]["1"][0]["law"] == "no drafts"
    assert "chain of 1" in [row["tree"] for row in shown["by_requests"]["1"]]
    many = {
        name: [*rows, *({**row, "requests": 8, "seconds": seconds} for row in rows)]
        for name, seconds in (("target", 0.9), ("draft", 0.001))
        for rows in [TIMES[name]]
    }
    (tmp_path / "times.json").write_text(json.dumps(TIMES | many))
    assert plan(tmp_path, "--latency", str(tmp_path / "times.json"), "--requests", "1,8") == 0
    alone, together, *_ = capsys.readouterr().out.split("\n\n")
    assert alone.startswith("1 concurrent request: Do not draft: the target alone")
    assert together.startswith("8 concurrent requests: Take ")
