"""What happens at a token of a text, given that it is the one that is emitted there.

The verifiers are the package's own, asked at each token. Only the other drafts there are ever sampled.
"""

from math import comb

import numpy as np

import otmd
from otmd.drafts.base import draw_tokens
from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers.prepared import PreparedVerifier


def drafted_chance(
    verifier: otmd.Verifier, target: FloatArray, law: otmd.DraftLaw, token: int
) -> tuple[float, float]:
    """P(the token was drafted | it is emitted), and the acceptance rate; both exact.

    Parameters
    ----------
    verifier : Verifier
        A verifier for which :func:`otmd.planning.drafted_chance` is exact, or recursive rejection of two
        drafts without replacement.
    target : ndarray of float64, shape (V,)
        p.
    law : ProposalLaw
        The law of the drafts.
    token : int
        The emitted token.

    Returns
    -------
    chance, rate : float
    """
    if isinstance(verifier, otmd.RecursiveRejection) and isinstance(law, otmd.WithoutReplacement):
        missed = _missed_by_recursive_rejection(target, law, token)
        chance = min(max(1.0 - missed / float(target[token]), 0.0), 1.0)
        return chance, float(verifier.acceptance_rate(target, law))
    # The optimal rule attains α* within its tolerance, so it need not be prepared once more.
    optimal = isinstance(verifier, otmd.Optimal)
    found = otmd.optimal_acceptance(target, law).rate if optimal else None
    rate = float(verifier.acceptance_rate(target, law) if found is None else found)
    return otmd.planning.drafted_chance(verifier, target, law, token), rate


def _missed_by_recursive_rejection(
    target: FloatArray, law: otmd.WithoutReplacement, token: int
) -> float:
    """Σ over the first draft z of (q − p)₊(z)/W(1) · (p − C_3(z) q)₊(token), C_3(z) = 1 + W(1)/(1 − q(z))."""
    if law.num_drafts != 2:
        raise ValueError(f"law: got {law.num_drafts} drafts without replacement, expected 2")
    draft = law.draft_probs
    rejected = np.maximum(draft - target, 0.0)
    first = np.flatnonzero(rejected)
    if first.size == 0:
        return 0.0
    scales = 1.0 + rejected.sum() / (1.0 - draft[first])
    left = np.maximum(target[token] - scales * draft[token], 0.0)
    return float(rejected[first] @ left / rejected.sum())


def paths_chances(
    verifier: otmd.Verifier,
    target: FloatArray,
    draft: FloatArray,
    token: int,
    most: int,
    rng: np.random.Generator,
    samples: int,
) -> tuple[FloatArray, FloatArray]:
    """How many of the paths drawn from a draft distribution continue with the token that is emitted.

    Parameters
    ----------
    verifier : Verifier
        A verifier of drafts with replacement.
    target, draft : ndarray of float64, shape (V,)
        p and q.
    token : int
        The emitted token.
    most : int
        The most paths.
    rng : numpy.random.Generator
        Equal seeds give equal answers.
    samples : int
        How many times the other drafts are drawn, for each number of paths that hold the token.

    Returns
    -------
    passing : ndarray of float64, shape (most, most)
        Entry (n − 1, c − 1): P(c ≥ 1 of n paths hold the token | it is emitted). Its rows' sums are exact;
        its entries are unbiased estimates.
    rates : ndarray of float64, shape (most,)
        The acceptance rate of n paths.
    """
    passing, rates = np.zeros((most, most)), np.zeros(most)
    prob, chance = float(target[token]), float(draft[token])
    beside = draft.copy()
    beside[token] = 0.0
    others = draw_tokens(beside, rng, samples * most) if chance < 1.0 else np.zeros(0, np.int64)
    for n in range(1, most + 1):
        law = otmd.WithReplacement(draft, n)
        rule = verifier.prepare(target, law)
        total, rates[n - 1] = drafted_chance(verifier, target, law, token)
        for c in range(2, n + 1):
            drawn = comb(n, c) * chance**c * (1.0 - chance) ** (n - c)
            if drawn > 0.0:
                tokens = _with_copies(token, c, n, others, rng, samples)
                passing[n - 1, c - 1] = drawn * _accepted(rule, token, tokens) / prob
        passing[n - 1, 0] = total - passing[n - 1, 1:].sum()
    return passing, rates


def _with_copies(
    token: int, copies: int, n: int, others: IntArray, rng: np.random.Generator, samples: int
) -> IntArray:
    """Drafts (samples, n) that hold the token ``copies`` times, at random places."""
    tokens = np.full((samples, n), token)
    if copies < n:
        tokens[:, copies:] = others.reshape(samples, -1)[:, : n - copies]
    return rng.permuted(tokens, axis=1)


def _accepted(rule: PreparedVerifier, token: int, drafts: IntArray) -> float:
    """The mean probability that the accepted draft is the token."""
    total = 0.0
    for tokens in drafts:
        chances = rule.accept_probs(tokens)
        undecided = np.concatenate([[1.0], np.cumprod(1.0 - chances[:-1])])
        total += float((undecided * chances)[tokens == token].sum())
    return total / len(drafts)
