"""The file to copy: strata, drafts and verification, exactly on small vocabularies."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping
from itertools import product
from pathlib import Path
from types import ModuleType

import enumerated_trees
import numpy as np
import pytest
import torch
from enumerated_trees import (
    EXACT,
    EveryTree,
    Layer,
    all_nodes,
    child_reaches,
    deviation,
    every_adaptive_tree,
    every_tree,
    models,
    target_rows,
)
from sweep_twin import OrderedSweep
from tensor_pairs import model_like

import otmd
from otmd.laws import Slots
from otmd.probabilities import FloatArray, IntArray
from otmd.tensors import (
    Level,
    draft_adaptive_level,
    draft_level,
    from_links,
    layers,
    make_strata,
    philox_uniforms,
    residual_masses,
    score_tree,
    sweep,
    to_links,
    top_tokens,
    tree_speculative_sampling_strata,
    verify,
    verify_tree,
)
from otmd.tensors.layers import philox, pick
from otmd.trees import AdaptiveTree, LayerVerification, TableModel, TokenTree, whole_tree
from otmd.trees.adaptive import GrownTree, Leaf
from otmd.trees.base import Context, Node, Prefix
from otmd.trees.random_choices import Sampled
from otmd.verifiers import pair_sweep

HALF = (torch.float16, torch.bfloat16, torch.float32)


def expanded(level: Level, count: int) -> Level:
    """The level of one tree, for so many."""
    return Level(*(x.expand(count, *x.shape[1:]) for x in level))


def grid(size: int) -> torch.Tensor:
    """Pairs of evenly spaced numbers from 0 to 1, (size², 2)."""
    points = (torch.arange(size, dtype=torch.float64) + 0.5) / size
    return torch.cartesian_prod(points, points)


# ---------------------------------------------------------------- strata and drafts


def random_laws() -> list[np.ndarray]:
    """Distributions with and without ties, zero masses and masses of very different size.

    Those of 64ths are the same numbers in every dtype.
    """
    rng = np.random.default_rng(0)
    laws = []
    for _ in range(60):
        size = int(rng.integers(2, 40))
        laws += [rng.dirichlet(np.full(size, 0.4)) + 1e-9, np.exp(-7.0 * rng.integers(0, 6, size))]
        laws += [rng.multinomial(64, rng.dirichlet(np.ones(size))), np.ones(size)]
    return [x / x.sum() for x in laws]


@pytest.mark.parametrize("dtype", [*HALF, torch.float64])
def test_strata_are_those_of_the_law(dtype: torch.dtype) -> None:
    """Ties included, which half precision makes of close numbers."""
    ties = 0
    for q in random_laws():
        row = torch.tensor(q).to(dtype)
        exact = row.double().numpy()
        if dtype != torch.float64 and exact.sum() != 1.0:
            continue
        ties += len(np.unique(exact)) < exact.size
        for n in {1, 2, 3, 7} & set(range(1, np.count_nonzero(exact) + 1)):
            law = otmd.Stratified(exact, n)
            mass, tokens = top_tokens(row[None], q.size)
            stratum, inclusion = make_strata(mass, torch.tensor([n]), n)
            drawn = mass[0] > 0
            order = tokens[0][drawn].numpy()
            assert (stratum[0][drawn].numpy() == law.strata[order]).all()
            assert (stratum[0][~drawn] == n).all()
            assert np.abs(inclusion[0].numpy() - law.inclusion_probs()[tokens[0]]).max() < EXACT
    assert ties > 30


def test_equals_are_ordered_by_id_and_cut_by_it() -> None:
    q = torch.tensor([0.2, 0.4, 0.2, 0.2])
    mass, tokens = top_tokens(q, 4)
    assert tokens.tolist() == [1, 0, 2, 3]
    assert make_strata(mass, torch.tensor(2), 2)[0].tolist() == [0, 0, 1, 1]
    rng = np.random.default_rng(1)
    for dtype in (*HALF, torch.float64):
        rows = torch.tensor(rng.integers(0, 5, (20, 500)) / 4.0).to(dtype)
        order = np.argsort(-rows.double().numpy(), axis=-1, kind="stable")
        # More tokens than the vocabulary are all of it.
        for k in (1, 7, 150, 500, 600):
            assert (top_tokens(rows, k)[1].numpy() == order[:, :k]).all()


def test_slots_of_a_level() -> None:
    q = torch.tensor([[[0.6, 0.3, 0.1, 0.0, 0.0], [0.0, 0.1, 0.0, 0.9, 0.0], [0.2, 0.2, 0.2, 0.2, 0.2]]])
    level = draft_level(*top_tokens(q, 5), 2)
    assert level.slots.tolist() == [[[0, 1, 1, 6, 6], [2, 3, 6, 6, 6], [4, 4, 4, 5, 5]]]
    assert level.parents.tolist() == [[0, 0, 1, 1, 2, 2]]


def test_no_more_drafts_than_tokens_with_mass_nodes_and_quota() -> None:
    q = torch.tensor([[[0.0, 0.7, 0.0, 0.3], [1.0, 0, 0, 0], [0.25, 0.25, 0.25, 0.25]]])
    mass, tokens = top_tokens(q, 4)
    assert draft_level(mass, tokens, 3).draft_tokens[0, :3].tolist() == [1, 3, 0]
    assert draft_level(mass, tokens, 3).draft_tokens[0, 6:].tolist() == [-1, -1, -1]
    nodes = torch.tensor([[0, -1, 5]])
    assert draft_level(mass, tokens, 2, nodes=nodes).parents.tolist() == [[0, 0, 5, 5, -1, -1]]
    level = draft_level(mass, tokens, torch.tensor([[3, 1, 4]]), quota=5)
    assert level.parents.tolist() == [[0, 0, 1, 2, 2]]
    assert level.slots[0, 2].tolist() == [3, 3, 4, 4]


def test_drafts_have_their_inclusion_probabilities() -> None:
    """By evenly spaced numbers in place of random ones: each frequency is right to 1/1,000.

    An engine's own top-k kernel gives masses of any dtype; 256 strata lie side by side.
    """
    q = torch.rand((1, 64, 32), generator=torch.Generator().manual_seed(0)).pow(2)
    mass, tokens = (x.expand(1000, -1, -1) for x in top_tokens(q / q.sum(-1, keepdim=True), 32))
    points = ((torch.arange(1000, dtype=torch.float64) + 0.5) / 1000)[:, None].expand(-1, 256)
    for dtype in (*HALF, torch.float64):
        level = draft_level(mass.to(dtype), tokens, 4, uniforms=points)
        counts = torch.zeros(256, 64 * 32).scatter_add_(1, level.drafts.T, torch.ones(256, 1000))
        assert (counts.sum(0) / 1000 - level.inclusion[0].flatten()).abs().max() <= 0.001


def test_a_row_with_nan_of_either_sign_has_no_drafts() -> None:
    """Also where fewer than V tokens are taken; 0/0 is negative on some machines."""
    bits = torch.tensor([0x7FC00000, -0x400000], dtype=torch.int32)
    for nan in bits.view(torch.float32):
        row = torch.stack([torch.tensor(0.2), nan, torch.tensor(0.3)])[None, None]
        for dtype in (torch.float32, torch.float64):
            assert draft_level(*top_tokens(row.to(dtype), 2), 2).drafts.tolist() == [[-1, -1]]


def test_a_quota_holds_for_one_number_as_for_many() -> None:
    mass, tokens = top_tokens(torch.full((1, 2, 3), 1 / 3), 3)
    for number in (2, np.int64(2)):
        assert draft_level(mass, tokens, number, quota=3).parents.tolist() == [[0, 0, 1]]
        assert draft_level(mass, tokens, number).parents.tolist() == [[0, 0, 1, 1]]


def test_a_token_without_mass_is_never_picked() -> None:
    """The numbers at both ends, and masses that no smaller number can divide."""
    masses = torch.tensor([[0.0, x, 0.0] for x in (5e-324, 0.3, 1e300)], dtype=torch.float64)
    for u in (0.0, 0.5, 1.0 - 2.0**-24, 1.0 - 2.0**-53, 1.0):
        assert pick(masses, torch.full((3,), u, dtype=torch.float64)).tolist() == [1, 1, 1]


def test_no_levels_are_a_draw_from_the_target() -> None:
    path, length, token = verify_tree(torch.tensor([[[0.0, 1.0, 0.0]]]), [])
    assert (path.shape, length.tolist(), token.tolist()) == ((1, 0), [0], [1])


# ---------------------------------------------------------------- losslessness, exactly


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("shape", [(1,), (1, 1), (2, 1), (1, 2), (2, 2)])
def test_the_text_is_distributed_as_the_target(shape: tuple[int, ...], k: int) -> None:
    for seed in range(2):
        target, draft = models(3, seed)
        trees = every_tree(draft, shape, k)
        assert trees.probs.sum() == pytest.approx(1.0, abs=EXACT)
        assert deviation(target, trees) < EXACT
        # The scores are unbiased for the length of the path.
        scores, ends, _ = score_tree(target_rows(target, trees), trees.levels)
        depth = torch.tensor([[len(x or ()) for x in nodes] for nodes in trees.prefixes])
        length = trees.probs @ (ends * depth).sum(-1).numpy()
        assert trees.probs @ scores.sum(-1).numpy() == pytest.approx(1.0 + length, abs=EXACT)


@pytest.mark.parametrize("quotas", [(3,), (2, 3), (1, 2, 2), (4, 5)])
def test_adaptive_trees_are_lossless(quotas: tuple[int, ...]) -> None:
    target, draft = models(3, 0)
    for k in (2, 3):
        trees = every_adaptive_tree(draft, quotas, k)
        assert trees.probs.sum() == pytest.approx(1.0, abs=EXACT)
        assert deviation(target, trees) < EXACT
    if quotas == (2, 3):
        counts = [sorted(map(x.count, {*x})) for x in trees.levels[1].parents.tolist()]
        assert [1, 2] in counts


def hostile() -> dict[str, tuple[TableModel, TableModel]]:
    """Markov chains of three tokens with zero masses and ties."""
    eye, flat = np.eye(3), np.full(3, 1 / 3)
    cases = {
        "one-hot draft": ([0.2, 0.3, 0.5], [0.0, 1.0, 0.0], np.stack([flat, eye[0], eye[2]]), eye),
        "one-hot target": (eye[1], [0.2, 0.5, 0.3], eye, np.stack([flat, flat, eye[0]])),
        "one-hot both": (eye[1], eye[1], eye, eye),
        "disjoint": ([0.5, 0.5, 0.0], eye[2], np.stack([eye[0], flat, eye[1]]), eye[[1, 2, 0]]),
        "equal": (flat, flat, np.stack([flat] * 3), np.stack([flat] * 3)),
        "two tokens": (
            [0.6, 0.0, 0.4],
            [0.3, 0.0, 0.7],
            eye[[2, 1, 0]] * 0.5 + 1 / 6,
            eye * 0.4 + 0.2,
        ),
        "masses of 1e-200": (
            [1.0, 1e-200, 1e-300],
            [1e-200, 1.0, 1e-310],
            np.stack([flat] * 3),
            eye * 0.4 + 0.2,
        ),
    }
    return {
        name: (TableModel([p, p_after]), TableModel([q, q_after]))
        for name, (p, q, p_after, q_after) in cases.items()
    }


@pytest.mark.parametrize("case", hostile())
def test_zero_masses_and_ties(case: str) -> None:
    target, draft = hostile()[case]
    for shape in ((2, 2), (3, 1)):
        assert deviation(target, every_tree(draft, shape, 3)) < EXACT
    assert deviation(target, every_adaptive_tree(draft, (2, 3), 3)) < EXACT


def test_every_number_of_rounds_and_classes_is_lossless() -> None:
    target, draft = models(3, 5)
    trees = every_tree(draft, (3, 1), 3)
    rates = []
    for rounds in (1, 2, 3, 8):
        assert deviation(target, trees, rounds=rounds) < EXACT
        scores = score_tree(target_rows(target, trees), trees.levels, rounds=rounds)[0]
        rates.append(trees.probs @ scores[:, 1:4].sum(-1).numpy())
    assert rates == sorted(rates)
    assert rates[0] < rates[-1] - 1e-3
    assert deviation(target, trees, classes=2) < EXACT


def by_the_drafts(layer: Layer) -> list[int]:
    """One drafting node of the layer, or none, by the sum of its tokens."""
    total = sum(token for prefix in layer for token in prefix or ())
    return [0] if len(layer) == 1 else [(0, -1, 1)[total % 3]]


FAULTS = {
    "a pair is never thinned": (
        "torch.minimum(q, target / before.clamp(min=_TINY).gather(-1, cell))",
        "q",
    ),
    "the first draft of the last cell": (
        "argsort(dim=-1, stable=True)",
        "argsort(descending=True)",
    ),
    "the residual is the target": ("mass * left, mass)", "mass, mass)"),
    "the target without the node's score": (
        "(weight / total)[..., None] * ",
        "total[..., None] * ",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_copy_is_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Controls: the file with a fault in it."""
    source, (right, wrong) = Path(layers.__file__).read_text(), FAULTS[fault]
    assert source.count(right) == 1
    copy = ModuleType("faulty_layers")
    monkeypatch.setitem(sys.modules, copy.__name__, copy)
    exec(source.replace(right, wrong), copy.__dict__)
    for name in ("score_tree", "residual_masses"):
        monkeypatch.setattr(enumerated_trees, name, getattr(copy, name))
    target, draft = models(3, 1)
    assert deviation(target, every_tree(draft, (2, 2), 3)) > 0.001


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision(dtype: torch.dtype) -> None:
    """The target is what the rounded numbers say, divided by their sum."""
    target, draft = models(3, 2)
    trees = every_tree(draft, (2, 2), 3, dtype=dtype)
    rows = target_rows(target, trees, dtype)
    rounded = [torch.tensor(table).to(dtype).double().numpy() for table in target.tables]
    same = TableModel([table / table.sum(axis=-1, keepdims=True) for table in rounded])
    assert deviation(same, trees, rows=rows) < EXACT
    # A control: undivided, the numbers in half precision are another target.
    assert dtype == torch.float32 or deviation(target, trees, rows=rows) > 1e-6


