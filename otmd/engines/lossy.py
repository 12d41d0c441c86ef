"""Rules of inference engines that change the output's distribution, with that distribution exactly.

At one position each accepts one of the drafts or none, and falls back on a law of its own. Its drafts are
certain, or one is sampled; so its output law is a closed form at any vocabulary.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from otmd.drafts import DraftLaw, TopThen, WithReplacement
from otmd.probabilities import BoolArray, FloatArray, IntArray
from otmd.verifiers import PreparedVerifier
from otmd.verifiers.prepared import accept_prob, normalised


def CertainTop(draft_probs: ArrayLike, num_drafts: int) -> TopThen:  # noqa: N802 - a law's name in tables
    """The n likeliest tokens, all certain: what trees of likeliest tokens draft."""
    return TopThen(draft_probs, num_drafts, top=num_drafts)


class LossyRule(NamedTuple):
    """How tokens are drafted, and the rule at one position.

    ``law(q, n)`` draws certain tokens or one sampled token; ``prepare(p, q, law)`` decides on them.
    """

    law: Callable[[FloatArray, int], DraftLaw]
    prepare: Callable[[FloatArray, FloatArray, DraftLaw], PreparedVerifier]

    def output_law(
        self, target: FloatArray, draft_probs: FloatArray, num_drafts: int
    ) -> tuple[FloatArray, float]:
        """Exact law of the output token (V,), and how often it is one of the drafts."""
        law = self.law(draft_probs, num_drafts)
        rule = self.prepare(target, draft_probs, law)
        if isinstance(law, TopThen):
            tokens = law.forced_tokens()
            output = rule.conditional_law(tokens)
            return output, float(output[tokens].sum())
        # One sampled draft: the rule treats each token by itself, and the residual is one for all.
        drawn, every = law.inclusion_probs(), np.arange(target.size)
        accepted = drawn * rule.accept_probs(every)
        rejected = float(drawn.sum() - accepted.sum())
        residual = rule.residual(every)
        # The residual may give the very token that was rejected.
        by_chance = float(residual @ (drawn - accepted))
        return accepted + rejected * residual, float(accepted.sum()) + by_chance


class _Rule(PreparedVerifier):
    """Accepts by one function of the drafts (n,), and falls back on one law."""

    def __init__(
        self,
        target: FloatArray,
        law: DraftLaw,
        accept: Callable[[IntArray], FloatArray],
        rest: Callable[[IntArray], FloatArray],
    ) -> None:
        super().__init__(target, law)
        self.accept, self.rest = accept, rest

    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        return self.accept(draft_tokens)

    def residual(self, draft_tokens: IntArray) -> FloatArray:
        return self.rest(draft_tokens)


def _tested(target: FloatArray, law: DraftLaw, wanted: FloatArray, claimed: FloatArray) -> _Rule:
    """Accept with probability min(1, wanted/claimed), else draw from (wanted − claimed)₊."""
    residual = normalised(np.maximum(wanted - claimed, 0.0), wanted)
    return _Rule(target, law, lambda x: accept_prob(wanted[x], claimed[x]), lambda _: residual)


def ratio_test(top_k: int | None) -> LossyRule:
    """One draft, verified as if drawn from q: from its k likeliest tokens, or its argmax for None."""

    def law(q: FloatArray, num_drafts: int) -> DraftLaw:
        if top_k is None:
            return CertainTop(q, 1)
        kept = np.zeros(q.size)
        chosen = np.argsort(-q, kind="stable")[:top_k]
        kept[chosen] = q[chosen]
        return WithReplacement(kept / kept.sum(), 1)

    return LossyRule(law, lambda p, q, drafts: _tested(p, drafts, p, q))


def ensemble(weight: float) -> LossyRule:
    """One sampled draft, verified against w p + (1 − w) q in place of p."""
    return LossyRule(
        lambda q, _: WithReplacement(q, 1),
        lambda p, q, drafts: _tested(p, drafts, weight * p + (1.0 - weight) * q, q),
    )


def thresholds(single: float, accumulated: float) -> LossyRule:
    """Target-only sampling of certain drafts that accepts more readily; lossless at (1, 1).

    One coin u serves the drafts of a node: one is accepted where u ≤ (p of the drafts so far)/accumulated, or
    where its own p is at least ``single``. Else the output is drawn from p without the drafts.
    """

    def prepare(p: FloatArray, _: FloatArray, drafts: DraftLaw) -> PreparedVerifier:
        def accept(draft_tokens: IntArray) -> FloatArray:
            mass = p[draft_tokens]
            below = np.minimum(1.0, mass.cumsum() / accumulated)
            before = np.concatenate([[0.0], below[:-1]])
            # What is left of the coin's range, given that no draft before was accepted.
            left = np.divide(below - before, 1.0 - before, out=np.ones(mass.size), where=before < 1)
            return np.where(mass >= single, 1.0, left)

        def rest(draft_tokens: IntArray) -> FloatArray:
            others = p.copy()
            others[draft_tokens] = 0.0
            return normalised(others, p)

        return _Rule(p, drafts, accept, rest)

    return LossyRule(CertainTop, prepare)


def _largest(target: FloatArray, law: DraftLaw, taken: BoolArray) -> _Rule:
    """Accept the draft of the largest p among those that may be taken; else emit argmax p."""

    def accept(draft_tokens: IntArray) -> FloatArray:
        mass = np.where(taken[draft_tokens], target[draft_tokens], -1.0)
        return (np.arange(mass.size) == (mass.argmax() if mass.max() >= 0 else -1)).astype(float)

    best = (np.arange(target.size) == target.argmax()).astype(float)
    return _Rule(target, law, accept, lambda _: best)


def typical(threshold: float, alpha: float) -> LossyRule:
    """Typical acceptance: the likeliest draft with p > min(threshold, alpha·exp(−entropy)), else argmax p."""

    def prepare(p: FloatArray, _: FloatArray, drafts: DraftLaw) -> PreparedVerifier:
        # The engine adds 1e-5 inside the logarithm.
        entropy = -float(p @ np.log(p + 1e-5))
        return _largest(p, drafts, p > min(threshold, alpha * np.exp(-entropy)))

    return LossyRule(CertainTop, prepare)


def relaxed(top_k: int, delta: float) -> LossyRule:
    """The draft, if it is among the target's top k and p ≥ max p − delta; else argmax p."""

    def prepare(p: FloatArray, _: FloatArray, drafts: DraftLaw) -> PreparedVerifier:
        best = np.argsort(-p, kind="stable")[:top_k]
        taken = np.zeros(p.size, bool)
        taken[best] = p[best] >= p[best[0]] - delta
        return _largest(p, drafts, taken)

    return LossyRule(CertainTop, prepare)
