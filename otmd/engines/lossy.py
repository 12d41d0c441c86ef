"""Rules of inference engines that change the output's distribution, with that distribution exactly.

At one position every rule here accepts one of the drafts or none, and falls back on a law of its own. Its
drafts are certain, or a single one is sampled; so its output law is a closed form at any vocabulary.
"""

from abc import ABC, abstractmethod

import numpy as np

from otmd.drafts import DraftLaw, TopThen, WithReplacement
from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers import PreparedVerifier
from otmd.verifiers.prepared import accept_prob, normalised


class LossyRule(ABC):
    """A rule with its own way of drafting; its output is not distributed as the target says."""

    @abstractmethod
    def law(self, draft_probs: FloatArray, num_drafts: int) -> DraftLaw:
        """The law that tokens are drafted from: certain tokens, or one sampled token."""

    @abstractmethod
    def prepare(
        self, target: FloatArray, draft_probs: FloatArray, num_drafts: int
    ) -> PreparedVerifier:
        """The rule at one position; p and q (V,) are valid."""

    def output_law(
        self, target: FloatArray, draft_probs: FloatArray, num_drafts: int
    ) -> tuple[FloatArray, float]:
        """Exact law of the output token (V,), and how often it is one of the drafts."""
        law = self.law(draft_probs, num_drafts)
        rule = self.prepare(target, draft_probs, num_drafts)
        if isinstance(law, TopThen):
            tokens = law.forced_tokens()
            output = rule.conditional_law(tokens)
            return output, float(output[tokens].sum())
        # One sampled draft: the rule treats each token by itself, and the residual is one for all.
        drawn = law.inclusion_probs()
        every = np.arange(target.size)
        accepted = drawn * rule.accept_probs(every)
        rejected = float(drawn.sum() - accepted.sum())
        residual = rule.residual(every)
        # The residual may give the very token that was rejected.
        by_chance = float(residual @ (drawn - accepted))
        return accepted + rejected * residual, float(accepted.sum()) + by_chance


class _Certain(LossyRule):
    """The n likeliest tokens of the draft are certain."""

    def law(self, draft_probs: FloatArray, num_drafts: int) -> DraftLaw:
        """See :class:`LossyRule`."""
        return TopThen(draft_probs, num_drafts, top=num_drafts)


class RatioTest(LossyRule):
    """Accept a single draft with probability min(1, p/q), where it was not drawn from q.

    Parameters
    ----------
    top_k : int, optional
        The draft is drawn from the k likeliest tokens of q, renormalised; None takes the likeliest token.
        The residual is (p − q)₊ in both cases.
    """

    def __init__(self, top_k: int | None) -> None:
        self.top_k = top_k

    def law(self, draft_probs: FloatArray, num_drafts: int) -> DraftLaw:
        """See :class:`LossyRule`."""
        if self.top_k is None:
            return TopThen(draft_probs, 1, top=1)
        kept = np.zeros(draft_probs.size)
        chosen = np.argsort(-draft_probs, kind="stable")[: self.top_k]
        kept[chosen] = draft_probs[chosen]
        return WithReplacement(kept / kept.sum(), 1)

    def prepare(
        self, target: FloatArray, draft_probs: FloatArray, num_drafts: int
    ) -> PreparedVerifier:
        """See :class:`LossyRule`."""
        return _Claimed(target, self.law(draft_probs, 1), draft_probs, target)


class Ensemble(LossyRule):
    """Verify one sampled draft against w p + (1 − w) q in place of p.

    Parameters
    ----------
    weight : float
        w in (0, 1]; 1 is lossless.
    """

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def law(self, draft_probs: FloatArray, num_drafts: int) -> DraftLaw:
        """See :class:`LossyRule`."""
        return WithReplacement(draft_probs, 1)

    def prepare(
        self, target: FloatArray, draft_probs: FloatArray, num_drafts: int
    ) -> PreparedVerifier:
        """See :class:`LossyRule`."""
        mixed = self.weight * target + (1.0 - self.weight) * draft_probs
        return _Claimed(target, self.law(draft_probs, 1), draft_probs, mixed)