def test_one_position_is_a_tree_of_one_level() -> None:
    """The same numbers give the same token; the rate is the mass that the sweep accepts."""
    for seed in range(5):
        target, draft = models(4, seed)
        trees = every_tree(draft, (3,), 4)
        rows, level = target_rows(target, trees), trees.levels[0]
        for repeat in range(20):
            generator = torch.Generator().manual_seed(repeat)
            uniforms = torch.rand((len(rows), 2), generator=generator, dtype=torch.float64)
            token, accepted = verify(rows[:, 0], level, uniforms)
            path, _, after = verify_tree(rows, [level], uniforms)
            drafted = level.draft_tokens.gather(1, accepted.clamp(min=0)[:, None])[:, 0]
            assert torch.equal(accepted, (path[:, 0] - 1).clamp(min=-1))
            assert torch.equal(token, torch.where(accepted >= 0, drafted, after))
        p, q, slots = (x[:1] for x in (rows[:, 0], level.inclusion[:, 0], level.slots[:, 0]))
        rate = sweep(p.gather(-1, level.tokens[:1, 0]), q, slots, 3)[1].sum()
        scores, _, _ = score_tree(rows, [level])
        assert trees.probs @ scores[:, 1:].sum(-1).numpy() == pytest.approx(rate.item(), abs=EXACT)


