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

from otmd.optimum import OptimalityCertificate
from otmd.probabilities import wrong
from otmd.transport import program as lp
from otmd.transport.solvers import HighsSession
from otmd.trees.base import Context, Model, Prefix, TreeLaw
from otmd.trees.random_choices import every_outcome

DEFAULT_MAX_BYTES = 2.0**30

Tree = frozenset[Prefix]


@dataclass(frozen=True, eq=False)
class SequenceOptimum:
    """The best block efficiency.

    Attributes
    ----------
    value : float
        Tokens per call of the target model. The token after the accepted path counts.
    size : ProgramSize
        The size of the linear program.
    certificate : OptimalityCertificate
        How far its solution is from an optimum, recomputed from the program.
    """

    value: float
    size: lp.ProgramSize
    certificate: OptimalityCertificate


def sequence_program_size(target_model: Model, law: TreeLaw) -> lp.ProgramSize:
    """The size of the program of :func:`optimal_block_efficiency`.

    Parameters
    ----------
    target_model, law
        As for :func:`optimal_block_efficiency`; too many trees are a ValueError.

    Returns
    -------
    ProgramSize
        Variables, constraints and nonzero entries.

    Examples
    --------
    >>> from otmd import trees
    >>> target = trees.TableModel([[0.5, 0.3, 0.2]])
    >>> draft = trees.TableModel([[0.2, 0.3, 0.5]])
    >>> trees.sequence_program_size(target, trees.TokenTree(draft, (2, 1)))
    ProgramSize(variables=405, constraints=54, nonzeros=1782)
    """
    context = Context(target_model, law)
    return _size(context, _trees(context))


def optimal_block_efficiency(
    target_model: Model, law: TreeLaw, max_bytes: float = DEFAULT_MAX_BYTES
) -> SequenceOptimum:
    """Block efficiency that no lossless rule exceeds, and that some rule attains.

    Parameters
    ----------
    target_model, law
        As for :func:`tokens_per_step`.
    max_bytes : float
        The largest program to build: the memory of its arrays, in bytes.

    Returns
    -------
    SequenceOptimum
        The optimum, with the size of the program and a certificate.

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
    size = _size(context, trees)
    if not size.fits(max_bytes):
        described = (
            f"{size.variables} variables, {size.constraints} constraints and {size.nonzeros} entries "
            f"({size.bytes:.3g} bytes)"
        )
        raise wrong(
            "law", f"{law!r}, whose program has {described}", f"at most {max_bytes:.3g} bytes"
        )
    program = _program(context, trees)
    # The probabilities may differ by many orders of magnitude, and then interior point fails less often.
    answer = HighsSession("ipm").solve(program)
    if answer.values is None:
        answer = HighsSession("simplex").solve(program)
    if answer.values is None or answer.row_duals is None:
        raise lp.SolverError(f"the sequence-level program ended {answer.status}: {answer.detail}")
    certificate = lp.certify(program, answer.values, answer.row_duals)
    if certificate.worst > lp.TOLERANCE:
        raise lp.SolverError(
            f"the sequence-level program's solution fails the check: {certificate}"
        )
    return SequenceOptimum(float(program.objective @ answer.values), program.size, certificate)


def _trees(context: Context) -> dict[Tree, float]:
    """The probability of every tree. A tree is the set of its prefixes."""
    probs: dict[Tree, float] = defaultdict(float)
    law = context.law
    for tree, prob in every_outcome(lambda choices: law.draft_tree(context, choices).prefixes()):
        probs[frozenset(tree)] += prob
    return dict(probs)


def _size(context: Context, trees: dict[Tree, float]) -> lp.ProgramSize:
    """The size of :func:`_program`, without building it."""
    emitted = [tokens for tree in trees for tokens in _emittable(context, tree)]
    rows = len(_continuations(context, ()))
    begun = sum(len(_continuations(context, tokens)) for tokens in emitted)
    return lp.ProgramSize(len(emitted), len(trees) + rows, len(emitted) + begun)


def _program(context: Context, trees: dict[Tree, float]) -> lp.LinearProgram:
    """The linear program: a variable for each tree and each path of it with one more token.

    A variable has an entry in the row of its tree, and in the row of each sequence that it begins.
    """
    ordered = sorted(trees, key=sorted)
    columns = [
        (row, emitted) for row, tree in enumerate(ordered) for emitted in _emittable(context, tree)
    ]
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
    drawn = [trees[tree] for tree in ordered]
    limits = [_prob(context, (), sequence) for sequence in sequences]
    sides = np.array(drawn + [-np.inf] * len(limits)), np.array(drawn + limits)
    return lp.program_of(
        "sequences",
        np.array([len(emitted) for _, emitted in columns], dtype=np.float64),
        lp.sparse_columns(np.array(entries), np.array(rows), np.array(starts), sides[0].size),
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
    return math.prod(
        float(context.target((*prefix, *more[:i]))[token]) for i, token in enumerate(more)
    )
