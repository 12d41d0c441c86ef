"""A transport plan: how much of each draft set's probability goes to which of its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from otmd.probabilities import FloatArray, wrong
from otmd.transport.problem import TransportProblem


class TransportPlan:
    """The accepted mass π(x, y) for each draft set x and each token y in it.

    If no draft is accepted, the output is drawn from the residual.

    A solver's tolerance may let the mass exceed a marginal. It is then scaled down, first within each set and
    then for each token, so that the plan is feasible and lossless.

    Parameters
    ----------
    problem : TransportProblem
        The problem that the plan solves.
    accepted : array_like, shape (E,)
        The mass on each arc of the problem, finite, else ValueError; negative mass counts as none. The
        attribute of this name holds the mass scaled down, in float64.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithReplacement([0.25, 0.25, 0.5], num_drafts=2)
    >>> plan = otmd.solve_transport([0.5, 0.25, 0.25], law).plan
    >>> plan.accept_probs([0, 2]).round(4)
    array([1., 0., 0.])
    >>> plan.residual.round(4)
    array([1., 0., 0.])
    """

    def __init__(self, problem: TransportProblem, accepted: ArrayLike) -> None:
        mass = np.asarray(accepted, dtype=np.float64)
        if mass.shape != (problem.num_arcs,):
            raise wrong("accepted", f"shape {mass.shape}", f"({problem.num_arcs},)")
        if not np.isfinite(mass).all():
            raise wrong("accepted", "NaN or infinite mass", "finite mass")
        mass = np.maximum(mass, 0.0)
        mass = mass * _scale(problem.by_set(mass), problem.supply)[problem.arc_sets]
        mass = mass * _scale(problem.by_token(mass), problem.target)[problem.tokens]
        self.problem = problem
        self.accepted = mass

    def __repr__(self) -> str:
        carried = np.count_nonzero(self.accepted)
        return f"TransportPlan({self.problem.law!r}, {carried} arcs, rate={self.rate:.6g})"

    @property
    def rate(self) -> float:
        """The acceptance rate: the accepted mass."""
        return float(self.accepted.sum())

    @cached_property
    def residual(self) -> FloatArray:
        """Law of the output given that no draft is accepted, ∝ (p − accepted)₊, shape (V,)."""
        missing = np.maximum(self.problem.target - self.problem.by_token(self.accepted), 0.0)
        total = missing.sum()
        # With nothing missing a draft is always accepted, and no output is drawn from this law.
        return missing / total if total > 0 else self.problem.target

    @property
    def matrix(self) -> csr_array:
        """The accepted mass as a sparse matrix of draft sets by tokens, shape (S, V)."""
        shape = (self.problem.num_sets, self.problem.vocab_size)
        carried = self.accepted > 0
        arcs = self.problem.arc_sets[carried], self.problem.tokens[carried]
        return csr_array((self.accepted[carried], arcs), shape=shape)

    def accept_probs(self, draft_tokens: ArrayLike) -> FloatArray:
        """Probability of each token to be the output as an accepted draft, given the drafts (n,); shape (V,).

        1 minus their sum is P(no draft is accepted). Drafts that the law never draws are a ValueError.
        """
        row = self.problem.row_of(self.problem.law.validate_drawable(draft_tokens))
        arcs = slice(self.problem.starts[row], self.problem.starts[row + 1])
        probs = np.zeros(self.problem.vocab_size)
        probs[self.problem.tokens[arcs]] = self.accepted[arcs] / self.problem.supply[row]
        return probs

    def conditional_law(self, draft_tokens: ArrayLike) -> FloatArray:
        """Law of the output token given the drafts, shape (V,): :meth:`accept_probs` and the residual."""
        accepted = self.accept_probs(draft_tokens)
        return accepted + max(0.0, 1.0 - accepted.sum()) * self.residual


def _scale(mass: FloatArray, limit: FloatArray) -> FloatArray:
    """The factors that bring each mass down to its limit; 1 for a mass within it."""
    scale = np.ones(mass.size)
    np.divide(limit, mass, out=scale, where=mass > limit)
    return scale


@dataclass(frozen=True, eq=False)
class CanonicalDecomposition:
    """A plan in two steps: select one of the drafts, then accept or reject it as if it were the only one.

    Attributes
    ----------
    selection : ndarray of float64, shape (E,)
        For each arc, P(the drafts are its set, and its token is selected). The entries of a set x sum to
        Q(x).
    selected_probs : ndarray of float64, shape (V,)
        Law of the selected token. The token is accepted with probability min(1, p/selected_probs), and the
        residual is ∝ (p − selected_probs)₊.
    rate : float
        Σ min(p, selected_probs).
    plan : TransportPlan
        The plan that the two steps carry out.
    """

    selection: FloatArray
    selected_probs: FloatArray
    rate: float
    plan: TransportPlan


def canonical_decomposition(plan: TransportPlan) -> CanonicalDecomposition:
    """Turn a plan into two steps: select a draft, then accept or reject it.

    The rate of the two steps is at least the plan's, and equal where the plan is optimal.

    Parameters
    ----------
    plan : TransportPlan
        Any plan, optimal or not.

    Returns
    -------
    CanonicalDecomposition
        The probabilities of both steps, and their rate.

    Notes
    -----
    The mass that a set does not accept is spread evenly over its tokens. So each token is selected at least
    as often as the plan accepts it, and Σ min(p, selected) ≥ Σ accepted. Hence some two-step rule is optimal
    (Khisti et al. 2025, Theorem 1).

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithReplacement([0.25, 0.25, 0.5], num_drafts=2)
    >>> plan = otmd.solve_transport([0.5, 0.25, 0.25], law).plan
    >>> round(plan.rate, 6), round(otmd.canonical_decomposition(plan).rate, 6)
    (0.9375, 0.9375)
    """
    problem = plan.problem
    rejected = np.maximum(problem.supply - problem.by_set(plan.accepted), 0.0)
    share = rejected / np.diff(problem.starts)
    selection = plan.accepted + share[problem.arc_sets]
    selected = problem.by_token(selection)
    rate = float(np.minimum(problem.target, selected).sum())
    accepted = selection * _scale(selected, problem.target)[problem.tokens]
    two_steps = TransportPlan(problem, accepted)
    return CanonicalDecomposition(selection, selected, rate, two_steps)
