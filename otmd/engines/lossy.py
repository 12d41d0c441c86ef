"""Lossy rules of engines, with the exact distribution of their output.

The drafts are deterministic, or there is one sampled draft. So the distribution of the output has a closed
form for any vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import xlogy

from otmd.laws import DraftLaw, TopK, WithReplacement
from otmd.probabilities import BoolArray, FloatArray, IntArray
from otmd.verifiers import PreparedVerifier
from otmd.verifiers.prepared import accept_prob, normalised

ByDrafts = Callable[[IntArray], FloatArray]


class LossyRule(NamedTuple):
    """A law of drafts and a lossy rule at one position, for p and q of shape (V,).

    Parameters
    ----------
    law : callable
        From q and n to the law of the drafts: deterministic tokens, or one sampled token.
    decide : callable
        From p and q to two functions of the drafts (n,): acceptance probabilities (n,), and the residual
        (V,). With a sampled draft the residual is the same for every draft.
    keeps : callable or None
        From q to a mask (V,): a sampled draft outside it is dropped, and the output is drawn from p. None
        keeps every draft.

    Examples
    --------
    >>> import numpy as np
    >>> import otmd
    >>> rule = otmd.engines.lossy.relaxed(top_k=1, delta=0.6)
    >>> p, q = np.array([0.6, 0.4]), np.array([0.8, 0.2])
    >>> rule.output_distribution(p, q, num_drafts=1)
    (array([1., 0.]), 1.0)
    """

    law: Callable[[FloatArray, int], DraftLaw]
    decide: Callable[[FloatArray, FloatArray], tuple[ByDrafts, ByDrafts]]
    keeps: Callable[[FloatArray], BoolArray] | None = None

    def prepare(self, target: FloatArray, draft_probs: FloatArray, law: DraftLaw) -> PreparedVerifier:
        """Prepare the rule for a law of drafts."""
        accept, residual = self.decide(target, draft_probs)
        if self.keeps is None:
            return _Prepared(target, law, accept, residual)
        kept = self.keeps(draft_probs)
        return _Prepared(
            target,
            law,
            lambda x: np.where(kept[x], accept(x), 0.0),
            lambda x: residual(x) if kept[x].all() else target,
        )

    def output_distribution(
        self, target: FloatArray, draft_probs: FloatArray, num_drafts: int
    ) -> tuple[FloatArray, float]:
        """Exact distribution of the output token (V,), and P(it is a draft), with p and q of shape (V,)."""
        law = self.law(draft_probs, num_drafts)
        rule = self.prepare(target, draft_probs, law)
        structure = law.position_structure
        if structure.random is None:
            tokens = structure.deterministic
            output = rule.conditional_law(tokens)
            return output, float(output[tokens].sum())
        # With one sampled draft, the residual is the same for every draft that is kept.
        tokens = np.arange(target.size)
        accepted = law.inclusion_probs() * rule.accept_probs(tokens)
        rejected = law.inclusion_probs() - accepted
        output, rate = accepted.copy(), float(accepted.sum())
        kept = np.ones(target.size, bool) if self.keeps is None else self.keeps(draft_probs)
        for group in (tokens[kept], tokens[~kept]):
            if group.size:
                residual = rule.residual(group[:1])
                output += rejected[group].sum() * residual
                # The residual may give the same token that was rejected or dropped.
                rate += float(residual[group] @ rejected[group])
        return output, rate


class _Prepared(PreparedVerifier):
    def __init__(self, target: FloatArray, law: DraftLaw, accept: ByDrafts, rest: ByDrafts) -> None:
        super().__init__(target, law)
        self.accept = accept
        self.rest = rest

    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        return self.accept(draft_tokens)

    def residual(self, draft_tokens: IntArray) -> FloatArray:
        return self.rest(draft_tokens)


def _tested(target: FloatArray, draft: FloatArray) -> tuple[ByDrafts, ByDrafts]:
    """Accept with probability min(1, target/draft), else draw from (target − draft)₊; both (V,)."""
    residual = normalised(np.maximum(target - draft, 0.0), target)
    return lambda x: accept_prob(target[x], draft[x]), lambda _: residual


def ratio_test(top_k: int | None) -> LossyRule:
    """One draft from the k most likely tokens of q, renormalised, but verified as if it were drawn from q.

    For ``top_k`` None, the draft is the most likely token of q.
    """

    def law(q: FloatArray, num_drafts: int) -> DraftLaw:
        if top_k is None:
            return TopK(q, 1)
        kept = np.where(_best(q, top_k), q, 0.0)
        return WithReplacement(kept / kept.sum(), 1)

    return LossyRule(law, _tested)


def _best(probs: FloatArray, count: int) -> BoolArray:
    """Mask (V,) of the ``count`` most likely tokens, ties to the lowest id."""
    best = np.zeros(probs.size, bool)
    best[np.argsort(-probs, kind="stable")[:count]] = True
    return best


def ensemble(weight: float) -> LossyRule:
    """One sampled draft, verified against w p + (1 − w) q in place of p."""

    def decide(p: FloatArray, q: FloatArray) -> tuple[ByDrafts, ByDrafts]:
        return _tested(weight * p + (1.0 - weight) * q, q)

    return LossyRule(lambda q, _: WithReplacement(q, 1), decide)


def _without(target: FloatArray) -> ByDrafts:
    """The target without the drafts, renormalised."""

    def rest(draft_tokens: IntArray) -> FloatArray:
        others = target.copy()
        others[draft_tokens] = 0.0
        return normalised(others, target)

    return rest


def thresholds(single: float, accumulated: float) -> LossyRule:
    """Target-only sampling of deterministic drafts, with two thresholds that accept more; lossless at (1, 1).

    One uniform number u decides on all drafts. A draft is accepted if its own p is at least ``single``, or if
    u ≤ P/accumulated, with P the total p of the drafts up to this one. If none is accepted, the output is
    drawn from p without the drafts, renormalised.
    """

    def decide(p: FloatArray, _: FloatArray) -> tuple[ByDrafts, ByDrafts]:
        def accept(draft_tokens: IntArray) -> FloatArray:
            mass = p[draft_tokens]
            below = np.minimum(1.0, mass.cumsum() / accumulated)
            before = np.concatenate([[0.0], below[:-1]])
            # P(u accepts this draft, given that it accepted none before).
            prob = np.divide(below - before, 1.0 - before, out=np.ones(mass.size), where=before < 1)
            return np.where(mass >= single, 1.0, prob)

        return accept, _without(p)

    return LossyRule(TopK, decide)


def _largest(target: FloatArray, acceptable: BoolArray) -> tuple[ByDrafts, ByDrafts]:
    """Accept the draft with the largest p among the tokens ``acceptable`` (V,); else emit argmax p."""

    def accept(draft_tokens: IntArray) -> FloatArray:
        mass = np.where(acceptable[draft_tokens], target[draft_tokens], -1.0)
        largest = np.arange(mass.size) == mass.argmax()
        return (largest & (mass >= 0.0)).astype(float)

    return accept, lambda _: _best(target, 1).astype(float)


def typical(threshold: float, alpha: float) -> LossyRule:
    """Accept the draft with the largest p if p > min(threshold, alpha·exp(−entropy)); else emit argmax p."""

    def decide(p: FloatArray, _: FloatArray) -> tuple[ByDrafts, ByDrafts]:
        # The engine adds 1e-5 inside the logarithm.
        entropy = -float(p @ np.log(p + 1e-5))
        return _largest(p, p > min(threshold, alpha * np.exp(-entropy)))

    return LossyRule(TopK, decide)


def relaxed(top_k: int, delta: float) -> LossyRule:
    """Accept the draft if it is among the target's top k and p ≥ max p − delta; else emit argmax p."""
    return LossyRule(TopK, lambda p, _: _largest(p, _best(p, top_k) & (p >= p.max() - delta)))


