"""The number of tokens that a step emits, and their law: exact for small models, sampled for others."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from otmd.laws.base import RngLike, validate_rng
from otmd.probabilities import FloatArray, validate_count
from otmd.trees.base import Context, Model, Prefix, TreeLaw
from otmd.trees.random_choices import RandomChoices, Sampled, every_outcome
from otmd.trees.verifiers import TreeVerifier


@dataclass(frozen=True)
class BlockEfficiency:
    """Tokens emitted per call of the target model. The token after the accepted path counts.

    Attributes
    ----------
    value : float
        The mean.
    standard_error : float
        The standard error of the mean; 0 where it is exact.
    num_samples : int
        How many steps were sampled; 0 where the mean is exact.
    """

    value: float
    standard_error: float = 0.0
    num_samples: int = 0


def block_efficiency(
    rule: TreeVerifier,
    target_model: Model,
    law: TreeLaw,
    num_samples: int | None = None,
    *,
    rng: RngLike = None,
) -> BlockEfficiency:
    """Expected number of tokens that a step emits: the block efficiency of SpecTr (Sun et al. 2023).

    Parameters
    ----------
    rule : TreeVerifier
        The rule that decides on each tree.
    target_model : callable
        Takes a prefix and returns the target distribution (V,).
    law : TreeLaw
        The law of the draft trees.
    num_samples : int, optional
        How many steps to sample. Without it every outcome is listed, and the answer is exact.
    rng : int, sequence of int, numpy.random.Generator or None
        Draws the samples: a seed or a generator. Equal seeds give equal answers.

    Returns
    -------
    BlockEfficiency
        The mean; of samples, with its standard error.

    Raises
    ------
    ValueError
        For too many outcomes to list, or fewer than two samples.
    UnsupportedLaw
        For a law that the rule does not serve.

    Examples
    --------
    >>> import otmd
    >>> from otmd import trees
    >>> target = trees.TableModel([[0.5, 0.3, 0.2]])
    >>> draft = trees.TableModel([[0.2, 0.3, 0.5]])
    >>> rule, tree = trees.TokenLevel(otmd.RecursiveRejection()), trees.TokenTree(draft, (2, 1))
    >>> round(trees.block_efficiency(rule, target, tree).value, 4)
    2.394
    """
    context = Context(target_model, law)

    def tokens_per_step(choices: RandomChoices) -> float:
        return rule.tokens_per_step(context, law.draft_tree(context, choices), choices)

    if num_samples is None:
        outcomes = every_outcome(tokens_per_step)
        return BlockEfficiency(sum(tokens * prob for tokens, prob in outcomes))
    validate_count("num_samples", num_samples, minimum=2)
    choices = Sampled(validate_rng(rng))
    lengths = np.array([tokens_per_step(choices) for _ in range(num_samples)])
    error = float(lengths.std(ddof=1)) / num_samples**0.5
    return BlockEfficiency(float(lengths.mean()), error, num_samples)


def output_distribution(rule: TreeVerifier, target_model: Model, law: TreeLaw) -> FloatArray:
    """Exact distribution of the first depth + 1 tokens, an array with depth + 1 axes of length V.

    Where a step emits fewer tokens, the target model draws the others. It equals :func:`target_distribution`
    up to rounding if the rule is lossless.

    Parameters
    ----------
    rule, target_model, law
        As for :func:`block_efficiency`, for errors as well.

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
