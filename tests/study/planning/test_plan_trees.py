"""Steps on trees whose nodes differ: against replayed decoders, and against enumeration of texts."""

from __future__ import annotations

import functools
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import reference as naive
from planning.test_make_plan import write_texts
from sweep_twin import order_of, swept

import otmd
from otmd.models import open_dataset
from otmd.probabilities import Processing
from otmd.study.planning import Settings, make_plan
from otmd.study.planning.latency import Latency
from otmd.study.planning.texts import Text, steps_along
from otmd.study.planning.token_table import Job, text_table
from otmd.study.planning.tree_choices import (
    NEVER,
    Choice,
    IndependentPaths,
    StaticTrees,
    best_shapes,
    deterministic_trees,
    draft_ranks,
    most_likely_trees,
)
from otmd.trees import (
    TableModel,
)

VOCAB, LENGTH, LEVELS, WIDTH = 4, 9, 3, 3
NODES = WIDTH + (LEVELS - 1) * WIDTH**2
KINDS = ("any", "ties", "one token", "few tokens")
Tokens = tuple[int, ...]


def models(kind: str, seed: int) -> tuple[TableModel, TableModel]:
    """A target and a draft, which may be uniform, or have mass on one token or on two."""
    rng = np.random.default_rng(seed)
    target, draft = (TableModel.random(VOCAB, 2, 0.6, rng=rng) for _ in range(2))
    if kind == "ties":
        draft = TableModel([np.full(VOCAB, 1 / VOCAB)])
    elif kind == "one token":
        draft = TableModel([np.array([0.0, 1.0, 0.0, 0.0])])
    elif kind == "few tokens":
        kept = [np.where(t >= np.sort(t)[..., -2:-1], t, 0.0) for t in draft.tables]
        draft = TableModel([table / table.sum(axis=-1, keepdims=True) for table in kept])
    return target, draft


def sampled(target: TableModel, seed: int, length: int = LENGTH) -> Tokens:
    text: Tokens = ()
    rng = np.random.default_rng(seed)
    while len(text) < length:
        text += (int(rng.choice(VOCAB, p=target(text))),)
    return text


def paths_at(draft: TableModel, before: Tokens, levels: int = LEVELS) -> list[Tokens]:
    return naive.likeliest_paths(lambda more: draft(before + more).tolist(), WIDTH, levels)


def dataset_of(draft: TableModel, texts: list[Tokens], kind: str = "probs"):
    """A dataset with what the draft says along texts, and the texts."""
    prefixes = [text[:t] for text in texts for t in range(len(text))]
    rows = np.array([draft(prefix) for prefix in prefixes])
    if kind == "logits":
        with np.errstate(divide="ignore"):
            rows = np.log(rows)
    nodes = np.array([naive.as_rows(paths_at(draft, prefix), NODES) for prefix in prefixes])
    ends = np.cumsum([0, *map(len, texts)])
    dataset = SimpleNamespace(
        kind=kind, arrays=lambda own: (rows[own], rows[own]), paths=lambda own: nodes[own]
    )
    return dataset, [
        Text(str(i), "toy", [*range(ends[i], ends[i + 1])], list(text))
        for i, text in enumerate(texts)
    ]


def decoded(text: Tokens, trees: list[set[Tokens]], ended: bool) -> tuple[int, tuple[int, int]]:
    """The length at which the text was cut, and a decoder's tokens and steps with these trees."""
    cut_at = LENGTH + 3 if ended else LENGTH
    starts = cut_at - LEVELS + 1
    return cut_at, naive.decoded_along(text, trees.__getitem__, starts, ended)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ended", [False, True])
def test_most_likely_paths_reach_as_far_as_a_decoder(kind: str, ended: bool) -> None:
    """Every budget and number of levels: a tree of fewer levels is one that was not grown further."""
    for seed in range(4):
        target, draft = models(kind, seed)
        text = sampled(target, seed)
        grown = most_likely_trees(*dataset_of(draft, [text]), LEVELS + 2)
        assert grown.width == max(len(paths_at(draft, text[:t], 1)) for t in range(LENGTH))
        assert grown.before[0].shape == (LENGTH, LEVELS, LEVELS)
        for budget, levels in product((1, 2, 4, NODES, NODES + 9), range(1, LEVELS + 1)):
            trees = [set(paths_at(draft, text[:t], levels)[:budget]) for t in range(LENGTH)]
            cut_at, wanted = decoded(text, trees, ended)
            choice = Choice("", 1.0, (grown.width,) * levels, budget)
            found = steps_along(grown.reached(0, choice), cut_at, LEVELS)
            assert (found.tokens, found.steps) == pytest.approx(wanted, abs=1e-12)
            assert found.kept.sum() == pytest.approx(wanted[0] - wanted[1], abs=1e-12)


