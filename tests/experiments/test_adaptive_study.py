"""The study of adaptive trees: its estimates have their means, and its trees as many drafts."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from models.conftest import WORDS, make_llama, make_tokenizer

import otmd
from experiments.trees import adaptive_trees
from experiments.trees.adaptive_trees import SameDrafts, candidates, fixed_shape
from otmd.models import LanguageModel, Prompt, load_draft
from otmd.trees import AdaptiveTree, BestFirstTree, TableModel, block_efficiency
from otmd.trees.base import Context
from otmd.trees.estimates import expected_tokens
from otmd.trees.random_choices import every_outcome


def test_estimates_have_the_mean_of_what_the_rules_emit() -> None:
    target, draft = TableModel.random(2, 2, rng=1), TableModel.random(2, 2, rng=2)
    for law in (AdaptiveTree(draft, (1, 2, 2)), BestFirstTree(draft, 4, 3)):
        context = Context(target, law)
        rules = adaptive_trees.RULES.values()
        for rule in rules if law.by_layer else list(rules)[1:]:
            estimate = partial(expected_tokens, rule, context)
            outcomes = every_outcome(
                lambda choices, e=estimate, c=context: e(c.law.draft_tree(c, choices))
            )
            mean = sum(value * prob for value, prob in outcomes)
            assert mean == pytest.approx(block_efficiency(rule, target, law).value, abs=1e-12)


def test_shapes_have_their_widths() -> None:
    assert fixed_shape((2, 2, 1)) == ((((),),), ((),))
    assert fixed_shape((3, 4)) == (((), ()), ((),), ((),))
    draft = TableModel.random(30, 1, rng=0)
    for candidate in candidates(adaptive_trees.WIDTHS):
        law = candidate.law(draft)
        tree = law.draft_tree(Context(draft, law), SameDrafts(0))
        assert len(tree.prefixes()) - 1 in {8, 16, 32}, candidate


def test_equal_nodes_have_equal_drafts() -> None:
    q = np.random.default_rng(0).dirichlet(np.ones(50))
    law, reversed_law = otmd.Stratified(q, 3), otmd.Stratified(q[::-1].copy(), 3)
    first = SameDrafts(1).drafts(law)
    assert (first == SameDrafts(1).drafts(otmd.Stratified(q, 3))).all()
    assert len({tuple(SameDrafts(seed).drafts(law)) for seed in range(9)}) > 5
    assert (first != 49 - SameDrafts(1).drafts(reversed_law)).any()


def test_the_script_on_a_tiny_model(tmp_path, capsys, monkeypatch) -> None:
    target = LanguageModel(make_llama(), make_tokenizer(), "tiny", "sha256:made-in-the-test")
    pair = target, load_draft("skip:1,3", target)
    prompts = {f"p{i}": Prompt(f"p{i}", "d", " ".join(WORDS[i : i + 5])) for i in range(2)}
    monkeypatch.setattr(adaptive_trees, "loaded", lambda *_: pair)
    monkeypatch.setattr(adaptive_trees, "chosen_prompts", lambda *_: prompts)
    given = ["--parts", str(tmp_path / "parts"), "--output", str(tmp_path / "o.parquet")]
    options = ["--workers", "1", "--widths", "2x2", "3x4", "--temperatures", "1.0", *given]
    table = adaptive_trees.main(options)
    # Fixed and adaptive trees of two sizes by three rules, best first by two, most likely by one.
    assert table.height == 2 * (2 * 2 * 3 + 2 * 2 + 2)
    assert (table["tokens"] / table["positions"]).is_between(0.9, 9.0).all()
    lines = capsys.readouterr().out.splitlines()
    assert sum("| adaptive |" in line and "–" not in line for line in lines) == 6
    assert adaptive_trees.main(options).equals(table)
