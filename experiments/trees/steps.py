"""The steps that a decoder takes along a given text: exactly, and without drafting anything.

A lossless rule writes the target's texts. So a step can be studied given the text: how much of the text it
accepts follows from a probability at each token, and where steps begin is a renewal process along the text.
The average over texts of the target is what a decoder that samples would measure, with less noise.

Where a law has too many tuples to list, the probabilities of a token are unbiased estimates.
"""

from typing import NamedTuple

import numpy as np

import otmd
from otmd.laws.drafts import draw_tokens
from otmd.probabilities import FloatArray
from otmd.verifiers import PreparedVerifier

OPTIMAL = otmd.Optimal()
SAMPLES = 4
"""Draws of the other drafts for an estimate."""


def emission_probs(
    prepared: PreparedVerifier, token: int, rng: np.random.Generator | None = None
) -> FloatArray:
    """P(draft i is the first that holds a token, and j later ones do | it is emitted), shape (n, n).

    Listed, or estimated: the token is put at each index in turn, the other drafts are drawn, and a draw
    counts with the probability that the token is drafted there.
    """
    law, target = prepared.law, prepared.target
    n = law.num_drafts
    masses = np.zeros((n, n))

    def add(draft_tokens: np.ndarray, prob: float) -> None:
        held = np.flatnonzero(draft_tokens == token)
        emitted = float(prepared.conditional_law(draft_tokens)[token])
        masses[held[0], held.size - 1] += prob * emitted / float(target[token])

    if law.can_enumerate():
        for draft_tokens, prob in zip(*law.enumerate(), strict=True):
            if token in draft_tokens:
                add(draft_tokens, prob)
        return masses
    generator = np.random.default_rng(rng)
    for _ in range(SAMPLES):
        # The drafts before the first copy of the token, and the probability that they hold none.
        before = np.empty(0, np.int64)
        weight = 1.0 / SAMPLES
        for i in range(n):
            probs = np.array(law.next_draft_probs(before.tolist()))
            if probs[token] > 0.0:
                draft_tokens = np.append(before, token)
                while draft_tokens.size < n:
                    following = law.next_draft_probs(draft_tokens.tolist())
                    draft_tokens = np.append(draft_tokens, draw_tokens(following, generator, 1))
                add(draft_tokens, weight * float(probs[token]))
            probs[token] = 0.0
            weight *= float(probs.sum())
            if weight == 0.0 or i + 1 == n:
                break
            before = np.append(before, draw_tokens(probs, generator, 1))
    return masses


def emission_and_rate(
    verifier: otmd.Verifier,
    target: FloatArray,
    law: otmd.DraftLaw,
    token: int,
    rng: np.random.Generator | None = None,
) -> tuple[FloatArray, float]:
    """The emission probabilities (n, n) of a token, and the acceptance rate.

    Parameters
    ----------
    verifier, target, law
        What is emitted by which rule.
    token, rng
        As for :func:`emission_probs`.
    """
    emission = emission_probs(verifier.prepare(target, law), token, rng)
    # The optimal verifier attains α* within its tolerance, so it need not be prepared once more.
    if verifier is OPTIMAL:
        return emission, float(otmd.optimal_acceptance(target, law).rate)
    return emission, float(verifier.acceptance_rate(target, law))


def paths_emission(
    verifier: otmd.Verifier,
    target: FloatArray,
    draft: FloatArray,
    token: int,
    most: int,
    rng: np.random.Generator | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Number of sampled paths that continue with the emitted token, for 1 … ``most`` paths.

    Returns
    -------
    passing : ndarray of float64, shape (most, most)
        Entry (n − 1, c − 1): P(c ≥ 1 of n paths hold the token | it is emitted).
    rates : ndarray of float64, shape (most,)
        The acceptance rate of n paths.
    """
    passing = np.zeros((most, most))
    rates = np.zeros(most)
    for n in range(1, most + 1):
        law = otmd.WithReplacement(draft, n)
        emission, rates[n - 1] = emission_and_rate(verifier, target, law, token, rng)
        passing[n - 1, :n] = emission.sum(axis=0)
    return passing, rates


class Starts(NamedTuple):
    """Steps that begin at each of S tokens of a text.

    Attributes
    ----------
    reached : ndarray of float64, shape (S, depth + 1)
        P(at least k drafted tokens are accepted | the text), k = 0 … depth.
    expected : ndarray of float64, shape (S,)
        The expected number of emitted tokens, given the text so far and as much of the rest as the
        rule uses.
    """

    reached: FloatArray
    expected: FloatArray


def token_level_starts(passing: FloatArray, rates: FloatArray, state: int, depth: int) -> Starts:
    """Steps of a rule that decides position by position.

    Parameters
    ----------
    passing : ndarray of float64, shape (N, S, S)
        At each token of the text, in state i: P(the text's token is drafted and emitted, and the state
        below it is j | that token is emitted).
    rates : ndarray of float64, shape (N, S)
        Acceptance rates. They average the last token of a step over all tokens that the target may emit.
    state : int
        The state in which each step begins.
    depth : int
        The depth of the tree.
    """
    count = max(len(passing) - depth + 1, 0)
    states = np.zeros((count, rates.shape[1]))
    states[:, state] = 1.0
    reached = [np.ones(count)]
    expected = np.ones(count)
    for k in range(depth):
        expected += np.einsum("ti,ti->t", states, rates[k : k + count])
        states = np.einsum("ti,tij->tj", states, passing[k : k + count])
        reached.append(states.sum(axis=1))
    return Starts(np.stack(reached, axis=1), expected)


def block_starts(target: FloatArray, draft: FloatArray, tokens: list[int], depth: int) -> Starts:
    """Steps of block verification with one path, from both models' distributions (N, V) along a text.

    Given the text, at least k tokens of a path are accepted with probability min over i ≤ k of
    min(1, q(first i tokens)/p(first i tokens)): its p_k (Sun et al. 2024) times q/p of the path.
    """
    every = np.arange(len(tokens))
    ratios = draft[every, tokens] / target[every, tokens]
    count = max(len(ratios) - depth + 1, 0)
    products = [ratios[k : k + count] for k in range(depth)]
    shares = np.minimum(np.cumprod([np.ones(count), *products], axis=0), 1.0)
    reached = np.minimum.accumulate(shares).T
    expected = np.ones(count)
    path = np.ones(count)
    for k in range(depth):
        for start in range(count):
            warranted = reached[start, k] * target[start + k]
            drafted = path[start] * draft[start + k]
            expected[start] += np.minimum(warranted, drafted).sum()
        path = path * ratios[k : k + count]
    return Starts(reached, expected)


def decoded(starts: Starts, count: int | None = None) -> tuple[float, float]:
    """Expected tokens and expected steps of a decoder that writes the text from its beginning.

    Each start counts with the probability that a step begins there; those after the first ``count`` do not.
    """
    begins = step_begins(starts.reached[:count])
    return float(begins @ starts.expected[:count]), float(begins.sum())


def step_begins(reached: FloatArray) -> FloatArray:
    """Probability that a step begins at each of S tokens, given the text, from P(k are accepted) (S, …)."""
    starts = reached.shape[0]
    depth = reached.shape[1] - 1
    emits = reached - np.append(reached[:, 1:], np.zeros((starts, 1)), axis=1)
    begins = np.zeros(starts + depth + 1)
    begins[0] = 1.0
    for start in range(starts):
        begins[start + 1 : start + depth + 2] += begins[start] * emits[start]
    return begins[:starts]
