"""Common mistakes of engines, as distributions of drafts and of outputs: audits name the best of them."""

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from otmd.audit.records import Logits, Record
from otmd.audit.rule_faults import RejectionSteps, RuleFault
from otmd.drafts import DraftLaw, ProposalLaw, Stratified, WithoutReplacement, WithReplacement
from otmd.drafts.base import draw_tokens
from otmd.probabilities import ORDERS, FloatArray, IntArray, Processing
from otmd.registry import LAWS

_TEMPERATURES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.25, 1.5, 2.0, 3.0)
_TOP_K = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 30, 32, 40, 50, 64, 100, 128, 200, 256)
_TOP_P = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99)
_COPIES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 0.95)
_MOST_PERMUTED = 5

Variants = dict[str, FloatArray | None]
"""From the setting of a mistake, empty if it has none, to a distribution (V,); None if that is unknown."""


class DraftMistake(NamedTuple):
    """The law of drafts if a mistake is made.

    ``tuple_prob`` has the probabilities (T,) of tuples (T, n); ``sample`` takes a generator and a number S,
    and draws tuples (S, n).
    """

    kind: str
    setting: str
    tuple_prob: Callable[[IntArray], FloatArray]
    sample: Callable[[np.random.Generator, int], IntArray]


@dataclass(frozen=True)
class Fit:
    """A test of a mistake on ``num_rows`` rows that had no part in choosing it.

    If the mistake is all that is wrong, the ``p_value`` is at most ``level`` with probability ``level``. The
    test finds another total variation of ``detectable``, along the orders of tokens that it looks at, with
    probability 0.9. The mistake itself makes a mean total variation of ``bias``.
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

    ``log_likelihood`` is the logarithm of their likelihood, minus that of the number of settings tried. For a
    recorded run the likelihood is relative to that of the declared law, or of the best lossless rule, and
    ``fit`` is the test of the mistake; it is None for other samples.
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
        rows = f"{self.fit.num_rows:,} rows held out for a test"
        if self.fit.refuted:
            head = "Nearest of the known mistakes, and not the whole cause"
            return f"{head}: {self.mistake}; {rows} refute that it is all (p-value {self.fit.p_value:.1e})"
        told = f"a bias of {self.fit.detectable:.3f} beyond it would have been found with probability 0.9"
        if not self.stands:
            told += f", and its own bias is only {self.fit.bias:.3f}"
            return f"Most likely cause, not confirmed: {self.mistake}; {rows} are too few ({told})"
        return f"Most likely cause: {self.mistake}; {rows} agree with it ({told})"


def best_settings(likelihoods: dict[tuple[str, str], float]) -> list[Explanation]:
    """The best setting of each kind of mistake, the likeliest kind first; the keys are kind and setting."""
    tried, found = Counter(kind for kind, _ in likelihoods), {}
    for (kind, setting), own in sorted(likelihoods.items(), key=lambda item: -item[1]):
        words = f"{kind} ({setting})" if setting else kind
        found.setdefault(kind, Explanation(words, own - float(np.log(tried[kind]))))
    return sorted((found[kind] for kind in tried), key=lambda own: -own.log_likelihood)


def log_likelihoods(
    law: DraftLaw, tuples: IntArray, counts: NDArray, side: "Side | None" = None
) -> tuple[float, dict[tuple[str, str], float]]:
    """Log-likelihoods of tuples (T, n) with ``counts`` (T,): under the law, and by mistake and setting."""
    with np.errstate(divide="ignore"):
        return float(counts @ np.log(law.tuple_prob(tuples))), {
            (own.kind, own.setting): float(counts @ np.log(own.tuple_prob(tuples)))
            for own in draft_mistakes(law, side)
        }


class Side(NamedTuple):
    """The probabilities (V,) of the target or of the draft in a row, and what may be taken in their place.

    ``logits`` is None if probabilities were recorded. ``neighbours`` has the same side of other rows.
    """

    probs: FloatArray
    logits: Logits | None = None
    neighbours: Variants = {}  # noqa: RUF012


def draft_mistakes(law: DraftLaw, side: Side | None = None) -> Iterator[DraftMistake]:
    """The mistakes that may have been made in place of the declared law, once for each setting."""
    n, permuted = law.num_drafts, law.num_drafts in range(2, _MOST_PERMUTED + 1)
    if permuted:
        yield _sorted_drafts("sorted by token id", law, np.arange(law.vocab_size))
    if not isinstance(law, ProposalLaw):
        return
    q = law.draft_probs
    if permuted:
        rank = np.argsort(np.argsort(-q, kind="stable"))
        yield _sorted_drafts("sorted, likeliest first", law, rank)
    if n > 1:
        for entry in LAWS.values():
            kind = entry.load()
            possible = np.count_nonzero(q) >= n or kind is WithReplacement
            if entry.confused and kind is not type(law) and possible:
                other = kind(q, n)
                yield DraftMistake(entry.title, "", other.tuple_prob, other.sample)
        yield _copied_drafts("one draw repeated for every draft", "", q, n, 1.0)
    if n > 1 and type(law) is WithReplacement:
        for share in _COPIES:
            words = f"with probability {share}"
            yield _copied_drafts(
                "each draft at times a copy of the one before it", words, q, n, share
            )
    if n > 1 and type(law) is Stratified:
        yield DraftMistake(
            "one draw from each stratum, the tail first",
            "",
            lambda x: law.tuple_prob(x[:, ::-1]),
            lambda rng, size: law.sample(rng, size)[:, ::-1],
        )
    best = q.argmax()
    yield DraftMistake(
        "always the likeliest token",
        "",
        lambda x: (x == best).all(-1).astype(float),
        lambda rng, size: np.full((size, n), best),
    )
    for kind, variants in DISTRIBUTIONS.items():
        for setting, probs in variants(side or Side(q)).items():
            if (other := with_draft_probs(law, probs)) is not None:
                yield DraftMistake(
                    kind, setting, partial(_prob_within_support, other), other.sample
                )


def with_draft_probs(law: ProposalLaw, probs: FloatArray | None) -> ProposalLaw | None:
    """The same law with other draft probabilities (V,); None if it cannot draw so many drafts from them."""
    if probs is None:
        return None
    if np.count_nonzero(probs) < law.num_drafts and not isinstance(law, WithReplacement):
        return None
    other = copy.copy(law)
    other.draft_probs = probs
    return other


def _tempered(side: Side) -> Variants:
    powers = (side.probs / side.probs.max()) ** (1.0 / np.array(_TEMPERATURES))[:, None]
    return {
        f"temperature × {own}": row / row.sum()
        for own, row in zip(_TEMPERATURES, powers, strict=True)
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
    left = np.where(probs >= smallest, probs, 0.0)
    return left / left.sum()


def _processed_otherwise(side: Side) -> Variants:
    """The distribution of the logits if steps of their processing are left out, or in another order."""
    if side.logits is None:
        return {}
    numbers, declared = side.logits
    left_out = {
        "without the temperature": replace(declared, temperature=1.0),
        "without top-k": replace(declared, top_k=None),
        "without top-p": replace(declared, top_p=None),
        "without min-p": replace(declared, min_p=None),
        "the raw logits": Processing(),
    } | {f"in the order of {name}": replace(declared, order=name) for name in ORDERS}
    return {
        own: made(numbers)
        for own, made in left_out.items()
        if made.steps != declared.steps or made != declared
    }


def _uniform(side: Side) -> Variants:
    return {"": np.full(side.probs.size, 1.0 / side.probs.size)}


_OF_ROW: dict[str, Callable[[Side], Variants]] = {
    "processed otherwise": _processed_otherwise,
    "taken from another row": lambda side: side.neighbours,
    "uniform, as a buffer that was never written": _uniform,
}
DISTRIBUTIONS: dict[str, Callable[[Side], Variants]] = {
    "at another temperature": _tempered,
    "cut to the likeliest tokens": _cut_by_count,
    "cut to the likeliest mass": _cut_by_mass,
    **_OF_ROW,
}
"""What the probabilities of a row may be in place of those that were meant."""


def _copied_drafts(kind: str, setting: str, q: FloatArray, n: int, share: float) -> DraftMistake:
    def sample(rng: np.random.Generator, size: int) -> IntArray:
        tokens, copied = (
            draw_tokens(q, rng, size * n).reshape(size, n),
            rng.random((size, n)) < share,
        )
        for j in range(1, n):
            tokens[:, j] = np.where(copied[:, j], tokens[:, j - 1], tokens[:, j])
        return tokens

    return DraftMistake(kind, setting, partial(_prob_of_copies, q, share), sample)


def _sorted_drafts(kind: str, law: DraftLaw, rank: IntArray) -> DraftMistake:
    def sample(rng: np.random.Generator, size: int) -> IntArray:
        tokens = law.sample(rng, size)
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
    places = rank[tokens]
    if (np.diff(places, axis=-1) < 0).any():
        return np.zeros(len(tokens))
    every = permutations(range(tokens.shape[-1]))
    orders = [law.tuple_prob(tokens[:, order]) for order in every]
    # Orders that only swap equal tokens give the same tuple, which was summed more than once.
    counts = [np.unique(own, return_counts=True)[1] for own in places]
    repeated = np.array([gammaln(own + 1.0).sum() for own in counts])
    return np.sum(orders, axis=0) * np.exp(-repeated)


class Position(NamedTuple):
    """A recorded position, and the distributions (V,) near it, by side (target or draft) and in words.

    ``law`` is None if it is unknown, or if it cannot have drawn the drafts.
    """

    record: Record
    law: DraftLaw | None
    neighbours: dict[str, Variants]

    @property
    def target(self) -> FloatArray:
        """The recorded target (V,)."""
        assert not isinstance(self.record.target, str)
        return self.record.target

    def side(self, name: str) -> Side:
        """The ``"target"`` or the ``"draft"`` of the row, and what may be taken in its place."""
        probs, logits = getattr(self.record, name), getattr(self.record, f"{name}_logits")
        return Side(probs, logits, self.neighbours[name])


class OutputMistake(NamedTuple):
    """A mistake in a sentence, and the distributions (V,) that it leads to at a position, by setting.

    They are distributions of the output token given the drafts or, if ``of_target``, of what a lossless rule
    takes for the target. A setting that makes no difference may be left out.
    """

    sentence: str
    variants: Callable[[Position], Variants]
    of_target: bool = False


def _of_target(variants: Callable[[Side], Variants], position: Position) -> Variants:
    return variants(position.side("target"))


def _of_rule(fault: RuleFault, position: Position) -> Variants:
    law, tokens = position.law, position.record.draft_tokens
    return {} if law is None else {"": RejectionSteps(position.target, law, fault)(tokens)}


def _of_law(kind: type[ProposalLaw], position: Position) -> Variants:
    """The drafts are verified as if they had been drawn by a law of another kind."""
    law, tokens = position.law, position.record.draft_tokens
    if not isinstance(law, ProposalLaw) or law.num_drafts == 1 or type(law) is kind:
        return {}
    if np.count_nonzero(law.draft_probs) < law.num_drafts:
        return {}
    wrong_law = kind(law.draft_probs, law.num_drafts)
    return {"": RejectionSteps(position.target, wrong_law)(tokens)}


def _of_draft(variants: Callable[[Side], Variants], position: Position) -> Variants:
    """The drafts are verified with other draft probabilities."""
    law, p = position.law, position.target
    if not isinstance(law, ProposalLaw) or not isinstance(position.record.draft, np.ndarray):
        return {}
    pairs = {
        own: (p, with_draft_probs(law, q)) for own, q in variants(position.side("draft")).items()
    }
    return _verified_with(pairs, position.record.draft_tokens)


def _verified_with(
    pairs: Mapping[str, tuple[FloatArray | None, ProposalLaw | None]], draft_tokens: IntArray
) -> Variants:
    """Output laws (V,) of recursive rejection, by setting, from targets (V,) and laws of the drafts."""
    return {
        words: None if p is None or law is None else RejectionSteps(p, law)(draft_tokens)
        for words, (p, law) in pairs.items()
    }


def _of_both(position: Position) -> Variants:
    """The drafts are verified with the target and the draft distribution of another row."""
    law, near, tokens = position.law, position.neighbours, position.record.draft_tokens
    if not tokens.size:
        return near["target"]
    if not isinstance(law, ProposalLaw):
        return {}
    pairs = {
        own: (p, with_draft_probs(law, near["draft"][own])) for own, p in near["target"].items()
    }
    return _verified_with(pairs, tokens)


def _of_residual(position: Position) -> Variants:
    """After all rejections the token is drawn from another row's residual, or from a buffer never written."""
    law, tokens, p, near = (
        position.law,
        position.record.draft_tokens,
        position.target,
        position.neighbours,
    )
    if not isinstance(law, ProposalLaw):
        return {}
    accepted, undecided, _ = RejectionSteps(p, law).parts(tokens)
    others = {
        "uniform": np.full(p.size, 1.0 / p.size),
        "all zero, so token 0": np.eye(1, p.size)[0],
    }
    found: Variants = {words: accepted + undecided * own for words, own in others.items()}
    for words, target in near["target"].items():
        other = with_draft_probs(law, near["draft"][words])
        for name, used in ((f"target of {words}", law), (f"target and draft of {words}", other)):
            found[name] = None
            if target is not None and used is not None:
                found[name] = accepted + undecided * RejectionSteps(target, used).parts(tokens)[2]
    return found


_VERIFIED = "the drafts are verified"
OUTPUT_MISTAKES = [
    *(
        OutputMistake(f"the target is {kind}", partial(_of_target, variants), of_target=True)
        for kind, variants in DISTRIBUTIONS.items()
    ),
    *(OutputMistake(fault.value, partial(_of_rule, fault)) for fault in RuleFault),
    OutputMistake(f"{_VERIFIED} as if they were distinct", partial(_of_law, WithoutReplacement)),
    OutputMistake(f"{_VERIFIED} as if they were independent", partial(_of_law, WithReplacement)),
    *(
        OutputMistake(f"{_VERIFIED} with probabilities {kind}", partial(_of_draft, variants))
        for kind, variants in _OF_ROW.items()
    ),
    OutputMistake(f"{_VERIFIED} with target and draft taken from another row", _of_both),
    OutputMistake("after all rejections the residual is another one", _of_residual),
]
