"""Recursive rejection sampling, with replacement, without, and for drafts of different laws."""

from __future__ import annotations

import numpy as np

from otmd.curve import RatioCurve
from otmd.laws import DraftLaw, Race, Slots, Structure
from otmd.laws.race.quadrature import RATE_UNIT
from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers.base import Verifier
from otmd.verifiers.prepared import PreparedVerifier, accept_prob, normalised
from otmd.verifiers.rejection_bounds import rejection_bounds


class RecursiveRejection(Verifier):
    """Try each draft in turn against what the rejections before it left of the target.

    Draft x_i is accepted with probability min(1, p_i(x_i)/q_i(x_i)), and p_{i+1} ∝ (p_i − q_i)₊. With
    replacement q_i = q (SpecInfer, Miao et al. 2024); without, q_i is q off the rejected tokens, renormalised
    (Sequoia, Chen et al. 2024); for drafts from different distributions q_i is that of draft i.

    The rate is a closed form except without replacement for n ≥ 3, where ``acceptance_bounds`` gives
    guaranteed bounds.

    Examples
    --------
    >>> import otmd
    >>> target_probs, draft_probs = [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]
    >>> verifier = otmd.RecursiveRejection()
    >>> verifier.acceptance_rate(target_probs, otmd.WithReplacement(draft_probs, num_drafts=2))
    0.8125
    >>> verifier.acceptance_rate(target_probs, otmd.WithoutReplacement(draft_probs, num_drafts=2))
    0.875
    """

    def serves(self, structure: Structure) -> bool:
        return structure.slots is not None or structure.race is not None

    def prepare_position(self, target: FloatArray, law: DraftLaw) -> PreparedVerifier:
        structure = law.position_structure
        if structure.race is not None:
            return _PreparedRace(target, law, structure.race)
        slots = structure.slots
        assert slots is not None
        return (_PreparedSingle if slots.is_single else _PreparedSlots)(target, law, slots)

    def curve_rates(self, curve: RatioCurve, num_drafts: int) -> FloatArray:
        return curve.recursive_rejection_rates([num_drafts])[..., 0]

    def position_bounds(self, target: FloatArray, law: DraftLaw, tol: float) -> tuple[float, float]:
        race, slots = law.position_structure.race, law.position_structure.slots
        if race is not None:
            low, high = rejection_bounds(target, race, tol)
            return 1.0 - high, 1.0 - low
        if slots is None or slots.is_single:
            return super().position_bounds(target, law, tol)
        rate = _PreparedSlots(target, law, slots).rate
        return rate, rate


class _PreparedSingle(PreparedVerifier):
    """All drafts are drawn from one distribution."""

    def __init__(self, target: FloatArray, law: DraftLaw, slots: Slots) -> None:
        super().__init__(target, law)
        self.draft = slots.probs
        # C_1 … C_{n+1} and W at each: see RatioCurve.recursive_rejection_chain.
        curve = RatioCurve.unchecked(target, self.draft)
        self.scales, self.left = curve.recursive_rejection_chain(law.num_drafts)

    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        p, q = self.target[draft_tokens], self.draft[draft_tokens]
        return accept_prob(np.maximum(p - self.scales[:-1] * q, 0.0), self.left[:-1] * q)

    def residual(self, draft_tokens: IntArray) -> FloatArray:
        return normalised(np.maximum(self.target - self.scales[-1] * self.draft, 0.0), self.target)


class _PreparedRace(PreparedVerifier):
    """The drafts are drawn without replacement."""

    def __init__(self, target: FloatArray, law: DraftLaw, race: Race) -> None:
        super().__init__(target, law)
        self.race = race
        self.draft = RATE_UNIT * race.probs

    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        return self._walk(draft_tokens)[0]

    def residual(self, draft_tokens: IntArray) -> FloatArray:
        return normalised(self._unserved(self._walk(draft_tokens)[1]), self.target)

    def _walk(self, draft_tokens: IntArray) -> tuple[FloatArray, float]:
        """Acceptance probabilities along the path on which every draft is rejected, and its last C."""
        probs = np.empty(draft_tokens.size)
        scale = 0.0
        for i, token in enumerate(draft_tokens):
            unserved = self._unserved(scale)
            left = RATE_UNIT * float(self.race.mass_left(draft_tokens[None, :i])[0])
            step = unserved.sum() / left
            probs[i] = accept_prob(unserved[token], step * self.draft[token])
            scale += step
        return probs, scale

    def _unserved(self, scale: float) -> FloatArray:
        """(p − C q)₊, by definition: a curve's C is not finite where subnormal masses are left."""
        with np.errstate(over="ignore"):
            return np.maximum(self.target - scale * self.draft, 0.0)


class _PreparedSlots(PreparedVerifier):
    """The drafts are drawn from different distributions, in the order of the slots."""

    def __init__(self, target: FloatArray, law: DraftLaw, slots: Slots) -> None:
        super().__init__(target, law)
        self.draft = np.repeat(slots.dense, slots.copies, axis=0)
        self.targets = [target]
        rejected = 1.0
        for q in self.draft:
            left = np.maximum(self.targets[-1] - q, 0.0)
            rejected *= float(left.sum())
            self.targets.append(normalised(left, target))
        self.rate = 1.0 - rejected

    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        p = np.array([left[token] for left, token in zip(self.targets, draft_tokens, strict=False)])
        return accept_prob(p, self.draft[np.arange(p.size), draft_tokens])

    def residual(self, draft_tokens: IntArray) -> FloatArray:
        return self.targets[-1]
