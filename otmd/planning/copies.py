"""Drafts with replacement: which draft is the first copy of the emitted token, and how many copies there are.

A static tree goes on below the first copy, independent paths go on below all copies. For a token y, draft i
is one of four: y and accepted (with probability a_i), y and refused (q − a_i), or another token that does not
rule y out, before y is accepted (b_i) or after it (c). Drafts are independent, so the chances are products.
The optimal rule has a clock at each draft and accepts the one whose clock rings first. It treats all drafts
alike, so the chance depends only on how many of them are y.
"""

import numpy as np
from scipy.special import comb

from otmd.choice.choice_plan import ChoicePlan
from otmd.drafts import WithReplacement
from otmd.probabilities import FloatArray
from otmd.verifiers import KSequential, Optimal, Preference, RecursiveRejection, Verifier
from otmd.verifiers.prepared import PreparedVerifier
from otmd.verifiers.taking import Taken

# The rules for which this holds: their residuals give no token that was drafted.
COUNTED = (RecursiveRejection, KSequential, Preference, Optimal)


def copies(verifier: Verifier, target: FloatArray, law: WithReplacement, token: int) -> FloatArray:
    """P(draft i is the first copy of the token, and j more follow | the token is emitted), shape (n, n).

    What the sum lacks to 1 is the chance that the token was not drafted. The verifier is one of ``COUNTED``.
    """
    prepared = verifier.prepare(target, law)
    choice = getattr(prepared, "choice", None)
    if isinstance(choice, ChoicePlan):
        found = _chosen(choice, law, token)
        return found / max(found.sum(), target[token])
    drawn, accepted, before, after = _chances_of_a_draft(prepared, choice, law, token)
    n = law.num_drafts
    found, later, behind = np.zeros((n, n)), np.zeros(n + 1), np.eye(1, n + 1)[0]
    # Coefficients by the number of copies: among the drafts from i on, and among those behind the accepted.
    for i in reversed(range(n)):
        own = accepted[i] * behind + (drawn - accepted[i]) * later
        found[i] = own[:n]
        later = np.roll(own, 1) + before[i] * later
        behind = after * behind + drawn * np.roll(behind, 1)
    found *= np.append(1.0, before[:-1]).cumprod()[:, None]
    # For a p below the rounding of 1, the sum may be anything.
    return found / max(found.sum(), target[token])


def _chosen(plan: ChoicePlan, law: WithReplacement, token: int) -> FloatArray:
    """P(draft i is the first copy of the token, j more follow, and one of them is chosen), (n, n)."""
    more, inside = np.arange(law.num_drafts), plan.subset[token]
    side, drawn = plan.inner if inside else plan.outer, law.draft_probs[token]
    if side is None or drawn == 0.0:
        return np.zeros((more.size, more.size))
    tokens = np.flatnonzero(plan.subset == inside)
    lower, share, offered = side.locate(tokens)
    own, masses, of_token = np.searchsorted(tokens, token), *np.zeros((2, side.weights.size))
    for classes, part in ((lower, share), (np.minimum(lower + 1, masses.size - 1), 1.0 - share)):
        masses += np.bincount(classes, part * law.draft_probs[tokens], masses.size)
        of_token[classes[own]] += part[own]
    times, steps = side.quadrature
    silent = np.exp(-np.outer(times, side.weights))
    tier = side.tiers[lower[own]]
    silent[:, side.tiers < tier] = 1.0
    silent[:, side.tiers > tier] = 0.0
    own_silent, rings = silent @ of_token, silent @ (of_token * side.weights)
    # Beside a token outside H*, the clocks of tokens in H* never ring.
    never = 0.0 if inside else law.draft_probs[plan.subset].sum()
    others = np.maximum(never + silent @ masses - drawn * own_silent, 0.0)
    kept = min(1.0, plan.target[token] / offered[own]) if offered[own] else 0.0
    powers = own_silent ** more[:, None] * others ** more[::-1, None]
    chances = powers @ (kept * rings * steps * np.exp(-times * side.rejection))
    return (more + 1) * drawn ** (more + 1) * chances * comb(more[::-1, None], more)


def _chances_of_a_draft(
    prepared: PreparedVerifier, taken: object, law: WithReplacement, token: int
) -> tuple[float, FloatArray, FloatArray, float]:
    """The q of the token, and its a_i, b_i (n,) and c, as the top of this file defines them."""
    draft, n = law.draft_probs, law.num_drafts
    drawn = float(draft[token])
    if drawn == 0.0:
        return 0.0, np.zeros(n), np.ones(n), 1.0
    if isinstance(taken, Taken):
        # No draft, before or after, may be another token that is preferred and accepted.
        some = np.flatnonzero(draft)
        rank, chance = taken.preferred(some)
        own = np.searchsorted(some, token)
        left = max(1.0 - float(taken.accepted[some][rank < rank[own]].sum()), 0.0)
        other = max(left ** (1.0 / n) - drawn, 0.0)
        return drawn, np.full(n, drawn * chance[own]), np.full(n, other), other
    # Drafts are looked at in order: those after the accepted one may be anything.
    chances = np.broadcast_to(
        prepared.accept_probs(np.arange(draft.size)[:, None]), (draft.size, n)
    )
    accepted = drawn * chances[token]
    before = np.maximum(draft @ (1.0 - chances) - (drawn - accepted), 0.0)
    return drawn, accepted, before, 1.0 - drawn
