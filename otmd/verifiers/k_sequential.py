"""K-SEQ, the sequential selection of SpecTr."""

from __future__ import annotations

import numpy as np

from otmd.curve import RatioCurve
from otmd.laws import DraftLaw, Structure
from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers.base import Verifier
from otmd.verifiers.prepared import (
    PreparedVerifier,
    accept_prob,
    normalised,
)


class KSequential(Verifier):
    """Accept each draft x in turn with probability min(1, p(x)/(ρ q(x))) (SpecTr, Algorithm 3).

    With β = Σ min(p/ρ, q), the rate α is 1 − (1 − β)^n and the residual is ∝ (p − min(p/ρ, q)·α/β)₊. Every ρ
    from ρ* to n is lossless. K-SEQ uses ρ*, which has the largest rate: at least 1 − (1 − 1/n)^n of α*.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithReplacement([1 / 3, 1 / 3, 1 / 3], num_drafts=2)
    >>> round(otmd.KSequential().acceptance_rate([1 / 3, 0.0, 2 / 3], law), 6)
    0.81142
    """

    def serves(self, structure: Structure) -> bool:
        return structure.single is not None

    def prepare_position(self, target: FloatArray, law: DraftLaw) -> PreparedVerifier:
        return _PreparedKSequential(target, law)

    def curve_rates(self, curve: RatioCurve, num_drafts: int) -> FloatArray:
        return curve.k_sequential_rates([num_drafts])[..., 0]


class _PreparedKSequential(PreparedVerifier):
    def __init__(self, target: FloatArray, law: DraftLaw) -> None:
        super().__init__(target, law)
        single = law.position_structure.single
        assert single is not None
        self.draft = single.probs
        curve = RatioCurve.unchecked(target, self.draft)
        self.scale = float(curve.k_sequential_scales([law.num_drafts])[0][0])

    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        return accept_prob(self.target[draft_tokens], self.scale * self.draft[draft_tokens])

    def residual(self, draft_tokens: IntArray) -> FloatArray:
        accepted_once = np.minimum(self.target / self.scale, self.draft)
        # α/β = Σ_{i<n} (1 − β)^i, which needs no division by a β that may be zero.
        tries = ((1.0 - accepted_once.sum()) ** np.arange(self.law.num_drafts)).sum()
        return normalised(np.maximum(self.target - tries * accepted_once, 0.0), self.target)