def test_draws_have_the_probabilities_of_the_decision() -> None:
    """The end and the token of one tree by evenly spaced numbers: each frequency is right to 1/45."""
    target, draft = hostile()["two tokens"]
    trees = every_tree(draft, (2, 2), 3)
    levels = [Level(*(x[-1:] for x in level)) for level in trees.levels]
    rows = target_rows(target, trees)[-1:]
    _, ends, shares = score_tree(rows, levels)
    points = grid(90)
    many = [expanded(level, len(points)) for level in levels]
    path, length, token = verify_tree(rows.expand(len(points), -1, -1), many, points)
    end = torch.where(length > 0, path.gather(1, (length - 1).clamp(min=0)[:, None])[:, 0], 0)
    for node in range(7):
        masses = residual_masses(rows, levels, shares, torch.tensor([node]))[0]
        expected = ends[0, node] * masses / masses.sum() if ends[0, node] > 0 else 0 * masses
        counts = torch.bincount(token[end == node], minlength=3) / len(points)
        assert (counts - expected).abs().max() < 1 / 45
    assert (ends > 0.01).sum() > 2


# ---------------------------------------------------------------- parity


class DrawnTree:
    """Tree b of a batch, for the verifier on arrays."""

    def __init__(self, trees: EveryTree, b: int) -> None:
        drafts: dict[Prefix, list[int]] = {}
        for prefix in trees.prefixes[b][1:]:
            if prefix is not None:
                drafts.setdefault(prefix[:-1], []).append(prefix[-1])
        self.nodes = {
            prefix: Node(otmd.Stratified(trees.draft(prefix), len(tokens)), np.array(tokens), ())
            for prefix, tokens in drafts.items()
        }

    def node(self, prefix: Prefix) -> Node | None:
        return self.nodes.get(prefix)


