"""Common mistakes of engines, as laws: tests plant them, and audits name the one that explains a run best."""

import copy
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from otmd.audit.samples import next_draft_laws
from otmd.drafts import DraftLaw, ProposalLaw, Stratified, WithoutReplacement, WithReplacement
from otmd.probabilities import FloatArray, IntArray, probs_from_logits
from otmd.registry import LAWS
from otmd.verifiers import KSequential, Preference, Verifier

_TEMPERATURES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.25, 1.5, 2.0, 3.0)
_TOP_K = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 30, 32, 40, 50, 64, 100, 128, 200, 256)
_TOP_P = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99)
_COPIES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 0.95)
_MOST_PERMUTED = 5
# An explanation has to be a thousand times likelier than what was declared.
_LEAST_GAIN = float(np.log(1000.0))
# Likelihoods allow for this share of tokens that an engine gets wrong by rounding.
_ERRING = 1e-3
_LOSSLESS = ("p alone", "steps", KSequential(), Preference())


class Mistake(NamedTuple):
    """The law of drafts if a mistake is made; ``tuple_prob`` has the probabilities (T,) of tuples (T, n)."""

    kind: str
    setting: str
    tuple_prob: Callable[[IntArray], FloatArray]


@dataclass(frozen=True)
class Explanation:
    """A mistake in words, with its best setting, and how well it explains the samples.

    ``log_likelihood`` is the logarithm of their likelihood, minus that of the number of settings tried. For a
    recorded run the likelihood is relative to that of the declared law, or of the best lossless rule.
    """

    mistake: str
    log_likelihood: float


def best_settings(likelihoods: dict[tuple[str, str], float]) -> list[Explanation]:
    """The best setting of each kind of mistake, the likeliest kind first; the keys are kind and setting."""
    tried, found = Counter(kind for kind, _ in likelihoods), {}
    for (kind, setting), own in sorted(likelihoods.items(), key=lambda item: -item[1]):
        words = f"{kind} ({setting})" if setting else kind
        found.setdefault(kind, Explanation(words, own - float(np.log(tried[kind]))))
    return sorted((found[kind] for kind in tried), key=lambda own: -own.log_likelihood)


def log_likelihoods(
    law: DraftLaw, tuples: IntArray, counts: NDArray
) -> tuple[float, dict[tuple[str, str], float]]:
    """Log-likelihoods of tuples (T, n) with ``counts`` (T,): under the law, and by mistake and setting."""
    with np.errstate(divide="ignore"):
        return float(counts @ np.log(law.tuple_prob(tuples))), {
            (own.kind, own.setting): float(counts @ np.log(own.tuple_prob(tuples)))
            for own in draft_mistakes(law)
        }


def draft_mistakes(law: DraftLaw) -> Iterator[Mistake]:
    """The mistakes that may have been made in place of the declared law, once for each setting."""
    n, permuted = law.num_drafts, law.num_drafts in range(2, _MOST_PERMUTED + 1)
    if permuted:
        by_id = partial(_prob_sorted, law, np.arange(law.vocab_size))
        yield Mistake("sorted by token id", "", by_id)
    if not isinstance(law, ProposalLaw):
        return
    q = law.draft_probs
    if permuted:
        rank = np.argsort(np.argsort(-q, kind="stable"))
        yield Mistake("sorted, likeliest first", "", partial(_prob_sorted, law, rank))
    if n > 1:
        for entry in LAWS.values():
            kind = entry.load()
            possible = np.count_nonzero(q) >= n or kind is WithReplacement
            if entry.confused and kind is not type(law) and possible:
                yield Mistake(entry.title, "", kind(q, n).tuple_prob)
        yield Mistake("one draw repeated for every draft", "", partial(_prob_of_copies, q, 1.0))
    if n > 1 and type(law) is WithReplacement:
        kind = "each draft at times a copy of the one before it"
        for share in _COPIES:
            yield Mistake(kind, f"with probability {share}", partial(_prob_of_copies, q, share))
    if n > 1 and type(law) is Stratified:
        kind = "one draw from each stratum, the tail first"
        yield Mistake(kind, "", lambda x: law.tuple_prob(x[:, ::-1]))
    best = q.argmax()
    yield Mistake("always the likeliest token", "", lambda x: (x == best).all(-1).astype(float))
    for kind, settings, laws in other_distributions(q):
        for setting, probs in zip(settings, laws, strict=True):
            if np.count_nonzero(probs) >= n or isinstance(law, WithReplacement):
                other = copy.copy(law)
                other.draft_probs = probs
                yield Mistake(kind, setting, partial(_prob_within_support, other))


