"""Were drafts drawn from the declared law, and if not, which common mistake explains them best."""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, logsumexp

from otmd.audit.counts import exact_p_value, make_cells
from otmd.audit.dependence import independence_p_values
from otmd.audit.faults import tempered
from otmd.audit.samples import as_array, validate_law, validate_level, wrong
from otmd.drafts import (
    ConditionalPoisson,
    DraftLaw,
    Greedy,
    ProposalLaw,
    WithoutReplacement,
    WithReplacement,
)
from otmd.drafts.base import validate_rng
from otmd.probabilities import FloatArray, IntArray, probs_from_logits

TEMPERATURES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.25, 1.5, 2.0, 3.0)
TOP_K = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 30, 32, 40, 50, 64, 100, 128, 200, 256)
TOP_P = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99)
COPIES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 0.95)
_MOST_PERMUTED = 5
_MOST_LISTED = 20_000
_CELLS = 64
# A containment is a sum over the vocabulary; smaller differences are rounding.
_LEAST_CELL = 1e-9

_LAWS: dict[type[ProposalLaw], str] = {
    WithReplacement: "drawn independently, with replacement",
    WithoutReplacement: "drawn without replacement, or duplicates redrawn",
    ConditionalPoisson: "sets drawn ∝ the product of their masses (conditional Poisson)",
    Greedy: "the likeliest tokens and one draw from the rest (greedy)",
}
TupleProb = Callable[[IntArray], FloatArray]
"""From tuples (T, n) to their probabilities (T,)."""


class Mistake(NamedTuple):
    """A law that the samples have if a mistake was made, with its parameter in words or an empty setting."""

    kind: str
    setting: str
    tuple_prob: TupleProb


def mistakes(law: DraftLaw) -> Iterator[Mistake]:
    """The mistakes that are told apart from a declared law at one position, once for each setting.

    A law that is not built from one draft distribution has only the mistake that any law has: sorted drafts.
    """
    n, permuted = law.num_drafts, law.num_drafts in range(2, _MOST_PERMUTED + 1)
    if permuted:
        yield Mistake("sorted by token id", "", _sorted_by(law, np.arange(law.vocab_size)))
    if not isinstance(law, ProposalLaw):
        return
    q = law.draft_probs
    if permuted:
        rank = np.argsort(np.argsort(-q, kind="stable"))
        yield Mistake("sorted, likeliest first", "", _sorted_by(law, rank))
    if n > 1:
        for kind, words in _LAWS.items():
            possible = np.count_nonzero(q) >= n or kind is WithReplacement
            if kind is not type(law) and possible:
                yield Mistake(words, "", kind(q, n).tuple_prob)
        yield Mistake(
            "one draw repeated for every draft",
            "",
            lambda x: (x == x[:, :1]).all(axis=-1) * q[x[:, 0]],
        )
    if n > 1 and type(law) is WithReplacement:
        kind = "each draft at times a copy of the one before it"
        for share in COPIES:
            yield Mistake(kind, f"with probability {share}", _copied(q, share))
    yield Mistake(
        "always the likeliest token", "", lambda x: (x == q.argmax()).all(axis=-1).astype(float)
    )
    for kind, setting, probs in other_distributions(q):
        other = copy.copy(law)
        other.draft_probs = probs
        if np.count_nonzero(probs) >= n or isinstance(law, WithReplacement):
            yield Mistake(kind, setting, _within_support(other))


def other_distributions(probs: FloatArray) -> Iterator[tuple[str, str, FloatArray]]:
    """What a distribution (V,) becomes by another temperature or truncation: mistake, setting, law (V,)."""
    with np.errstate(divide="ignore"):
        logits = np.log(probs)
    for t in TEMPERATURES:
        yield "at another temperature", f"temperature × {t}", tempered(probs, t)
    for k in TOP_K:
        if k < np.count_nonzero(probs):
            own = probs_from_logits(logits, top_k=k)
            yield "cut to the likeliest tokens", f"top_k = {k}", own
    for mass in TOP_P:
        yield "cut to the likeliest mass", f"top_p = {mass}", probs_from_logits(logits, top_p=mass)


def _copied(q: FloatArray, share: float) -> TupleProb:
    def tuple_prob(tokens: IntArray) -> FloatArray:
        equal = tokens[:, 1:] == tokens[:, :-1]
        later = ((1.0 - share) * q[tokens[:, 1:]] + share * equal).prod(axis=-1)
        return q[tokens[:, 0]] * later

    return tuple_prob


def _within_support(law: ProposalLaw) -> TupleProb:
    """Its probabilities, or only zeros where one of the tuples cannot occur, as they are costly."""

    def tuple_prob(tokens: IntArray) -> FloatArray:
        possible = (law.draft_probs[tokens] > 0).all()
        return law.tuple_prob(tokens) if possible else np.zeros(len(tokens))

    return tuple_prob