def sweep_thrice(target: FloatArray, slots: Slots) -> pair_sweep.Sweep:
    """The sweep of the file, pair by pair."""
    slot = np.repeat(np.arange(slots.num_drafts), np.diff(slots.starts))
    t, q = target[slots.tokens], slots.probs
    with np.errstate(divide="ignore"):
        octave = np.floor(0.5 - np.log2(t / q)).clip(0, 10)
    level, thinned, sweeps = np.where(t >= q, 0, 1 + octave), np.zeros(slot.size), []
    for _ in range(3):
        order: IntArray = np.lexsort((-slot, level, thinned))
        sweeps.append(OrderedSweep(target, slots, np.stack([slot, slots.tokens], axis=1)[order]))
        thinned = thinned + (sweeps[-1].pairs(slot, slots.tokens)[1] < 1.0)
    return min(sweeps, key=lambda found: found.missed)


@pytest.mark.parametrize("shape", [(2, 2), (3, 1), (4, 1)])
def test_scores_are_those_of_layer_verification_in_this_order(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    monkeypatch.setattr(whole_tree, "sweep_pairs", sweep_thrice)
    compared = 0
    for seed in range(2):
        target, draft = models(5, seed)
        trees = every_tree(draft, shape, 5)
        scores, _, _ = score_tree(target_rows(target, trees), trees.levels, rounds=80)
        context = Context(target, TokenTree(draft, shape, otmd.Stratified))
        for b in np.random.default_rng(seed).choice(len(trees.probs), 20):
            expected = {(): 1.0}
            for layer in LayerVerification().layers(context, DrawnTree(trees, b)):  # type: ignore[arg-type]
                expected |= layer.child_scores()
            listed = dict(zip(trees.prefixes[b], scores[b].tolist(), strict=True))
            for prefix in listed.keys() | expected.keys():
                assert listed.get(prefix, 0.0) == pytest.approx(expected.get(prefix, 0.0), abs=1e-10)
                compared += expected.get(prefix, 0.0) > 1e-10
    assert compared > 100


def test_tokens_per_step_are_near_layer_verification() -> None:
    """By enumeration; the orders of pairs differ."""
    for seed, shape in product(range(3), ((2, 2), (3, 1))):
        target, draft = models(3, seed)
        trees = every_tree(draft, shape, 3)
        scores = score_tree(target_rows(target, trees), trees.levels)[0]
        tree = TokenTree(draft, shape, otmd.Stratified)
        expected = otmd.trees.tokens_per_step(LayerVerification(), target, tree).value
        assert trees.probs @ scores.sum(-1).numpy() == pytest.approx(expected, abs=0.02)


def test_one_position_accepts_as_often_as_preference() -> None:
    p, q = model_like(40, 1000, seed=1)
    for n in (1, 2, 4, 8):
        law = otmd.Stratified(q, n)
        expected = np.asarray(otmd.acceptance_rate(otmd.Preference(), p, law))
        mass, tokens = top_tokens(torch.tensor(q), 1000)
        number, inclusion = make_strata(mass, torch.full((40,), n), n)
        rate = sweep(torch.tensor(p).gather(-1, tokens), inclusion, number, n)[1].sum(-1).numpy()
        assert abs(rate.mean() / expected.mean() - 1.0) < 0.005


class Replayed(GrownTree):
    """A tree whose drafts are given."""

    def __init__(self, law: AdaptiveTree, drafts: dict[Prefix, list[int]]) -> None:
        super().__init__(Context(law.draft_model, law), Sampled(np.random.default_rng(0)))
        self._drafts = drafts

    def draw(self, prefix: Prefix, state: Hashable) -> Node | None:
        tokens = np.array(self._drafts.pop(prefix))
        assert tokens.size == state
        node = super().draw(prefix, state)
        return node and node._replace(tokens=tokens)


class Noted(AdaptiveTree):
    """Notes the reach of each node."""

    def num_drafts(self, leaves: Mapping[Prefix, Leaf], quota: int) -> dict[Prefix, int]:
        vars(self).setdefault("reaches", {}).update({prefix: leaf.reach for prefix, leaf in leaves.items()})
        return super().num_drafts(leaves, quota)


def test_numbers_of_drafts_and_reaches_are_those_of_adaptive_trees() -> None:
    """Models of 30 tokens, one tree of each, all in one batch."""
    quotas, size = (3, 4, 5, 4), 30
    drafts = [TableModel.random(size, 2, 0.1 + 0.1 * seed, rng=seed) for seed in range(8)]
    layers: list[Layer] = [[()] for _ in drafts]
    listed: list[dict[Prefix, list[int]]] = [{} for _ in drafts]
    noted: list[dict[Prefix, float]] = [{(): 1.0} for _ in drafts]
    reaches = torch.ones((len(drafts), 1), dtype=torch.float64)
    for quota in quotas:
        pairs = zip(drafts, layers, strict=True)
        q = torch.tensor(np.array([[model(x or ()) for x in layer] for model, layer in pairs]))
        level, below = draft_adaptive_level(*top_tokens(q, size), reaches, quota)
        torch.testing.assert_close(below, child_reaches(q, reaches, level), rtol=EXACT, atol=0)
        above, layers, reaches = layers, [], below
        for b, parents in enumerate(level.parents.tolist()):
            layers.append([])
            for node, token, reach in zip(
                parents, level.draft_tokens[b].tolist(), below[b].tolist(), strict=True
            ):
                prefix = None if node < 0 else (*(above[b][node] or ()), token)
                layers[-1].append(prefix)
                if prefix is not None:
                    listed[b].setdefault(prefix[:-1], []).append(token)
                    noted[b][prefix] = reach
    for model, by_node, reach_of in zip(drafts, listed, noted, strict=True):
        law = Noted(model, quotas)
        Replayed(law, by_node).prefixes()
        assert by_node == {}
        for prefix, reach in vars(law)["reaches"].items():
            assert reach_of[prefix] == pytest.approx(reach, rel=EXACT)


# ---------------------------------------------------------------- random numbers


def test_philox_gives_the_published_numbers() -> None:
    """The known answers of Random123 for Philox4x32-10."""
    answers = {
        (0,) * 6: "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        (0xFFFFFFFF,) * 6: "408f276d 41c83b0e a20bc7c6 6d5451fd",
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0): (
            "d16cfe09 94fdcceb 5001e420 24126ea1"
        ),
    }
    for words, answer in answers.items():
        given = [torch.tensor(word) for word in words]
        assert " ".join(f"{x.item():08x}" for x in philox(given[:4], given[4:])) == answer


