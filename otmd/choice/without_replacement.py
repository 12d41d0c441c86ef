"""The optimal plan for drafts drawn one after another without replacement."""

import numpy as np

from otmd.choice.pair_plan import plan_of_pairs
from otmd.choice.plan import ChoicePlan
from otmd.choice.race_side import RacePosition, SideTokens, solve_side
from otmd.drafts import WithoutReplacement
from otmd.probabilities import FloatArray
from otmd.race.cut import race_cut
from otmd.race.quadrature import latest_win

_SLOWEST = 1e-280


def plan_without_replacement(target: FloatArray, law: WithoutReplacement, tol: float) -> ChoicePlan:
    """Find the optimal plan for drafts without replacement.

    Parameters
    ----------
    target : ndarray of float64, shape (V,)
        p; it may sum to less than 1, the rest being no draft's.
    law : WithoutReplacement
        The law of n ≥ 2 drafts, without leading axes.
    tol : float
        How much acceptance may be lost; never correctness.

    Returns
    -------
    ChoicePlan

    Raises
    ------
    ValueError
        If fewer than n tokens have a draft probability of at least 1e-280: the race would outlast the
        range of floating point.
    """
    draft = law.draft_probs
    if np.count_nonzero(draft >= _SLOWEST) < law.num_drafts:
        needed = float(np.partition(draft, -law.num_drafts)[-law.num_drafts])
        raise ValueError(
            f"draft_probs: got {needed!r} as the largest probability but {law.num_drafts - 1}, wanted "
            f"{_SLOWEST} or more: Optimal's integrals over the race need it"
        )
    if law.num_drafts == 2:
        return plan_of_pairs(target, law, tol)
    cut = race_cut(target, law.draft_probs, law.num_drafts)
    latest = latest_win(draft, law.num_drafts)
    position = RacePosition(target, draft * latest, law.num_drafts, latest, cut)
    sides = []
    for inner in (True, False):
        tokens = SideTokens.of(position, inner)
        # Both sides share the tolerance, and in each one the classes and the weights do.
        sides.append(None if tokens.empty else solve_side(position, tokens, 0.25 * tol))
    return ChoicePlan(target, cut.subset, cut.rate, *sides)
