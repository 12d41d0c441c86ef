"""Couplings without communication: drafter and target share random numbers, and accept where they agree.

Each token y has a clock E_y, exponential with rate 1 and known to both sides. The target emits the token of
the smallest E_y/p_y, the drafter proposes tokens of the smallest E_y/q_y. So the output has the law p and
depends on p and the clocks alone: the same seed gives the same text under any draft model.

Let the target emit y at time s, which is exponential with rate 1, and let C = p_y/q_y. The drafter reaches y
at time s C. Any other token z comes before it with probability 1 − e^{−s (C q_z − p_z)₊}, independently, and
none does with probability e^{−s A(C)}, A(C) = Σ (C q − p)₊. The rates are integrals over s.
"""

from abc import abstractmethod

import numpy as np
from numpy.typing import ArrayLike

from otmd.curve._kernels import ratios_of
from otmd.drafts import DraftLaw, WithReplacement
from otmd.drafts.base import validate_rng
from otmd.drafts.proposal import ProposalLaw
from otmd.probabilities import FloatArray, IntArray, validate_count, validate_probs
from otmd.verifiers.base import Verifier
from otmd.verifiers.prepared import PreparedVerifier, Verdict


class InvariantCoupling(Verifier):
    """A verifier whose output depends on the target and shared clocks, and not on the draft model.

    :meth:`draft_tokens` and :meth:`output_token` are the two sides. As a :class:`Verifier` it serves drafts
    that come without their clocks: :meth:`verify` draws clocks anew, given the drafts. Its output has no
    closed form given the drafts, so it is not enumerated.
    """

    def clocks(self, rng: np.random.Generator, vocab_size: int, num_drafts: int = 1) -> FloatArray:
        """The random numbers that drafter and target share at one position, shape (n, V).

        They are independent, exponential with rate 1. Equal seeds of the generator give equal clocks.
        """
        validate_rng(rng)
        size = validate_count("vocab_size", vocab_size)
        return rng.exponential(size=(validate_count("num_drafts", num_drafts), size))

    def draft_tokens(self, draft_probs: ArrayLike, clocks: FloatArray) -> IntArray:
        """The drafter's side: n drafts (n,) from its distribution (V,) and the clocks (n, V)."""
        q = validate_probs("draft_probs", draft_probs, copy=False)
        _require_clocks(q, clocks)
        return self.position_drafts(q, clocks)

    def output_token(self, target_probs: ArrayLike, clocks: FloatArray) -> int:
        """The target's side: its output token from its distribution (V,) and the clocks (n, V)."""
        p = validate_probs("target_probs", target_probs, copy=False)
        _require_clocks(p, clocks)
        return int(arrival_times(self.target_clocks(clocks), p).argmin())

    @abstractmethod
    def position_drafts(self, draft: FloatArray, clocks: FloatArray) -> IntArray:
        """What :meth:`draft_tokens` returns, for input that was checked."""

    def target_clocks(self, clocks: FloatArray) -> FloatArray:
        """The clocks (V,) that the target reads: the first of each token."""
        return clocks[0]

    @abstractmethod
    def clocks_given(
        self, law: ProposalLaw, draft_tokens: IntArray, rng: np.random.Generator
    ) -> FloatArray:
        """Clocks as the target reads them, up to a common factor, drawn given the drafts, shape (V,)."""

    def prepare_position(self, target: FloatArray, law: DraftLaw) -> PreparedVerifier:
        assert isinstance(law, ProposalLaw)
        return _InvariantRule(self, target, law)


class PoissonCoupling(InvariantCoupling):
    """The Poisson functional representation: the drafts are the first n points, with replacement.

    Token y has a Poisson process, whose first point is its clock; the drafter proposes the tokens of
    its first n points. α = Σ p_y (1 − (1 − 1/T(p_y/q_y))^n), T = 1 + A. One draft: Gumbel sampling.

    The matching is that of Li & Anantharam (2021, arXiv:1812.03616); for one draft Daliri et al. (2024,
    arXiv:2408.07978) prove α ≥ (1 − TV)/(1 + TV).
    """

    serves = (WithReplacement,)

    def position_drafts(self, draft: FloatArray, clocks: FloatArray) -> IntArray:
        times = arrival_times(clocks.cumsum(axis=0), draft)
        return np.argsort(times, axis=None)[: len(clocks)] % draft.size

    def clocks_given(
        self, law: ProposalLaw, draft_tokens: IntArray, rng: np.random.Generator
    ) -> FloatArray:
        times = rng.exponential(size=law.num_drafts).cumsum()
        clocks = rng.exponential(size=law.vocab_size) + law.draft_probs * times[-1]
        # Of a token that was drafted more than once, the first point is written last.
        clocks[draft_tokens[::-1]] = (law.draft_probs[draft_tokens] * times)[::-1]
        return clocks

    def position_bounds(self, target: FloatArray, law: DraftLaw, tol: float) -> tuple[float, float]:
        assert isinstance(law, WithReplacement)
        p, _, _, excess = sorted_masses(target, law.draft_probs)
        with np.errstate(divide="ignore"):
            rate = -np.expm1(law.num_drafts * np.log1p(-1.0 / (1.0 + excess))) @ p
        return float(rate), float(rate)


def sorted_masses(
    target: FloatArray, draft: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """p, q, C = p/q and A(C) = Σ (C q − p)₊ of the tokens that are ever drafted, by C ascending."""
    drawn = np.flatnonzero(draft > 0)
    ratio = ratios_of(target, draft, drawn)
    ascending = np.argsort(ratio)
    tokens, ratio = drawn[ascending], ratio[ascending]
    p, q = target[tokens], draft[tokens]
    # From one ratio to the next, A has the q so far as its slope.
    return p, q, ratio, np.append(0.0, (np.diff(ratio) * q[:-1].cumsum()).cumsum())


def arrival_times(clocks: FloatArray, probs: FloatArray) -> FloatArray:
    """When the clocks run out that tick at these rates; inf where the rate is 0."""
    return np.divide(clocks, probs, out=np.full(clocks.shape, np.inf), where=probs > 0)


def _require_clocks(probs: FloatArray, clocks: FloatArray) -> None:
    shape = np.shape(clocks)
    if probs.ndim != 1 or len(shape) != 2 or shape[0] < 1 or shape[1] != probs.size:
        raise ValueError(
            f"clocks: got shape {shape} for probabilities of shape {probs.shape}, wanted (n, V) and (V,)"
        )


class _InvariantRule(PreparedVerifier):
    """A coupling prepared for one position: clocks are drawn given the drafts, and the target reads them."""

    law: ProposalLaw

    def __init__(self, coupling: InvariantCoupling, target: FloatArray, law: ProposalLaw) -> None:
        super().__init__(target, law)
        self._coupling = coupling

    def verify(self, draft_tokens: ArrayLike, rng: np.random.Generator) -> Verdict:
        ids = self.law.validate_drawable(draft_tokens)
        validate_rng(rng)
        clocks = self._coupling.clocks_given(self.law, ids, rng)
        token = int(arrival_times(clocks, self.target).argmin())
        drafted = np.flatnonzero(ids == token)
        return Verdict(token, int(drafted[0]) if drafted.size else -1)

    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        raise ValueError(
            f"{self._coupling!r}: its output has no closed form given the drafts; draw it by verify"
        )

    residual = accept_probs