def other_distributions(probs: FloatArray) -> Iterator[tuple[str, list[str], FloatArray]]:
    """What ``probs`` (V,) become by a wrong temperature or truncation: mistake, S settings, laws (S, V)."""
    descending, support = np.sort(probs)[::-1], np.count_nonzero(probs)
    powers = (probs / descending[0]) ** (1.0 / np.array(_TEMPERATURES))[:, None]
    counts = [k for k in _TOP_K if k < support]
    last = np.searchsorted(descending.cumsum(), _TOP_P).clip(max=probs.size - 1)
    by_count = np.where(probs >= descending[np.array(counts, int) - 1][:, None], probs, 0.0)
    by_mass = np.where(probs >= descending[last][:, None], probs, 0.0)
    for kind, name, settings, masses in (
        ("at another temperature", "temperature ×", _TEMPERATURES, powers),
        ("cut to the likeliest tokens", "top_k =", counts, by_count),
        ("cut to the likeliest mass", "top_p =", _TOP_P, by_mass),
    ):
        yield kind, [f"{name} {own}" for own in settings], masses / masses.sum(-1, keepdims=True)


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


class RuleFault(StrEnum):
    """What goes wrong in recursive rejection if one line is off."""

    RESIDUAL_FROM_TARGET = "after all rejections the token is drawn from p, not from the residual"
    RESIDUAL_FROM_DRAFT = "after all rejections the token is drawn from q, not from the residual"
    NOT_NORMALISED = "the residual is not renormalised"
    DUPLICATES_SKIPPED = "a draft that repeats a rejected one is skipped"
    FIRST_DRAFT_KEPT = "the first draft is emitted unverified"
    COARSE_COIN = "a draft is accepted if u ≤ p/q, not u < p/q, with u in float16"


@dataclass(eq=False)
class RejectionSteps:
    """Recursive rejection with targets (…, V), step by step as engines write it, with a fault or without.

    Draft j is tested against its law given the drafts before it. So without a fault the rule is lossless
    for every ``law`` that draws one draft after another.
    """

    target_probs: FloatArray
    law: DraftLaw
    fault: RuleFault | None = None
    # How many values k/2048 a coarse coin u has: the spacing of float16 between 1/2 and 1.
    coin_values: int = 2048

    def __call__(self, draft_tokens: IntArray) -> FloatArray:
        """Law of the output token given the drafts (n,), of the shape of the targets."""
        p, fault = self.target_probs, self.fault
        laws = next_draft_laws(self.law, draft_tokens)
        output, undecided = np.zeros(p.shape), np.ones(p.shape[:-1])
        for j, (token, q) in enumerate(zip(draft_tokens, laws, strict=True)):
            if fault is RuleFault.DUPLICATES_SKIPPED and token in draft_tokens[:j]:
                continue
            # P(u < p/q) for a uniform u; 0 for a draft that q cannot draw.
            chance = np.minimum(p[..., token], q[token]) / (q[token] or 1.0)
            if fault is RuleFault.FIRST_DRAFT_KEPT:
                chance = np.ones_like(chance)
            elif fault is RuleFault.COARSE_COIN:
                coins = np.floor(chance * self.coin_values) + 1.0
                chance = np.minimum(1.0, coins / self.coin_values)
            output[..., token] += undecided * chance
            undecided = undecided * (1.0 - chance)
            left = np.maximum(p - q, 0.0)
            total = left.sum(axis=-1, keepdims=True)
            if fault is not RuleFault.NOT_NORMALISED:
                left = np.divide(left, total, out=p.copy(), where=total > 0)
            p = left
        if fault is RuleFault.RESIDUAL_FROM_TARGET:
            p = self.target_probs
        elif fault is RuleFault.RESIDUAL_FROM_DRAFT:
            p = laws[0]
        elif fault is RuleFault.NOT_NORMALISED:
            # The mass that is missing from 1 goes to the last token, as in a search of running sums.
            p = p.copy()
            p[..., -1] += 1.0 - p.sum(axis=-1)
        return output + undecided[..., None] * p


class Position(NamedTuple):
    """A recorded position. ``law`` is None if it is unknown, or if it cannot have drawn the drafts."""

    target: FloatArray
    law: DraftLaw | None
    draft_tokens: IntArray
    output_token: int

    def log_likelihood(self, laws: FloatArray) -> FloatArray:
        """Log-probability (…) of the output token under laws (…, V), which a rare error replaces by p."""
        token = self.output_token
        return np.log((1.0 - _ERRING) * laws[..., token] + _ERRING * self.target[token])


Positions = Callable[[], Iterable[Position]]
"""Returns the same positions at each call, so that they need not all be held in memory."""


def explain_drafts(positions: Positions) -> Explanation | None:
    """The mistake that explains the drafts best, if it makes them 1,000 times likelier than their laws do."""
    gains: dict[tuple[str, str], float] = defaultdict(float)
    for own in positions():
        assert own.law is not None
        declared, likelihoods = log_likelihoods(own.law, own.draft_tokens[None], np.ones(1))
        # If the product of the draft probabilities underflows, nothing can be compared.
        for key in likelihoods if declared > -np.inf else ():
            gains[key] += likelihoods[key] - declared
    return _best_gain(gains)


