from functools import partial
from unittest.mock import create_autospec

import numpy as np
import pytest
from models.conftest import WORDS, make_pair
from otmd.study.tree_comparison import CANDIDATES, DEPTH, STARTS

from otmd.models import Prompt
from otmd.models.continuations import CachedContinuations
from otmd.study import compare_trees, tree_comparison
from otmd.trees import TableModel
from otmd.trees.base import Context
from otmd.trees.random_choices import Sampled

PROMPTS = [
    Prompt(f"p{i}", "code" if i < 2 else "chat", " ".join(WORDS[i : i + 5])) for i in range(4)
]
TEXTS = {
    prompt.id: np.random.default_rng(i).integers(2, 60, 24).tolist()
    for i, prompt in enumerate(PROMPTS)
}
# Trees are drawn after 8 tokens of this one alone, and it is continued first.
TEXTS["p1"] = TEXTS["p1"][:15]


@pytest.fixture
def compare(tmp_path, monkeypatch):
    pair = make_pair()
    monkeypatch.setattr(tree_comparison, "loaded_pair", lambda *_: pair)
    return partial(compare_trees, "tiny", "skip:1,3", PROMPTS, TEXTS, tmp_path / "trees", workers=1)


def test_every_tree_has_sixteen_drafts():
    draft = TableModel.random(30, 1, rng=0)
    for candidate in CANDIDATES:
        law = candidate.make(draft)
        tree = law.draft_tree(Context(draft, law), Sampled(np.random.default_rng(0)))
        paths = getattr(law, "num_paths", None)
        assert (paths * law.depth if paths else len(tree.prefixes()) - 1) == 2 * DEPTH


def test_a_model_reads_all_texts_and_a_level_of_all_trees_at_once(compare, monkeypatch):
    compute = CachedContinuations._compute
    spy = create_autospec(compute, side_effect=compute)
    monkeypatch.setattr(CachedContinuations, "_compute", spy)
    table = compare()
    assert table.select("prompt_id", "start").n_unique() == 2 * len(PROMPTS) - 1
    # A text lacks a token. Then the draft reads the texts and each level, the target all at once.
    assert spy.call_count == 1 + DEPTH + 1


def test_the_rows_of_a_text_do_not_hang_on_the_others(compare, tmp_path):
    table = compare()
    alone = compare_trees("tiny", "skip:1,3", PROMPTS[2:3], TEXTS, tmp_path / "alone", workers=1)
    together = table.filter(prompt_id="p2").sort("start", "law", "rule")
    for name in ("tokens", "bound"):
        found = alone.sort("start", "law", "rule")[name].to_numpy()
        np.testing.assert_allclose(found, together[name].to_numpy(), rtol=1e-4)


def test_a_finished_run_is_read_and_other_models_want_another_folder(
    compare, tmp_path, monkeypatch
):
    table = compare()
    assert set(table["start"]) <= set(STARTS)
    deterministic = table["law"] == "most likely tokens"
    assert table["bound"].is_null().to_list() == deterministic.to_list()
    monkeypatch.setattr(tree_comparison, "loaded_pair", None)
    assert compare().equals(table)
    with pytest.raises(ValueError, match="draft"):
        compare_trees("tiny", "skip:2", PROMPTS, TEXTS, tmp_path / "trees", workers=1)
