"""The Poisson coupling: drafter and target share random numbers, and accept where they agree."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from otmd.curve._kernels import ratios_of
from otmd.laws import DraftLaw, Structure
from otmd.laws.base import RngLike, validate_rng
from otmd.probabilities import FloatArray, IntArray, validate_count, validate_probs, wrong
from otmd.verifiers.base import Verifier
from otmd.verifiers.prepared import PreparedVerifier, Verdict, decision_rng, verdict_of


class PoissonCoupling(Verifier):
    """The Poisson functional representation: the tokens of the first n points are drafted, with replacement.

    Each token y has a Poisson process of rate 1, known to both sides; its first point is the token's clock
    E_y. The target emits the smallest E_y/p_y. So its output has the law p and depends on p and the clocks
    alone: the same seed gives the same text under any draft model. The drafter divides the points of y by q_y
    and proposes the tokens of the n smallest.

    Let the target emit y at time s, which is exponential with rate 1, and let C = p_y/q_y. The drafter
    reaches y at time s C. By then the other tokens have a Poisson number of points, with the mean
    s Σ (C q − p)₊. With T(C) = 1 + Σ (C q − p)₊ this gives α = Σ p_y (1 − (1 − 1/T(p_y/q_y))^n).

    The coupling is that of Li & Anantharam (2021, arXiv:1812.03616). With one draft it is Gumbel sampling,
    and Daliri et al. (2024, arXiv:2408.07978) prove α ≥ (1 − TV)/(1 + TV).

    :meth:`draft_tokens` and :meth:`output_token` are the two sides. :meth:`verify` serves drafts that come
    without their clocks: it draws clocks anew, given the drafts. The distribution of the output given the
    drafts has no closed form, so the verifier is not enumerated.

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

    def clocks(self, vocab_size: int, num_drafts: int = 1, *, rng: RngLike = None) -> FloatArray:
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
        times = _arrival_times(clocks.cumsum(axis=0), q)
        return np.argsort(times, axis=None)[: len(clocks)] % q.size

    def output_token(self, target_probs: ArrayLike, clocks: FloatArray) -> int:
        """The target's side: its output token from its distribution (V,) and the clocks (n, V).

        Errors are those of :meth:`draft_tokens`.
        """
        p = validate_probs("target_probs", target_probs, copy=False)
        _require_clocks(p, clocks)
        return int(_arrival_times(clocks[0], p).argmin())

    def serves(self, structure: Structure) -> bool:
        return structure.single is not None

    def position_bounds(self, target: FloatArray, law: DraftLaw, tol: float) -> tuple[float, float]:
        draft = _drawn_from(law)
        drawn = np.flatnonzero(draft > 0)
        ratio = ratios_of(target, draft, drawn)
        ascending = np.argsort(ratio)
        p, q = target[drawn[ascending]], draft[drawn[ascending]]
        # Between a ratio and the next, Σ (C q − p)₊ is linear in C, with the accumulated q as its slope.
        excess = np.append(0.0, (np.diff(ratio[ascending]) * q[:-1].cumsum()).cumsum())
        with np.errstate(divide="ignore"):
            rate = -np.expm1(law.num_drafts * np.log1p(-1.0 / (1.0 + excess))) @ p
        rate = min(float(rate), 1.0)
        return rate, rate

    def prepare_position(self, target: FloatArray, law: DraftLaw) -> PreparedVerifier:
        return _PreparedCoupling(target, law)


def _drawn_from(law: DraftLaw) -> FloatArray:
    """The q (V,) that all drafts of a law at a single position are drawn from."""
    drawn = law.position_structure.single
    assert drawn is not None
    return drawn.probs


def _arrival_times(clocks: FloatArray, probs: FloatArray) -> FloatArray:
    """The time of each token: its clock divided by its probability, inf where this is 0."""
    return np.divide(clocks, probs, out=np.full(clocks.shape, np.inf), where=probs > 0)


def _require_clocks(probs: FloatArray, clocks: FloatArray) -> None:
    shape = np.shape(clocks)
    if probs.ndim != 1 or len(shape) != 2 or shape[0] < 1 or shape[1] != probs.size:
        given = f"shape {shape} for probabilities of shape {probs.shape}"
        raise wrong("clocks", given, "(n, V) and (V,)")


class _PreparedCoupling(PreparedVerifier):
    """The coupling at one position: clocks are drawn given the drafts, and the target reads them."""

    def verify(self, draft_tokens: ArrayLike, *, rng: RngLike = None) -> Verdict:
        ids = self.law.validate_drawable(draft_tokens)
        generator = decision_rng(rng)
        draft = _drawn_from(self.law)
        times = generator.exponential(size=ids.size).cumsum()
        clocks = generator.exponential(size=draft.size) + draft * times[-1]
        # In reverse order, so that a token that is drafted more than once keeps its first point.
        clocks[ids[::-1]] = (draft[ids] * times)[::-1]
        return verdict_of(int(_arrival_times(clocks, self.target).argmin()), ids)

    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        raise ValueError("PoissonCoupling: its output has no closed form given the drafts; draw it by verify")

    residual = accept_probs
