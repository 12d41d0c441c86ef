"""Whole trees on tensors: losslessness on small models, parity with the pair sweep, draws, bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from sweep_twin import OrderedSweep
from tensor_pairs import model_like, on_each_device
from tensor_trees import Trees, every_tree, output_distribution, target_rows

import otmd
from otmd.laws import Slots
from otmd.probabilities import FloatArray, IntArray
from otmd.tensors import TensorLayerVerification, TensorLevel, draft_level
from otmd.tensors import trees as tensor_trees
from otmd.trees import LayerVerification, TableModel, TokenTree, target_distribution, whole_tree
from otmd.trees.base import Context, Node, Prefix
from otmd.verifiers import pair_sweep

EXACT = 1e-12


def models(vocab_size: int, seed: int) -> tuple[TableModel, TableModel]:
    return tuple(TableModel.random(vocab_size, 2, 0.7, rng=[seed, i]) for i in range(2))  # type: ignore[return-value]


def hostile(name: str) -> tuple[TableModel, TableModel]:
    """Markov chains of three tokens with zero masses."""
    eye = np.eye(3)
    flat = np.full(3, 1 / 3)
    cases = {
        "one-hot draft": ([0.2, 0.3, 0.5], [0.0, 1.0, 0.0], np.stack([flat, eye[0], eye[2]]), eye),
        "one-hot target": (eye[1], [0.2, 0.5, 0.3], eye, np.stack([flat, flat, eye[0]])),
        "disjoint": ([0.5, 0.5, 0.0], eye[2], np.stack([eye[0], flat, eye[1]]), eye[[1, 2, 0]]),
        "equal": (flat, flat, np.stack([flat] * 3), np.stack([flat] * 3)),
        "two tokens": (
            [0.6, 0.0, 0.4],
            [0.3, 0.0, 0.7],
            eye[[2, 1, 0]] * 0.5 + 1 / 6,
            eye * 0.4 + 0.2,
        ),
    }
    p, q, p_after, q_after = cases[name]
    return TableModel([p, p_after]), TableModel([q, q_after])


def deviation(target: TableModel, trees: Trees, rule: TensorLayerVerification) -> float:
    length = len(trees.levels) + 1
    output = output_distribution(target, trees, rule, length)
    return float(np.abs(output - target_distribution(target, length)).max())


def prepared(target: TableModel, trees: Trees) -> TensorLayerVerification:
    return TensorLayerVerification(target_rows(target, trees), trees.levels)


# ---------------------------------------------------------------- losslessness, exactly


@pytest.mark.parametrize("num_tokens", [2, 3])
@pytest.mark.parametrize("shape", [(1,), (1, 1), (2, 1), (1, 2), (2, 2)])
def test_the_output_is_distributed_as_the_target(shape: tuple[int, ...], num_tokens: int) -> None:
    for seed in range(2):
        target, draft = models(3, seed)
        trees = every_tree(draft, shape, num_tokens)
        assert trees.probs.sum() == pytest.approx(1.0, abs=EXACT)
        rule = prepared(target, trees)
        assert deviation(target, trees, rule) < EXACT
        ends = rule.end_probs
        assert (ends.sum(dim=-1) - 1.0).abs().max() < EXACT
        # The scores are unbiased for the length of the path.
        depth = torch.tensor([len(x or ()) for x in trees.prefixes[0]])
        length = trees.probs @ (ends * depth).sum(dim=-1).numpy()
        assert trees.probs @ rule.scores.sum(dim=-1).numpy() == pytest.approx(
            1.0 + length, abs=EXACT
        )


@pytest.mark.parametrize("shape", [(2, 2), (3, 1)])
@pytest.mark.parametrize(
    "case", ["one-hot draft", "one-hot target", "disjoint", "equal", "two tokens"]
)
def test_zero_masses_and_ties(case: str, shape: tuple[int, ...]) -> None:
    target, draft = hostile(case)
    trees = every_tree(draft, shape, 3)
    assert deviation(target, trees, prepared(target, trees)) < EXACT


def test_rounds_that_have_not_converged_are_lossless(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = []
    for rounds in (1, 2, 3, 8):
        monkeypatch.setattr(tensor_trees, "_NUM_ROUNDS", rounds)
        target, draft = models(3, 5)
        trees = every_tree(draft, (3, 1), 3)
        rule = prepared(target, trees)
        assert deviation(target, trees, rule) < EXACT
        rates.append(1.0 - float(trees.probs @ rule._layers[0].missed.numpy()))
    assert rates == sorted(rates)
    assert rates[0] < rates[-1] - 1e-3


def by_the_drafts(layer: list[Prefix | None]) -> list[int]:
    """One drafting node of the layer, or none, by the sum of its tokens."""
    if len(layer) == 1:
        return [0]
    total = sum(token for prefix in layer for token in prefix or ())
    return [(0, -1, 1)[total % 3]]


def test_drafting_nodes_may_depend_on_the_drafts_above() -> None:
    """So depths are unequal, and some trees have no second level."""
    for seed in range(2):
        target, draft = models(3, seed)
        trees = every_tree(draft, (2, 2), 3, by_the_drafts)
        assert len(trees.levels[1].nodes.unique()) > 1
        assert deviation(target, trees, prepared(target, trees)) < EXACT


def without_drafts(level: TensorLevel, dropped: torch.Tensor) -> TensorLevel:
    """The level without the strata (B, D, n) in the mask: as if nothing had been drawn from them."""
    count = level.drafts.shape[-1]
    lost = torch.nn.functional.pad(dropped, (0, 1)).gather(-1, level.number)
    return level._replace(
        number=torch.where(lost, count, level.number),
        inclusion=torch.where(lost, 0.0, level.inclusion),
        drafts=torch.where(dropped, -1, level.drafts),
    )


def test_dropped_drafts_are_found() -> None:
    """A control: drafts that the target finds unlikely are dropped, and so is their stratum."""
    worst = 0.0
    for seed in range(4):
        target, draft = models(3, seed)
        trees = every_tree(draft, (2, 1), 3)
        rows = target_rows(target, trees)
        dropped = rows[:, 0].gather(-1, trees.levels[0].draft_tokens) < 0.3
        first = without_drafts(trees.levels[0], dropped[:, None])
        rule = TensorLayerVerification(rows, [first, trees.levels[1]])
        worst = max(worst, deviation(target, trees, rule))
    assert worst > 0.01


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision(dtype: torch.dtype) -> None:
    """The target is what the rounded numbers say, divided by their sum."""
    target, draft = models(3, 2)
    trees = every_tree(draft, (2, 2), 3, dtype=dtype)
    rule = TensorLayerVerification(target_rows(target, trees, dtype), trees.levels)
    rounded = [torch.tensor(table).to(dtype).double().numpy() for table in target.tables]
    same = TableModel([table / table.sum(axis=-1, keepdims=True) for table in rounded])
    assert deviation(same, trees, rule) < 1e-6
    # Divided by nothing, half precision would be further off.
    assert (dtype == torch.float32) == (deviation(target, trees, rule) < 1e-6)


# ---------------------------------------------------------------- parity and yield


class DrawnTree:
    """Tree i of a batch, for the verifier on arrays."""

    def __init__(self, trees: Trees, i: int, draft: TableModel) -> None:
        self.nodes: dict[Prefix, Node] = {}
        first, width = 0, 1
        for level in trees.levels:
            size, count = level.drafts.shape[1:]
            tokens = level.draft_tokens[i].numpy().reshape(size, count)
            for node, drafted in zip(level.nodes[i].tolist(), tokens, strict=True):
                prefix = trees.prefixes[i][first + node]
                assert prefix is not None
                law = otmd.Stratified(draft(prefix), count)
                self.nodes[prefix] = Node(law, drafted, ())
            first, width = first + width, size * count

    def node(self, prefix: Prefix) -> Node | None:
        return self.nodes.get(prefix)


def class_order(thinned: np.ndarray, target: FloatArray, slots: Slots) -> IntArray:
    """Pairs: those that were not thinned first, by octaves of t/q, each from the last slot to the first."""
    slot = np.repeat(np.arange(slots.num_drafts), np.diff(slots.starts))
    t, q = target[slots.tokens], slots.probs
    with np.errstate(divide="ignore"):
        octave = np.floor(0.5 - np.log2(t / q)).clip(0, tensor_trees._NUM_CLASSES - 2)
    level = np.where(t >= q, 0, 1 + octave)
    order = np.lexsort((-slot, level, thinned))
    return np.stack([slot, slots.tokens], axis=1)[order]


def sweep_twice(target: FloatArray, slots: Slots) -> pair_sweep.Sweep:
    """The sweep of the tensors, pair by pair."""
    slot = np.repeat(np.arange(slots.num_drafts), np.diff(slots.starts))
    none = np.zeros(slot.size, bool)
    first = OrderedSweep(target, slots, class_order(none, target, slots))
    _, accept_prob, _ = first.pairs(slot, slots.tokens)
    second = OrderedSweep(target, slots, class_order(accept_prob < 1.0, target, slots))
    return second if second.missed < first.missed else first


@pytest.mark.parametrize("shape", [(2, 2), (3, 1), (4, 1)])
def test_scores_are_those_of_the_pair_sweep_in_this_order(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    monkeypatch.setattr(tensor_trees, "_NUM_ROUNDS", 80)
    monkeypatch.setattr(whole_tree, "sweep_pairs", sweep_twice)
    compared = 0
    for seed in range(2):
        target, draft = models(5, seed)
        trees = every_tree(draft, shape, 5)
        rule = prepared(target, trees)
        context = Context(target, TokenTree(draft, shape, otmd.Stratified))
        for i in np.random.default_rng(seed).choice(len(trees.probs), 20):
            layers = LayerVerification().layers(context, DrawnTree(trees, i, draft))  # type: ignore[arg-type]
            for depth, layer in enumerate(rule._layers):
                assert layer.missed[i].item() == pytest.approx(layers[depth].missed, abs=1e-10)
            listed = {
                prefix: score
                for prefix, score in zip(trees.prefixes[i], rule.scores[i].tolist(), strict=True)
                if score > 1e-11
            }
            expected = {(): 1.0}
            for layer in layers:
                expected |= layer.child_scores()
            expected = {prefix: score for prefix, score in expected.items() if score > 1e-11}
            assert listed.keys() == expected.keys()
            assert max(abs(listed[x] - expected[x]) for x in expected) < 1e-10
            compared += len(expected)
    assert compared > 100


def test_a_layer_of_a_large_vocabulary_accepts_nearly_as_much() -> None:
    """The rate of the second layer, 8 slots at 2 nodes, compared with the sweep on arrays."""
    p, q = model_like(60, 1000, seed=1)
    p, q = (torch.tensor(x).view(20, 3, 1000) for x in (p, q))
    generator = torch.Generator().manual_seed(1)
    levels = [
        draft_level(q[:, :1], 2, 1000, generator=generator),
        draft_level(q[:, 1:], 4, 1000, generator=generator),
    ]
    target = torch.cat([p, p[:, :1].expand(-1, 8, -1)], dim=1)
    rule = TensorLayerVerification(target, levels)
    rates = []
    for i in range(20):
        number = levels[1].number[i].numpy() + 4 * np.arange(2)[:, None]
        row, column = np.divmod(np.argsort(number.ravel(), kind="stable"), 1000)
        slots = Slots(
            levels[1].tokens[i].numpy()[row, column] + 1000 * row,
            levels[1].inclusion[i].numpy()[row, column],
            np.searchsorted(np.sort(number.ravel()), np.arange(9)),
            np.ones(8, np.int64),
            2000,
            True,
        )
        masses = (rule.scores[i, 1:3, None] * p[i, 1:]).flatten().numpy()
        rates.append(pair_sweep.sweep_pairs(masses, slots).rate)
    here = 1.0 - rule._layers[1].missed.numpy()
    assert abs(here.mean() / np.mean(rates) - 1.0) < 0.003


# ---------------------------------------------------------------- draws

ALARM, SAMPLES = 1e-6, 20_000


def drawn(
    target: TableModel, draft: TableModel, count: int, dropped: bool, device: str = "cpu"
) -> tuple[TensorLayerVerification, list[TensorLevel], torch.Generator]:
    """Trees of two levels, 2 drafts and then 1 each, drawn on the device."""
    generator = torch.Generator(device).manual_seed(7)
    tables = [torch.tensor(table, device=device) for table in draft.tables]
    levels = [draft_level(tables[0].expand(count, 1, -1), 2, 4, generator=generator)]
    tokens = levels[0].draft_tokens
    levels.append(draft_level(tables[1][tokens], 1, 4, generator=generator))
    p = [torch.tensor(table, device=device) for table in target.tables]
    rows = [p[0].expand(count, 1, -1), p[1][tokens], p[2][tokens, levels[1].draft_tokens]]
    rows = torch.cat(rows, dim=1)
    if dropped:
        unlikely = rows[:, 0].gather(-1, tokens) < 0.2
        levels[0] = without_drafts(levels[0], unlikely[:, None])
    return TensorLayerVerification(rows, levels), levels, generator


@on_each_device
@pytest.mark.parametrize("dropped", [False, True], ids=["as it is", "control"])
def test_draws_follow_the_target(dropped: bool, device: str) -> None:
    """Text of three tokens: χ² of 64 cells, a false alarm with probability 1e-6 over the seed.

    The control drops first drafts that the target finds unlikely, with their strata.
    """
    target, draft = models(4, 3)
    rule, levels, generator = drawn(target, draft, SAMPLES, dropped, device)
    verdict = rule.verify(generator)
    node = verdict.path.clamp(min=1) - 1
    tokens = torch.cat([level.draft_tokens for level in levels], dim=1)
    text = torch.cat([tokens.gather(1, node), verdict.token[:, None]], dim=1).cpu().numpy()
    length = verdict.length.cpu().numpy()
    rng = np.random.default_rng(5)
    for i in range(3):
        # The token after the path, then what the target writes.
        text[:, i] = np.where(i == length, verdict.token.cpu(), text[:, i])
        reached = target.tables[i][tuple(text[:, :i].T)].cumsum(axis=-1)
        written = (np.broadcast_to(reached, (SAMPLES, 4)) < rng.random((SAMPLES, 1))).sum(axis=-1)
        text[:, i] = np.where(i > length, written.clip(max=3), text[:, i])
    cells = np.bincount(np.ravel_multi_index(tuple(text.T), (4, 4, 4)), minlength=64)
    expected = SAMPLES * target_distribution(target, 3)
    found = stats.chisquare(cells, expected.ravel()).pvalue
    assert (found < ALARM) == dropped


def test_the_strata_are_those_of_the_law() -> None:
    for n, size in ((1, 5), (2, 3), (4, 40), (8, 300)):
        _, q = model_like(6, size, seed=n)
        law = otmd.Stratified(q, n)
        level = draft_level(torch.tensor(q)[:, None], n, size)
        rows, order = np.arange(6)[:, None], level.tokens[:, 0].numpy()
        np.testing.assert_array_equal(level.number[:, 0], law.strata[rows, order])
        inclusion = law.inclusion_probs()[rows, order]
        np.testing.assert_allclose(level.inclusion[:, 0], inclusion, atol=EXACT)
        assert (level.number.gather(-1, level.drafts) == torch.arange(n)).all()


def test_fewer_tokens_with_mass_than_drafts() -> None:
    level = draft_level(torch.tensor([[[0.0, 0.7, 0.0, 0.3], [1.0, 0, 0, 0]]]), 3, 4)
    assert level.draft_tokens.tolist() == [[1, 3, -1, 0, -1, -1]]


# ---------------------------------------------------------------- compiled


def test_it_compiles_without_a_break_in_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one graph, which needs no value on the host; no kernels are made of it."""
    monkeypatch.setattr(tensor_trees, "_NUM_ROUNDS", 2)
    target, draft = models(4, 3)
    rule, levels, _ = drawn(target, draft, 50, False)

    def decide(rows: torch.Tensor, levels: list[TensorLevel]) -> tuple[torch.Tensor, ...]:
        rule = TensorLayerVerification(rows, levels, validate=False)
        return rule.scores, *rule.verify()

    compiled = torch.compile(decide, backend="aot_eager", fullgraph=True)
    scores, path, length, token = compiled(rule._target, levels)
    assert (scores - rule.scores).abs().max() < EXACT
    assert ((path >= 0).sum(dim=-1) == length).all()
    assert (token >= 0).all()


