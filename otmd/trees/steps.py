"""Tokens that a step emits: their law and mean, exact for small models; their mean from drawn trees."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np

from otmd.laws.base import RngLike, validate_rng
from otmd.probabilities import FloatArray, validate_count
from otmd.trees.base import Context, Model, Prefix, TreeLaw
from otmd.trees.inclusion import InclusionBound
from otmd.trees.random_choices import RandomChoices, Sampled, every_outcome
from otmd.trees.verifiers import TreeVerifier


class TokensPerStep(NamedTuple):
    """Tokens emitted per call of the target model, the one after the accepted path included.

    Attributes
    ----------
    value : float
        The mean.
    standard_error : float
        Its standard error; 0 where it is exact.
    """

    value: float
    standard_error: float


def tokens_per_step(
    rule: TreeVerifier | InclusionBound,
    target_model: Model,
    law: TreeLaw,
    num_trees: int | None = None,
    *,
    rng: RngLike = None,
) -> TokensPerStep:
    """Expected number of tokens that a step emits: the block efficiency of SpecTr (Sun et al. 2023).

    Parameters
    ----------
    rule : TreeVerifier or InclusionBound
        The rule that decides on each tree, or the bound of all of them.
    target_model : callable
        Takes a prefix and returns the target distribution (V,).
    law : TreeLaw
        The law of the draft trees.
    num_trees : int, optional
        How many trees to draw, at least 2. Without it every tree is listed, and the answer is exact.
    rng : int, sequence of int, numpy.random.Generator or None
        Draws the trees: a seed or a generator. Equal seeds give equal answers.

    Returns
    -------
    TokensPerStep
        The mean and its standard error. The error is estimated from the same trees. So it is 0 if all of them
        have the same value, even if rarer trees have another.

    Raises
    ------
    ValueError
        For too many outcomes to list, or fewer than two trees.
    UnsupportedLaw
        For a law that the rule does not serve.

    Examples
    --------
    >>> import otmd
    >>> from otmd import trees
    >>> target = trees.TableModel([[0.5, 0.3, 0.2]])
    >>> draft = trees.TableModel([[0.2, 0.3, 0.5]])
    >>> rule, tree = trees.TokenLevel(otmd.RecursiveRejection()), trees.TokenTree(draft, (2, 1))
    >>> round(trees.tokens_per_step(rule, target, tree).value, 4)
    2.394
    """
    context = Context(target_model, law)

    def on_tree(choices: RandomChoices) -> float:
        return rule.expected_tokens(context, law.draft_tree(context, choices), rng=choices)

    if num_trees is None:
        return TokensPerStep(sum(tokens * prob for tokens, prob in every_outcome(on_tree)), 0.0)
    validate_count("num_trees", num_trees, minimum=2)
    choices = Sampled(validate_rng(rng))
    values = np.array([on_tree(choices) for _ in range(num_trees)])
    return TokensPerStep(float(values.mean()), float(values.std(ddof=1)) / num_trees**0.5)


def output_distribution(rule: TreeVerifier, target_model: Model, law: TreeLaw) -> FloatArray:
    """Exact distribution of the first depth + 1 tokens, an array with depth + 1 axes of length V.

    Where a step emits fewer tokens, the target model draws the others. It equals :func:`target_distribution`
    up to rounding if the rule is lossless.

    Parameters
    ----------
    rule, target_model, law
        As for :func:`tokens_per_step`, for errors as well.

    Returns
    -------
    ndarray of float64, shape (V, …, V)
        Entry (x_1, …, x_{depth+1}) is the probability of these tokens.

    Examples
    --------
    >>> from otmd import trees
    >>> target = trees.TableModel([[0.5, 0.3, 0.2]])
    >>> draft = trees.TableModel([[0.2, 0.3, 0.5]])
    >>> path = trees.TokenTree(draft, (1,))
    >>> trees.output_distribution(trees.BlockVerification(), target, path).round(4)
    array([[0.25, 0.15, 0.1 ],
           [0.15, 0.09, 0.06],
           [0.1 , 0.06, 0.04]])
    """
    context = Context(target_model, law)
    emitted: dict[Prefix, float] = defaultdict(float)
    for prefix, prob in every_outcome(partial(rule.run, context)):
        emitted[prefix] += prob
    output = np.zeros((context.target(()).size,) * (law.depth + 1))
    for prefix, prob in emitted.items():
        after = lambda more, prefix=prefix: context.target((*prefix, *more))  # noqa: E731
        output[prefix] += prob * target_distribution(after, law.depth + 1 - len(prefix))
    return output


def target_distribution(target_model: Model, length: int) -> FloatArray:
    """Law of the first ``length`` tokens of the target model, an array with ``length`` axes of length V.

    Parameters
    ----------
    target_model : callable
        Takes a prefix and returns the target distribution (V,).
    length : int
        How many tokens.

    Returns
    -------
    ndarray of float64, shape (V, …, V)
        Entry (x_1, …, x_length) is the probability of these tokens.

    Examples
    --------
    >>> from otmd import trees
    >>> trees.target_distribution(trees.TableModel([[0.5, 0.3, 0.2]]), 2).round(4)
    array([[0.25, 0.15, 0.1 ],
           [0.15, 0.09, 0.06],
           [0.1 , 0.06, 0.04]])
    """
    law, size = np.ones(()), np.asarray(target_model(())).size if length else 0
    for depth in range(length):
        rows = [np.asarray(target_model(prefix)) for prefix in product(range(size), repeat=depth)]
        law = law[..., None] * np.reshape(rows, (*law.shape, size))
    return law