def test_levels_beyond_the_depth_are_left_out() -> None:
    target, draft = models("any", 0)
    data = dataset_of(draft, [sampled(target, 0), sampled(target, 1, 4)])
    whole, part = (most_likely_trees(*data, depth) for depth in (LEVELS, 2))
    for one, other in zip(whole.before, part.before, strict=True):
        np.testing.assert_array_equal(one[:, :2, :2], other)
    assert {len(choice.shape) for choice in part.choices([9])} == {1, 2}


def test_no_more_is_grown_than_is_kept() -> None:
    """A tree of b nodes is the same if only b paths are grown a level; steps are charged for these."""
    target, draft = models("any", 3)
    text = sampled(target, 3)
    for choice in most_likely_trees(*dataset_of(draft, [text]), LEVELS).choices([1, 2, 400]):
        levels, grown = len(choice.shape), choice.shape[0]
        narrow = naive.likeliest_paths(lambda more: draft(text + more).tolist(), grown, levels)
        assert narrow[: choice.budget] == paths_at(draft, text, levels)[: choice.budget]
        assert choice.budget <= len(narrow)
        assert grown == min(WIDTH, choice.budget) or choice.budget < grown


def first_step(target: TableModel, texts: list[Tokens], grown, choice: Choice) -> float:
    probs = [np.prod([target(text[:t])[y] for t, y in enumerate(text)]) for text in texts]
    return sum(p * grown.reached(i, choice)[0].sum() for i, p in enumerate(probs))


def drafted(draft: TableModel, before: Tokens, nodes: tuple[Tokens, ...]) -> set[Tokens]:
    """The paths of tokens that a static tree drafts after a text; none of a token without mass."""
    paths: dict[Tokens, Tokens] = {(): ()}
    for node in sorted(nodes, key=len):
        if node[:-1] in paths:
            above = paths[node[:-1]]
            q = draft(before + above).tolist()
            if node[-1] < len(naive.support(q)):
                paths[node] = (*above, naive.likeliest(q, VOCAB)[node[-1]])
    return {path for path in paths.values() if path}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ended", [False, True])
def test_static_trees_reach_as_far_as_a_decoder(kind: str, ended: bool) -> None:
    target, draft = models(kind, 5)
    texts = [sampled(target, seed) for seed in range(4)]
    for form in ("probs", "logits"):
        grown = deterministic_trees(*dataset_of(draft, texts, form), 6, LEVELS)
        choices = list(grown.choices((1, 3, 6)))
        assert {choice.drafts for choice in choices} >= {1, 3}
        assert max(choice.drafts for choice in choices) <= 6
        for choice, (i, text) in product(choices, enumerate(texts)):
            trees = [drafted(draft, text[:t], choice.nodes) for t in range(LENGTH)]
            cut_at, wanted = decoded(text, trees, ended)
            found = steps_along(grown.reached(i, choice), cut_at, LEVELS)
            assert (found.tokens, found.steps) == pytest.approx(wanted, abs=1e-12)


def emission_probs(verifier: otmd.Verifier, p, law: otmd.DraftLaw, token: int, **options):
    return verifier.prepare(p, law).emission_probs(token, **options)


WITH_REPLACEMENT = {
    "RRS": (otmd.RecursiveRejection(), lambda p, q, _: naive.rrs(p, q)),
    "K-SEQ": (otmd.KSequential(), naive.k_seq),
    "preference": (
        otmd.Preference(),
        lambda p, q, n: swept(
            p, [q] * n, order_of(np.array(p), otmd.WithReplacement(np.array(q), n))
        ),
    ),
    # There is no twin of its choice among drafts; that it is optimal and lossless is tested elsewhere.
    "optimal": (otmd.Optimal(), None),
}


def as_it_runs(verifier: otmd.Verifier, p, q, count: int):
    """The package's own rule in the twins' form; for equal models, bisection finds only four digits."""
    prepared = verifier.prepare(p, otmd.WithReplacement(q, count))
    return lambda tokens: [
        (y, -1, mass) for y, mass in enumerate(prepared.conditional_law(np.array(tokens)))
    ]


