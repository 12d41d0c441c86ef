"""The file to copy: strata, drafts and verification, exactly on small vocabularies."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
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
    sweep,
    to_links,
    top_tokens,
    tree_speculative_sampling_strata,
    verify,
    verify_tree,
)
from otmd.tensors.layers import philox, pick
from otmd.testing import check_tree_verifier, hostile_trees
from otmd.testing.trees import _hostile_targets as hostile_targets
from otmd.trees import (
    AdaptiveTree,
    LayerVerification,
    TableModel,
    TokenTree,
    TreeVerifier,
    output_distribution,
    target_distribution,
    tokens_per_step,
    whole_tree,
)
from otmd.trees.adaptive import Leaf
from otmd.trees.base import Context, DraftTree, Node, Prefix
from otmd.trees.random_choices import RandomChoices, Sampled
from otmd.verifiers import pair_sweep

EXACT = 1e-12
HALF = (torch.float16, torch.bfloat16, torch.float32)


class OnTensors(TreeVerifier):
    """The functions on tensors as a verifier of trees whose drafts are strata of the k most likely tokens.

    ``linked`` sends the levels through SGLang's layout; ``dtype`` is that of the rows, which are read from
    ``target`` and ``draft``, by default the target and the tree's draft model.
    """

    def __init__(
        self, k=9, functions=layers, linked=False, dtype=torch.float64, target=None, draft=None, **options
    ) -> None:
        self.k, self.functions, self.linked = k, functions, linked
        self.dtype, self.target, self.draft, self.options = dtype, target, draft, options
        self.scored: dict = {}

    def levels(self, context: Context, tree: DraftTree) -> tuple[list[Level], list[Prefix | None]]:
        """The drafts of a tree, and the prefixes of its nodes in the order of the target's rows.

        As for the smaller trees of a batch, each level has a node that is none, and a draft.
        """
        levels: list[Level] = []
        layer: list[Prefix | None] = [()]
        prefixes = layer
        while drafting := [
            (i, x, node) for i, x in enumerate(layer) if x is not None and (node := tree.node(x))
        ]:
            q = [(self.draft or context.draft)(x) for _, x, _ in drafting]
            rows = torch.tensor(np.array([[*q, np.full(q[0].size, 1 / q[0].size)]]))
            mass, tokens = top_tokens(rows.to(self.dtype), self.k)
            counts = torch.tensor([[*(node.tokens.size for *_, node in drafting), 1]])
            nodes = torch.tensor([[*(i for i, *_ in drafting), -1]])
            level = draft_level(mass, tokens, counts, int(counts.sum()), nodes)
            drawn = [(d, x, y) for d, (_, x, node) in enumerate(drafting) for y in node.tokens.tolist()]
            drafts = [d * tokens.shape[2] + tokens[0, d].tolist().index(y) for d, _, y in drawn]
            levels.append(level._replace(drafts=torch.tensor([[*drafts, -1]])))
            layer = [*((*x, y) for _, x, y in drawn), None]
            prefixes = prefixes + layer
        if self.linked:
            quotas = [level.drafts.shape[1] for level in levels]
            levels = from_links(to_links(torch.zeros(1, dtype=torch.int64), levels), quotas)
        return levels, prefixes

    def rows(self, context: Context, prefixes: list[Prefix | None]) -> torch.Tensor:
        target = self.target or context.target
        none = np.full(context.target(()).size, np.nan)
        return torch.tensor(np.array([[none if x is None else target(x) for x in prefixes]])).to(self.dtype)

    def score(self, context: Context, tree: DraftTree) -> tuple:
        """Prefixes, scores, P(the path ends at each), and masses of the token after it."""
        key = context, tuple(tree.prefixes())
        if key not in self.scored:
            levels, prefixes = self.levels(context, tree)
            rows = self.rows(context, prefixes)
            scores, ends, shares = self.functions.score_tree(rows, levels, **self.options)
            masses = [
                self.functions.residual_masses(rows, levels, shares, torch.tensor([i]))[0].numpy()
                for i in range(len(prefixes))
            ]
            self.scored[key] = prefixes, scores[0].numpy(), ends[0].numpy(), masses
        return self.scored[key]

    def emit(self, context: Context, tree: DraftTree, choices: RandomChoices) -> Prefix:
        prefixes, _, ends, masses = self.score(context, tree)
        end = choices.token(ends)
        return (*prefixes[end], choices.token(masses[end]))

    def expected_tokens(self, context: Context, tree: DraftTree, *, rng=None) -> float:
        """The sum of the scores, which is unbiased for the tokens per step."""
        return float(self.score(context, tree)[1].sum())


class OnAdaptiveLevels(OnTensors):
    """The levels are those of draft_adaptive_level, by the random numbers that draw the tree's drafts."""

    def __init__(self, quotas: tuple[int, ...], **options) -> None:
        super().__init__(**options)
        self.quotas, self.counts = quotas, set()

    def levels(self, context: Context, tree: DraftTree) -> tuple[list[Level], list[Prefix | None]]:
        levels: list[Level] = []
        layer: list[Prefix | None] = [()]
        prefixes, reaches = layer, torch.ones((1, 1), dtype=torch.float64)
        for quota in self.quotas:
            q = torch.tensor(np.array([[self.draft(x or ()) for x in layer]]))
            given = *top_tokens(q, self.k), reaches, quota
            level = draft_adaptive_level(*given)[0]
            nodes = [tree.node(x) if x is not None else None for x in layer]
            counts = [node.tokens.size for node in nodes if node]
            drafts = [
                i * level.tokens.shape[2] + level.tokens[0, i].tolist().index(y)
                for i, node in enumerate(nodes)
                if node
                for y in node.tokens.tolist()
            ]
            uniforms = torch.zeros((1, quota), dtype=torch.float64)
            middles = (level.inclusion.flatten().cumsum(0) - level.inclusion.flatten() / 2)[drafts]
            uniforms[0, : len(drafts)] = middles - torch.arange(len(drafts))
            level, reaches = draft_adaptive_level(*given, uniforms)
            assert level.drafts[0].tolist() == drafts + [-1] * (quota - len(drafts))
            drawn = zip(level.parents[0].tolist(), level.draft_tokens[0].tolist(), strict=True)
            layer = [None if y < 0 else (*(layer[i] or ()), y) for i, y in drawn]
            self.counts.add(tuple(sorted(counts)))
            levels.append(level)
            prefixes = prefixes + layer
        return levels, prefixes


