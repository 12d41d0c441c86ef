"""The study of adaptive trees: its estimates have their means, its trees their sizes, its shapes a reason."""

from __future__ import annotations

from functools import partial

import numpy as np
import polars as pl
import pytest
from models.conftest import WORDS, make_llama, make_tokenizer

import otmd
from experiments.claims import positions
from experiments.trees import adaptive_trees
from experiments.trees.adaptive_trees import (
    BUDGETS,
    KINDS,
    LEVELS,
    RANKS,
    Fit,
    candidates,
    fixed_shape,
    level_counts,
    of_each_domain,
    rank_rates,
)
from otmd.models import LanguageModel, Prompt, load_draft
from otmd.models.drawn_trees import SameDrafts
from otmd.trees import (
    AdaptiveTree,
    BestFirstTree,
    LayerVerification,
    SubtreeVerification,
    TableModel,
    TokenLevel,
    block_efficiency,
)
from otmd.trees.base import Context
from otmd.trees.estimates import expected_tokens
from otmd.trees.random_choices import every_outcome

RATES = [0.6, *[0.02] * (RANKS - 1)]


def every_candidate(draft: TableModel):
    fit = Fit(dict.fromkeys(BUDGETS, 5), RATES)
    for candidate in (c for budget in BUDGETS for c in candidates(budget, fit)):
        yield candidate, candidate.law(draft)


def test_estimates_have_the_mean_of_what_the_rules_emit() -> None:
    target, draft = TableModel.random(2, 2, rng=1), TableModel.random(2, 2, rng=2)
    by_node = SubtreeVerification(), TokenLevel(otmd.Preference())
    for law, rules in (
        (AdaptiveTree(draft, (1, 2, 2)), [LayerVerification(), *by_node]),
        (AdaptiveTree(draft, (1, 2, 2), law=otmd.Greedy), KINDS["one sampled"].values()),
        (BestFirstTree(draft, 4, 3), by_node),
    ):
        context = Context(target, law)
        for rule in rules:
            estimate = partial(expected_tokens, rule, context)
            outcomes = every_outcome(
                lambda choices, e=estimate, c=context: e(c.law.draft_tree(c, choices))
            )
            mean = sum(value * prob for value, prob in outcomes)
            assert mean == pytest.approx(block_efficiency(rule, target, law).value, abs=1e-12)


def test_trees_have_their_sizes() -> None:
    assert level_counts(59, 8) == (8, 8, 8, 7, 7, 7, 7, 7)
    assert fixed_shape((2, 2, 1)) == ((((),),), ((),))
    assert fixed_shape((3, 4)) == (((), ()), ((),), ((),))
    for candidate, law in every_candidate(TableModel.random(30, 1, rng=0)):
        tree = law.draft_tree(Context(law.draft_model, law), SameDrafts(0))
        assert len(tree.prefixes()) - 1 == candidate.budget, candidate


def test_all_but_one_draft_of_a_node_are_the_most_likely_tokens() -> None:
    draft = TableModel.random(30, 1, rng=0)
    sizes = set()
    for candidate, law in every_candidate(draft):
        if candidate.kind == "one sampled":
            tree = law.draft_tree(Context(draft, law), SameDrafts(0))
            for prefix in tree.prefixes():
                if node := tree.node(prefix):
                    deterministic = len(node.tokens) - 1
                    first = np.argsort(-draft(prefix))[:deterministic]
                    assert (node.tokens[:deterministic] == first).all()
                    sizes.add(len(node.tokens))
    assert {1, 2, 4} <= sizes


def test_rank_rates_sum_to_the_acceptance_rate() -> None:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(6), size=2)
    rates = np.mean([rank_rates(p, q, rng) for _ in range(4000)], axis=0)
    for n in (1, 2, 3):
        law = otmd.WithoutReplacement(q, n)
        expected = otmd.acceptance_rate(otmd.RecursiveRejection(), p, law)
        assert rates[:n].sum() == pytest.approx(expected, abs=0.02)
    assert not rates[6:].any()


def test_prompts_of_the_fit_are_not_measured() -> None:
    measured = of_each_domain(range(max(adaptive_trees.PROMPTS)))
    last = range(positions.PER_DOMAIN - adaptive_trees.FIT_PROMPTS, positions.PER_DOMAIN)
    assert not set(measured) & set(of_each_domain(last))
    assert sorted(of_each_domain(range(positions.PER_DOMAIN))) == list(range(64))


def test_the_script_on_a_tiny_model(tmp_path, capsys, monkeypatch) -> None:
    target = LanguageModel(make_llama(), make_tokenizer(), "tiny", "sha256:made-in-the-test")
    pair = target, load_draft("skip:1,3", target)
    prompts = [Prompt(f"p{i}", "d", " ".join(WORDS[i % 9 : i % 9 + 5])) for i in range(64)]
    monkeypatch.setattr(adaptive_trees, "loaded", lambda *_: pair)
    monkeypatch.setattr(adaptive_trees, "chosen_prompts", lambda: prompts)
    monkeypatch.chdir(tmp_path)
    adaptive_trees.fitted.cache_clear()
    given = ["--parts", "parts", "--output", "o.parquet", "--workers", "1"]
    options = ["--drafts", "skip:15", "--prompts", "1", "--budgets", "9", "12"]
    table = adaptive_trees.main([*options, "--temperatures", "1.0", *given])
    assert table.height == 4 * 2 * sum(map(len, KINDS.values()))
    assert (table["tokens"] / table["positions"]).is_between(0.9, 9.0).all()
    assert set(table["levels"]) <= set(LEVELS)
    lines = capsys.readouterr().out.splitlines()
    assert sum("| adaptive | layer |" in line and "–" in line for line in lines) == 2
    assert sum(line.count("±") == 2 for line in lines) == 2 * 7
    adaptive_trees.fitted.cache_clear()
    again = adaptive_trees.main([*options, "--temperatures", "1.0", *given])
    assert again.equals(table), "what was chosen is read from its file"
    best = adaptive_trees.fitted("skip:15", 1.0, (9, 12))
    adaptive_trees.fitted.cache_clear()
    assert isinstance(table, pl.DataFrame)
    assert len(best.rank_rates) == RANKS
    assert (np.diff(best.rank_rates) <= 0).all()
