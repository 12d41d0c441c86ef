"""A mistake as the explanation of a fault, with its test, and the distributions that engines confuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from otmd.audit.records import Logits
from otmd.probabilities import ORDERS, FloatArray, Processing

_TEMPERATURES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.25, 1.5, 2.0, 3.0)
_TOP_K = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 30, 32, 40, 50, 64, 100, 128, 200, 256)
_TOP_P = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99)

Variants = dict[str, FloatArray | None]
"""From the setting of a mistake, empty if it has none, to a distribution (V,); None if that is unknown."""


@dataclass(frozen=True)
class Fit:
    """A test of a mistake on ``num_rows`` held-out rows.

    The null hypothesis is that the mistake is all that is wrong: then the ``p_value`` is at most ``level``
    with probability ``level``. The test finds another total variation of ``detectable``, along the orders of
    tokens that it looks at, with probability 0.9. The mistake itself makes one of ``bias`` on average.
    """

    num_rows: int
    p_value: float
    level: float
    detectable: float
    bias: float

    @property
    def refuted(self) -> bool:
        """Whether something else is wrong, or the mistake is another one."""
        return self.p_value <= self.level


@dataclass(frozen=True)
class Explanation:
    """A mistake in words, with its best setting, and how well it explains the samples.

    Attributes
    ----------
    mistake : str
        The mistake in words.
    log_likelihood : float
        The logarithm of the samples' likelihood, minus that of the number of settings tried. For a recorded
        run it is relative to that of the declared law, or of the best lossless verifier.
    fit : Fit or None
        The test of the mistake on a recorded run; None for other samples.
    """

    mistake: str
    log_likelihood: float
    fit: Fit | None = None

    @property
    def stands(self) -> bool:
        """Whether the test does not refute the mistake, and would have found a bias as large as its own."""
        return (
            self.fit is not None and not self.fit.refuted and self.fit.detectable <= self.fit.bias
        )

    def __str__(self) -> str:
        if self.fit is None:
            return f"Most likely cause: {self.mistake}"
        rows = f"{self.fit.num_rows:,} held-out rows"
        if self.fit.refuted:
            head = "Nearest of the known mistakes, and not the whole cause"
            return f"{head}: {self.mistake}; {rows} refute that it is all (p-value {self.fit.p_value:.1e})"
        power = f"a bias of {self.fit.detectable:.3f} beyond it would have been found with probability 0.9"
        if not self.stands:
            power += f", and its own bias is only {self.fit.bias:.3f}"
            return f"Most likely cause, not confirmed: {self.mistake}; {rows} are too few ({power})"
        return f"Most likely cause: {self.mistake}; {rows} agree with it ({power})"


def best_settings(
    likelihoods: dict[tuple[str, str], float],
) -> dict[tuple[str, str], Explanation]:
    """The best setting of each kind of mistake, the most likely kind first; keys are kind and setting."""
    num_settings = Counter(kind for kind, _ in likelihoods)
    explanations = {
        (kind, setting): Explanation(
            f"{kind} ({setting})" if setting else kind,
            likelihood - float(np.log(num_settings[kind])),
        )
        for (kind, setting), likelihood in likelihoods.items()
    }
    ranked = sorted(explanations, key=lambda key: -explanations[key].log_likelihood)
    best = {kind: (kind, setting) for kind, setting in reversed(ranked)}
    return {key: explanations[key] for key in ranked if best[key[0]] == key}


class Side(NamedTuple):
    """The probabilities (V,) of the target or of the draft in a row, and what may be used in their place.

    ``logits`` is None if probabilities were recorded. ``neighbours`` has the same side of other rows.
    """

    probs: FloatArray
    logits: Logits | None = None
    neighbours: Variants = {}  # noqa: RUF012


def _tempered(side: Side) -> Variants:
    powers = (side.probs / side.probs.max()) ** (1.0 / np.array(_TEMPERATURES))[:, None]
    return {
        f"temperature × {temperature}": row / row.sum()
        for temperature, row in zip(_TEMPERATURES, powers, strict=True)
    }


def _cut_by_count(side: Side) -> Variants:
    descending = np.sort(side.probs)[::-1]
    counts = [k for k in _TOP_K if k < np.count_nonzero(descending)]
    return {f"top_k = {k}": _cut(side.probs, descending[k - 1]) for k in counts}


def _cut_by_mass(side: Side) -> Variants:
    descending = np.sort(side.probs)[::-1]
    last = np.searchsorted(descending.cumsum(), _TOP_P).clip(max=descending.size - 1)
    least = zip(_TOP_P, descending[last], strict=True)
    return {f"top_p = {mass}": _cut(side.probs, smallest) for mass, smallest in least}


def _cut(probs: FloatArray, smallest: float) -> FloatArray:
    kept = np.where(probs >= smallest, probs, 0.0)
    return kept / kept.sum()


def _processed_otherwise(side: Side) -> Variants:
    """The distribution of the logits if steps of their processing are left out, or in another order."""
    if side.logits is None:
        return {}
    numbers, declared = side.logits
    processings = {
        "without the temperature": replace(declared, temperature=1.0),
        "without top-k": replace(declared, top_k=None),
        "without top-p": replace(declared, top_p=None),
        "without min-p": replace(declared, min_p=None),
        "the raw logits": Processing(),
    } | {f"in the order of {name}": replace(declared, order=name) for name in ORDERS}
    return {
        words: processing(numbers)
        for words, processing in processings.items()
        if processing.steps != declared.steps or processing != declared
    }


def _uniform(side: Side) -> Variants:
    return {"": np.full(side.probs.size, 1.0 / side.probs.size)}


DISTRIBUTIONS_OF_ROW: dict[str, Callable[[Side], Variants]] = {
    "processed otherwise": _processed_otherwise,
    "taken from another row": lambda side: side.neighbours,
    "uniform, as a buffer that was never written": _uniform,
}
DISTRIBUTIONS: dict[str, Callable[[Side], Variants]] = {
    "at another temperature": _tempered,
    "cut to the most likely tokens": _cut_by_count,
    "cut to the most likely mass": _cut_by_mass,
    **DISTRIBUTIONS_OF_ROW,
}
"""The distributions that an engine may use in place of the probabilities of a row."""