# ---------------------------------------------------------------- bad input


def test_shapes_and_dtypes_are_named() -> None:
    target, draft = models(4, 3)
    rule, levels, _ = drawn(target, draft, 5, False)
    rows = rule._target
    first = levels[0]
    wrong = {
        "target_probs: got shape": (rows[:, 1:], levels),
        "target_probs: got shape .*a row": (rows[0], levels),
        r"levels\[0\].tokens: got shape": (rows[:2], levels),
        r"levels\[0\].drafts: got torch.int32": (rows, [first._replace(drafts=first.drafts.int())]),
        r"levels\[0\].inclusion: got torch.float32": (
            rows,
            [first._replace(inclusion=first.inclusion.float())],
        ),
    }
    for message, arguments in wrong.items():
        with pytest.raises(ValueError, match=message):
            TensorLayerVerification(*arguments)
    with pytest.raises(TypeError, match="target_probs"):
        TensorLayerVerification(rows.long(), levels)
    q = torch.full((2, 1, 4), 0.25)
    for message, call in {
        "draft_probs: got shape": lambda: draft_level(q[0], 2, 4),
        "num_tokens: got 5": lambda: draft_level(q, 2, 5),
        "num_tokens: got 1": lambda: draft_level(q, 2, 1),
        "nodes: got torch.int64 of shape": lambda: draft_level(q, 2, 4, torch.zeros(2, 2).long()),
        "draft_probs: got a row at index": lambda: draft_level(q * 2, 2, 4),
    }.items():
        with pytest.raises(ValueError, match=message):
            call()


