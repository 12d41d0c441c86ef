"""Common mistakes in drawing drafts: what law the samples would have if each had been made."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from scipy.special import gammaln

from otmd.audit.faults import tempered
from otmd.drafts import (
    ConditionalPoisson,
    DraftLaw,
    Greedy,
    ProposalLaw,
    WithoutReplacement,
    WithReplacement,
)
from otmd.probabilities import FloatArray, IntArray, probs_from_logits

TEMPERATURES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.25, 1.5, 2.0, 3.0)
TOP_K = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 30, 32, 40, 50, 64, 100, 128, 200, 256)
TOP_P = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99)
_MOST_PERMUTED = 5

TupleProb = Callable[[IntArray], FloatArray]
"""From tuples (T, n) to their probabilities (T,)."""


@dataclass(frozen=True)
class Mistake:
    """A law that the samples have if a mistake was made.

    Attributes
    ----------
    kind : str
        The mistake, in words.
    setting : str
        With which parameter, in words; empty if it has none.
    tuple_prob : callable
        From tuples (T, n) to their probabilities (T,).
    """

    kind: str
    setting: str
    tuple_prob: TupleProb


def mistakes(law: DraftLaw) -> Iterator[Mistake]:
    """The mistakes that are told apart from a declared law, at a single position.

    Parameters
    ----------
    law : DraftLaw
        The declared law. One that is not built from one draft distribution has only the mistakes that any law
        has: sorted drafts.

    Yields
    ------
    Mistake
        Those with a parameter once for each setting.
    """
    if law.num_drafts in range(2, _MOST_PERMUTED + 1):
        yield Mistake("sorted by token id", "", _sorted_by(law, np.arange(law.vocab_size)))
    if not isinstance(law, ProposalLaw):
        return
    q, n = law.draft_probs, law.num_drafts
    if n in range(2, _MOST_PERMUTED + 1):
        rank = np.empty(q.size, np.int64)
        rank[np.argsort(-q, kind="stable")] = np.arange(q.size)
        yield Mistake("sorted, likeliest first", "", _sorted_by(law, rank))
    if n > 1:
        yield from _other_laws(law)
        yield Mistake("one draw repeated for every draft", "", lambda x: _all_equal(x) * q[x[:, 0]])
    yield Mistake(
        "always the likeliest token", "", lambda x: (x == q.argmax()).all(axis=-1).astype(float)
    )
    yield from _other_distributions(law)


def _other_laws(law: ProposalLaw) -> Iterator[Mistake]:
    q, n = law.draft_probs, law.num_drafts
    kinds: list[tuple[type[ProposalLaw], str]] = [
        (WithReplacement, "drawn independently, with replacement"),
        (WithoutReplacement, "drawn without replacement, or duplicates redrawn"),
        (ConditionalPoisson, "sets drawn ∝ the product of their masses (conditional Poisson)"),
        (Greedy, "the likeliest tokens and one draw from the rest (greedy)"),
    ]
    enough = np.count_nonzero(q) >= n
    for kind, words in kinds:
        if kind is not type(law) and (enough or kind is WithReplacement):
            yield Mistake(words, "", kind(q, n).tuple_prob)


def _other_distributions(law: ProposalLaw) -> Iterator[Mistake]:
    """The declared law of another distribution than q."""
    q = law.draft_probs
    with np.errstate(divide="ignore"):
        logits = np.log(q)
    every = [("at another temperature", f"temperature × {t}", tempered(q, t)) for t in TEMPERATURES]
    every += [
        ("cut to the likeliest tokens", f"top_k = {k}", probs_from_logits(logits, top_k=k))
        for k in TOP_K
        if k < np.count_nonzero(q)
    ]
    every += [
        ("cut to the likeliest mass", f"top_p = {mass}", probs_from_logits(logits, top_p=mass))
        for mass in TOP_P
    ]
    for kind, setting, probs in every:
        other = copy.copy(law)
        other.draft_probs = probs
        if np.count_nonzero(probs) >= law.num_drafts or isinstance(law, WithReplacement):
            yield Mistake(kind, setting, _within_support(other))


def _within_support(law: ProposalLaw) -> TupleProb:
    """Its probabilities, computed only for tuples of tokens with mass, as they are costly."""

    def tuple_prob(tokens: IntArray) -> FloatArray:
        possible = (law.draft_probs[tokens] > 0).all(axis=-1)
        probs = np.zeros(len(tokens))
        if possible.all():
            probs[:] = law.tuple_prob(tokens)
        return probs

    return tuple_prob


def _sorted_by(law: DraftLaw, rank: IntArray) -> TupleProb:
    """Drafts of the law, put in the order of a rank: the sum over all orders of the same tokens."""

    def tuple_prob(tokens: IntArray) -> FloatArray:
        places = rank[tokens]
        if (np.diff(places, axis=-1) < 0).any():
            return np.zeros(len(tokens))
        orders = [law.tuple_prob(tokens[:, order]) for order in _orders(tokens.shape[-1])]
        return np.sum(orders, axis=0) * np.exp(-_log_repetitions(places))

    return tuple_prob


def _orders(length: int) -> list[list[int]]:
    return [list(order) for order in permutations(range(length))]


def _log_repetitions(places: IntArray) -> FloatArray:
    """Logarithm of how many orders of a sorted tuple are the same tuple."""
    longest = np.zeros(len(places))
    for row, own in enumerate(places):
        longest[row] = gammaln(np.unique(own, return_counts=True)[1] + 1.0).sum()
    return longest


def _all_equal(tokens: IntArray) -> FloatArray:
    return (tokens == tokens[:, :1]).all(axis=-1).astype(np.float64)
