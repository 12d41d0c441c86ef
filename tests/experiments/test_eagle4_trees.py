from collections import Counter, defaultdict

import numpy as np
import polars as pl
import pytest
from models.conftest import make_pair, make_prompts

import otmd
from experiments.trees import eagle4_trees
from experiments.trees.eagle4_trees import OrderStatistics
from otmd.study import plan
from otmd.study.plan import Candidate
from otmd.testing.trees import CutTree
from otmd.trees import TableModel, TreeLaw
from otmd.trees.base import Context
from otmd.trees.random_choices import RandomChoices, Sampled, every_outcome
from paper_figures import queries

WAYS = list(eagle4_trees.candidates())
CUT = [way for way in WAYS[:4] if way.law.startswith("cut")]


def drafts_of(law: TreeLaw) -> dict[str, float]:
    """The probability of each tree, its drafts in the order in which they were drawn."""
    context, probs = Context(law.draft_model, law), defaultdict[str, float](float)

    def draw(choices: RandomChoices) -> str:
        tree = law.draft_tree(context, choices)
        nodes = [(prefix, tree.node(prefix)) for prefix in tree.prefixes()]
        return str([(prefix, node.tokens.tolist()) for prefix, node in nodes if node])

    for text, prob in every_outcome(draw):
        probs[text] += prob
    return probs


@pytest.mark.parametrize("seed", range(3))
def test_cut_as_a_whole_the_law_is_that_of_the_case_on_record(seed: int) -> None:
    draft = TableModel.random(3, 2, 0.5, rng=seed)
    by_level, by_node = drafts_of(OrderStatistics(draft, 4, 3, 2)), drafts_of(CutTree(draft, 4, 3, 2))
    assert by_level == pytest.approx(by_node, abs=1e-12)


@pytest.mark.parametrize("way", CUT, ids=lambda way: way.law)
def test_each_rule_is_lossless_for_its_law(way: Candidate) -> None:
    draft = TableModel([[0.5, 0.5, 0.0], [[0.2, 0.3, 0.5], [0.6, 0.2, 0.2], [1.0, 0.0, 0.0]]])
    law = OrderStatistics(draft, 4, 2, 2, by_layer=way.law == "cut by level")
    for rule in way.rules.values():
        otmd.testing.check_tree_verifier(rule, law)
        # A law that a rule refuses would pass as well.
        rule.step(TableModel.random(3, 1, rng=0), law, rng=0)


def test_laws_of_one_size_have_as_many_drafts() -> None:
    draft = TableModel.random(40, 1, rng=0)
    for way in WAYS:
        law = way.make(draft)
        tree = law.draft_tree(Context(draft, law), Sampled(np.random.default_rng(0)))
        prefixes = tree.prefixes()
        num_drafts = sum(node.tokens.size for prefix in prefixes if (node := tree.node(prefix)))
        assert num_drafts == way.budget, way
        if way.law == "cut by level":
            assert tuple(Counter(map(len, prefixes[1:])).values()) == way.levels


def test_the_script_on_a_tiny_model(tmp_path, monkeypatch) -> None:
    pair = make_pair()
    monkeypatch.setattr(plan, "loaded_pair", lambda *_: pair)
    monkeypatch.setattr(eagle4_trees, "load_prompts", lambda *_, **__: make_prompts(3, "code"))
    monkeypatch.setattr(eagle4_trees, "SHAPES", ((2, 2),))
    output = tmp_path / "o.parquet"
    options = ["--parts", str(tmp_path / "parts"), "--output", str(output), "--temperatures", "1"]
    table = eagle4_trees.main([*options, "--drafts", "skip:1,3", "--starts", "1", "2"])
    assert table.select("law", "rule").unique().height == 7
    assert table.group_by("start").len()["len"].to_list() == [21, 21]
    assert (table["tokens"] / table["steps"]).is_between(1.0, 1.0 + eagle4_trees.DEPTH).all()
    monkeypatch.setattr(plan, "loaded_pair", lambda *_: pytest.fail("measured again"))
    assert eagle4_trees.main([*options, "--drafts", "skip:1,3", "--starts", "1"]).equals(
        table.filter(start=1)
    )
    assert pl.read_parquet(output).equals(table.filter(start=1))


def test_leads_are_means_over_pairs_of_ratios_over_the_same_prompts(monkeypatch) -> None:
    """A tenth more tokens at each prompt of one pair, a fifth more at each of the other: no variance."""
    rows = [
        {"draft": draft, "temperature": 1.0, "drafts": 8, "domain": "code", "prompt_id": f"{prompt}"}
        | {"law": law, "rule": "layer by layer", "steps": 4, "tokens": lead**is_first * (9.0 + prompt)}
        for draft, lead in (("skip:15", 1.1), ("skip:13,15,17", 1.2))
        for is_first, law in enumerate(("sampled paths", "strata"))
        for prompt in range(5)
    ]
    monkeypatch.setattr(queries, "read", lambda name: pl.DataFrame(rows))
    numbers = queries.drawn_tree_lead("strata, layer by layer", "sampled paths, layer by layer")
    assert numbers["leads"] == "T = 1, 8 drafts: +15.0 (+15.0 to +15.0); T = 1, mean: +15.0 (+15.0 to +15.0)"
    assert [numbers[name] for name in ("so", "more", "ahead", "cells")] == [1.0, "more at T = 1", 2, 2]
