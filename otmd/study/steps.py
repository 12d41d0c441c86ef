"""Tokens per step of draft laws and rules on real models, over the steps that each of them takes itself.

The mean over the positions of a text is not the tokens per step: a step begins where the last one ended. So
each candidate emits its own tokens and goes on from there. It starts at a given position of a text. Its first
steps are biased by that choice, and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from otmd.models.continuations import Reader, read_trees
from otmd.trees import InclusionBound, TreeLaw, TreeVerifier
from otmd.trees.base import Context, DraftTree, Model
from otmd.trees.random_choices import RandomChoices
from otmd.verifiers import UnsupportedLaw

NUM_STEPS = 8
LEFT_OUT = 3


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

    make: Callable[[Model], TreeLaw]
    rule: TreeVerifier
    target: Reader
    draft: Reader
    choices: RandomChoices


def take_steps(
    walks: Sequence[Walk],
    num_steps: int = NUM_STEPS,
    left_out: int = LEFT_OUT,
    stop_tokens: Sequence[int] = (),
) -> list[Sums]:
    """Let rules write from the end of a text, and sum what each is expected to emit at each of its steps.

    All walks take a step together: a model that reads several texts at once reads the trees of all. The
    walks' models are extended. The first ``left_out`` steps are not counted, and a stop token ends a text.
    """
    sums = [Sums(0.0, 0.0, 0) for _ in walks]
    going = list(range(len(walks)))
    for number in range(num_steps):
        contexts = {i: Context(walks[i].target, walks[i].make(walks[i].draft)) for i in going}
        trees = {i: at.law.draft_tree(at, walks[i].choices) for i, at in contexts.items()}
        read_trees([(trees[i], walks[i].target, walks[i].draft) for i in going])
        for i in list(going):
            walk, context, tree = walks[i], contexts.pop(i), trees.pop(i)
            if number >= left_out:
                sums[i] = _counted(sums[i], walk, context, tree)
            if number + 1 == num_steps:
                continue
            emitted = walk.rule.emit(context, tree, walk.choices)
            if not set(stop_tokens).isdisjoint(emitted):
                going.remove(i)
            else:
                walk.target.extend(emitted)
                walk.draft.extend(emitted)
    return sums


def _counted(sums: Sums, walk: Walk, context: Context, tree: DraftTree) -> Sums:
    """The sums with those of a step."""
    tokens = sums.tokens + walk.rule.expected_tokens(context, tree, rng=walk.choices)
    bound = sums.bound
    if bound is not None:
        try:
            bound += InclusionBound().expected_tokens(context, tree)
        except UnsupportedLaw:
            bound = None
    return Sums(tokens, bound, sums.steps + 1)