def _sorted_by(law: DraftLaw, rank: IntArray) -> TupleProb:
    """Drafts of the law, put in the order of a rank: the sum over all orders of the same tokens."""

    def tuple_prob(tokens: IntArray) -> FloatArray:
        places = rank[tokens]
        if (np.diff(places, axis=-1) < 0).any():
            return np.zeros(len(tokens))
        every = permutations(range(tokens.shape[-1]))
        orders = [law.tuple_prob(tokens[:, list(order)]) for order in every]
        # Orders that only swap equal tokens are one tuple, which was summed more than once.
        counts = [np.unique(own, return_counts=True)[1] for own in places]
        repeated = np.array([gammaln(own + 1.0).sum() for own in counts])
        return np.sum(orders, axis=0) * np.exp(-repeated)

    return tuple_prob


@dataclass(frozen=True)
class Explanation:
    """How well a mistake explains the samples.

    Attributes
    ----------
    mistake : str
        In words, with its best setting.
    log_likelihood : float
        Natural logarithm of the samples' likelihood, less the logarithm of the number of settings tried.
    """

    mistake: str
    log_likelihood: float


@dataclass(frozen=True)
class DraftLawAudit:
    """What an audit of draft samples found.

    Attributes
    ----------
    num_samples : int
    false_alarm : float
        Half of it is for the bet on the mistakes, half for the tests of the law.
    impossible : int
        Samples that the declared law never draws. One is proof.
    log_likelihood : float
        Of the samples under the declared law.
    log_e_value : float
        Natural logarithm of the mean likelihood ratio of all mistakes. The ratio's expectation is at most 1
        under the declared law.
    p_values : tuple of float
        Of exact G-tests: of the tuples where they can be listed, else of the places of the least likely and
        of the likeliest draft.
    independence : dict of str to float
        P-values of what drafts have in common, within a draw and from draw to draw.
    explanations : tuple of Explanation
        The mistakes, best first.
    """

    num_samples: int
    false_alarm: float
    impossible: int
    log_likelihood: float
    log_e_value: float
    p_values: tuple[float, ...]
    independence: dict[str, float]
    explanations: tuple[Explanation, ...]

    @property
    def faulty(self) -> bool:
        """Whether the declared law is refuted."""
        by_test = min(self.p_values) <= self.level
        by_bet = self.log_e_value >= -np.log(self.false_alarm / 2)
        return self.impossible > 0 or by_test or by_bet or bool(self.dependent)

    @property
    def level(self) -> float:
        """The false-alarm rate of each test."""
        return self.false_alarm / 2 / (len(self.p_values) + len(self.independence))

    @property
    def dependent(self) -> tuple[str, ...]:
        """What drafts have in common that they should not have."""
        return tuple(name for name, own in self.independence.items() if own <= self.level)

    @property
    def best(self) -> Explanation | None:
        """The mistake that explains the samples better than the declared law, and best; None if none does."""
        first = self.explanations[0] if self.explanations else None
        better = first is not None and first.log_likelihood > self.log_likelihood
        return first if better else None

    @property
    def verdict(self) -> str:
        """One sentence."""
        if not self.faulty:
            return f"no deviation from the declared law found in {self.num_samples} samples"
        never = f" ({self.impossible} of them it never draws)" if self.impossible else ""
        told = f"the {self.num_samples} samples were not drawn from the declared law{never}"
        if self.dependent:
            told += f"; they depend on one another ({'; '.join(self.dependent)})"
        if self.best is None:
            return f"{told}; none of the common mistakes explains them better"
        return f"{told}; best explained by: {self.best.mistake}"

    def __str__(self) -> str:
        values = ", ".join(f"{value:.1e}" for value in self.p_values)
        shown = [own for own in self.explanations[:5] if own.log_likelihood > -np.inf]
        lines = [
            self.verdict,
            f"logarithm of the e-value {self.log_e_value:.1f}, p-values {values}; false-alarm rate "
            f"{self.false_alarm:.0e}",
            f"p-values of drafts that depend on one another (alarm at {self.level:.1e}):",
            *(f"  {own:>14.1e}  {name}" for name, own in self.independence.items()),
            "log-likelihoods:",
            f"  {self.log_likelihood:>14.1f}  the declared law",
            *(f"  {own.log_likelihood:>14.1f}  {own.mistake}" for own in shown),
        ]
        return "\n".join(lines)


