"""SpecHub's verifier for pairs that hold the most likely token (Sun et al. 2024)."""

from __future__ import annotations

import numpy as np

from otmd.laws import DraftLaw, HubPairs, Structure
from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers.base import Verifier
from otmd.verifiers.preference import Preference
from otmd.verifiers.prepared import PreparedVerifier, accept_prob, normalised


class SpecHub(Verifier):
    """Accept the other token x of a pair first, and the hub token a from what is left.

    The pairs (x, a) are turned into x up to p(x), then the pairs (a, x) into x up to what is missing of p(x),
    then all that is left into a up to p(a). α = p(a) + Σ_{x≠a} min(p(x), q(x)/(1 − q(a))) = α* of the law.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.Hub([1 / 3, 1 / 3, 1 / 3])
    >>> round(otmd.SpecHub().acceptance_rate([1 / 3, 0.0, 2 / 3], law), 6)  # 5/6
    0.833333
    """

    def serves(self, structure: Structure) -> bool:
        return isinstance(structure, HubPairs)

    def prepare_position(self, target: FloatArray, law: DraftLaw) -> PreparedVerifier:
        return _PreparedSpecHub(target, law)

    def position_bounds(self, target: FloatArray, law: DraftLaw, tol: float) -> tuple[float, float]:
        # The preference rule accepts as often.
        return Preference().position_bounds(target, law, tol)


class _PreparedSpecHub(PreparedVerifier):
    def __init__(self, target: FloatArray, law: DraftLaw) -> None:
        super().__init__(target, law)
        pairs = law.position_structure
        assert isinstance(pairs, HubPairs)
        self.hub = hub = int(pairs.deterministic[0])
        drafted = pairs.inclusion_probs()
        drafted[hub] = 0.0
        self.other_first = pairs.other_prob * drafted
        self.hub_first = pairs.hub_prob * drafted
        self.served_first = np.minimum(target, self.other_first)
        self.served_second = np.minimum(target - self.served_first, self.hub_first)
        self.served_second[hub] = 0.0
        left = (self.other_first - self.served_first) + (self.hub_first - self.served_second)
        self.hub_accept = float(accept_prob(target[hub], left.sum()))

    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        first, second = draft_tokens
        if first != self.hub:
            accept = float(accept_prob(self.served_first[first], self.other_first[first]))
            return np.array([accept, self.hub_accept])
        # The other token is looked at first, and is second in the pair.
        accept = float(accept_prob(self.served_second[second], self.hub_first[second]))
        accept_hub = (1.0 - accept) * self.hub_accept
        left = 1.0 - accept_hub
        return np.array([accept_hub, min(1.0, accept / left) if left > 0 else 0.0])

    def residual(self, draft_tokens: IntArray) -> FloatArray:
        missing = self.target - self.served_first - self.served_second
        missing[self.hub] = 0.0
        return normalised(np.maximum(missing, 0.0), self.target)