class _Claimed(PreparedVerifier):
    """Accept with min(1, wanted/claimed), else draw from (wanted − claimed)₊."""

    def __init__(
        self, target: FloatArray, law: DraftLaw, claimed: FloatArray, wanted: FloatArray
    ) -> None:
        super().__init__(target, law)
        self.claimed, self.wanted = claimed, wanted

    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        return accept_prob(self.wanted[draft_tokens], self.claimed[draft_tokens])

    def residual(self, draft_tokens: IntArray) -> FloatArray:
        return normalised(np.maximum(self.wanted - self.claimed, 0.0), self.wanted)


class Thresholds(_Certain):
    """Target-only sampling that accepts more readily.

    One coin u serves the drafts of a node. A draft is accepted where u ≤ (the target's mass of the drafts so
    far)/accumulated, or where its own mass is at least ``single``; else the output is drawn from the target
    without the drafts. At (1, 1) this is lossless.

    Parameters
    ----------
    single, accumulated : float
        In (0, 1].
    """

    def __init__(self, single: float, accumulated: float) -> None:
        self.single, self.accumulated = single, accumulated

    def prepare(
        self, target: FloatArray, draft_probs: FloatArray, num_drafts: int
    ) -> PreparedVerifier:
        """See :class:`LossyRule`."""
        return _ThresholdsPrepared(target, self.law(draft_probs, num_drafts), self)


class _ThresholdsPrepared(PreparedVerifier):
    def __init__(self, target: FloatArray, law: DraftLaw, rule: Thresholds) -> None:
        super().__init__(target, law)
        self.rule = rule

    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        mass = self.target[draft_tokens]
        below = np.minimum(1.0, mass.cumsum() / self.rule.accumulated)
        before = np.concatenate([[0.0], below[:-1]])
        # What is left of the coin's range, given that no draft before was accepted.
        chances = np.divide(below - before, 1.0 - before, out=np.ones(mass.size), where=before < 1)
        return np.where(mass >= self.rule.single, 1.0, chances)

    def residual(self, draft_tokens: IntArray) -> FloatArray:
        rest = self.target.copy()
        rest[draft_tokens] = 0.0
        return normalised(rest, self.target)


class Typical(_Certain):
    """Typical acceptance: the likeliest draft with p > min(threshold, alpha·exp(−entropy)), else argmax p.

    Parameters
    ----------
    threshold, alpha : float
        Of the bound.
    """

    def __init__(self, threshold: float, alpha: float) -> None:
        self.threshold, self.alpha = threshold, alpha

    def prepare(
        self, target: FloatArray, draft_probs: FloatArray, num_drafts: int
    ) -> PreparedVerifier:
        """See :class:`LossyRule`."""
        # The engine adds 1e-5 inside the logarithm.
        entropy = -float((target * np.log(target + 1e-5)).sum())
        least = min(self.threshold, self.alpha * np.exp(-entropy))
        return _Largest(target, self.law(draft_probs, num_drafts), target > least)


class RelaxedTopK(_Certain):
    """Accept the draft if it is among the target's top k and p ≥ max p − delta, else emit argmax p.

    Parameters
    ----------
    top_k : int
        k.
    delta : float
        A difference of probabilities.
    """

    def __init__(self, top_k: int, delta: float) -> None:
        self.top_k, self.delta = top_k, delta

    def prepare(
        self, target: FloatArray, draft_probs: FloatArray, num_drafts: int
    ) -> PreparedVerifier:
        """See :class:`LossyRule`."""
        taken = np.zeros(target.size, bool)
        best = np.argsort(-target, kind="stable")[: self.top_k]
        taken[best] = target[best] >= target[best[0]] - self.delta
        taken[best[0]] = True
        return _Largest(target, self.law(draft_probs, num_drafts), taken)


class _Largest(PreparedVerifier):
    """Accept the draft of the largest p among those that may be taken; else emit argmax p."""

    def __init__(self, target: FloatArray, law: DraftLaw, taken: np.ndarray) -> None:
        super().__init__(target, law)
        self.taken = taken

    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        mass = np.where(self.taken[draft_tokens], self.target[draft_tokens], -1.0)
        chances = np.zeros(draft_tokens.size)
        if mass.max() >= 0.0:
            chances[mass.argmax()] = 1.0
        return chances

    def residual(self, draft_tokens: IntArray) -> FloatArray:
        only = np.zeros(self.target.size)
        only[self.target.argmax()] = 1.0
        return only
