"""Random choices: drawn by a generator, or enumerated.

A verifier of trees asks :class:`RandomChoices` for each of its random choices. So the same code samples, with
:class:`Sampled`, and computes exact probabilities, in :func:`every_outcome`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cache
from typing import TypeVar

import numpy as np

from otmd.laws import DraftLaw
from otmd.laws.drafts import draw_tokens
from otmd.probabilities import FloatArray, IntArray, wrong

Result = TypeVar("Result")


class RandomChoices(ABC):
    """Makes the random choices of a procedure."""

    @abstractmethod
    def token(self, probs: FloatArray) -> int:
        """Choose a token from masses (V,), which need not sum to 1."""

    @abstractmethod
    def accepts(self, prob: float) -> bool:
        """Choose whether an event of this probability happens."""

    @abstractmethod
    def drafts(self, law: DraftLaw) -> IntArray:
        """Draw the drafts of one position, shape (n,)."""


class Sampled(RandomChoices):
    """Choices by a random generator."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def token(self, probs: FloatArray) -> int:
        return int(draw_tokens(probs, self.rng, 1)[0])

    def accepts(self, prob: float) -> bool:
        return bool(self.rng.random() < prob)

    def drafts(self, law: DraftLaw) -> IntArray:
        return law.sample(rng=self.rng)


class _Scripted(RandomChoices):
    """Repeats the choices in ``script``, and makes the first possible choice each time after its end.

    ``others`` then holds a script for each choice that was possible there and not made. ``prob`` is the
    probability of all choices made.
    """

    def __init__(self, script: tuple[int, ...], listed: Callable[[DraftLaw], tuple]) -> None:
        self.script = list(script)
        self.made = 0
        self.prob = 1.0
        self.others: list[tuple[int, ...]] = []
        self._listed = listed

    def token(self, probs: FloatArray) -> int:
        if self.made == len(self.script):
            first, *rest = np.flatnonzero(probs > 0).tolist()
            self.others += [(*self.script, choice) for choice in rest]
            self.script.append(first)
        choice = self.script[self.made]
        self.made += 1
        self.prob *= float(probs[choice] / probs.sum())
        return choice

    def accepts(self, prob: float) -> bool:
        return self.token(np.array([1.0 - prob, prob])) == 1

    def drafts(self, law: DraftLaw) -> IntArray:
        tokens, probs = self._listed(law)
        return tokens[self.token(probs)]


def every_outcome(
    run: Callable[[RandomChoices], Result], most: int = 2_000_000
) -> Iterator[tuple[Result, float]]:
    """Run a procedure once for each sequence of its random choices; yield results and probabilities.

    More than ``most`` sequences are a ValueError.
    """
    scripts: list[tuple[int, ...]] = [()]
    listed = cache(lambda law: law.enumerate())
    done = 0
    while scripts:
        choices = _Scripted(scripts.pop(), listed)
        result = run(choices)
        scripts += choices.others
        done += 1
        if done + len(scripts) > most:
            expected = "a smaller vocabulary, depth or number of drafts; or ask for num_trees"
            raise wrong("model", f"more than {most} outcomes to list", expected)
        yield result, choices.prob