def philox_in_numpy(counter: list[int], key: list[int]) -> list[int]:
    (a, b, c, d), (u, v) = (np.array(x, np.uint64) for x in (counter, key))
    low, word = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        x, y = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (y >> word) ^ b ^ u, y & low, (x >> word) ^ d ^ v, x & low
        u, v = (u + np.uint64(0x9E3779B9)) & low, (v + np.uint64(0xBB67AE85)) & low
    return [int(x) for x in (a, b, c, d)]


def test_uniforms_depend_on_seed_and_offset_alone_and_are_those_of_numpy() -> None:
    seeds, offsets = [1, 1, 2**40 + 3, -5], [0, 1, 2**35, 7]
    uniforms = philox_uniforms(torch.tensor(seeds), torch.tensor(offsets), 5)
    for row, seed, offset in zip(uniforms, seeds, offsets, strict=True):
        words = [x % 2**32 for x in (offset, offset >> 32, seed, seed >> 32)]
        blocks = [philox_in_numpy([i, 0, *words[:2]], words[2:]) for i in range(3)]
        numbers = [(x << 21 | y >> 11) / 2**53 for block in blocks for x, y in (block[:2], block[2:])]
        assert row.tolist() == numbers[:5]
    one = philox_uniforms(torch.tensor([1]), torch.tensor([1]), 3)
    assert one[0].tolist() == uniforms[1, :3].tolist()


