from functools import partial

import numpy as np
import polars as pl
import pytest
from models.conftest import make_pair, make_prompts

from experiments.claims import tree_leads, whole_trees
from otmd.models.continuations import CachedContinuations
from otmd.trees import IIDPaths, TableModel
from otmd.trees.base import Context, DraftTree
from otmd.trees.random_choices import Sampled


def test_trees_have_no_more_drafts_than_the_budget():
    draft = TableModel.random(30, 1, rng=0)
    for candidate in whole_trees.candidates():
        law = candidate.tree(draft)
        assert law.depth <= whole_trees.DEPTH
        if isinstance(law, IIDPaths):
            assert law.num_paths * law.depth == whole_trees.BUDGET
        else:
            tree = DraftTree(Context(draft, law), Sampled(np.random.default_rng(0)))
            assert len(tree.prefixes()) - 1 in {8, 14, whole_trees.BUDGET}, candidate


@pytest.fixture
def tiny_pair(monkeypatch):
    pair = make_pair()
    monkeypatch.setattr(whole_trees, "loaded", lambda *_: pair)
    monkeypatch.setattr(whole_trees, "chosen_prompts", lambda: make_prompts(4))
    monkeypatch.setattr(whole_trees, "STARTS", (0, whole_trees.APART))
    return pair


@pytest.mark.slow
def test_the_models_read_all_trees_beforehand(tiny_pair, monkeypatch):
    """Verifying and drafting ask nothing of a model that was not read in a call for many."""
    target, _ = tiny_pair
    after = partial(whole_trees.after_prompt, target=target)
    prompt = whole_trees.chosen_prompts()[0]
    step, count = whole_trees.Processing(), target.token_count
    readers = [whole_trees.Reader(after(m, prompt=prompt), step, count) for m in tiny_pair]
    calls = []
    for reader in readers:
        text = reader._text
        assert isinstance(text, CachedContinuations)

        def compute(missing, text=text):
            calls.append(len(missing))
            CachedContinuations._compute(text, missing)

        monkeypatch.setattr(text, "_compute", compute)
    listed = list(whole_trees.candidates())
    rows = whole_trees.position_rows(*readers, [1] * 8, listed, np.random.default_rng(0))
    assert len(list(rows)) == sum(len(candidate.rules) for candidate in listed)
    # The draft reads the text and each level, the target all trees and the text.
    assert len(calls) <= 1 + whole_trees.DEPTH + 2


@pytest.mark.slow
def test_the_script_on_a_tiny_model(tiny_pair, tmp_path, monkeypatch):
    monkeypatch.setattr(whole_trees, "SHAPES", whole_trees.SHAPES[1:])
    monkeypatch.setattr(whole_trees, "MOST_PATHS", whole_trees.MOST_PATHS[:1])
    monkeypatch.setattr(whole_trees, "NODE_LAWS", {"strata": whole_trees.NODE_LAWS["strata"]})
    spec = tmp_path / "spec.toml"
    spec.write_text('[[tasks]]\nprompt = [0, 1, 2, 3]\ndraft = "skip:1,3"\n')
    given = {"spec": spec, "parts": tmp_path / "parts", "output": tmp_path / "o.parquet"}
    options = [str(text) for name, path in given.items() for text in (f"--{name}", path)]
    table = whole_trees.main([*options, "--workers", "1"])
    means = table.filter(pl.col("over").is_null())
    assert means["value"].is_between(0.5, 17.0).all()
    assert (means["low"] <= means["value"]).all()
    base = means.filter(name="strata, layer").select("temperature", base="value")
    over = table.filter(over="strata, layer").join(base, on="temperature")
    both = means.join(over, on=["temperature", "name"], suffix="_lead")
    # Leads stand there for the pair, and for the mean over the only pair.
    assert both.height == 2 * (means.height - base.height)
    expected = 100 * (both["value"] / both["base"] - 1)
    assert both["value_lead"].to_numpy() == pytest.approx(expected.to_numpy())


def test_shapes_are_chosen_on_the_held_out_half():
    """The best shape of one half is the worse of the two on the held-out half."""
    wide, deep = np.array([3.0, 1.0, 3.0, 1.0]), np.array([1.0, 3.0, 1.0, 3.0])
    by_shape = {("strata", "layer"): {"wide": wide, "deep": deep}}
    by_shape["strata", tree_leads.BOUND] = {"wide": wide + 10, "deep": deep + 10}
    of = tree_leads.chosen(by_shape, ("strata", "layer"))
    assert of.tokens.tolist() == [1.0] * 4
    assert of.shapes == "deep, wide"
    bound = tree_leads.chosen(by_shape, ("strata", tree_leads.BOUND))
    assert bound.tokens.tolist() == [11.0] * 4
