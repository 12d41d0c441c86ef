"""Runs of consecutive positions, and the steps that a decoder takes along them.

A lossless verifier writes the target's own texts. So the probability that a token was drafted, given that it
is emitted, follows from the two distributions. The reach of a step is a product of such probabilities, and
where steps begin is a renewal process (docs/plan.md).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from otmd.models.dataset import Dataset, Position
from otmd.probabilities import FloatArray, IntArray

LEAST_PROMPTS = 4


class Text(NamedTuple):
    """Consecutive positions of one prompt.

    Attributes
    ----------
    prompt_id, domain : str
    rows : list of int
        Indices of the N positions in the dataset.
    tokens : list of int
        The tokens at these positions.
    """

    prompt_id: str
    domain: str
    rows: list[int]
    tokens: list[int]


def read_texts(dataset: Dataset) -> list[Text]:
    """Group the positions of a dataset into one text a prompt, in the dataset's order.

    Parameters
    ----------
    dataset : Dataset
        One of ``otmd collect --consecutive``.

    Returns
    -------
    list of Text
        The texts.

    Raises
    ------
    ValueError
        If a text has a gap, tokens are missing or outside the vocabulary, or the texts are not the target's
        own.
    """
    if dataset.metadata.get("mode") == "text":
        raise ValueError(
            "dataset: its texts were given, expected texts that the target samples: "
            "otmd collect --mode samples"
        )
    prompts: dict[tuple[str, str], list[Position]] = {}
    for position in dataset.positions:
        prompts.setdefault((position.domain, position.prompt_id), []).append(position)
    return [_text(name, domain, run, dataset) for (domain, name), run in prompts.items()]


def _text(name: str, domain: str, run: list[Position], dataset: Dataset) -> Text:
    run = sorted(run, key=lambda position: position.position)
    tokens = [-1 if position.token is None else position.token for position in run]
    if any(not 0 <= token < dataset.vocab_size for token in tokens):
        raise ValueError(
            f"dataset: prompt {name!r} lacks tokens in [0, {dataset.vocab_size}), expected the `token` that "
            "came at each position (see docs/plan.md)"
        )
    for before, after in itertools.pairwise(run):
        if after.position != before.position + 1:
            raise ValueError(
                f"dataset: prompt {name!r} has position {after.position} after {before.position}, expected "
                "consecutive ones: otmd collect --consecutive 48"
            )
    if len(run) == 1:
        raise ValueError(
            f"dataset: prompt {name!r} has one position, expected a run: otmd collect --consecutive 48"
        )
    return Text(name, domain, [position.index for position in run], tokens)


def halves(texts: Sequence[Text]) -> tuple[IntArray, IntArray]:
    """Numbers of the texts to fit on, and of those held out: every second text of each domain."""
    if len(texts) < LEAST_PROMPTS:
        raise ValueError(
            f"dataset: got {len(texts)} prompts, expected at least {LEAST_PROMPTS}: trees are chosen on half "
            "of them and measured on the held-out half"
        )
    order = sorted(range(len(texts)), key=lambda i: (texts[i].domain, texts[i].prompt_id))
    return np.array(order[::2]), np.array(order[1::2])


def longest_text(metadata: dict[str, Any], texts: Sequence[Text]) -> int:
    """Tell the length at which texts were cut; a shorter text ended by itself.

    Parameters
    ----------
    metadata : dict
        The metadata of a dataset.
    texts : sequence of Text
        Its texts, at least one.

    Returns
    -------
    int
        ``max_new_tokens`` of the metadata, if that is there, and at least the length of every text.
    """
    longest = max(len(text.tokens) for text in texts)
    limit = metadata.get("max_new_tokens")
    return max(limit, longest) if isinstance(limit, int) else longest


def reached_by_probs(probs: FloatArray) -> FloatArray:
    """Reach of steps whose verifier decides on nodes one after another.

    Parameters
    ----------
    probs : ndarray of float64, shape (N, depth)
        P(token t of the text is drafted at depth k | it is emitted).

    Returns
    -------
    ndarray of float64, shape (N, depth + 1)
        P(a step that begins at token t accepts at least k tokens | the text), and 0 beyond its end.

    Examples
    --------
    >>> import numpy as np
    >>> from otmd.study.planning import reached_by_probs
    >>> reached_by_probs(np.full((3, 2), 0.5))
    array([[1.  , 0.5 , 0.25],
           [1.  , 0.5 , 0.25],
           [1.  , 0.5 , 0.  ]])
    """
    return products(probs)


def reached_by_block(ratios: FloatArray, depth: int) -> FloatArray:
    """Reach of steps of block verification, in the form of :func:`reached_by_probs`.

    Given the text, at least k tokens of a path are accepted with probability min over i ≤ k of
    min(1, q(first i tokens)/p(first i tokens)): its p_k (Sun et al. 2024) times q/p of the path.

    Parameters
    ----------
    ratios : ndarray of float64, shape (N,)
        q/p of each token of the text.
    depth : int
        The length of a path.

    Returns
    -------
    ndarray of float64, shape (N, depth + 1)
        The probabilities.

    Examples
    --------
    >>> import numpy as np
    >>> from otmd.study.planning import reached_by_block
    >>> reached_by_block(np.array([0.5, 2.0]), 2)
    array([[1. , 0.5, 0.5],
           [1. , 1. , 0. ]])
    """
    return at_most(products(np.repeat(ratios[:, None], depth, axis=1)))


def products(factors: FloatArray) -> FloatArray:
    """Products along a text of factors (N, depth) by depth, shape (N, depth + 1); 0 beyond its end."""
    count, depth = factors.shape
    values = np.zeros((count, depth + 1))
    values[:, 0] = 1.0
    for k in range(min(depth, count)):
        values[: count - k, k + 1] = values[: count - k, k] * factors[k:, k]
    return values


def at_most(ratios: FloatArray) -> FloatArray:
    """Reach (N, depth + 1) that no lossless rule exceeds.

    ``ratios`` (N, depth + 1) has, for the first k tokens from each token on, the probability that they are
    drafted, divided by the target's. P(they are accepted) is at most each of the two, and divided by the
    target's does not increase with k: see :func:`otmd.trees.inclusion_bound`.
    """
    return np.minimum.accumulate(np.minimum(ratios, 1.0), axis=1)


class Steps(NamedTuple):
    """Expected tokens and steps of a decoder along a text.

    Attributes
    ----------
    tokens, steps : float
        How many tokens it writes, and how many steps it takes.
    kept : ndarray of float64, shape (depth,)
        How often a token was accepted at each depth.
    """

    tokens: float
    steps: float
    kept: FloatArray


def steps_along(
    reached: FloatArray,
    cut_at: int,
    horizon: int | None = None,
    more: FloatArray | None = None,
) -> Steps:
    """Expected tokens and steps of a decoder that writes a text from its beginning.

    Parameters
    ----------
    reached : ndarray of float64, shape (N, depth + 1)
        From :func:`reached_by_probs` or :func:`reached_by_block`.
    cut_at : int
        The length L at which texts were cut. A text of fewer tokens ended by itself, and its last step too.
    horizon : int, optional
        Only steps count that begin among the first L − horizon + 1 tokens: all that they reach is known. By
        default, and at least, the depth. Verifiers of different depths are compared on one horizon.
    more : ndarray of float64, shape (N,), optional
        Tokens that a step that begins at each token yields beyond those that it reaches. They do not move the
        beginnings of later steps.

    Returns
    -------
    Steps
        Tokens, steps, and how often a token was accepted at each depth.

    Examples
    --------
    >>> import numpy as np
    >>> from otmd.study.planning import reached_by_probs, steps_along
    >>> steps = steps_along(reached_by_probs(np.full((8, 2), 0.5)), cut_at=8)
    >>> print(f"{steps.tokens / steps.steps:.2f} tokens per step")
    1.75 tokens per step
    """
    count = reached.shape[0]
    depth = reached.shape[1] - 1
    starts = max(min(count, cut_at - max(horizon or 0, depth) + 1), 0)
    reached = reached[:starts].copy()
    if count < cut_at:
        # The last token ends the text: nothing follows it.
        reached[np.add.outer(np.arange(starts), np.arange(depth + 1)) >= count] = 0.0
    begins = step_begins(reached)
    times_reached = begins @ reached
    tokens = float(times_reached.sum())
    if more is not None:
        tokens += float(begins @ more[:starts])
    return Steps(tokens, float(begins.sum()), times_reached[1:])


def step_begins(reached: FloatArray) -> FloatArray:
    """Probability that a step begins at each token, given the text.

    Parameters
    ----------
    reached : ndarray of float64, shape (S, depth + 1)
        As for :func:`steps_along`, of the first S tokens.

    Returns
    -------
    ndarray of float64, shape (S,)
        The probabilities; the first is 1.

    Examples
    --------
    >>> import numpy as np
    >>> from otmd.study.planning import reached_by_probs, step_begins
    >>> step_begins(reached_by_probs(np.full((3, 1), 0.5)))
    array([1.  , 0.5 , 0.75])
    """
    starts = reached.shape[0]
    depth = reached.shape[1] - 1
    emits = reached - np.append(reached[:, 1:], np.zeros((starts, 1)), axis=1)
    begins = np.zeros(starts + depth + 1)
    begins[0] = 1.0
    for start in range(starts):
        begins[start + 1 : start + depth + 2] += begins[start] * emits[start]
    return begins[:starts]
