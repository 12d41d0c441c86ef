"""The sequence-level optimum: the most tokens per step that a lossless rule can emit for a law of trees.

Let M be the target model. Let e_x(u) be the probability that the tree x is drafted and the tokens u are
emitted, where u is a path of x and one more token. A rule is lossless if and only if for every sequence s of
depth + 1 tokens Σ e_x(u)·M(rest of s | u) = M(s), where the sum is over all trees x and all u that s begins
with. So the best rule solves a linear program. Its constraints say ≤ M(s). They hold with equality, since
both sides sum to 1 over all s.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csc_array

from otmd.optimum import OptimalityCertificate
from otmd.probabilities import wrong
from otmd.transport.program import LinearProgram, program_of
from otmd.transport.solvers import certified_optimum
from otmd.trees.base import Context, Model, Prefix, TreeLaw
from otmd.trees.random_choices import every_outcome

# Of the program's matrix.
_MOST_ENTRIES = 2**26

Tree = frozenset[Prefix]


@dataclass(frozen=True, eq=False)
class SequenceOptimum:
    """The best block efficiency.

    Attributes
    ----------
    value : float
        Tokens per call of the target model. The token after the accepted path counts.
    certificate : OptimalityCertificate
        How far its solution is from an optimum, recomputed from the program.
    """

    value: float
    certificate: OptimalityCertificate


def optimal_block_efficiency(target_model: Model, law: TreeLaw) -> SequenceOptimum:
    """Block efficiency that no lossless rule exceeds, and that some rule attains.

    Parameters
    ----------
    target_model, law
        As for :func:`tokens_per_step`.

    Returns
    -------
    SequenceOptimum
        The optimum, with a certificate.

    Raises
    ------
    ValueError
        For too many trees to list, or a program that is too large.
    SolverError
        If the solver does not end at an optimum, or its answer fails the check.

    Examples
    --------
    >>> from otmd import trees
    >>> target = trees.TableModel([[0.5, 0.3, 0.2]])
    >>> draft = trees.TableModel([[0.2, 0.3, 0.5]])
    >>> round(trees.optimal_block_efficiency(target, trees.TokenTree(draft, (2, 1))).value, 4)
    2.7609
    """
    context = Context(target_model, law)
    program = _program(context, _trees(context))
    # The probabilities may differ by many orders of magnitude, and then interior point fails less often.
    values, certificate = certified_optimum(program, "ipm", "simplex")
    return SequenceOptimum(float(program.objective @ values), certificate)


def _trees(context: Context) -> dict[Tree, float]:
    """The probability of every tree. A tree is the set of its prefixes."""
    probs: dict[Tree, float] = defaultdict(float)
    law = context.law
    for tree, prob in every_outcome(lambda choices: law.draft_tree(context, choices).prefixes()):
        probs[frozenset(tree)] += prob
    return dict(probs)


def _program(context: Context, trees: dict[Tree, float]) -> LinearProgram:
    """The linear program: a variable for each tree and each path of it with one more token.

    A variable has an entry in the row of its tree, and in the row of each sequence that it begins.
    """
    ordered = sorted(trees, key=sorted)
    columns = [(row, emitted) for row, tree in enumerate(ordered) for emitted in _emittable(context, tree)]
    sequences = _continuations(context, ())
    row_of = {sequence: len(trees) + i for i, sequence in enumerate(sequences)}
    rows = []
    entries = []
    starts = [0]
    for row, emitted in columns:
        rests = _continuations(context, emitted)
        rows += [row, *(row_of[(*emitted, *rest)] for rest in rests)]
        entries += [1.0, *rests.values()]
        starts.append(len(rows))
        if len(rows) > _MOST_ENTRIES:
            given = f"{context.law!r}, whose program is too large"
            raise wrong("law", given, "smaller trees or a smaller vocabulary")
    drawn = [trees[tree] for tree in ordered]
    sides = np.array(drawn + [-np.inf] * len(sequences)), np.array([*drawn, *sequences.values()])
    return program_of(
        "sequences",
        np.array([len(emitted) for _, emitted in columns], dtype=np.float64),
        csc_array((entries, rows, starts), shape=(sides[0].size, len(columns))),
        rows=sides,
    )


def _emittable(context: Context, tree: Tree) -> list[Prefix]:
    """Each path of a tree with one more token, where the target gives it positive probability."""
    return [
        (*path, token)
        for path in sorted(tree)
        if math.prod(float(context.target(path[:i])[token]) for i, token in enumerate(path)) > 0
        for token in np.flatnonzero(context.target(path)).tolist()
    ]


def _continuations(context: Context, prefix: Prefix) -> dict[Prefix, float]:
    """M(rest | prefix) of every continuation of a prefix to depth + 1 tokens that the target may emit."""
    continuations: dict[Prefix, float] = {(): 1.0}
    for _ in range(context.law.depth + 1 - len(prefix)):
        continuations = {
            (*more, token): prob * float(target[token])
            for more, prob in continuations.items()
            for target in [context.target((*prefix, *more))]
            for token in np.flatnonzero(target).tolist()
        }
    return continuations