# ---------------------------------------------------------------- mixed batches

VOCAB = 4


def mixed_batch() -> tuple[torch.Tensor, list[Level], list[str]]:
    """Requests of every kind in one batch: two levels, the second after two of three drafts."""
    eye = np.eye(VOCAB)
    flat = np.full(VOCAB, 0.25)
    uneven, masked = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.5, 0.5, 0.0, 0.0])
    kinds = {
        "sampled": (uneven, flat, (3, 1, 1)),
        "greedy": (eye[2], flat, (3, 1, 1)),
        "greedy draft": (uneven, eye[1], (3, 1, 1)),
        "no drafts": (uneven, flat, (0, 0, 0)),
        "one level": (uneven, flat, (3, 0, 0)),
        "masked": (masked, masked[[0, 2, 1, 3]], (3, 1, 1)),
    }
    p, q = (np.stack([kind[i] for kind in kinds.values()]) for i in (0, 1))
    counts = torch.tensor([kind[2] for kind in kinds.values()])
    rows = torch.tensor(q)[:, None].expand(-1, 2, -1)
    levels = [draft_level(*top_tokens(rows[:, :1], VOCAB), counts[:, :1], quota=3)]
    exists = levels[0].drafts[:, :2] >= 0
    levels.append(draft_level(*top_tokens(rows, VOCAB), counts[:, 1:] * exists, quota=2))
    return torch.tensor(p)[:, None].expand(-1, 6, -1), levels, list(kinds)


