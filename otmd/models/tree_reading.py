"""Draft trees of models: read level by level by the draft model, and then in one call by the target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from otmd.probabilities import FloatArray, Processing
from otmd.trees.base import DraftTree, Prefix


class Continuations(ABC):
    """A model's next-token distributions after a text, and after prefixes that continue the text."""

    @abstractmethod
    def logits(self, prefixes: Sequence[Prefix]) -> list[np.ndarray]:
        """Logits (V,) of the next token after each prefix; the empty prefix stands for the text itself."""

    @abstractmethod
    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""

    def read(self, prefixes: Sequence[Prefix], /) -> None:  # noqa: B027
        """Compute the logits after several prefixes, if one call for all is cheaper than one each."""

    def distribution(self, prefix: Prefix, step: Processing, size: int | None = None) -> FloatArray:
        """Distribution of the next token after a prefix, from its first ``size`` logits."""
        return step(self.logits([prefix])[0][:size])


class Reader:
    """A model's distributions (V,) after a text and after prefixes that continue it."""

    def __init__(
        self, text: Continuations, step: Processing, vocab_size: int | None = None
    ) -> None:
        self._text = text
        self._step = step
        self._vocab_size = vocab_size
        self._probs: dict[Prefix, FloatArray] = {}

    def __call__(self, prefix: Prefix) -> FloatArray:
        """The distribution after a prefix."""
        if prefix not in self._probs:
            self._probs[prefix] = self._distribution(prefix)
        return self._probs[prefix]

    def _distribution(self, prefix: Prefix) -> FloatArray:
        return self._text.distribution(prefix, self._step, self._vocab_size)

    def read(self, prefixes: Sequence[Prefix], /) -> None:
        """Read many prefixes in one call of the model, if that is cheaper."""
        if prefixes:
            self._text.read(prefixes)

    def extend(self, tokens: Prefix) -> None:
        """Append tokens to the text."""
        self._text.extend(tokens)
        self._probs.clear()


def read_trees(
    trees: Iterable[tuple[DraftTree, Any, Any]],
    spent: Callable[[str], object] = lambda stage: None,
) -> None:
    """Draw trees, each with its target and its draft model after a text, such as a :class:`Reader`.

    A draft model that reads several texts together reads a level of all trees in one call. ``spent`` is told
    when the stages "draft" and "target" end.
    """
    trees = list(trees)
    growing = [(draft, tree.grow()) for tree, _, draft in trees]
    while levels := [(draft, nodes) for draft, tree in growing if (nodes := next(tree, None))]:
        for draft, nodes in levels:
            draft.read(nodes)
    prefixes = [tree.prefixes() for tree, _, _ in trees]
    spent("draft")
    for (_, target, _), nodes in zip(trees, prefixes, strict=True):
        target.read(nodes)
    spent("target")
