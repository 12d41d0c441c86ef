"""The law of each draft given those before it, and what follows for a position's drafts."""

from typing import TypeGuard

import numpy as np

from otmd.audit.samples import acceptance_ceiling
from otmd.drafts import (
    ConditionalPoisson,
    DraftLaw,
    Hub,
    ProposalLaw,
    Stratified,
    TopThen,
    WithoutReplacement,
    WithReplacement,
)
from otmd.drafts.proposal import unchecked
from otmd.probabilities import FloatArray, IntArray

SERVED = (WithReplacement, WithoutReplacement, ConditionalPoisson, TopThen, Hub, Stratified)
"""The laws whose drafts are known one after another, given those before."""


def num_forced(law: DraftLaw) -> int:
    """How many of the first drafts are certain, so that nothing can be tested in them."""
    return law.top if _begins_with_top(law) else 0


def _begins_with_top(law: DraftLaw) -> TypeGuard[TopThen]:
    # A hub's pair comes in either order.
    return isinstance(law, TopThen) and not isinstance(law, Hub)


def next_draft_laws(law: DraftLaw, draft_tokens: IntArray) -> list[FloatArray]:
    """The law (V,) of each of the drafts (n,), given those before it.

    ``law`` is one of :data:`SERVED`, at a single position. A law is zero everywhere if no draft can follow.
    Which of several equally likely tokens a TopThen law takes first is left open, since engines break ties
    in their own ways.
    """
    assert isinstance(law, ProposalLaw)
    forced, laws = num_forced(law), []
    if _begins_with_top(law):
        # By their masses: the i-th certain draft may be any token as likely as the i-th likeliest.
        masses = np.sort(law.draft_probs)[::-1][:forced]
        for j, token in enumerate(draft_tokens[:forced]):
            fits = law.draft_probs[token] == masses[j] and token not in draft_tokens[:j]
            laws.append(np.where(np.arange(law.vocab_size) == token, float(fits), 0.0))
        if forced == law.num_drafts:
            return laws
        left = _without(law.draft_probs, draft_tokens[:forced])
        law = unchecked(law.rest, left, law.num_drafts - forced)
    later = draft_tokens[forced:]
    return [*laws, *(_next_law(law, later[:j]) for j in range(later.size))]


def _next_law(law: ProposalLaw, before: IntArray) -> FloatArray:
    q, nothing = law.draft_probs, np.zeros(law.vocab_size)
    if isinstance(law, WithReplacement):
        return q
    if isinstance(law, Stratified):
        strata = law.position_strata
        return np.where(strata.number == before.size, strata.inclusion, 0.0)
    if isinstance(law, Hub) and before.size and before[0] != law.hub_token:
        nothing[law.hub_token] = 1.0
        return nothing
    left, wanted = _without(q, before), law.num_drafts - before.size
    if not isinstance(law, ConditionalPoisson):
        return left
    # The other drafts are again conditional Poisson, in uniform order.
    if np.count_nonzero(left) < wanted:
        return nothing
    return unchecked(ConditionalPoisson, left, wanted).position_inclusion_probs() / wanted


def _without(probs: FloatArray, tokens: IntArray) -> FloatArray:
    """Probabilities (V,) without these tokens, renormalised if anything is left."""
    if tokens.size == 0:
        return probs
    left = probs.copy()
    left[tokens] = 0.0
    total = left.sum()
    return left / total if total > 0 else left


def ceiling(target: FloatArray, law: DraftLaw, draft_tokens: IntArray) -> float:
    """What no lossless rule's acceptance exceeds at a position, rounded up.

    ``draft_tokens`` (n,) tell which of equally likely tokens are the certain ones.
    """
    forced = draft_tokens[: num_forced(law)]
    if _begins_with_top(law) and (law.forced_tokens() != forced).any():
        # Ties fall to the lowest id: with other ids the law takes the certain drafts of the engine.
        order = np.concatenate([forced, np.delete(np.arange(target.size), forced)])
        other = unchecked(TopThen, law.draft_probs[order], law.num_drafts)
        other.top, other.rest = law.top, law.rest
        return acceptance_ceiling(target[order], other)
    return acceptance_ceiling(target, law)
