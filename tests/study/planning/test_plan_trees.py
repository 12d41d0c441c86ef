"""Steps on trees whose nodes differ: against replayed decoders, and against enumeration of texts."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import reference as naive

from otmd.study.planning.texts import Text, steps_along
from otmd.study.planning.tree_choices import (
    Choice,
    best_shapes,
    deterministic_trees,
    most_likely_trees,
)
from otmd.trees import TableModel

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
    for seed in range(2):
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