def test_requests_of_every_kind_in_one_batch() -> None:
    """The table of the page for engine authors."""
    torch.manual_seed(0)
    for _ in range(50):
        rows, levels, kinds = mixed_batch()
        path, length, token = verify_tree(rows, levels)
        drafted = torch.cat([level.draft_tokens for level in levels], 1)
        texts = {}
        for b, kind in enumerate(kinds):
            accepted = path[b, : length[b]]
            assert (path[b, length[b] :] == -1).all()
            texts[kind] = [*drafted[b, accepted - 1].tolist(), token[b].item()]
        assert set(texts["greedy"]) == {2}
        assert (drafted[kinds.index("greedy draft")] >= 0).sum() == 2
        assert len(texts["no drafts"]) == 1
        assert len(texts["one level"]) <= 2
        assert set(texts["masked"]) <= {0, 1}


def test_a_request_without_a_distribution_is_not_decided() -> None:
    rows, levels, _ = mixed_batch()
    rows = rows.clone()
    rows[0, 0], rows[1, 0, 3], rows[4, 4:] = 0.0, torch.nan, torch.nan
    path, length, token = verify_tree(rows, levels)
    assert (token < 0).tolist() == [True, True, False, False, False, False]
    assert (path[:2] == -1).all()
    assert length[:2].tolist() == [0, 0]
    token, accepted = verify(rows[:, 0], levels[0])
    assert (token < 0).tolist() == [True, True, False, False, False, False]
    assert accepted[:2].tolist() == [-1, -1]


# ---------------------------------------------------------------- SGLang's layout


def sglang_text(b: int, out: tuple[torch.Tensor, ...]) -> list[int]:
    """The tokens that the engine reads from the three outputs of the kernel."""
    predicts, accept_index, accept_token_num = out
    return predicts[accept_index[b, : accept_token_num[b] + 1].long()].tolist()