def explain_output(positions: Positions) -> Explanation | None:
    """The mistake that explains the output best, if it is 1,000 times likelier than any lossless rule."""
    totals = np.zeros(len(_LOSSLESS))
    for own in positions():
        totals += [own.log_likelihood(_lossless_law(rule, own, own.target)) for rule in _LOSSLESS]
    likeliest = _LOSSLESS[int(totals.argmax())]
    gains: dict[tuple[str, str], float] = defaultdict(float)
    for own in positions():
        declared = own.log_likelihood(_lossless_law(likeliest, own, own.target))
        for kind, settings, targets in other_distributions(own.target):
            more = own.log_likelihood(_lossless_law(likeliest, own, targets)) - declared
            for setting, gain in zip(settings, more.tolist(), strict=True):
                gains[f"the target is {kind}", setting] += gain
        for kind, law in _faulty_laws(own):
            gains[kind, ""] += float(own.log_likelihood(law) - declared)
    return _best_gain(gains)


def _best_gain(gains: dict[tuple[str, str], float]) -> Explanation | None:
    best = best_settings(gains)[:1]
    return best[0] if best and best[0].log_likelihood >= _LEAST_GAIN else None


def _lossless_law(rule: Verifier | str, position: Position, targets: FloatArray) -> FloatArray:
    """The output law (…, V) of a lossless rule with these targets; the targets if it cannot be run."""
    law, tokens = position.law, position.draft_tokens
    if law is not None and rule == "steps":
        return RejectionSteps(targets, law)(tokens)
    if law is not None and isinstance(rule, Verifier) and rule.supports(law):
        every = targets.reshape(-1, targets.shape[-1])
        found = [rule.prepare_position(own, law).conditional_law(tokens) for own in every]
        return np.reshape(found, targets.shape)
    return targets


def _faulty_laws(position: Position) -> Iterator[tuple[str, FloatArray]]:
    """Output laws of recursive rejection with a fault, or with the wrong law; p if the law is unknown."""
    p, law, tokens = position.target, position.law, position.draft_tokens
    for fault in RuleFault:
        yield fault.value, p if law is None else RejectionSteps(p, law, fault)(tokens)
    if isinstance(law, ProposalLaw) and law.num_drafts > 1:
        independent = isinstance(law, WithReplacement)
        kind = WithoutReplacement if independent else WithReplacement
        believed = "distinct" if independent else "independent"
        steps = RejectionSteps(p, kind(law.draft_probs, law.num_drafts))
        yield f"the drafts are verified as if they were {believed}", steps(tokens)


@dataclass(frozen=True, eq=False)
class Control:
    """A faulty rule at one position.

    The drafts are in fact drawn from ``law``; ``verifier`` takes drafts (n,) and returns the law of the
    output token (V,).
    """

    name: str
    target_probs: FloatArray
    law: DraftLaw
    verifier: Callable[[IntArray], FloatArray]


def negative_controls() -> list[Control]:
    """Faulty rules that an audit finds with 200,000 samples and a false-alarm rate of 1e-3.

    The logits of the two models differ by a normal error, as those of close models do.
    """
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=1.5, size=12)
    draft_logits = logits + rng.normal(scale=0.7, size=12)
    p, q = probs_from_logits(logits), probs_from_logits(draft_logits)
    two, three, distinct = WithReplacement(q, 2), WithReplacement(q, 3), WithoutReplacement(q, 3)
    cut = WithReplacement(probs_from_logits(draft_logits, top_k=6), 2)
    cold = WithReplacement(probs_from_logits(draft_logits, temperature=0.7), 2)
    no_mass = np.where(np.arange(p.size) == q.argmax(), 0.0, p)
    no_mass /= no_mass.sum()
    steps, coin = RejectionSteps, RuleFault.COARSE_COIN
    return [
        Control("duplicates skipped", p, three, steps(p, three, RuleFault.DUPLICATES_SKIPPED)),
        Control("residual not renormalised", p, two, steps(p, two, RuleFault.NOT_NORMALISED)),
        Control("residual from p", p, two, steps(p, two, RuleFault.RESIDUAL_FROM_TARGET)),
        Control("coin may equal 0, u ≤ p/q", no_mass, two, steps(no_mass, two, coin)),
        Control("drafts from the top 6, verified with all of q", p, cut, steps(p, two)),
        Control("drafts at temperature 0.7, verified at 1", p, cold, steps(p, two)),
        Control("distinct drafts verified as independent", p, distinct, steps(p, three)),
        Control("independent drafts verified as distinct", p, three, steps(p, distinct)),
    ]
