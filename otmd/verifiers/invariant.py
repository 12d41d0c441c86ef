"""Couplings without communication: drafter and target share random numbers, and accept where they agree.

Each token y has a clock E_y, exponential with rate 1 and known to both sides. The target emits the token with
the smallest E_y/p_y, and the drafter proposes the tokens with the smallest E_y/q_y. So the output has the law
p and depends on p and the clocks alone: the same seed gives the same text under any draft model.

Let the target emit y at time s, which is exponential with rate 1, and let C = p_y/q_y. The drafter reaches y
at time s C. Each other token z comes before y in the drafter's race with probability
1 − e^{−s (C q_z − p_z)₊}, independently of the others. None does with probability e^{−s A(C)}, where
A(C) = Σ (C q − p)₊. The acceptance rates are integrals over s.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import ArrayLike

from otmd.curve._kernels import ratios_of
from otmd.laws import DraftLaw, Structure
from otmd.laws.base import RngLike, validate_rng
from otmd.probabilities import FloatArray, IntArray, validate_count, validate_probs, wrong
from otmd.verifiers.base import Verifier
from otmd.verifiers.prepared import PreparedVerifier, Verdict, decision_rng, verdict_of


class InvariantCoupling(Verifier):
    """A verifier whose output depends on the target and shared clocks, and not on the draft model.

    :meth:`draft_tokens` and :meth:`output_token` are the two sides. :meth:`verify` serves drafts that come
    without their clocks: it draws clocks anew, given the drafts. The distribution of the output given the
    drafts has no closed form, so the verifier is not enumerated.

    Examples
    --------
    >>> import otmd
    >>> coupling = otmd.GumbelTop()
    >>> clocks = coupling.clocks(vocab_size=3, num_drafts=2, rng=1)
    >>> [coupling.draft_tokens(q, clocks).tolist() for q in ([0.1, 0.1, 0.8], [0.8, 0.1, 0.1])]
    [[1, 2], [0, 1]]
    >>> coupling.output_token([0.3, 0.3, 0.4], clocks)
    1
    """

    def clocks(self, vocab_size: int, num_drafts: int = 1, *, rng: RngLike) -> FloatArray:
        """The random numbers that drafter and target share at one position, shape (n, V).

        They are independent and exponential with rate 1. Sizes below 1 are a ValueError. Equal seeds give
        equal clocks; ``rng`` is that of :func:`numpy.random.default_rng`.
        """
        generator = validate_rng(rng)
        size = validate_count("vocab_size", vocab_size)
        return generator.exponential(size=(validate_count("num_drafts", num_drafts), size))

    def draft_tokens(self, draft_probs: ArrayLike, clocks: FloatArray) -> IntArray:
        """The drafter's side: n drafts (n,) from its distribution (V,) and the clocks (n, V).

        Clocks of another shape, or what is no distribution, are a ValueError.
        """
        q = validate_probs("draft_probs", draft_probs, copy=False)
        _require_clocks(q, clocks)
        return self.position_drafts(q, clocks)

    def output_token(self, target_probs: ArrayLike, clocks: FloatArray) -> int:
        """The target's side: its output token from its distribution (V,) and the clocks (n, V).

        Errors are those of :meth:`draft_tokens`.
        """
        p = validate_probs("target_probs", target_probs, copy=False)
        _require_clocks(p, clocks)
        return int(arrival_times(self.target_clocks(clocks), p).argmin())

    @abstractmethod
    def position_drafts(self, draft: FloatArray, clocks: FloatArray) -> IntArray:
        """The result of :meth:`draft_tokens`, for input that has been checked."""

    def target_clocks(self, clocks: FloatArray) -> FloatArray:
        """The clocks (V,) that the target reads: by default the first set."""
        return clocks[0]

    @abstractmethod
    def clocks_given(
        self, draft: FloatArray, draft_tokens: IntArray, rng: np.random.Generator
    ) -> FloatArray:
        """Draw the clocks (V,) that the target reads, up to a factor, given drafts (n,) from q (V,)."""

    def prepare_position(self, target: FloatArray, law: DraftLaw) -> PreparedVerifier:
        return _PreparedCoupling(self, target, law)


class PoissonCoupling(InvariantCoupling):
    """The Poisson functional representation: the tokens of the first n points are drafted, with replacement.

    Each token y has a Poisson process, whose first point is the token's clock. The drafter divides the points
    of y by q_y and proposes the tokens of the n smallest. α = Σ p_y (1 − (1 − 1/T(p_y/q_y))^n), where
    T(C) = 1 + Σ (C q − p)₊. With one draft this is Gumbel sampling.

    The coupling is that of Li & Anantharam (2021, arXiv:1812.03616). For one draft, Daliri et al. (2024,
    arXiv:2408.07978) prove α ≥ (1 − TV)/(1 + TV).

    Examples
    --------
    >>> import otmd
    >>> coupling = otmd.PoissonCoupling()
    >>> coupling.acceptance_rate([0.5, 0.5], otmd.WithReplacement([0.25, 0.75], num_drafts=1))
    0.75
    >>> clocks = coupling.clocks(vocab_size=2, num_drafts=3, rng=0)
    >>> coupling.draft_tokens([0.25, 0.75], clocks), coupling.output_token([0.5, 0.5], clocks)
    (array([1, 1, 0]), 0)
    """

    def serves(self, structure: Structure) -> bool:
        return structure.single is not None

    def position_drafts(self, draft: FloatArray, clocks: FloatArray) -> IntArray:
        times = arrival_times(clocks.cumsum(axis=0), draft)
        return np.argsort(times, axis=None)[: len(clocks)] % draft.size

    def clocks_given(
        self, draft: FloatArray, draft_tokens: IntArray, rng: np.random.Generator
    ) -> FloatArray:
        times = rng.exponential(size=draft_tokens.size).cumsum()
        clocks = rng.exponential(size=draft.size) + draft * times[-1]
        # In reverse order, so that a token that is drafted more than once keeps its first point.
        clocks[draft_tokens[::-1]] = (draft[draft_tokens] * times)[::-1]
        return clocks

    def position_bounds(self, target: FloatArray, law: DraftLaw, tol: float) -> tuple[float, float]:
        p, _, _, excess = sorted_masses(target, one_distribution(law))
        with np.errstate(divide="ignore"):
            rate = -np.expm1(law.num_drafts * np.log1p(-1.0 / (1.0 + excess))) @ p
        return float(rate), float(rate)


def one_distribution(law: DraftLaw) -> FloatArray:
    """The q (V,) that all drafts of a law at a single position are drawn from."""
    structure = law.position_structure()
    drawn = structure.single or structure.race
    assert drawn is not None
    return drawn.probs


def sorted_masses(
    target: FloatArray, draft: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """p, q, C = p/q and A(C) = Σ (C q − p)₊ of the tokens with q > 0, by C ascending."""
    drawn = np.flatnonzero(draft > 0)
    ratio = ratios_of(target, draft, drawn)
    ascending = np.argsort(ratio)
    tokens, ratio = drawn[ascending], ratio[ascending]
    p, q = target[tokens], draft[tokens]
    # Between a ratio and the next, A is linear with the accumulated q as its slope.
    return p, q, ratio, np.append(0.0, (np.diff(ratio) * q[:-1].cumsum()).cumsum())


def arrival_times(clocks: FloatArray, probs: FloatArray) -> FloatArray:
    """The time of each token: its clock divided by its probability, inf where this is 0."""
    return np.divide(clocks, probs, out=np.full(clocks.shape, np.inf), where=probs > 0)


def _require_clocks(probs: FloatArray, clocks: FloatArray) -> None:
    shape = np.shape(clocks)
    if probs.ndim != 1 or len(shape) != 2 or shape[0] < 1 or shape[1] != probs.size:
        given = f"shape {shape} for probabilities of shape {probs.shape}"
        raise wrong("clocks", given, "(n, V) and (V,)")


class _PreparedCoupling(PreparedVerifier):
    """A coupling at one position: clocks are drawn given the drafts, and the target reads the clocks."""

    def __init__(self, coupling: InvariantCoupling, target: FloatArray, law: DraftLaw) -> None:
        super().__init__(target, law)
        self._coupling = coupling
        self._draft = one_distribution(law)

    def verify(self, draft_tokens: ArrayLike, *, rng: RngLike) -> Verdict:
        ids = self.law.validate_drawable(draft_tokens)
        clocks = self._coupling.clocks_given(self._draft, ids, decision_rng(rng))
        return verdict_of(int(arrival_times(clocks, self.target).argmin()), ids)

    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        raise ValueError(
            f"{self._coupling!r}: its output has no closed form given the drafts; draw it by verify"
        )

    residual = accept_probs
