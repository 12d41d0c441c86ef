"""A bound on the tokens per step of every lossless tree verifier, by P(each prefix is drafted)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from otmd.laws import DraftLaw, Race, Slots, WithoutReplacement
from otmd.laws.base import RngLike
from otmd.probabilities import BoolArray, FloatArray, IntArray
from otmd.trees.base import Context, DraftTree, Node, Prefix, depends_on_others
from otmd.trees.random_choices import RandomChoices
from otmd.verifiers import UnsupportedLaw

# Nodes that are drafted so much more often than the target emits them add nothing.
_LARGEST = 1e300


class InclusionBound:
    """Tokens per step that no lossless tree verifier exceeds, by P(each prefix is drafted).

    Let π(u) be the probability that a prefix u is drafted, and M(u) the target's probability of u. A lossless
    verifier accepts u with probability at most π(u), and uy with at most M(y|u) times the probability that it
    accepts u. So the tokens per step are at most 1 + Σ_u M(u) min(1, min_v π(v)/M(v)). The sum is over all u
    but the root, and v is u or a prefix of u, without the root. For a single path
    :class:`BlockVerification` attains the bound.

    Serves trees in which what is drafted below a token depends on the drafts of its node only through the
    index of the first one that is the token, and through how many are. Other trees are an UnsupportedLaw
    error, and so are drafts that have no closed form and too many tuples to list.

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
    >>> round(trees.tokens_per_step(trees.InclusionBound(), target, trees.TokenTree(draft, (1, 1))).value, 4)
    2.25
    """

    def __repr__(self) -> str:
        return "InclusionBound()"

    def expected_tokens(
        self, context: Context, tree: DraftTree, *, rng: RngLike | RandomChoices = None
    ) -> float:
        """Tokens whose mean over drawn trees is the bound; no random choice is made.

        Each node u of the tree adds Σ_y M(uy) min(1, min_v π(v)/M(v)) divided by π(u), at most 1.
        """
        total = 1.0
        nodes: list[tuple[Prefix, _Walk]] = [((), _start(context))]
        while nodes:
            prefix, walk = nodes.pop()
            ratio = sum(walk.states.values())
            if len(prefix) == context.law.depth or ratio == 0.0:
                continue
            total += walk.accepted(context, prefix) / ratio
            if (node := tree.node(prefix)) is None:
                continue
            target = context.target(prefix)
            for token in np.unique(node.tokens).tolist():
                _require_state_by_token(context, prefix, node, token)
                if target[token] > 0.0:
                    nodes.append(((*prefix, token), walk.after(context, prefix, token)))
        return total

    def along(self, context: Context, text: Sequence[int]) -> float:
        """Tokens whose mean over the target's texts of ``depth`` tokens is the bound."""
        walk = _start(context)
        total = 1.0
        for i in range(context.law.depth):
            total += walk.accepted(context, tuple(text[:i]))
            walk = walk.after(context, tuple(text[:i]), text[i])
        return total


class _Walk(NamedTuple):
    """A prefix u: the states in which it is drafted, and min(1, min π(v)/M(v)) over u and its prefixes v.

    A state has P(u is drafted in it)/M(u), a ratio, since both get too small for a float64.
    """

    states: dict[Hashable, float]
    share: float

    def accepted(self, context: Context, prefix: Prefix) -> float:
        """Σ_y M(y|u) min(1, min π(v)/M(v)), over the v up to uy."""
        drafted = 0.0
        for state, reached in self.states.items():
            law = context.node_law(prefix, state)
            if law is not None:
                drafted = drafted + reached * law.inclusion_probs()
        if np.ndim(drafted) == 0:
            return 0.0
        return float(np.minimum(self.share * context.target(prefix), drafted).sum())

    def after(self, context: Context, prefix: Prefix, token: int) -> _Walk:
        """The prefix that is one token longer; the target may emit the token."""
        if len(prefix) + 1 == context.law.depth:
            return _Walk({}, 0.0)
        states: dict[Hashable, float] = defaultdict(float)
        target = float(context.target(prefix)[token])
        for state, reached in self.states.items():
            law = context.node_law(prefix, state)
            for draft_tokens, prob in _drafts_with(law, token) if law is not None else ():
                below = context.law.child(state, draft_tokens, token)
                states[below] = min(states[below] + reached * prob / target, _LARGEST)
        return _Walk(states, min(self.share, sum(states.values())))


def _start(context: Context) -> _Walk:
    if not context.law.by_prefix:
        raise depends_on_others(context.law)
    return _Walk({context.law.root(context.draft): 1.0}, 1.0)


def _require_state_by_token(context: Context, prefix: Prefix, node: Node, token: int) -> None:
    """UnsupportedLaw if what is drafted below a token depends on the other drafts of its node."""
    alone = np.where(node.tokens == token, token, -1)
    states = [context.law.child(node.state, tokens, token) for tokens in (node.tokens, alone)]
    if states[0] != states[1]:
        raise depends_on_others(context.law)


def _drafts_with(law: DraftLaw, token: int) -> Iterator[tuple[IntArray, float]]:
    """Drafts (n,) that hold a token, and their probabilities.

    Where the law has a closed form, they are representatives: one for each index of the first draft that
    holds the token and each number of later ones, with the probability of all such drafts; −1 stands for any
    other token.
    """
    structure = law.position_structure
    leading, random = structure.deterministic, structure.random
    count, n = leading.size, law.num_drafts
    drafts = np.full(n, -1)
    if not structure.deterministic_first:
        yield from _listed_with(law, token)
    elif token in leading:
        drafts[np.flatnonzero(leading == token)] = token
        yield drafts, 1.0
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
    elif random is not None:
        yield from _listed_with(law, token)


def _indices(n: int, first: int, later: int) -> BoolArray:
    """A mask (n,) of an index and so many after it."""
    return (np.arange(n) >= first) & (np.arange(n) <= first + later)


def _listed_with(law: DraftLaw, token: int) -> Iterator[tuple[IntArray, float]]:
    """The tuples with a token, for a law that has no closed form."""
    if not law.can_enumerate():
        raise UnsupportedLaw(
            f"InclusionBound: got drafts of {law!r}, expected deterministic or independent drafts, drafts "
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
