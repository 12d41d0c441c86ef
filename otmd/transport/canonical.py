"""The canonical decomposition of a plan (Khisti et al. 2025): select one draft, then verify it alone."""

from dataclasses import dataclass

import numpy as np

from otmd.probabilities import FloatArray
from otmd.transport.plan import TransportPlan


@dataclass(frozen=True, eq=False)
class CanonicalDecomposition:
    """A plan in two steps: first select a draft, then speculative sampling with that one.

    Attributes
    ----------
    selection : ndarray of float64, shape (E,)
        P(drafts are this set, this token of it is selected), one entry an arc; it sums to Q over the
        arcs of a set.
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
    """Recover the two steps from a plan.

    Parameters
    ----------
    plan : TransportPlan
        Any plan.

    Returns
    -------
    CanonicalDecomposition
        Its rate is the plan's where the plan is optimal, and never less.

    Notes
    -----
    What a set does not accept is selected evenly among its tokens. The selected law then covers all
    that the plan accepted of each token, Σ min(p, selected) ≥ Σ accepted: the optimum is among
    the two-step rules (Khisti et al. 2025, Theorem 1).
    """
    problem = plan.problem
    rejected = np.maximum(problem.supply - problem.by_set(plan.accepted), 0.0)
    share = rejected / np.diff(problem.starts)
    selection = plan.accepted + share[problem.arc_sets]
    selected = problem.by_token(selection)
    chance = np.ones(problem.vocab_size)
    np.divide(problem.target, selected, out=chance, where=selected > problem.target)
    rate = float(np.minimum(problem.target, selected).sum())
    two_steps = TransportPlan(problem, selection * chance[problem.tokens])
    return CanonicalDecomposition(selection, selected, rate, two_steps)
