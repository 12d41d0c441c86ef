"""A transport plan: how much of each draft set's probability goes to which of its tokens."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from otmd.probabilities import FloatArray
from otmd.transport.problem import TransportProblem


class TransportPlan:
    """The accepted mass π(set, y), y in the set; where no draft is accepted the residual is sampled.

    Mass that exceeds a marginal, as by a solver's tolerance, is scaled down: first within each set, then
    for each token. So the plan is feasible, and lossless.

    Parameters
    ----------
    problem : TransportProblem
        What the plan is for.
    accepted : array_like, shape (E,)
        The mass on each arc of the problem, finite (else ValueError); negative mass counts as none. The
        attribute of this name holds it scaled down, in float64.
    """

    def __init__(self, problem: TransportProblem, accepted: ArrayLike) -> None:
        mass = np.asarray(accepted, dtype=np.float64)
        if mass.shape != (problem.num_arcs,):
            raise ValueError(f"accepted: got shape {mass.shape}, wanted ({problem.num_arcs},)")
        if not np.isfinite(mass).all():
            raise ValueError("accepted: got NaN or infinite mass, wanted finite mass")
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
    def accepted_by_token(self) -> FloatArray:
        """How much of each token's output is accepted drafts, shape (V,); at most p."""
        return self.problem.by_token(self.accepted)

    @cached_property
    def residual(self) -> FloatArray:
        """Law of the output once no draft is accepted, ∝ (p − accepted)₊, shape (V,)."""
        missing = np.maximum(self.problem.target - self.accepted_by_token, 0.0)
        total = missing.sum()
        # If nothing is missing, the residual is reached with probability zero: any law serves.
        return missing / total if total > 0 else self.problem.target

    @property
    def matrix(self) -> csr_array:
        """The accepted mass as a sparse matrix of draft sets by tokens, shape (S, V)."""
        shape = (self.problem.num_sets, self.problem.vocab_size)
        carried = self.accepted > 0
        arcs = self.problem.arc_sets[carried], self.problem.tokens[carried]
        return csr_array((self.accepted[carried], arcs), shape=shape)

    def accept_probs(self, draft_tokens: ArrayLike) -> FloatArray:
        """Probability that the output is each token as an accepted draft, given the drafts (n,); shape (V,).

        1 minus the sum is P(no draft is accepted). Raises ValueError for drafts that the law never draws.
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
    scale = np.ones(mass.size)
    np.divide(limit, mass, out=scale, where=mass > limit)
    return scale


@dataclass(frozen=True, eq=False)
class CanonicalDecomposition:
    """A plan in two steps: select one of the drafts, then accept or reject it as if it were the only one.

    Attributes
    ----------
    selection : ndarray of float64, shape (E,)
        P(the drafts are this set, and this token of it is selected), one entry an arc. The entries of a set
        sum to Q(set).
    selected_probs : ndarray of float64, shape (V,)
        Law of the selected token. It is accepted with probability min(1, p/selected_probs), and the
        residual is ∝ (p − selected_probs)₊.
    rate : float
        Σ min(p, selected_probs).
    plan : TransportPlan
        What the two steps amount to.
    """

    selection: FloatArray
    selected_probs: FloatArray
    rate: float
    plan: TransportPlan


def canonical_decomposition(plan: TransportPlan) -> CanonicalDecomposition:
    """Write any plan as selecting a draft and then accepting or rejecting it.

    The rate equals that of an optimal plan, and is never less than the plan's.

    Parameters
    ----------
    plan : TransportPlan

    Notes
    -----
    The mass that a set does not accept is spread evenly over its tokens, so each token is selected at least
    as often as the plan accepts it: Σ min(p, selected) ≥ Σ accepted. Hence some two-step rule is optimal
    (Khisti et al. 2025, Theorem 1).
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
