"""Checks of an engine's whole step, drafting included, by the tokens that it emits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, bdtrc

from otmd.audit.base import validate_level
from otmd.laws.base import RngLike, validate_rng
from otmd.probabilities import (
    FloatArray,
    IntArray,
    from_tensor,
    validate_count,
    wrong,
    wrong_type,
)
from otmd.trees.base import Model, Prefix, next_probs

Step = Callable[[Model, Model, list[Prefix], np.random.Generator], Sequence[ArrayLike]]
"""From target, draft, the prefix of each request and a generator to the tokens that each request emits."""
_SHOWN = 5
# Each of more counts would have too small a share of the level.
_MOST_COUNTS = 10**15
Deviation = tuple[float, str]
"""The p-value of a count, and the count in words."""


def assert_step_lossless(
    step: Step,
    target: Model,
    draft: Model,
    depth: int,
    *,
    prefixes: Sequence[Prefix] = ((),),
    num_samples: int = 20_000,
    false_alarm: float = 1e-4,
    rng: RngLike = 0,
) -> None:
    """Fail unless an engine's whole step, drafting included, emits tokens as the target would.

    Parameters
    ----------
    step : callable
        ``step(target, draft, prefixes, rng)`` drafts and verifies once for a batch of requests. For each
        request it returns the tokens that it emits after the prefix, 1 to depth + 1. Calls must be
        independent of each other.
    target, draft : callable
        Models: each takes a prefix, a tuple of token ids, and returns the distribution (V,) of the next
        token, as :class:`~otmd.trees.TableModel` does. They are handed to the step.
    depth : int
        The number of tokens of the longest path that is drafted.
    prefixes : sequence of tuple of int
        The text of each request of the batch. By default there is one request, without text. Texts of unequal
        lengths reveal padding faults; several requests reveal random numbers that they share.
    num_samples : int
        Number of calls of the step.
    false_alarm : float
        The largest probability that a lossless step fails.
    rng : int, sequence of int, numpy.random.Generator or None
        A seed or a generator; the step is given the generator. By default every run is the same.

    Raises
    ------
    AssertionError
        With the prefixes after which the emitted tokens deviate most; or, if none does significantly, with
        the requests that are dependent.
    ValueError, TypeError
        For invalid input; for a step that does not return 1 to depth + 1 tokens of the vocabulary for each
        request.

    Notes
    -----
    The tokens of a step, continued by the target, are distributed as the target's if and only if, after every
    prefix, the next token that the step emits has the target's distribution, given that it emits one. So each
    count of a token after a prefix is binomial, and so is each count of a pair of first tokens of two
    requests. Each has an equal share of ``false_alarm`` (union bound).

    Not tested: dependence between later tokens of two requests or between calls, and the acceptance rate.

    Examples
    --------
    >>> import otmd
    >>> from otmd import trees
    >>> target = trees.TableModel.random(3, 1, rng=1)
    >>> draft = trees.TableModel.random(3, 1, rng=2)
    >>> def step(target, draft, prefixes, rng):
    ...     path = trees.TokenTree(draft, (1, 1))
    ...     return [trees.BlockVerification().step(target, path, rng=rng)]
    >>> otmd.testing.assert_step_lossless(step, target, draft, depth=2, num_samples=500)
    """
    depth = validate_count("depth", depth, minimum=0)
    level = validate_level(false_alarm)
    for prefix in prefixes:
        if not isinstance(prefix, (tuple, list)):
            raise wrong_type("prefixes", prefix, "tuples of token ids")
    batch = [tuple(prefix) for prefix in prefixes]
    if not batch:
        raise wrong("prefixes", "none", "at least one")
    size = next_probs("target", target, batch[0]).size
    next_probs("draft", draft, batch[0], size)
    num_counts = len(batch) * sum(size**d for d in range(1, depth + 2))
    num_counts += len(batch) * (len(batch) - 1) // 2 * size**2
    if num_counts > _MOST_COUNTS:
        limit = f"at most {_MOST_COUNTS:g} counts of tokens"
        raise wrong("depth", f"{depth} with {size} tokens", limit)
    generator = validate_rng(rng)
    emitted = [
        _validate_emitted(step(target, draft, [*batch], generator), len(batch), depth, size)
        for _ in range(validate_count("num_samples", num_samples))
    ]
    alarm = level / num_counts
    worst = sorted(x for x in _after_prefixes(target, batch, emitted, size) if x[0] <= alarm)
    if not worst:
        # Where single requests deviate, pairs of them do too.
        worst = sorted(x for x in _together(target, batch, emitted) if x[0] <= alarm)
    if worst:
        head = f"not lossless (alarm at {alarm:.1e}: {level:.0e} for all {num_counts} counts)"
        raise AssertionError("\n  ".join([head, *(words for _, words in worst[:_SHOWN])]))


def _validate_emitted(
    returned: Sequence[ArrayLike], num_requests: int, depth: int, size: int
) -> list[Prefix]:
    """The tokens that each request emitted."""
    if not hasattr(returned, "__len__"):
        raise wrong_type("step", returned, "the tokens of each request")
    if len(returned) != num_requests:
        expected = f"{num_requests}, one for each prefix"
        raise wrong("step", f"{len(returned)} sequences of tokens", expected)
    emitted = []
    for request, tokens in enumerate(returned):
        array = np.asarray(from_tensor(tokens))
        are_tokens = array.ndim == 1 and array.dtype.kind in "iu" and 1 <= array.size <= depth + 1
        if not are_tokens or array.min() < 0 or array.max() >= size:
            expected = f"1 to {depth + 1} integers in [0, {size})"
            raise wrong(f"step, request {request}", repr(tokens), expected)
        emitted.append(tuple(array.tolist()))
    return emitted


def _after_prefixes(
    target: Model, batch: list[Prefix], emitted: list[list[Prefix]], size: int
) -> Iterator[Deviation]:
    """The token that deviates most after each prefix of each request."""
    for request, text in enumerate(batch):
        counts = defaultdict(lambda: np.zeros(size, np.int64))
        for tokens in (call[request] for call in emitted):
            for i, token in enumerate(tokens):
                counts[tokens[:i]][token] += 1
        for prefix, count in counts.items():
            probs = next_probs("target", target, text + prefix, size)
            yield _largest(f"request {request}, after {text + prefix}, token", count, probs)


def _together(target: Model, batch: list[Prefix], emitted: list[list[Prefix]]) -> Iterator[Deviation]:
    """The pair of first tokens that deviates most from independence, for every two requests."""
    firsts = np.array([[tokens[0] for tokens in call] for call in emitted])
    probs = [next_probs("target", target, prefix) for prefix in batch]
    for a, b in combinations(range(len(batch)), 2):
        joint = np.outer(probs[a], probs[b])
        counts = np.zeros(joint.shape, np.int64)
        np.add.at(counts, (firsts[:, a], firsts[:, b]), 1)
        yield _largest(f"requests {a} and {b} together, first tokens", counts, joint)


def _largest(event: str, counts: IntArray, probs: FloatArray) -> Deviation:
    """The count of the smallest two-sided p-value among exclusive outcomes of these probabilities."""
    trials = int(counts.sum())
    tails = np.minimum(bdtr(counts, trials, probs), bdtrc(counts - 1, trials, probs))
    index = np.unravel_index(tails.argmin(), tails.shape)
    p_value = min(1.0, 2.0 * float(tails[index]))
    counted = f"{counts[index]} of {trials} times, expected {trials * probs[index]:.1f}"
    outcome = ", ".join(map(str, index))
    return p_value, f"{event} {outcome}: {counted}, p-value {p_value:.1e}"