def ears(tolerance: float) -> LossyRule:
    """One sampled draft, accepted with probability min(1, p/q + tolerance·(1 − max p)).

    A rejected draft is replaced from (p − q)₊, as if the probability had been min(1, p/q).
    """

    def decide(p: FloatArray, q: FloatArray) -> tuple[ByDrafts, ByDrafts]:
        accept, residual = _tested(p, q)
        return lambda x: np.minimum(1.0, accept(x) + tolerance * (1.0 - p.max())), residual

    return LossyRule(lambda q, _: WithReplacement(q, 1), decide)


def cascade(alpha: float) -> LossyRule:
    """One sampled draft, verified against the law of a speculative cascade in place of p.

    Tokens with p ≥ (1 − alpha) max p are the draft model's; all others are drawn from p: the law is
    q(v)·1[v is such a token] + p(v)·q(the others) (Narasimhan et al. 2024, eq. 15).
    """

    def decide(p: FloatArray, q: FloatArray) -> tuple[ByDrafts, ByDrafts]:
        deferred = p < (1.0 - alpha) * p.max()
        return _tested(np.where(deferred, 0.0, q) + p * q[deferred].sum(), q)

    return LossyRule(lambda q, _: WithReplacement(q, 1), decide)


def fly(threshold: float, followed: float = 1.0) -> LossyRule:
    """The draft's argmax, accepted with probability p, or if the target hesitates and the next drafts agree.

    The target hesitates if −Σ p log p of its three most likely tokens is at least ``threshold``. ``followed``
    is the probability that the next drafts, a window of them, are accepted; the loss is proportional to it.
    """

    def decide(p: FloatArray, _: FloatArray) -> tuple[ByDrafts, ByDrafts]:
        top = p[_best(p, 3)]
        hesitates = -xlogy(top, top).sum() >= threshold

        def accept(draft_tokens: IntArray) -> FloatArray:
            mass = p[draft_tokens]
            return mass + np.where(hesitates & (mass > 0.0), (1.0 - mass) * followed, 0.0)

        return accept, _without(p)

    return LossyRule(lambda q, _: TopK(q, 1), decide)


def dropped(threshold: float) -> LossyRule:
    """One sampled draft, dropped if its own q is below ``threshold``, else verified with min(1, p/q).

    The kept drafts no longer have the law q. A decision by max q, or by anything else that is fixed before
    the draft is drawn, would be lossless.
    """
    return LossyRule(lambda q, _: WithReplacement(q, 1), _tested, lambda q: q >= threshold)
