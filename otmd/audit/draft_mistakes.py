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
from otmd.laws import DraftLaw, ProposalLaw, Stratified, WithReplacement
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
    yield from _sorted_laws(law)
    if not isinstance(law, ProposalLaw):
        return
    yield from _confused_laws(law)
    yield from _copies(law)
    if law.num_drafts > 1 and type(law) is Stratified:
        yield DraftMistake(
            "one draw from each stratum, the tail first",
            "",
            lambda x: law.tuple_prob(x[:, ::-1]),
            lambda rng, size: law.position_sample(rng, size)[:, ::-1],
        )
    best = law.draft_probs.argmax()
    yield DraftMistake(
        "always the most likely token",
        "",
        lambda x: (x == best).all(-1).astype(float),
        lambda rng, size: np.full((size, law.num_drafts), best),
    )
    for kind, variants in DISTRIBUTIONS.items():
        for setting, probs in variants(side or Side(law.draft_probs)).items():
            changed = with_draft_probs(law, probs)
            if changed is not None:
                prob = partial(_prob_within_support, changed)
                yield DraftMistake(kind, setting, prob, changed.position_sample)


def with_draft_probs(law: ProposalLaw, probs: FloatArray | None) -> ProposalLaw | None:
    """The same law with other draft probabilities (V,); None if it cannot draw so many drafts from them."""
    if probs is None:
        return None
    if np.count_nonzero(probs) < law.num_drafts and not isinstance(law, WithReplacement):
        return None
    changed = copy.copy(law)
    changed.draft_probs = probs
    return changed


def _sorted_laws(law: DraftLaw) -> Iterator[DraftMistake]:
    if law.num_drafts not in range(2, _MOST_PERMUTED + 1):
        return
    yield _sorted_drafts("sorted by token id", law, np.arange(law.vocab_size))
    if isinstance(law, ProposalLaw):
        rank = np.argsort(np.argsort(-law.draft_probs, kind="stable"))
        yield _sorted_drafts("sorted, most likely first", law, rank)


def _confused_laws(law: ProposalLaw) -> Iterator[DraftMistake]:
    """Other laws with the same draft probabilities."""
    q = law.draft_probs
    n = law.num_drafts
    if n == 1:
        return
    for entry in LAWS.values():
        kind = entry.load()
        possible = np.count_nonzero(q) >= n or kind is WithReplacement
        if entry.confused and kind is not type(law) and possible:
            confused = kind(q, n)
            yield DraftMistake(entry.title, "", confused.tuple_prob, confused.position_sample)


def _copies(law: ProposalLaw) -> Iterator[DraftMistake]:
    if law.num_drafts == 1:
        return
    yield _copied_drafts("one draw repeated for every draft", "", law, 1.0)
    if type(law) is WithReplacement:
        for share in _COPIES:
            kind = "each draft at times a copy of the one before it"
            yield _copied_drafts(kind, f"with probability {share}", law, share)


def _copied_drafts(kind: str, setting: str, law: ProposalLaw, share: float) -> DraftMistake:
    q = law.draft_probs
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


def _prob_within_support(law: ProposalLaw, tokens: IntArray) -> FloatArray:
    """P(tuple) under the law; all zero if one cannot occur, as then the costly others do not matter."""
    possible = (law.draft_probs[tokens] > 0).all()
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
