"""A bound on the tokens per step of every lossless tree verifier, by P(each prefix is drafted)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator

import numpy as np

from otmd.laws import DraftLaw, Race, Slots, Table, WithoutReplacement
from otmd.laws.base import RngLike, validate_rng
from otmd.laws.structure import draw_tokens
from otmd.probabilities import BoolArray, FloatArray, IntArray, validate_count
from otmd.trees.base import Context, Model, Prefix, TreeLaw
from otmd.trees.efficiency import BlockEfficiency
from otmd.verifiers import UnsupportedLaw
from otmd.verifiers.prepared import leading_tokens

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

    Let π(u) be the probability that a prefix u is drafted, and M(u) the target's probability of u. A lossless
    verifier accepts u with probability at most π(u), and uy with at most M(y|u) times the probability that it
    accepts u. So the tokens per step are at most 1 + Σ_u M(u) min(1, min_v π(v)/M(v)). The sum is over all u
    but the root, and v is u or a prefix of u, without the root. For a single path
    :class:`BlockVerification` attains the bound.

    Parameters
    ----------
    target_model : callable
        Takes a prefix and returns the target distribution (V,).
    law : TreeLaw
        The law of the draft trees. What is drafted below a token may depend on the drafts of its node only
        through the index of the first draft that is the token, and through how many are.
    num_samples : int, optional
        The number of texts to sample from the target. Without it every prefix is visited, and the bound is
        exact.
    rng : int, sequence of int, numpy.random.Generator or None
        Draws the texts: a seed or a generator. Equal seeds give equal answers.

    Returns
    -------
    BlockEfficiency
        The bound; with ``num_samples``, its estimate and standard error. The error is estimated from the same
        texts. So it is 0 if all of them have the same value, even if rarer texts have another.

    Raises
    ------
    ValueError
        If ``num_samples`` is less than 2.
    UnsupportedLaw
        For a law of drafts at a node that has no closed form and too many tuples to list.

    Notes
    -----
    At full vocabulary it serves drafts that are deterministic, independent or drawn without replacement, and
    laws that begin with deterministic drafts: all laws of otmd but conditional Poisson.

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

    Where the law has a closed form, they are representatives: one for each index of the first draft that
    holds the token and each number of later ones, with the probability of all such drafts; −1 stands for any
    other token.
    """
    deterministic, random = law.position_structure.deterministic, law.position_structure.random
    leading = leading_tokens(law)
    count, n = leading.size, law.num_drafts
    drafts = np.full(n, -1)
    if token in leading:
        drafts[np.flatnonzero(leading == token)] = token
        yield drafts, 1.0
    elif count < deterministic.size or isinstance(random, Table):
        yield from _listed_with(law, token)
    elif isinstance(random, Slots):
        held = random.prob(random.row_of_slot, np.full(n - count, token))
        for i, more, prob in _first_and_later(held):
            yield np.where(_indices(n, count + i, more), token, drafts), prob
    elif isinstance(random, Race):
        laws = [WithoutReplacement(random.probs, k + 1) for k in range(n - count)]
        included = [float(part.position_structure.inclusion_probs()[token]) for part in laws]
        for i, prob in enumerate(np.diff(included, prepend=0.0).tolist()):
            if prob > 0.0:
                yield np.where(_indices(n, count + i, 0), token, drafts), prob


def _indices(n: int, first: int, later: int) -> BoolArray:
    """A mask (n,) of an index and so many after it."""
    return (np.arange(n) >= first) & (np.arange(n) <= first + later)


def _listed_with(law: DraftLaw, token: int) -> Iterator[tuple[IntArray, float]]:
    """The tuples with a token, for a law that has no closed form."""
    if not law.can_enumerate():
        raise UnsupportedLaw(
            f"inclusion_bound: got drafts of {law!r}, expected deterministic or independent drafts, drafts "
            "without replacement, or few enough tuples to list"
        )
    tuples, probs = law.enumerate()
    held = (tuples == token).any(axis=1)
    yield from zip(tuples[held], probs[held].tolist(), strict=True)


def _first_and_later(probs: FloatArray) -> Iterator[tuple[int, int, float]]:
    """For independent events (n,): i, k, and P(i is the first that happens, and k later ones do)."""
    before = np.append(1.0, np.cumprod(1.0 - probs[:-1]))
    later = np.eye(1, probs.size)[0]
    for i in reversed(range(probs.size)):
        masses = before[i] * probs[i] * later
        for k in np.flatnonzero(masses).tolist():
            yield i, k, float(masses[k])
        # As far as it is filled, the last entry is 0: fewer than n events come later.
        later = (1.0 - probs[i]) * later + probs[i] * np.roll(later, 1)
