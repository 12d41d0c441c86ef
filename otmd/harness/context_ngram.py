"""An n-gram model that learns from the text as it is written: texts repeat themselves.

What followed the last tokens when they stood in the text before is what prompt lookup decoding drafts
(Saxena 2023), and what REST drafts from a datastore (He et al. 2024). Here it is a distribution: Witten-Bell
smoothing, whose recursion goes on from an n-gram model of other text where :mod:`otmd.harness.ngram` ends in
the uniform law. With c and N counted in the text, P_{m-1} the law of the other model, and h_k the last k
tokens, ``P_k(w | h_k) = (c(h_k w) + N(h_k) P_{k-1}(w | h_{k-1})) / (c(h_k) + N(h_k))`` for k = m, m + 1, …,
as long as h_k has been seen.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence

import numpy as np

from otmd.harness.ngram import NGram
from otmd.probabilities import FloatArray, validate_count

# Shorter runs recur by chance in any text, and a model of other text knows more about them.
SHORTEST, LONGEST = 2, 6


class ContextNGram:
    """An n-gram model, and on top of it the counts of one text.

    Parameters
    ----------
    model : NGram
        Of other text.
    longest : int
        The longest run of tokens whose followers are counted; below the shortest, 2, nothing is.

    Raises
    ------
    ValueError
        For ``longest`` < 0.
    """

    def __init__(self, model: NGram, longest: int = LONGEST) -> None:
        self.model = model
        self.longest = validate_count("longest", longest, minimum=0)
        self._last: deque[int] = deque(maxlen=max(longest, model.order - 1))
        self._after: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)

    def extend(self, tokens: Sequence[int] | np.ndarray) -> None:
        """Let the text go on with these tokens, in [0, V)."""
        for token in map(int, tokens):
            last = tuple(self._last)
            for length in range(SHORTEST, min(self.longest, len(last)) + 1):
                self._after[last[-length:]][token] += 1
            self._last.append(token)

    def probs(self, prefix: Sequence[int] = ()) -> FloatArray:
        """Law of the token after the text and a prefix; the prefix itself is not counted.

        Parameters
        ----------
        prefix : sequence of int
            Tokens that go on from the text.

        Returns
        -------
        (V,) float64 array
            Positive, sums to 1.
        """
        last = (*self._last, *prefix)
        kept, masses = 1.0, defaultdict[int, float](float)
        for length in range(SHORTEST, min(self.longest, len(last)) + 1):
            after = self._after.get(last[-length:])
            if after is None:
                break  # a longer run cannot have been seen either
            total = after.total() + len(after)
            kept *= len(after) / total
            for token in masses:
                masses[token] *= len(after) / total
            for token, times in after.items():
                masses[token] += times / total
        probs = self.model.probs(last)
        if masses:
            probs *= kept
            probs[list(masses)] += list(masses.values())
        return probs