def models(vocab_size: int, seed: int) -> tuple[TableModel, TableModel]:
    """A target and a draft whose next token depends on the last two."""
    target, draft = (TableModel.random(vocab_size, 2, 0.7, rng=[seed, i]) for i in range(2))
    return target, draft


def cut_strata(k: int):
    """Strata of the k most likely tokens."""

    def law(q: FloatArray, num_drafts: int) -> otmd.Stratified:
        kept = np.where(np.isin(np.arange(q.size), np.argsort(-q, kind="stable")[:k]), q, 0.0)
        return otmd.Stratified(kept / kept.sum(), min(num_drafts, np.count_nonzero(kept)))

    return law


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
        check_tree_verifier(OnTensors(k), TokenTree(draft, shape, cut_strata(k)), target)


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        *("strata", "strata, three levels", "strata of ties", "strata of a single token"),
        *("a node without drafts", "adaptive"),
    ],
)
def test_hostile_trees(name: str, linked: bool) -> None:
    """Zero masses, ties, leaves of unequal depth, and numbers of drafts that depend on the drafts above."""
    tree = hostile_trees()[name]
    target = hostile_targets(tree, 0)["disjoint from the draft" if linked else "mixed"]
    check_tree_verifier(OnTensors(linked=linked), tree, target)