def linked(rows: torch.Tensor, levels: list[Level], uniforms: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The three outputs for levels, by the layout of the kernel."""
    batch, size = rows.shape[:2]
    tree = to_links(torch.zeros(batch, dtype=torch.int64), levels)
    out = tuple(
        torch.full(s, -7, dtype=torch.int32) for s in ((batch * size,), (batch, len(levels) + 1), (batch,))
    )
    coins = uniforms[:, :1].expand(-1, size), uniforms[:, 1]
    quotas = [level.drafts.shape[1] for level in levels]
    tree_speculative_sampling_strata(*out, *tree[:4], *coins, rows, *tree[4:], quotas)
    return out


def test_links_are_walked_as_the_kernel_walks_them() -> None:
    rows, levels, _ = mixed_batch()
    tree = to_links(torch.full((len(rows),), 9), levels)
    firsts, drafted = (1, 4), [level.draft_tokens for level in levels]
    for b in range(len(rows)):
        walked = {}
        for node in range(6):
            child = tree.retrieve_next_token[b, node].item()
            while child != -1:
                walked[child] = node
                child = tree.retrieve_next_sibling[b, child].item()
        expected = {}
        for i, (level, above) in enumerate(zip(levels, (0, 1), strict=True)):
            for j, parent in enumerate(level.parents[b].tolist()):
                if parent >= 0:
                    expected[firsts[i] + j] = above + parent
                    assert tree.candidates[b, firsts[i] + j] == drafted[i][b, j]
        assert walked == expected
    assert tree.candidates[:, 0].tolist() == [9] * len(rows)
    assert tree.retrieve_index.flatten().tolist() == list(range(rows.shape[0] * 6))


@pytest.mark.parametrize("choose", [all_nodes, by_the_drafts])
@pytest.mark.parametrize("shape", [(2, 2), (3, 1), (2, 1, 2)])
def test_levels_come_back_from_links(shape: tuple[int, ...], choose: Callable[[Layer], list[int]]) -> None:
    """Also where the drafts decide which nodes have drafts, so that nodes and levels are missing."""
    target, draft = models(3, 1)
    trees = every_tree(draft, shape, 3, choose)
    if choose is by_the_drafts:
        assert (len(trees.levels[1].nodes.unique()) > 1) == (shape != (3, 1))
    rows = target_rows(target, trees)
    tree = to_links(torch.zeros(len(rows), dtype=torch.int64), trees.levels)
    levels = from_links(tree, [level.drafts.shape[1] for level in trees.levels])
    for level, same in zip(trees.levels, levels, strict=True):
        assert torch.equal(level.draft_tokens, same.draft_tokens)
        assert torch.equal(level.parents, same.parents)
    for x, y in zip(score_tree(rows, trees.levels)[:2], score_tree(rows, levels)[:2], strict=True):
        assert (x - y).abs().max() < EXACT
    assert deviation(target, trees, levels) < EXACT


def test_the_kernels_outputs_are_those_of_verify_tree() -> None:
    """The same numbers give the same text; as in the kernel, paths are padded by −1."""
    lengths = set()
    for seed, case in enumerate(("disjoint", "two tokens", "one-hot draft")):
        target, draft = hostile()[case]
        trees = every_tree(draft, (2, 2), 3)
        rows, generator = target_rows(target, trees), torch.Generator().manual_seed(seed)
        uniforms = torch.rand((len(rows), 2), generator=generator, dtype=torch.float64)
        path, length, token = verify_tree(rows, trees.levels, uniforms)
        out = linked(rows, trees.levels, uniforms)
        assert torch.equal(out[2].long(), length)
        index = path + rows.shape[1] * torch.arange(len(rows))[:, None]
        assert torch.equal(out[1][:, 1:].long(), torch.where(path >= 0, index, -1))
        for b, nodes in enumerate(trees.prefixes):
            end = nodes[path[b, length[b] - 1]] if length[b] else ()
            assert sglang_text(b, out) == [*(end or ()), token[b].item()]
        unused = torch.ones(len(out[0]), dtype=torch.bool)
        unused[out[1][out[1] >= 0].long()] = False
        assert (out[0][unused] == -7).all()
        lengths |= set(length.tolist())
    assert lengths == {0, 1, 2}
