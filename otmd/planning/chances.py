"""The chance that a token was drafted, given that it is emitted."""

import numpy as np

from otmd.drafts import DraftLaw, WithReplacement
from otmd.drafts.proposal import ProposalLaw
from otmd.probabilities import FloatArray
from otmd.verifiers import (
    GreedyCoupling,
    KSequential,
    MaximalCoupling,
    Optimal,
    Preference,
    RecursiveRejection,
    TargetOnly,
    Verifier,
)

# A residual of these is the same whatever was drafted, and gives no token that was drafted by chance.
_ONE_RESIDUAL = (MaximalCoupling, KSequential, GreedyCoupling, Preference, Optimal)
SAMPLES = 4


def drafted_chance(
    verifier: Verifier,
    target: FloatArray,
    law: DraftLaw,
    token: int,
    rng: np.random.Generator | None = None,
    samples: int = SAMPLES,
) -> float:
    """P(the token is among the drafts | the rule emits it), at one position.

    It is 1 − P(the token was not drafted and is emitted)/p(token). For most rules this is exact. For
    recursive rejection without replacement, and rules of your own, drafts are drawn and the answer is an
    unbiased estimate, which may lie below 0.

    Parameters
    ----------
    verifier : Verifier
        A lossless rule that serves the law.
    target : ndarray of float64, shape (V,)
        p, with mass at the token.
    law : DraftLaw
        The law of the drafts, without leading axes.
    token : int
        The emitted token.
    rng : numpy.random.Generator, optional
        Needed where drafts are drawn.
    samples : int
        How many draws of drafts the estimate takes.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        Where drafts must be drawn and there is no ``rng``; UnsupportedLaw for a law not served.
    """
    if target[token] <= 0.0:
        raise ValueError(
            f"token: got {token}, which the target never emits, wanted a token with mass"
        )
    always = law.forced_tokens() if isinstance(law, ProposalLaw) else np.empty(0, np.int64)
    if token in always:
        return 1.0
    if isinstance(verifier, TargetOnly):
        return float(law.inclusion_probs()[token])
    with_replacement = isinstance(verifier, RecursiveRejection) and isinstance(law, WithReplacement)
    known = isinstance(verifier, (*_ONE_RESIDUAL, RecursiveRejection)) and verifier.supports(law)
    if law.num_drafts == 1 and known:
        # One draft: each of these rules is maximal coupling.
        return min(1.0, float(law.inclusion_probs()[token] / target[token]))
    prepared = verifier.prepare(target, law)
    if with_replacement or isinstance(verifier, _ONE_RESIDUAL):
        residual = prepared.residual(np.full(law.num_drafts, token))
        others = float(residual.sum() - residual[always].sum())
        if others <= 0.0:
            return 1.0
        rate = getattr(prepared, "rate", None)
        rate = verifier.acceptance_rate(target, law) if rate is None else rate
        missed = (1.0 - float(rate)) * float(residual[token]) / others
        return min(max(1.0 - missed / float(target[token]), 0.0), 1.0)
    if rng is None:
        raise ValueError(
            f"rng: got none, wanted one: drafts are drawn for {verifier!r} and {law!r}"
        )
    missed = 0.0
    for draft_tokens in law.sample(rng, samples):
        if token not in draft_tokens:
            refused = float(np.prod(1.0 - prepared.accept_probs(draft_tokens)))
            if refused > 0.0:
                missed += refused * float(prepared.residual(draft_tokens)[token])
    return 1.0 - missed / samples / float(target[token])
