"""Interpolated n-gram models over a tokenizer's tokens: the cheapest of drafts.

Witten-Bell smoothing in its recursive, interpolated form (Witten & Bell 1991, method C; Chen &
Goodman 1998, section 2.6): with c counts and N(h) the number of different tokens seen after h,
``P(w | h) = (c(h w) + N(h) P(w | h')) / (c(h) + N(h))``, where h' is h without its first token, and
the recursion ends in the uniform distribution. It has no constants to tune and is positive everywhere.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from otmd.models.continuations import Continuations
from otmd.probabilities import FloatArray, Processing, validate_count, wrong

# The shortest and longest contexts that ContextNGram counts. Single tokens recur without meaning: the fitted
# model predicts better what follows one.
SHORTEST, LONGEST = 2, 6


class NGram:
    """Counts of every gram up to an order.

    The number of a gram of k tokens is its index among the sorted ``keys`` of order k. Its key is (number of
    the gram without its last token) · V + last token; a single token is its own number. So the tokens seen
    after a context are neighbours among the keys.

    ``unigrams`` (V,) say how often each token occurs; ``keys`` and ``counts`` have an array for each order
    2, 3, …: the sorted keys, and how often each gram occurs.

    Examples
    --------
    >>> from otmd.models import NGram
    >>> model = NGram.fit([[0, 1, 2, 0, 1]], vocab_size=3, order=2)
    >>> int(model.probs([0]).argmax())
    1
    """

    def __init__(self, unigrams: np.ndarray, keys: Sequence[Any], counts: Sequence[Any]):
        self.unigrams = unigrams
        self.keys = list(keys)
        self.counts = list(counts)
        self.vocab_size = len(unigrams)
        self.order = 1 + len(self.keys)
        seen = np.count_nonzero(unigrams)
        self._base = (unigrams + seen / self.vocab_size) / (unigrams.sum() + seen)

    @classmethod
    def fit(cls, sequences: Iterable[Sequence[int]], vocab_size: int, order: int = 3) -> NGram:
        """Count the grams of token sequences; none reaches over the end of a sequence.

        The sequences are of token ids in [0, ``vocab_size``), and ``order`` ≥ 1 is the length of the longest
        gram. ValueError for other values, or if there is no token.
        """
        validate_count("order", order)
        parts = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
        tokens = np.concatenate([*parts, np.empty(0, np.int64)])
        if tokens.size == 0 or tokens.min() < 0 or tokens.max() >= vocab_size:
            raise wrong("sequences", "no tokens, or others", f"tokens in [0, {vocab_size})")
        index = np.concatenate([np.arange(len(part)) for part in parts])
        keys = []
        counts = []
        numbers = tokens
        for length in range(2, order + 1):
            # numbers[t] is the number of the gram that ends at t, or −1 if t is too early in its sequence.
            ends = np.flatnonzero(index >= length - 1)
            grams = numbers[ends - 1] * vocab_size + tokens[ends]
            distinct, gram_numbers, times = np.unique(grams, return_inverse=True, return_counts=True)
            numbers = np.full(len(tokens), -1)
            numbers[ends] = gram_numbers
            keys.append(distinct)
            counts.append(times)
        return cls(np.bincount(tokens, minlength=vocab_size), keys, counts)

    def probs(self, context: Sequence[int] | np.ndarray) -> np.ndarray:
        """Probabilities (V,) > 0 of the token after the last ``order - 1`` tokens of a context (T,)."""
        probs = self._base.copy()
        for length in range(1, min(self.order - 1, len(context)) + 1):
            run = self._followers([int(t) for t in context[len(context) - length :]])
            tokens = self.keys[length - 1][run] % self.vocab_size
            if tokens.size == 0:
                break  # a longer context cannot have been seen either
            _sharpen(probs, tokens, self.counts[length - 1][run])
        return probs

    def _followers(self, context: Sequence[int]) -> slice:
        number = context[0]
        for length, token in enumerate(context[1:]):
            keys = self.keys[length]
            key = number * self.vocab_size + token
            number = int(np.searchsorted(keys, key))
            if number == len(keys) or keys[number] != key:
                return slice(0, 0)
        ends = np.array([number, number + 1]) * self.vocab_size
        return slice(*np.searchsorted(self.keys[len(context) - 1], ends))

    def sha256(self) -> str:
        """Hash of the counts."""
        digest = hashlib.sha256()
        named = {"unigrams": self.unigrams}
        for order, (keys, counts) in enumerate(zip(self.keys, self.counts, strict=True), 2):
            named |= {f"keys{order}": keys, f"counts{order}": counts}
        for name, array in named.items():
            digest.update(name.encode() + np.ascontiguousarray(array, dtype="<i8").tobytes())
        return digest.hexdigest()


def _sharpen(probs: FloatArray, tokens: np.ndarray, times: np.ndarray) -> None:
    """Turn P(w | h') into P(w | h), in place, if ``tokens`` came after h so many ``times``."""
    total = times.sum() + tokens.size
    probs *= tokens.size / total
    probs[tokens] += times / total


class ContextNGram(Continuations):
    """An n-gram model of other text that also learns from the text as it is written.

    Texts repeat themselves: prompt lookup decoding drafts what followed the last tokens earlier in the text
    (Saxena 2023), REST what followed them in a datastore (He et al. 2024). This model is a distribution over
    such tokens, by Witten-Bell smoothing again. Count c and N in the text; let h_k be its last k tokens and
    P_1 the distribution of the fitted model. Then
    ``P_k(w | h_k) = (c(h_k w) + N(h_k) P_{k-1}(w | h_{k-1})) / (c(h_k) + N(h_k))`` for k = 2, …, ``longest``,
    as long as h_k has been seen.
    """

    def __init__(self, model: NGram, longest: int = LONGEST) -> None:
        self.model = model
        self.longest = validate_count("longest", longest, minimum=0)
        self._last: deque[int] = deque(maxlen=max(longest, model.order - 1))
        self._after: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)

    def extend(self, tokens: Sequence[int] | np.ndarray) -> None:
        """Append these tokens, in [0, V), to the text."""
        for token in map(int, tokens):
            last = tuple(self._last)
            for length in range(SHORTEST, min(self.longest, len(last)) + 1):
                self._after[last[-length:]][token] += 1
            self._last.append(token)

    def logits(self, prefixes: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Logarithms (V,) of the probabilities after each prefix."""
        return [np.log(self.probs(prefix)) for prefix in prefixes]

    def distribution(self, prefix: Sequence[int], step: Processing, size: int | None = None) -> FloatArray:
        """The probabilities themselves, at a tenth of the time, where ``step`` would give them again."""
        probs = self.probs(prefix)[:size]
        return probs if step == Processing() else step(np.log(probs))

    def probs(self, prefix: Sequence[int] = ()) -> FloatArray:
        """Probabilities (V,) > 0 of the token after the text and a prefix, which is not counted."""
        last = (*self._last, *prefix)
        probs = self.model.probs(last)
        for length in range(SHORTEST, min(self.longest, len(last)) + 1):
            after = self._after.get(last[-length:])
            if after is None:
                break  # a longer run cannot have been seen either
            _sharpen(probs, np.array(list(after)), np.array(list(after.values())))
        return probs
