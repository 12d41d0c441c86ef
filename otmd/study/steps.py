"""Tokens per step of draft laws and rules on real models, over the steps that each of them takes itself.

The mean over the positions of a text is not the tokens per step: a step begins where the last one ended. So
each candidate emits its own tokens and goes on from there. It starts at a given position of a text. Its first
steps are biased by that choice, and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import groupby
from typing import NamedTuple

from otmd.models.continuations import Reader, read_trees
from otmd.trees import InclusionBound, TreeLaw, TreeVerifier
from otmd.trees.base import Context, DraftTree, Model
from otmd.trees.random_choices import RandomChoices
from otmd.verifiers import UnsupportedLaw

NUM_STEPS = 8
LEFT_OUT = 3
MakeTree = Callable[[Model], TreeLaw]


class Sums(NamedTuple):
    """Sums over counted steps: expected tokens, the inclusion bound (None where it has none), and steps."""

    tokens: float
    bound: float | None
    steps: int


class Walk(NamedTuple):
    """A candidate, and both models at the end of a text.

    ``make`` makes the law of the trees from the draft model, ``rule`` decides on them, and ``choices`` draws
    the trees and decides.
    """

    make: MakeTree
    rule: TreeVerifier
    target: Reader
    draft: Reader
    choices: RandomChoices


def take_steps(
    walks: Sequence[Walk],
    num_steps: int = NUM_STEPS,
    left_out: int = LEFT_OUT,
    stop_tokens: Collection[int] = (),
) -> list[Sums]:
    """Let rules write from the end of a text, and sum what each is expected to emit at each of its steps.

    All walks take a step together: a model that reads several texts at once reads the trees of all. The
    walks' models are extended. The first ``left_out`` steps are not counted, and a stop token ends a text. A
    single step that is counted is one from the given position, which is not the mean of a decoder's steps.
    Walks that follow one another with the same law and the same readers share a tree; readers are shared for
    a single step only.
    """
    sums = [Sums(0.0, 0.0, 0) for _ in walks]
    going = list(range(len(walks)))
    for number in range(num_steps):
        groups = [
            list(group) for _, group in groupby(going, lambda i: (id(walks[i].make), id(walks[i].target)))
        ]
        drawn = []
        for walk in (walks[group[0]] for group in groups):
            context = Context(walk.target, walk.make(walk.draft))
            drawn.append((context, context.law.draft_tree(context, walk.choices)))
        firsts = (walks[group[0]] for group in groups)
        read_trees([(tree, at.target, at.draft) for at, (_, tree) in zip(firsts, drawn, strict=True)])
        for group in groups:
            context, tree = drawn.pop(0)
            bound = _bound(context, tree) if number >= left_out else None
            for i in group:
                walk = walks[i]
                if number >= left_out:
                    tokens, total, steps = sums[i]
                    tokens += walk.rule.expected_tokens(context, tree, rng=walk.choices)
                    total = None if total is None or bound is None else total + bound
                    sums[i] = Sums(tokens, total, steps + 1)
                if number + 1 == num_steps:
                    continue
                emitted = walk.rule.emit(context, tree, walk.choices)
                if not set(stop_tokens).isdisjoint(emitted):
                    going.remove(i)
                else:
                    walk.target.extend(emitted)
                    walk.draft.extend(emitted)
    return sums


def _bound(context: Context, tree: DraftTree) -> float | None:
    """The inclusion bound on a tree, None where the law has none."""
    try:
        return InclusionBound().expected_tokens(context, tree)
    except UnsupportedLaw:
        return None