def test_copies_of_many_tokens() -> None:
    """The preference rule takes cells of pairs; with the order given, it takes them one by one."""
    rng = np.random.default_rng(5)
    p, q = rng.dirichlet(np.full(1500, 0.05), 2) + 1e-9
    p, q = p / p.sum(), q / q.sum()
    law = otmd.WithReplacement(q, 3)
    order = np.array(order_of(p, law))
    one_by_one = otmd.Preference(lambda *_: order)
    for token in np.argsort(-p)[:12].tolist() + np.argsort(-q)[:12].tolist():
        found = emission_probs(otmd.Preference(), p, law, token)
        wanted = emission_probs(one_by_one, p, law, token)
        np.testing.assert_allclose(found, wanted, atol=1e-9)


def of_texts(draft, target, verifier, texts, counts, axis):
    """The probabilities of slots (axis 1) or numbers of paths (axis 0) along texts."""
    known = functools.cache(
        lambda before, n, y: emission_probs(
            verifier, target(before), otmd.WithReplacement(draft(before), n), y
        ).sum(axis=axis)
    )
    return {
        n: [np.array([known(text[:t], n, y) for t, y in enumerate(text)]) for text in texts]
        for n in counts
    }


def mean_length(trees, rule) -> float:
    return float(sum(len(tokens) * mass for tokens, mass in naive.emitted(trees, rule).items()))


def three_tokens(model: TableModel):
    """The first three tokens of a model's vocabulary."""
    return functools.cache(
        lambda prefix: tuple((model(prefix)[:3] / model(prefix)[:3].sum()).tolist())
    )


@pytest.mark.parametrize("kind", ["any", "few tokens"])
@pytest.mark.parametrize("name", WITH_REPLACEMENT)
def test_first_steps_with_replacement_are_those_of_enumeration(name: str, kind: str) -> None:
    """The twin enumerates all drafts and decisions, for static trees and one to three paths."""
    verifier, twin = WITH_REPLACEMENT[name]
    target, draft = map(three_tokens, models(kind, 17))
    texts = list(product(range(3), repeat=LEVELS))
    array = lambda model: lambda prefix: np.array(model(prefix))  # noqa: E731
    given = array(draft), array(target), verifier, texts, (1, 2, 3)
    every = np.arange(len(texts))
    slots, copies = (of_texts(*given, axis=axis) for axis in (1, 0))
    static = StaticTrees("", 1.0, slots, slots, every, LEVELS)
    paths = IndependentPaths("", 1.0, copies, copies, every, LEVELS)
    step = twin or (lambda p, q, n: as_it_runs(verifier, np.array(p), np.array(q), n))
    rule = naive.token_level(target, draft, functools.cache(step))
    found = dict.fromkeys(paths.choices((6,)), paths)
    assert {choice.tree for choice in found} >= {"3", "1+1+1", "2+2+2", "3+3"}
    static_choices = dict.fromkeys(static.choices((2, 4, 5)), static)
    assert max(choice.shape[0] for choice in static_choices) > 1
    for choice, grown in [*found.items(), *static_choices.items()]:
        total = first_step(array(target), texts, grown, choice)
        if grown is paths:
            trees = naive.trees_of_paths(draft, choice.shape[0], len(choice.shape))
        else:
            trees = naive.trees_with_replacement(draft, shape_of(choice.nodes))
        assert total == pytest.approx(mean_length(trees, rule), abs=1e-12 if twin else 1e-8)


def test_drafts_that_know_one_token() -> None:
    """All paths go on from that token; a static tree goes on below its first copy."""
    q = np.array([[0.0, 1.0, 0.0]])
    rules = ("rrs-paths", "preference-paths", "k-seq")
    settings = Settings(rules, (3,), Processing(), (Processing(),), 0)
    for p in (np.array([[0.5, 0.4, 0.1]]), q):
        table = text_table(settings, Job(0, [1], p, q, "probs")).filter(num_drafts=3)
        assert table["prob"].to_list() == pytest.approx([1.0] * 3, abs=1e-12)
        for rule, parts in zip(table["rule"], table["parts"].to_list(), strict=True):
            wanted = [0.0, 0.0, 1.0] if "paths" in rule else [1.0, 0.0, 0.0]
            assert parts == pytest.approx(wanted, abs=1e-12)


def test_best_shapes_against_all_trees() -> None:
    """No tree of as many tokens is expected to accept more, if probabilities depend on the slots' number."""
    rates = {1: (0.6,), 2: (0.3, 0.55), 3: (0.5, 0.1, 0.3)}
    best = best_shapes(rates, 6, 3)
    for levels, budget in product(range(1, 4), range(7)):
        values = [expected(shape, rates) for shape in all_shapes(budget, levels, rates)]
        assert expected(best[levels - 1][budget], rates) == pytest.approx(max(values), abs=1e-12)


def expected(shape, rates) -> float:
    own = rates[len(shape)] if shape else ()
    return sum(s * (1.0 + expected(below, rates)) for s, below in zip(own, shape, strict=True))