@pytest.mark.parametrize(("quotas", "k"), [((3,), 2), ((2, 3), 3), ((2, 2, 2), 2), ((4, 5), 3)])
def test_adaptive_trees(quotas: tuple[int, ...], k: int) -> None:
    target, draft = models(3, 2)
    kept = [np.where(table >= np.sort(table)[..., [-k]], table, 0.0) for table in draft.tables]
    same = TableModel([table / table.sum(axis=-1, keepdims=True) for table in kept])
    rule = OnAdaptiveLevels(quotas, k=k, draft=draft)
    check_tree_verifier(rule, AdaptiveTree(same, quotas), target)
    # Numbers of drafts differ between the nodes of a level.
    assert quotas != (2, 3) or (1, 2) in rule.counts


def test_masses_hundreds_of_orders_of_magnitude_apart() -> None:
    flat, uneven = np.full((3, 3), 1 / 3), np.eye(3) * 0.4 + 0.2
    target, draft = TableModel([[1.0, 1e-200, 1e-300], flat]), TableModel([[1e-200, 1.0, 1e-310], uneven])
    for tree in (TokenTree(draft, (2, 2), otmd.Stratified), AdaptiveTree(draft, (2, 3))):
        check_tree_verifier(OnTensors(), tree, target)


def test_every_number_of_rounds_and_classes_is_lossless() -> None:
    target, draft = models(3, 5)
    tree = TokenTree(draft, (3, 1), otmd.Stratified)
    rates = []
    for rounds in (1, 2, 3, 8):
        rule = OnTensors(rounds=rounds)
        output = output_distribution(rule, target, tree)
        np.testing.assert_allclose(output, target_distribution(target, 3), rtol=0, atol=EXACT)
        rates.append(tokens_per_step(rule, target, tree).value)
    assert rates == sorted(rates)
    assert rates[0] < rates[-1] - 1e-3
    check_tree_verifier(OnTensors(classes=2), tree, target)


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
    target, draft = models(3, 1)
    with pytest.raises(AssertionError, match="output_distribution of"):
        check_tree_verifier(OnTensors(functions=copy), TokenTree(draft, (2, 2), otmd.Stratified), target)


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision(dtype: torch.dtype) -> None:
    """Target and draft are what the rounded numbers say, divided by their sum."""
    target, draft = models(3, 2)
    same, drawn = (
        TableModel([x / x.sum(axis=-1, keepdims=True) for x in rounded])
        for rounded in (
            [torch.tensor(table).to(dtype).double().numpy() for table in model.tables]
            for model in (target, draft)
        )
    )
    rule = OnTensors(dtype=dtype, target=target, draft=draft)
    check_tree_verifier(rule, TokenTree(drawn, (2, 2), otmd.Stratified), same)
    if dtype != torch.float32:
        # Controls: undivided, the numbers in half precision are another target and another draft.
        for p, q in ((target, drawn), (same, draft)):
            with pytest.raises(AssertionError, match="output_distribution of"):
                check_tree_verifier(rule, TokenTree(q, (2, 2), otmd.Stratified), p)


