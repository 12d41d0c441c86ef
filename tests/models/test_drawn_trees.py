"""Trees drawn along texts: what rules yield on them, and how they are stored."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import otmd
from models.test_collection import OPTIONS, contents, counting, shards
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
    LayerVerification,
    SubtreeVerification,
    TableModel,
    TokenLevel,
    TokenTree,
    block_efficiency,
)
from otmd.trees.base import Context, DraftTree
from otmd.trees.estimates import token_level_tokens
from otmd.trees.random_choices import every_outcome

SHAPES = ((2, 2), (3, 1), (2, 1, 1))
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
                partial(token_level_tokens, verifier=otmd.Preference()),
                TokenLevel(otmd.Preference()),
            ),
        ):
            outcomes = every_outcome(partial(on_drawn_tree, tokens, context))
            mean = sum(value * prob for value, prob in outcomes)
            assert mean == pytest.approx(block_efficiency(rule, target, law).value, abs=1e-12)


def test_trees_of_models_yield_what_the_rules_do(tiny) -> None:
    """The mean of many trees after one text, against steps of the rules with the models' own logits."""
    draft, text, shape = skip_layers(tiny, [2]), [3, 4, 5, 6, 3, 4], (2, 1)
    drawn = partial(draw_trees, (tiny, draft), text, {5: 0}, [shape])
    warm = Processing(0.7), Processing(0.9)
    rng = np.random.default_rng(0)
    trees = [tree for _ in range(150) for tree in drawn(warm, 62, rng)]
    law = TokenTree(
        lambda prefix: warm[1](draft.logits([*text[:5], *prefix])[-1]), shape, otmd.Stratified
    )
    target = lambda prefix: warm[0](tiny.logits([*text[:5], *prefix])[-1])  # noqa: E731
    for name, rule in (
        ("layer", LayerVerification()),
        ("node_by_node", SubtreeVerification()),
        ("token_level", TokenLevel(otmd.Preference())),
    ):
        values = np.array([getattr(tree, name) for tree in trees])
        steps = block_efficiency(rule, target, law, 150, rng=1)
        error = np.hypot(values.std() / len(values) ** 0.5, steps.standard_error)
        assert abs(values.mean() - steps.value) <= SIGMAS * error
    assert {tree.shape for tree in trees} == {shape}


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


def test_on_a_single_layer_the_rules_do_the_same(tiny) -> None:
    draft = skip_layers(tiny, [2])
    trees = draw_trees(
        (tiny, draft), [3, 4, 5], {1: 0, 2: 1, 3: 2}, [(3,)], (Processing(),) * 2, 62,
        np.random.default_rng(0),
    )  # fmt: skip
    for tree in trees:
        assert tree.layer == pytest.approx(tree.node_by_node, abs=1e-12)
    assert len({tree.layer for tree in trees}) > 1


def test_trees_at_a_position_have_drafts_in_common(tiny) -> None:
    """An adaptive tree that has the numbers of the fixed one yields the same."""
    both = draw_trees(
        (tiny, skip_layers(tiny, [2])), [3, 4, 5, 6], {2: 0, 4: 1}, [(2,)], (Processing(),) * 2,
        62, np.random.default_rng(0), quotas=[(2,)],
    )  # fmt: skip
    fixed, adaptive = both[::2], both[1::2]
    assert [tree.layer for tree in fixed] == [tree.layer for tree in adaptive]
    assert fixed[0].layer != fixed[1].layer


def test_equal_distributions_of_a_tree_have_independent_drafts() -> None:
    """Else the drafts of a layer would not be independent, and the estimates biased."""
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
    assert len(dataset.metadata["trees"]) == 2
    adaptive = collect(tiny, draft, prompts, tmp_path / "c", **options, quotas=[(2, 3)])
    assert next(tree for tree in adaptive.trees if tree.adaptive).shape == (2, 3)
    assert len(adaptive.trees) == 3 * len(dataset.trees) // 2
    assert not collect(tiny, draft, prompts, tmp_path / "b", **OPTIONS).trees


def test_a_killed_run_goes_on_with_its_trees(tiny, prompts, tmp_path, monkeypatch) -> None:
    draft = skip_layers(tiny, [1])
    options = OPTIONS | {"trees": [(2, 1)], "trees_every": 2}
    collect(tiny, draft, prompts, tmp_path / "straight", **options)
    with monkeypatch.context() as patched:
        counting(patched, tiny, fail_at=3)
        with pytest.raises(KeyboardInterrupt):
            collect(tiny, draft, prompts, tmp_path / "killed", **options)
    collect(tiny, draft, prompts, tmp_path / "killed", **options)
    assert contents(tmp_path / "killed") == contents(tmp_path / "straight")
    with pytest.raises(ValueError, match="trees_every: stored 2, asked 3"):
        collect(tiny, draft, prompts, tmp_path / "killed", **options | {"trees_every": 3})


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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--trees", "2x"],
            "--trees: got '2x', expected shapes such as 2x1x1,4x2x1 or quota:2x2x2",
        ),
        (["--trees", "2x0"], "trees: got 2x0, expected drafts at a node by level"),
        (["--trees", "16x16"], "of at most 256 nodes"),
        (["--trees", "quota:200x57"], "quotas: got 200x57, expected drafts in all by level"),
        (["--trees", "2", "--trees-every", "0"], "--trees-every"),
    ],
)
def test_bad_shapes_are_one_line(tmp_path, capsys, monkeypatch, options, said) -> None:
    monkeypatch.setattr(
        "otmd.models.load_prompts", lambda *_, **__: [otmd.models.Prompt("a", "b", "c")]
    )
    assert main(["collect", str(tmp_path / "out"), "--quiet", *options]) != 0
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_shapes_of_the_command_line(tmp_path, monkeypatch) -> None:
    given = {}

    def collected(*_, **settings):
        given.update(settings)
        raise ValueError("done")

    monkeypatch.setattr("otmd.models.load_prompts", lambda *_, **__: [])
    monkeypatch.setattr("otmd.models.collect", collected)
    shapes = "2x1x1, 16, quota:4x4"
    main(["collect", str(tmp_path), "--quiet", "--trees", shapes, "--trees-every", "4"])
    assert (given["trees"], given["quotas"]) == ([(2, 1, 1), (16,)], [(4, 4)])
    assert given["trees_every"] == 4


def test_a_folder_opened_anew_has_its_trees(tiny, prompts, tmp_path) -> None:
    made = collect(tiny, tiny, prompts, tmp_path, **OPTIONS, trees=[(2,)], trees_every=2)
    found = open_dataset(tmp_path)
    assert found.trees == made.trees
    assert found.sha256 == made.sha256
