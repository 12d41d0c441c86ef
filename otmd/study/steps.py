"""Tokens per step of draft laws and rules on real models, over the steps that each of them takes itself.

The mean over the positions of a text is not the tokens per step: a step begins where the last one ended. So
each candidate emits its own tokens and goes on from there. A start is a position of a text, where the first
steps still have too many tokens or too few, and they are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from otmd.models.tree_reading import read_trees
from otmd.probabilities import FloatArray
from otmd.study import jackknife
from otmd.trees import InclusionBound, TreeLaw, TreeVerifier
from otmd.trees.base import Context, Model, Prefix
from otmd.trees.random_choices import RandomChoices
from otmd.verifiers import UnsupportedLaw

NUM_STEPS = 8
LEFT_OUT = 3


class TextModel(Protocol):
    """A model after a text that grows: :class:`otmd.models.tree_reading.Reader`, or one of a test."""

    def __call__(self, prefix: Prefix, /) -> FloatArray:
        """The distribution (V,) after the text and a prefix."""
        ...

    def read(self, prefixes: Sequence[Prefix], /) -> None:
        """Read many prefixes in one call."""

    def extend(self, tokens: Prefix, /) -> None:
        """Append tokens to the text."""


class Sums(NamedTuple):
    """Sums over counted steps: expected tokens, the inclusion bound (None where it has none), and steps."""

    tokens: float
    bound: float | None
    steps: int


def take_steps(
    make: Callable[[Model], TreeLaw],
    rule: TreeVerifier,
    target: TextModel,
    draft: TextModel,
    choices: RandomChoices,
    num_steps: int = NUM_STEPS,
    left_out: int = LEFT_OUT,
    stop_tokens: Sequence[int] = (),
) -> Sums:
    """Let a rule write from the end of a text, and sum what it is expected to emit at each step.

    Parameters
    ----------
    make : callable
        Makes the law of the trees from the draft model.
    rule : TreeVerifier
        The rule that decides on them.
    target, draft : TextModel
        Both models after the text; they are extended.
    choices : RandomChoices
        Draws the trees and decides.
    num_steps, left_out : int
        How many steps are taken, of which so many at the beginning are not counted.
    stop_tokens : sequence of int
        Tokens that end the text, and with it the steps.
    """
    tokens, steps = 0.0, 0
    bound: float | None = 0.0
    for number in range(num_steps):
        context = Context(target, make(draft))
        tree = context.law.draft_tree(context, choices)
        read_trees([(tree, target, draft)])
        if number >= left_out:
            steps += 1
            tokens += rule.expected_tokens(context, tree, rng=choices)
            if bound is not None:
                try:
                    bound += InclusionBound().expected_tokens(context, tree)
                except UnsupportedLaw:
                    bound = None
        if number + 1 == num_steps:
            break
        emitted = rule.emit(context, tree, choices)
        if not set(stop_tokens).isdisjoint(emitted):
            break
        target.extend(emitted)
        draft.extend(emitted)
    return Sums(tokens, bound, steps)


class Estimate(NamedTuple):
    """A mean over steps, the ends of its interval over prompts, and the same without each prompt (N,)."""

    value: float
    low: float
    high: float
    without: FloatArray


def over_prompts(tokens: FloatArray, steps: FloatArray, confidence: float = 0.95) -> Estimate:
    """Tokens per step from the sums of each prompt (N,), with an interval by the jackknife."""
    without = jackknife.left_out(tokens, steps)
    value = float(tokens.sum() / steps.sum())
    return Estimate(value, *jackknife.interval(value, without, confidence), without)


def lead(best: Estimate, behind: Estimate, confidence: float = 0.95) -> tuple[float, float, float]:
    """By which share the best exceeds an estimate on the same prompts, and the ends of its interval."""
    value = best.value / behind.value - 1.0
    low, high = jackknife.interval(value, best.without / behind.without - 1.0, confidence)
    return value, low, high