def all_shapes(budget: int, levels: int, rates) -> list:
    """Every tree of at most so many tokens and levels."""
    found: list = [()]
    for n in rates if levels else ():
        if n <= budget:
            below = all_shapes(budget - n, levels - 1, rates)
            found += [
                own for own in product(below, repeat=n) if sum(map(tokens_of, own)) <= budget - n
            ]
    return found


def tokens_of(shape) -> int:
    return sum(1 + tokens_of(below) for below in shape)


def shape_of(nodes: tuple[Tokens, ...], node: Tokens = ()) -> tuple:
    """The nested shape below a node; children must have the ranks 0, 1, …."""
    below = sorted(own for own in nodes if len(own) == len(node) + 1 and own[:-1] == node)
    assert [own[-1] for own in below] == list(range(len(below)))
    return tuple(shape_of(nodes, own) for own in below)


def test_static_trees_of_shares_that_do_not_fall(monkeypatch) -> None:
    """Some ranks never occur, and a later rank occurs more often than an earlier one."""
    texts = [Text(str(i), "toy", [], [0]) for i in range(4)]
    for ranks, nodes in (
        ([0, 0, 2, 2, 2, 1, 99], {(0,), (1,), (2,)}),
        ([0, 0, 0, 0, NEVER], {(0,), (0, 0), (0, 0, 0)}),
    ):
        monkeypatch.setattr(
            "otmd.study.planning.tree_choices.draft_ranks", lambda *_, own=ranks: np.array(own)
        )
        (*_, choice) = deterministic_trees(None, texts, 3, 3).choices([3])
        assert set(choice.nodes) == nodes
    monkeypatch.setattr(
        "otmd.study.planning.tree_choices.draft_ranks", lambda *_: np.array([99, 99])
    )
    assert [choice.nodes for choice in deterministic_trees(None, texts, 1, 5).choices([1])] == [
        ((0,),)
    ]


def test_ranks_of_tokens_without_mass() -> None:
    draft = TableModel([np.array([0.5, 0.0, 0.5, 0.0])])
    for kind in ("probs", "logits"):
        dataset, (text,) = dataset_of(draft, [(0, 1, 2, 3)], kind)
        assert draft_ranks(dataset, text).tolist() == [0, NEVER, 1, NEVER]


def test_a_dataset_without_paths(tmp_path) -> None:
    dataset = open_dataset(write_texts(tmp_path / "texts", draft_paths=None))
    assert dataset.paths([0]) is None
    rules = ["one-hot", "most-likely"]
    found = make_plan(dataset, tmp_path / "out", rules=rules, depth=3, workers=1)
    assert {row.rule for row in found.rows} == {"one-hot"}
    assert "otmd collect --paths 10" in found.said[-1]
    # The stored results are the same with the rule and without it.
    found = make_plan(dataset, tmp_path / "out", rules=["one-hot"], depth=3, workers=1)
    assert "paths" not in found.said[-1]


def test_most_likely_paths_alone(tmp_path) -> None:
    dataset = open_dataset(write_texts(tmp_path / "texts"))
    times = Latency([(1, 0.02), (999, 0.03)], [(1, 0.002), (999, 0.002)], 0.0, 1)
    found = make_plan(
        dataset, tmp_path / "out", rules=["most-likely"], budgets=(2, 400), depth=5, latency=times
    )
    assert found.rows
    assert "At its first level" not in " ".join(found.said)
    titles = [table.title for table in found.tables()]
    assert "Rules" in titles
    assert "Where drafts are lost, %" not in titles
    # The dataset has no more nodes than these.
    assert max(row.choice.drafts for row in found.rows) <= 36
    assert max(len(row.choice.shape) for row in found.rows) <= 3


def test_a_tree_costs_what_both_models_read() -> None:
    times = Latency([(1, 1.0), (9, 1.8)], [(1, 0.1), (9, 0.9)], 0.01, 1)
    likely = Choice("", 1.0, (4, 4, 4), 6)
    # Calls of the draft on 1, 4 and 4 tokens, and of the target on 7.
    assert times.step(likely.shape, likely.budget) == pytest.approx(0.1 + 0.8 + 1.6 + 0.06)
    assert (likely.drafts, likely.tree) == (6, "6 nodes, 3 deep")
    static = Choice("", 1.0, (2, 1), 3, ((0,), (1,), (0, 0)))
    assert times.step(static.shape, static.budget) == pytest.approx(0.1 + 0.2 + 1.3 + 0.03)
    assert (static.drafts, static.tree) == (3, "2+1")
