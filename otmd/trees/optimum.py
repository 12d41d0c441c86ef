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
from otmd.transport import program as lp
from otmd.transport.solvers import solve_highs
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
    trees = _trees(context)
    program = _program(context, trees)
    # The probabilities may differ by many orders of magnitude, and then interior point fails less often.
    answer = solve_highs(program, "ipm")
    if answer.values is None:
        answer = solve_highs(program, "simplex")
    if answer.values is None or answer.row_duals is None:
        raise lp.SolverError(f"the sequence-level program ended {answer.status}: {answer.detail}")
    certificate = lp.certify(program, answer.values, answer.row_duals)
    if certificate.worst > lp.TOLERANCE:
        raise lp.SolverError(f"the sequence-level program's solution fails the check: {certificate}")
    return SequenceOptimum(float(program.objective @ answer.values), certificate)


def _trees(context: Context) -> dict[Tree, float]:
    """The probability of every tree. A tree is the set of its prefixes."""
    probs: dict[Tree, float] = defaultdict(float)
    law = context.law
    for tree, prob in every_outcome(lambda choices: law.draft_tree(context, choices).prefixes()):
        probs[frozenset(tree)] += prob
    return dict(probs)


def _program(context: Context, trees: dict[Tree, float]) -> lp.LinearProgram:
    """The linear program: a variable for each tree and each path of it with one more token.

    A variable has an entry in the row of its tree, and in the row of each sequence that it begins.
    """
    law, ordered = context.law, sorted(trees, key=sorted)
    columns = [(row, emitted) for row, tree in enumerate(ordered) for emitted in _emittable(context, tree)]
    sequences = _continuations(context, ())
    number = {sequence: len(trees) + i for i, sequence in enumerate(sequences)}
    rows = []
    entries = []
    starts = [0]
    for row, emitted in columns:
        rests = _continuations(context, emitted)
        rows += [row, *(number[(*emitted, *rest)] for rest in rests)]
        entries += [1.0, *(_prob(context, emitted, rest) for rest in rests)]
        starts.append(len(rows))
        if len(rows) > _MOST_ENTRIES:
            raise wrong(
                "law",
                f"{law!r}, whose program is too large",
                "smaller trees or a smaller vocabulary",
            )
    drawn = [trees[tree] for tree in ordered]
    limits = [_prob(context, (), sequence) for sequence in sequences]
    sides = np.array(drawn + [-np.inf] * len(limits)), np.array(drawn + limits)
    return lp.program_of(
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
        if _prob(context, (), path) > 0
        for token in np.flatnonzero(context.target(path)).tolist()
    ]


def _continuations(context: Context, prefix: Prefix) -> list[Prefix]:
    """Every continuation of a prefix to depth + 1 tokens that has positive target probability."""
    continuations: list[Prefix] = [()]
    for _ in range(context.law.depth + 1 - len(prefix)):
        continuations = [
            (*more, token)
            for more in continuations
            for token in np.flatnonzero(context.target((*prefix, *more))).tolist()
        ]
    return continuations


def _prob(context: Context, prefix: Prefix, more: Prefix) -> float:
    """M(more | prefix), the target's probability of the tokens ``more`` after a prefix."""
    return math.prod(float(context.target((*prefix, *more[:i]))[token]) for i, token in enumerate(more))