def draft_law(
    samples: ArrayLike,
    law: DraftLaw,
    false_alarm: float = 1e-3,
    *,
    rng: np.random.Generator,
) -> DraftLawAudit:
    """Audit draft tokens: whether they were drawn from the declared law, and what may have gone wrong.

    Parameters
    ----------
    samples : array_like of int, shape (N, n)
        Independent draws of drafts, in the order in which they were drawn.
    law : DraftLaw
        The declared law, without leading axes.
    false_alarm : float
        Probability, at most, that samples of the declared law are called faulty.
    rng : numpy.random.Generator
        Draws the outcomes of the exact tests.

    Raises
    ------
    ValueError, TypeError
        For invalid input; for a class in place of an instance, or swapped arguments.
    """
    validate_law(law, samples)
    tokens = law.validate_tokens(as_array("samples", samples), "samples")
    if tokens.ndim != 2 or not len(tokens):
        raise wrong("samples", f"shape {tokens.shape}", "(N, n) with N ≥ 1")
    validate_level(false_alarm)
    validate_rng(rng)
    tuples, counts = np.unique(tokens, axis=0, return_counts=True)
    declared = law.tuple_prob(tuples)
    likelihood = _log_likelihood(declared, counts)
    by_kind: dict[str, dict[str, float]] = defaultdict(dict)
    for own in mistakes(law):
        by_kind[own.kind][own.setting] = _log_likelihood(own.tuple_prob(tuples), counts)
    found, means = [], []
    for kind, settings in by_kind.items():
        best, tried = max(settings, key=lambda own: settings[own]), float(np.log(len(settings)))
        words = f"{kind} ({best})" if best else kind
        found.append(Explanation(words, settings[best] - tried))
        means.append(logsumexp(list(settings.values())) - tried)
    log_e_value = np.inf
    if np.isfinite(likelihood):
        log_e_value = (
            float(logsumexp(means) - np.log(len(means)) if means else -np.inf) - likelihood
        )
    tests = counts_of_tuples(law, tuples, counts) or counts_of_extremes(law, tokens)
    # Four tests of independence beside them, two for a single draft.
    level = false_alarm / 2 / (len(tests) + (4 if law.num_drafts > 1 else 2))
    return DraftLawAudit(
        num_samples=len(tokens),
        false_alarm=false_alarm,
        impossible=int(counts[declared == 0].sum()),
        log_likelihood=likelihood,
        log_e_value=log_e_value,
        p_values=tuple(exact_p_value(seen, probs, level, rng=rng) for seen, probs in tests),
        independence=independence_p_values(tokens, law, level, rng=rng),
        explanations=tuple(sorted(found, key=lambda own: -own.log_likelihood)),
    )


def _log_likelihood(probs: FloatArray, counts: IntArray) -> float:
    with np.errstate(divide="ignore"):
        return float(counts @ np.log(probs))


def counts_of_tuples(
    law: DraftLaw, tuples: IntArray, counts: IntArray
) -> list[tuple[IntArray, FloatArray]]:
    """Counts and probabilities of cells of tuples, if they can be listed."""
    support = np.count_nonzero(law.inclusion_probs())
    if not law.can_enumerate() or support**law.num_drafts > _MOST_LISTED:
        return []
    every, probs = law.enumerate()
    distinct = np.count_nonzero(np.diff(np.sort(every, axis=-1), axis=-1), axis=-1)
    cells = make_cells(probs, np.lexsort((probs, distinct)), _CELLS)
    known, place = np.unique(np.concatenate([every, tuples]), axis=0, return_inverse=True)
    seen = np.zeros(len(known), np.int64)
    seen[place.ravel()[len(every) :]] = counts
    by_tuple = seen[place.ravel()[: len(every)]]
    return [(np.bincount(cells.labels, by_tuple).astype(np.int64), cells.probs)]


def counts_of_extremes(law: DraftLaw, tokens: IntArray) -> list[tuple[IntArray, FloatArray]]:
    """Counts and probabilities of the place of each tuple's least likely draft, and of its likeliest.

    All drafts are among the k likeliest tokens with probability g(those k), the law's containment, which
    every law knows at any vocabulary.
    """
    descending = np.argsort(-law.inclusion_probs(), kind="stable")
    return [_counts_of_last(law, tokens, order) for order in (descending, descending[::-1])]


def _counts_of_last(
    law: DraftLaw, tokens: IntArray, order: IntArray
) -> tuple[IntArray, FloatArray]:
    size, within = order.size, np.zeros(order.size, dtype=bool)
    sizes = np.unique(np.append(np.geomspace(1, size, _CELLS).astype(np.int64), size))
    ends, chances, reached, contained = [], [], 0.0, 0.0
    # Cells end where enough probability has come together since the last one.
    for number in sizes:
        within[order[:number]] = True
        contained = float(law.containment(within))
        if contained - reached >= _LEAST_CELL:
            ends.append(number)
            chances.append(contained - reached)
            reached = contained
    # The last cell takes what is left, which may be too little for a cell of its own.
    ends[-1], chances[-1] = size, chances[-1] + contained - reached
    rank = np.empty(size, np.int64)
    rank[order] = np.arange(size)
    cell = np.searchsorted(ends, rank[tokens].max(axis=-1), side="right")
    probs = np.array(chances)
    return np.bincount(cell, minlength=probs.size), probs / probs.sum()
