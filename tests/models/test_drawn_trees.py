"""Trees drawn along texts: what rules yield on them, and how they are stored."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import otmd
from models.test_collection import OPTIONS, shards
from otmd.cli import main
from otmd.models import DatasetError, NGram, NGramDraft, collect, open_dataset
from otmd.models.dataset import SHARDS, read_shard, write_shard
from otmd.models.drawn_trees import (
    DrawnTree,
    SameDrafts,
    draw_trees,
    node_by_node_tokens,
)
from otmd.models.variants import skip_layers
from otmd.probabilities import Processing
from otmd.storage.store import Store
from otmd.trees import (
    SubtreeVerification,
    TableModel,
    TokenLevel,
    TokenTree,
    tokens_per_step,
)
from otmd.trees.base import Context, DraftTree
from otmd.trees.random_choices import every_outcome

SHAPES = ((2, 2), (3, 1), pytest.param((2, 1, 1), marks=pytest.mark.slow))
# Two-sided, of a normal distribution: false alarms once in 160,000.
SIGMAS = 4.5


def on_drawn_tree(tokens, context, choices) -> float:
    return tokens(context, DraftTree(context, choices))


@pytest.mark.parametrize("shape", SHAPES)
def test_means_over_drawn_trees_are_the_tokens_per_step(shape) -> None:
    """Enumerated over all drafts, against the enumeration of all drafts and decisions."""
    for seed in range(2):
        rng = np.random.default_rng(seed)
        target, draft = (TableModel.random(3, 2, 0.5, rng=rng) for _ in range(2))
        law = TokenTree(draft, shape, otmd.Stratified)
        context = Context(target, law)
        for tokens, rule in (
            (node_by_node_tokens, SubtreeVerification()),
            (
                TokenLevel(otmd.Preference()).expected_tokens,
                TokenLevel(otmd.Preference()),
            ),
        ):
            outcomes = every_outcome(partial(on_drawn_tree, tokens, context))
            mean = sum(value * prob for value, prob in outcomes)
            assert mean == pytest.approx(tokens_per_step(rule, target, law).value, abs=1e-12)


@pytest.mark.parametrize("draft", ["layers", "n-gram", "own"])
def test_equal_models_accept_all(tiny, draft) -> None:
    """Every draft model, and a vocabulary that is cut: rows after it are padding."""
    ngram = NGram.fit([np.random.default_rng(0).integers(0, 62, 400)], 62, 3)
    model = {"layers": tiny, "n-gram": NGramDraft(ngram, tiny.tokenizer), "own": tiny}[draft]
    text = [3, 4, 5, 6, 3, 4, 5, 7]
    trees = draw_trees(
        (tiny, model), text, {2: 7, 6: 9}, [(1, 1), (2, 1)], (Processing(),) * 2, 60,
        np.random.default_rng(0),
    )  # fmt: skip
    assert [(tree.index, tree.shape) for tree in trees] == [
        (7, (1, 1)), (7, (2, 1)), (9, (1, 1)), (9, (2, 1))
    ]  # fmt: skip
    values = np.array([[tree.layer, tree.node_by_node, tree.token_level] for tree in trees])
    assert (values <= 3.0 + 1e-9).all()
    assert (values >= 1.0 - 1e-9).all()
    assert (values > 3.0 - 1e-4).all() == (draft != "n-gram")


def test_drafts_of_a_position_are_the_same_and_those_of_a_tree_independent(tiny) -> None:
    """An adaptive tree that has the numbers of a fixed one yields the same, on one layer by every rule."""
    text, rows = [3, 4, 5, 6, 3, 9, 4, 7], {2: 0, 4: 1, 5: 2, 7: 3}
    both = draw_trees(
        (tiny, skip_layers(tiny, [2])), text, rows, [(3,)], (Processing(),) * 2, 62,
        np.random.default_rng(0), quotas=[(3,)],
    )  # fmt: skip
    fixed, adaptive = both[::2], both[1::2]
    assert [tree.layer for tree in fixed] == [tree.layer for tree in adaptive]
    assert [tree.layer for tree in fixed] == pytest.approx([tree.node_by_node for tree in fixed])
    assert len({tree.layer for tree in fixed}) > 1
    # Equal distributions of a tree: else the drafts of a layer would depend on each other.
    law = otmd.Stratified(np.full(64, 1 / 64), 1)
    drafts = [SameDrafts(0).drafts(law) for _ in range(2)]
    assert drafts[0] == drafts[1]
    choices = SameDrafts(0)
    assert len({int(choices.drafts(law)[0]) for _ in range(9)}) > 4


def test_trees_are_collected_and_read(tiny, prompts, tmp_path) -> None:
    draft = skip_layers(tiny, [1])
    options = OPTIONS | {"positions_per_prompt": 8, "trees": [(2, 1), (1, 1)], "trees_every": 3}
    dataset = collect(tiny, draft, prompts, tmp_path / "a", **options)
    assert {tree.shape for tree in dataset.trees} == {(2, 1), (1, 1)}
    rows = {}
    for tree in dataset.trees:
        rows.setdefault(dataset.positions[tree.index].prompt_id, []).append(tree.index)
    assert rows.keys() == {prompt.id for prompt in prompts}
    starts = set()
    for prompt, found in rows.items():
        indices = [row.index for row in dataset.positions if row.prompt_id == prompt]
        first = indices.index(found[0])
        starts.add(first)
        assert found[::2] == found[1::2] == indices[first::3]
    # The first position is a random one.
    assert starts == {0, 1, 2}
    found = open_dataset(tmp_path / "a")
    assert (found.trees, found.sha256) == (dataset.trees, dataset.sha256)
    assert len(dataset.metadata["trees"]) == 2
    with pytest.raises(ValueError, match="trees_every: stored 3, asked 2"):
        collect(tiny, draft, prompts, tmp_path / "a", **options | {"trees_every": 2})
    adaptive = collect(tiny, draft, prompts, tmp_path / "c", **options, quotas=[(2, 3)])
    assert next(tree for tree in adaptive.trees if tree.adaptive).shape == (2, 3)
    assert len(adaptive.trees) == 3 * len(dataset.trees) // 2
    assert not collect(tiny, draft, prompts, tmp_path / "b", **OPTIONS).trees


@pytest.mark.parametrize(
    "change",
    [
        {"index": 99},
        {"index": -1},
        {"shape": (2, 0)},
        {"shape": ()},
        {"layer": float("nan")},
        {"layer": 9.0},
        {"token_level": None},
        {"adaptive": "no"},
    ],
)
def test_altered_trees_are_refused(tiny, prompts, tmp_path, change) -> None:
    collect(tiny, tiny, prompts[:1], tmp_path / "a", **OPTIONS)
    shard = read_shard(*shards(tmp_path / "a"))
    arrays = {f"{side}_logits": np.zeros((3, 5), np.float32) for side in ("target", "draft")}
    tree = DrawnTree(0, (2, 1), 2.0, 2.0, 2.0)
    vars(tree).update(change)
    store = Store(tmp_path / "b", {}, SHARDS)
    with store.held():
        path = write_shard(store, 0, arrays, shard.rows, shard.texts, [tree])
    with pytest.raises(DatasetError, match="no shard of otmd"):
        read_shard(path)


def test_shapes_and_paths_of_the_command_line(tmp_path, monkeypatch, capsys) -> None:
    given = {}

    def collected(*_, **settings):
        given.update(settings)
        raise ValueError("done")

    monkeypatch.setattr("otmd.models.load_prompts", lambda *_, **__: [])
    monkeypatch.setattr("otmd.models.collect", collected)
    shapes = "2x1x1, 16, quota:4x4"
    asked = ["--trees", shapes, "--trees-every", "4", "--paths", "3", "--consecutive", "48"]
    main(["collect", str(tmp_path), "--quiet", *asked])
    assert (given["trees"], given["quotas"]) == ([(2, 1, 1), (16,)], [(4, 4)])
    assert (given["trees_every"], given["paths"], given["max_new_tokens"]) == (4, 3, 48)
    assert main(["collect", str(tmp_path), "--trees", "2x"]) == 2
    assert (
        "--trees: got '2x', expected shapes such as 2x1x1,4x2x1 or quota" in capsys.readouterr().err
    )