def test_one_position_is_a_tree_of_one_level() -> None:
    """The same numbers give the same token; the rate is the mass that the sweep accepts."""
    target, draft = models(4, 0)
    q = torch.tensor(draft.tables[2].reshape(1, 16, 4)).expand(20, -1, -1).reshape(320, 1, 4)
    p = torch.tensor(target.tables[2].reshape(1, 16, 4)).expand(20, -1, -1).reshape(320, 1, 4)
    level = draft_level(*top_tokens(q, 4), 3)
    uniforms = torch.rand((320, 2), dtype=torch.float64)
    token, accepted = verify(p[:, 0], level, uniforms)
    rows = torch.cat([p, torch.ones((320, 3, 4), dtype=torch.float64)], 1)
    path, _, after = verify_tree(rows, [level], uniforms)
    drafted = level.draft_tokens.gather(1, accepted.clamp(min=0)[:, None])[:, 0]
    assert torch.equal(accepted, (path[:, 0] - 1).clamp(min=-1))
    assert torch.equal(token[accepted < 0], after[accepted < 0])
    assert torch.equal(token[accepted >= 0], drafted[accepted >= 0])
    level = draft_level(*top_tokens(torch.tensor(draft(()))[None, None], 4), 3)
    row = torch.tensor(target(()))[None].gather(-1, level.tokens[:, 0])
    rate = sweep(row, level.inclusion[:, 0], level.slots[:, 0], 3)[1].sum()
    tree = TokenTree(draft, (3,), otmd.Stratified)
    assert tokens_per_step(OnTensors(), target, tree).value == pytest.approx(1.0 + rate.item(), abs=EXACT)


def test_draws_have_the_probabilities_of_the_decision() -> None:
    """The end and the token of one tree by evenly spaced numbers: each frequency is right to 1/45."""
    target, draft = models(3, 0)
    law, rule = TokenTree(draft, (2, 2), otmd.Stratified), OnTensors()
    context = Context(target, law)
    tree = law.draft_tree(context, Sampled(np.random.default_rng(0)))
    levels, prefixes = rule.levels(context, tree)
    _, _, ends, masses = rule.score(context, tree)
    points = (torch.arange(90, dtype=torch.float64) + 0.5) / 90
    points = torch.cartesian_prod(points, points)
    many = [Level(*(x.expand(len(points), *x.shape[1:]) for x in level)) for level in levels]
    rows = rule.rows(context, prefixes).expand(len(points), -1, -1)
    path, length, token = verify_tree(rows, many, points)
    end = torch.where(length > 0, path.gather(1, (length - 1).clamp(min=0)[:, None])[:, 0], 0)
    for node in np.flatnonzero(ends):
        expected = ends[node] * masses[node] / masses[node].sum()
        counts = torch.bincount(token[end == node], minlength=3).numpy() / len(points)
        assert np.abs(counts - expected).max() < 1 / 45
    assert (ends > 0.01).sum() > 2


# ---------------------------------------------------------------- parity


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
    compared, rule = 0, OnTensors(rounds=80)
    for seed in range(2):
        target, draft = models(5, seed)
        law = TokenTree(draft, shape, otmd.Stratified)
        context = Context(target, law)
        for tree_seed in range(20):
            tree = law.draft_tree(context, Sampled(np.random.default_rng(tree_seed)))
            expected = {(): 1.0}
            for layer in LayerVerification().layers(context, tree):
                expected |= layer.child_scores()
            prefixes, scores, *_ = rule.score(context, tree)
            listed = dict(zip(prefixes, scores.tolist(), strict=True))
            for prefix in listed.keys() | expected.keys():
                assert listed.get(prefix, 0.0) == pytest.approx(expected.get(prefix, 0.0), abs=1e-10)
                compared += expected.get(prefix, 0.0) > 1e-10
    assert compared > 100


def test_one_position_accepts_as_often_as_preference() -> None:
    p, q = model_like(40, 1000, seed=1)
    for n in (1, 2, 4, 8):
        law = otmd.Stratified(q, n)
        expected = np.asarray(otmd.acceptance_rate(otmd.Preference(), p, law))
        mass, tokens = top_tokens(torch.tensor(q), 1000)
        number, inclusion = make_strata(mass, torch.full((40,), n), n)
        rate = sweep(torch.tensor(p).gather(-1, tokens), inclusion, number, n)[1].sum(-1).numpy()
        assert abs(rate.mean() / expected.mean() - 1.0) < 0.005


