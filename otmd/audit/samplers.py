"""Rules as black boxes: from the drafts of many draws to the tokens that come out."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from otmd.drafts import DraftLaw
from otmd.drafts.base import draw_tokens, validate_rng
from otmd.probabilities import FloatArray, IntArray, validate_probs
from otmd.verifiers import Verifier

Sampler = Callable[[IntArray], ArrayLike]
"""From drafts (n,) to a token, or from drafts (N, n) to tokens (N,)."""
ConditionalLaw = Callable[[IntArray], ArrayLike]
"""From drafts (n,) to the law of the output token (V,)."""


def emitted_tokens(
    sampler: Sampler | Verifier,
    target: FloatArray,
    law: DraftLaw,
    drafts: IntArray,
    batched: bool,
    rng: np.random.Generator,
) -> IntArray:
    """What a rule emits for drafts (N, n); ValueError for what are not N tokens of the vocabulary."""
    if isinstance(sampler, Verifier):
        return np.asarray(sampler.verify(target, law, drafts, rng=rng).token)
    if not callable(sampler):
        raise ValueError(f"sampler: got {sampler!r}, wanted a Verifier or a callable")
    if batched:
        return validate_emitted(sampler(drafts), len(drafts), law.vocab_size, "sampler")
    tokens = np.empty(len(drafts), np.int64)
    for row, own in enumerate(drafts):
        token = np.asarray(sampler(own))
        if token.ndim:
            raise ValueError(
                f"sampler: got an array of shape {token.shape} for drafts of shape {own.shape}, wanted a "
                "token; batched=True takes all draws in one call"
            )
        tokens[row] = validate_emitted(token[None], 1, law.vocab_size, "sampler")[0]
    return tokens


def validate_emitted(tokens: ArrayLike, count: int, vocab_size: int, name: str) -> IntArray:
    """Return tokens as int64 of shape (count,), or raise ValueError under that name."""
    array = np.asarray(tokens)
    if array.dtype.kind not in "iu" or array.shape != (count,):
        raise ValueError(
            f"{name}: got {array.dtype} of shape {array.shape}, wanted integers of shape ({count},)"
        )
    if count and (array.min() < 0 or array.max() >= vocab_size):
        raise ValueError(
            f"{name}: got ids from {array.min()} to {array.max()}, wanted ids in [0, {vocab_size})"
        )
    return array.astype(np.int64)


def sampler_of(rule: ConditionalLaw, *, rng: np.random.Generator) -> Callable[[IntArray], IntArray]:
    """A batched sampler of a rule that is given by its conditional law.

    Parameters
    ----------
    rule : callable
        From drafts (n,) to the law of the output token (V,). It is asked once for each tuple of drafts.
    rng : numpy.random.Generator
        Draws the tokens.

    Returns
    -------
    callable
        From drafts (N, n) to tokens (N,).

    Raises
    ------
    ValueError
        If ``rng`` is not a Generator; when called, for a law that is no distribution.
    """
    validate_rng(rng)
    known: dict[tuple[int, ...], FloatArray] = {}

    def sample(drafts: IntArray) -> IntArray:
        every, which = np.unique(drafts, axis=0, return_inverse=True)
        which = which.ravel()
        tokens = np.empty(len(drafts), np.int64)
        rows = np.split(np.argsort(which, kind="stable"), np.cumsum(np.bincount(which))[:-1])
        for own, where in zip(every, rows, strict=True):
            key = tuple(own.tolist())
            if key not in known:
                known[key] = validate_probs("rule", rule(own))
            tokens[where] = draw_tokens(known[key], rng, where.size)
        return tokens

    return sample
