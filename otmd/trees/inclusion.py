"""A bound on the tokens per step of every lossless tree verifier, by P(each prefix is drafted)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from math import comb, exp, log, log1p

import numpy as np

from otmd.laws import DraftLaw, Slots
from otmd.laws.base import RngLike, draw_tokens, validate_rng
from otmd.probabilities import IntArray, validate_count
from otmd.trees.base import Context, Model, Prefix, TreeLaw
from otmd.trees.efficiency import BlockEfficiency

# P(a node is drafted in a state)/M(u), by state: a ratio, since both get too small for a float64.
States = dict[Hashable, float]


def inclusion_bound(
    target_model: Model,
    law: TreeLaw,
    num_samples: int | None = None,
    *,
    rng: RngLike = None,
) -> BlockEfficiency:
    """Bound the tokens per step of every lossless tree verifier by P(each prefix is drafted).

    Let π(u) be the probability that a prefix u is drafted, M(u) that of the target. A lossless verifier
    accepts u with probability at most π(u), and uy with at most M(y|u) times that of u. So the tokens per
    step are at most 1 + Σ_u M(u) min(1, min π(v)/M(v)), v being u and the prefixes of u. A single path
    attains it, with :class:`BlockVerification`.

    Parameters
    ----------
    target_model : callable
        Takes a prefix and returns the target distribution (V,).
    law : TreeLaw
        The law of the draft trees. What is drafted below a token must depend on its node's drafts only
        through the index of the first that holds it and the number that do.
    num_samples : int, optional
        How many texts of the target to sample. Without it every prefix is visited, and the bound is exact.
    rng : int, sequence of int, numpy.random.Generator or None
        Draws the texts: a seed or a generator. Equal seeds give equal answers.

    Returns
    -------
    BlockEfficiency
        The bound; of samples, its estimate and standard error.

    Raises
    ------
    ValueError
        For fewer than two samples, or laws of drafts at a node that cannot be enumerated.

    Examples
    --------
    >>> import otmd
    >>> from otmd import trees
    >>> target = trees.TableModel([[0.5, 0.3, 0.2]])
    >>> draft = trees.TableModel([[0.2, 0.3, 0.5]])
    >>> trees.inclusion_bound(target, trees.TokenTree(draft, (1, 1))).value
    2.25
    """
    context = Context(target_model, law)
    root: States = {law.root(context.draft): 1.0}
    if num_samples is None:
        return BlockEfficiency(1.0 + _below(context, (), root, 1.0, 1.0))
    validate_count("num_samples", num_samples, minimum=2)
    generator = validate_rng(rng)
    values = np.array([_along(context, root, generator) for _ in range(num_samples)])
    error = float(values.std(ddof=1)) / num_samples**0.5
    return BlockEfficiency(float(values.mean()), error, num_samples)


def _below(context: Context, prefix: Prefix, states: States, mass: float, share: float) -> float:
    """Σ of M(u) min(1, min π/M) over the drafted u below a prefix with M = ``mass``, min = ``share``."""
    total = 0.0
    if len(prefix) == context.law.depth:
        return total
    target = context.target(prefix)
    for token in np.flatnonzero(target).tolist():
        after = _states_after(context, prefix, states, token)
        child_share = min(share, sum(after.values()))
        if child_share > 0.0:
            child_mass = mass * float(target[token])
            total += child_mass * child_share
            total += _below(context, (*prefix, token), after, child_mass, child_share)
    return total


def _along(context: Context, states: States, rng: np.random.Generator) -> float:
    """1 + Σ_k min(1, min π/M) along a text that the target draws."""
    prefix: Prefix = ()
    share, total = 1.0, 1.0
    while states and len(prefix) < context.law.depth:
        target = context.target(prefix)
        token = int(draw_tokens(target, rng, 1)[0])
        states = _states_after(context, prefix, states, token)
        share = min(share, sum(states.values()))
        total += share
        prefix = (*prefix, token)
    return total


def _states_after(context: Context, prefix: Prefix, states: States, token: int) -> States:
    """The states of the node below a token that the target may emit, each with its π/M."""
    after: dict[Hashable, float] = defaultdict(float)
    target = float(context.target(prefix)[token])
    for state, reached in states.items():
        law = context.node_law(prefix, state)
        for draft_tokens, prob in _drafts_with(law, token) if law is not None else ():
            after[context.law.child(state, draft_tokens, token)] += reached * prob / target
    return after


def _drafts_with(law: DraftLaw, token: int) -> Iterator[tuple[IntArray, float]]:
    """Drafts (n,) that hold a token, and their probabilities.

    If the drafts have one distribution, or disjoint ones, one representative is yielded for each index of the
    first draft that holds the token and each number of later ones, with the probability of all such drafts;
    −1 stands for any other token.
    """
    deterministic, random = law.position_structure()
    n = law.num_drafts
    slots = random if isinstance(random, Slots) and not deterministic.size else None
    if slots is None or not slots.disjoint or (slots.copies.max() > 1 and not slots.is_single):
        tuples, probs = law.enumerate()
        held = (tuples == token).any(axis=1)
        yield from zip(tuples[held], probs[held].tolist(), strict=True)
        return
    q = float(slots.token_probs[token])
    first = range(n) if slots.is_single else [int(slots.number[token])]
    for i in first if q > 0.0 else ():
        later = n - 1 - i if slots.is_single else 0
        for more in range(later + 1):
            draft_tokens = np.full(n, -1)
            draft_tokens[i : i + 1 + more] = token
            before = (1.0 - q) ** i if slots.is_single else 1.0
            yield draft_tokens, before * q * _binomial(later, more, q)


def _binomial(n: int, k: int, q: float) -> float:
    """P(k of n independent events happen), each of probability q > 0."""
    if n < 1000 or q == 1.0:
        return q**k * (1.0 - q) ** (n - k) * (comb(n, k) if n < 1000 else 1)
    return exp(log(comb(n, k)) + k * log(q) + (n - k) * log1p(-q))
