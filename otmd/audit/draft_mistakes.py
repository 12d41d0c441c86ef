"""Common mistakes of engines in drawing drafts, as laws of the drafts."""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from otmd.audit.mistakes import DISTRIBUTIONS, Side
from otmd.audit.samples import single_draft_probs
from otmd.laws import DraftLaw
from otmd.laws.base import draw_tokens
from otmd.probabilities import FloatArray, IntArray
from otmd.registry import LAWS

_COPIES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 0.95)
_MOST_PERMUTED = 5


class DraftMistake(NamedTuple):
    """The law of drafts if a mistake is made.

    ``tuple_prob`` has the probabilities (T,) of tuples (T, n); ``sample`` takes a generator and a number S,
    and draws tuples (S, n).
    """

    kind: str
    setting: str
    tuple_prob: Callable[[IntArray], FloatArray]
    sample: Callable[[np.random.Generator, int], IntArray]


class Likelihoods(NamedTuple):
    """Log-likelihoods of drafts: under the ``declared`` law, and by kind of mistake and setting."""

    declared: float
    mistakes: dict[tuple[str, str], float]


def log_likelihoods(
    law: DraftLaw, tuples: IntArray, counts: NDArray, side: Side | None = None
) -> Likelihoods:
    """Log-likelihoods of tuples (T, n) with ``counts`` (T,)."""
    with np.errstate(divide="ignore"):
        by_mistake = {
            (mistake.kind, mistake.setting): float(counts @ np.log(mistake.tuple_prob(tuples)))
            for mistake in draft_mistakes(law, side)
        }
        return Likelihoods(float(counts @ np.log(law.tuple_prob(tuples))), by_mistake)


def draft_mistakes(law: DraftLaw, side: Side | None = None) -> Iterator[DraftMistake]:
    """The mistakes that may have been made in place of the declared law, once for each setting."""
    q = single_draft_probs(law)
    if 2 <= law.num_drafts <= _MOST_PERMUTED:
        yield _sorted_drafts("sorted by token id", law, np.arange(law.vocab_size))
        if q is not None:
            rank = np.argsort(np.argsort(-q, kind="stable"))
            yield _sorted_drafts("sorted, most likely first", law, rank)
    if q is None:
        return
    if law.num_drafts > 1:
        yield from _of_several_drafts(law, q)
    best = q.argmax()
    yield DraftMistake(
        "always the most likely token",
        "",
        lambda x: (x == best).all(-1).astype(float),
        lambda rng, size: np.full((size, law.num_drafts), best),
    )
    for kind, variants in DISTRIBUTIONS.items():
        for setting, probs in variants(side or Side(q)).items():
            changed = with_draft_probs(law, probs)
            if probs is not None and changed is not None:
                prob = partial(_prob_within_support, changed, probs)
                yield DraftMistake(kind, setting, prob, changed.position_sample)


def with_draft_probs(law: DraftLaw, probs: FloatArray | None) -> DraftLaw | None:
    """The same law of another q (V,); None if a q is unknown, or has too few tokens for so many drafts."""
    if probs is None or single_draft_probs(law) is None:
        return None
    if np.count_nonzero(probs) < law.num_drafts and law.position_structure().single is None:
        return None
    changed = copy.copy(law)
    vars(changed)["draft_probs"] = probs
    return changed


def _of_several_drafts(law: DraftLaw, q: FloatArray) -> Iterator[DraftMistake]:
    """Another law of the same q, copies of a draft, and strata in the other order."""
    for entry in LAWS.values():
        confused = confused_law(entry.load(), law) if entry.confused else None
        if confused is not None:
            yield DraftMistake(entry.title, "", confused.tuple_prob, confused.position_sample)
    yield _copied_drafts("one draw repeated for every draft", "", law, q, 1.0)
    slots = law.position_structure().slots
    if slots is None:
        return
    if slots.is_single:
        for share in _COPIES:
            kind = "each draft at times a copy of the one before it"
            yield _copied_drafts(kind, f"with probability {share}", law, q, share)
    else:
        yield DraftMistake(
            "one draw from each stratum, the tail first",
            "",
            lambda x: law.tuple_prob(x[:, ::-1]),
            lambda rng, size: law.position_sample(rng, size)[:, ::-1],
        )


def confused_law(kind: Callable[[FloatArray, int], DraftLaw], law: DraftLaw) -> DraftLaw | None:
    """A law of another kind with the same q; None if there is no such, or it has too few tokens."""
    q = single_draft_probs(law)
    if q is None or kind is type(law):
        return None
    try:
        return kind(q, law.num_drafts)
    except ValueError:
        return None


def _copied_drafts(
    kind: str, setting: str, law: DraftLaw, q: FloatArray, share: float
) -> DraftMistake:
    n = law.num_drafts

    def sample(rng: np.random.Generator, size: int) -> IntArray:
        tokens = draw_tokens(q, rng, size * n).reshape(size, n)
        copied = rng.random((size, n)) < share
        for j in range(1, n):
            tokens[:, j] = np.where(copied[:, j], tokens[:, j - 1], tokens[:, j])
        return tokens

    return DraftMistake(kind, setting, partial(_prob_of_copies, q, share), sample)


def _sorted_drafts(kind: str, law: DraftLaw, rank: IntArray) -> DraftMistake:
    def sample(rng: np.random.Generator, size: int) -> IntArray:
        tokens = law.position_sample(rng, size)
        return np.take_along_axis(tokens, np.argsort(rank[tokens], axis=-1), axis=-1)

    return DraftMistake(kind, "", partial(_prob_sorted, law, rank), sample)


def _prob_of_copies(q: FloatArray, share: float, tokens: IntArray) -> FloatArray:
    """P(tuple) if each draft is, with probability ``share``, a copy of the one before it, and else from q."""
    equal = tokens[:, 1:] == tokens[:, :-1]
    later = ((1.0 - share) * q[tokens[:, 1:]] + share * equal).prod(axis=-1)
    return q[tokens[:, 0]] * later


def _prob_within_support(law: DraftLaw, q: FloatArray, tokens: IntArray) -> FloatArray:
    """P(tuple) under the law; all zero if one cannot occur, as then the costly others do not matter."""
    possible = (q[tokens] > 0).all()
    return law.tuple_prob(tokens) if possible else np.zeros(len(tokens))


def _prob_sorted(law: DraftLaw, rank: IntArray, tokens: IntArray) -> FloatArray:
    """P(tuple) if drafts of the law are then sorted by rank: a sum over all orders of the same tokens."""
    ranks = rank[tokens]
    if (np.diff(ranks, axis=-1) < 0).any():
        return np.zeros(len(tokens))
    orders = permutations(range(tokens.shape[-1]))
    probs = [law.tuple_prob(tokens[:, order]) for order in orders]
    # Orders that only swap equal tokens give the same tuple, which was summed more than once.
    multiplicities = [np.unique(row, return_counts=True)[1] for row in ranks]
    repeated = np.array([gammaln(counts + 1.0).sum() for counts in multiplicities])
    return np.sum(probs, axis=0) * np.exp(-repeated)