def test_numbers_of_drafts_and_reaches_are_those_of_adaptive_trees() -> None:
    """Four nodes and 30 tokens each, of which some have no mass and some nodes do not exist, in one batch."""
    rng, law = np.random.default_rng(0), AdaptiveTree(TableModel([np.full(30, 1 / 30)]), (1,))
    q = np.stack([rng.dirichlet(np.full(30, 0.1 + 0.05 * b), 4) for b in range(16)])
    q[:8] = np.where(q[:8] < 0.3 * q[:8].max(-1, keepdims=True), 0.0, q[:8])
    q /= q.sum(-1, keepdims=True)
    reaches = rng.random((16, 4)) * (rng.random((16, 4)) < 0.8)
    reaches[:, 0] = 1.0
    for quota in (1, 3, 6):
        level, below = draft_adaptive_level(*top_tokens(torch.tensor(q), 30), torch.tensor(reaches), quota)
        for b, (parents, tokens) in enumerate(zip(level.parents.tolist(), level.draft_tokens, strict=True)):
            leaves = {(i,): Leaf(q[b, i], reach) for i, reach in enumerate(reaches[b]) if reach > 0}
            counts = {node: n for node, n in law.num_drafts(leaves, quota).items() if n}
            assert {(i,): parents.count(i) for i in parents if i >= 0} == counts
            expected: dict[Prefix, float] = {}
            for (i,), n in counts.items():
                drafted = tokens[torch.tensor(parents) == i].numpy()
                node = Node(otmd.Stratified(q[b, i], n), drafted, n)
                expected |= leaves[i,].reaches_below((i,), node)
            listed = zip(zip(parents, tokens.tolist(), strict=True), below[b].tolist(), strict=True)
            assert {child: x for child, x in listed if child[0] >= 0} == pytest.approx(expected, rel=EXACT)


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


def test_uniforms_depend_on_seed_and_offset_alone() -> None:
    seeds, offsets = [1, 1, 2**40 + 3, -5], [0, 1, 2**35, 7]
    uniforms = philox_uniforms(torch.tensor(seeds), torch.tensor(offsets), 5)
    for row, seed, offset in zip(uniforms, seeds, offsets, strict=True):
        words = [torch.tensor(x % 2**32) for x in (offset, offset >> 32, seed, seed >> 32)]
        counters = [[torch.tensor(i), torch.tensor(0), *words[:2]] for i in range(3)]
        blocks = [[x.item() for x in philox(counter, words[2:])] for counter in counters]
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
    for level, same in zip(levels, from_links(tree, [3, 2]), strict=True):
        assert torch.equal(level.draft_tokens, same.draft_tokens)
        assert torch.equal(level.parents, same.parents)
    assert tree.candidates[:, 0].tolist() == [9] * len(rows)
    assert tree.retrieve_index.flatten().tolist() == list(range(rows.shape[0] * 6))


def test_the_kernels_outputs_are_those_of_verify_tree() -> None:
    """The same numbers give the same text; as in the kernel, paths are padded by −1."""
    lengths = set()
    for seed in range(30):
        torch.manual_seed(seed)
        rows, levels, _ = mixed_batch()
        uniforms = torch.rand((len(rows), 2), dtype=torch.float64)
        path, length, token = verify_tree(rows, levels, uniforms)
        out = linked(rows, levels, uniforms)
        assert torch.equal(out[2].long(), length)
        index = path + rows.shape[1] * torch.arange(len(rows))[:, None]
        assert torch.equal(out[1][:, 1:].long(), torch.where(path >= 0, index, -1))
        drafted = torch.cat([level.draft_tokens for level in levels], 1)
        for b in range(len(rows)):
            accepted = drafted[b, path[b, : length[b]] - 1].tolist()
            assert sglang_text(b, out) == [*accepted, token[b].item()]
        unused = torch.ones(len(out[0]), dtype=torch.bool)
        unused[out[1][out[1] >= 0].long()] = False
        assert (out[0][unused] == -7).all()
        lengths |= set(length.tolist())
    assert lengths == {0, 1, 2}