BROKEN = {
    "a draft of another stratum": lambda x: x._replace(drafts=x.drafts.flip(-1)),
    "a stratum without its draft": lambda x: x._replace(drafts=torch.full_like(x.drafts, -1)),
    "a draft that is no index": lambda x: x._replace(drafts=x.drafts + 9),
    "no token": lambda x: x._replace(tokens=x.tokens + 9),
    "no node": lambda x: x._replace(nodes=x.nodes + 9),
    "no stratum": lambda x: x._replace(number=x.number + 9),
    "sums below 1": lambda x: x._replace(inclusion=x.inclusion * 0.9),
    "NaN": lambda x: x._replace(inclusion=x.inclusion * torch.nan),
}


@pytest.mark.parametrize("case", BROKEN)
def test_levels_that_were_not_drawn_are_refused_or_not_decided(case: str) -> None:
    target, draft = models(4, 3)
    rule, levels, _ = drawn(target, draft, 4, False)
    broken = BROKEN[case](levels[0])
    first = [torch.cat([x[:2], y[2:]]) for x, y in zip(levels[0], broken, strict=True)]
    levels = [TensorLevel(*first), levels[1]]
    with pytest.raises(ValueError, match=r"levels\[0\]: got drafts .* in tree 2"):
        TensorLayerVerification(rule._target, levels)
    path, length, token = TensorLayerVerification(rule._target, levels, validate=False).verify()
    assert (token >= 0).tolist() == [True, True, False, False]
    assert (path[2:] == -1).all()
    assert length[2:].tolist() == [0, 0]


@pytest.mark.parametrize("row", [0, 3])
def test_rows_that_are_no_distribution_are_refused_or_not_decided(row: int) -> None:
    target, draft = models(4, 3)
    rule, levels, _ = drawn(target, draft, 40, False)
    rows = rule._target.clone()
    rows[:20, row] = torch.nan
    with pytest.raises(ValueError, match=rf"target_probs: got a row at index \(0, {row}\)"):
        TensorLayerVerification(rows, levels)
    decided = TensorLayerVerification(rows, levels, validate=False).verify().token >= 0
    assert decided[20:].all()
    assert not decided[:20].all()
    assert row == 3 or not decided[:20].any()
