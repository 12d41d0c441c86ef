"""The steps that a decoder takes along a given text: exactly, and without drafting anything.

A lossless rule writes the target's texts, so that a step may be looked at given the text: how much of it is
accepted is then a chain of chances, one a token, and where steps begin is a renewal process along the text.
Averaged over texts of the target this is what a decoder that samples would measure, with less noise.
"""

from dataclasses import dataclass

import numpy as np
from target_texts import Laws

from otmd.planning import reached_by_block, step_begins
from otmd.probabilities import FloatArray


@dataclass(frozen=True, eq=False)
class Starts:
    """What a step that begins at each of S tokens of a text does.

    Attributes
    ----------
    reached : ndarray of float64, shape (S, depth + 1)
        P(at least k drafted tokens are accepted | the text), k = 0 … depth.
    expected : ndarray of float64, shape (S,)
        Expected number of tokens emitted, given the text so far and, where it is seen, the rest of it.
    """

    reached: FloatArray
    expected: FloatArray


def token_level_starts(passing: FloatArray, rates: FloatArray, state: int, depth: int) -> Starts:
    """Steps of a rule that decides token by token.

    Parameters
    ----------
    passing : ndarray of float64, shape (N, S, S)
        At each token of the text, in state i: P(the text's token is drafted and emitted, and the state
        below it is j | that token is emitted).
    rates : ndarray of float64, shape (N, S)
        Acceptance rates; with them the last token looked at is averaged over all that the target may say.
    state : int
        The state at a root.
    depth : int
        Of the tree.

    Returns
    -------
    Starts
    """
    count = max(len(passing) - depth + 1, 0)
    states = np.zeros((count, rates.shape[1]))
    states[:, state] = 1.0
    reached, expected = [np.ones(count)], np.ones(count)
    for k in range(depth):
        expected += np.einsum("ti,ti->t", states, rates[k : k + count])
        states = np.einsum("ti,tij->tj", states, passing[k : k + count])
        reached.append(states.sum(axis=1))
    return Starts(np.stack(reached, axis=1), expected)


def block_starts(text: Laws, depth: int) -> Starts:
    """Steps of block verification, with one path.

    See :func:`otmd.planning.reached_by_block`.
    """
    every = np.arange(len(text.tokens))
    ratios = text.draft[every, text.tokens] / text.target[every, text.tokens]
    count = max(len(ratios) - depth + 1, 0)
    reached, expected = reached_by_block(ratios, depth)[:count], np.ones(count)
    path = np.ones(count)
    for k in range(depth):
        for start in range(count):
            warranted = reached[start, k] * text.target[start + k]
            drafted = path[start] * text.draft[start + k]
            expected[start] += np.minimum(warranted, drafted).sum()
        path = path * ratios[k : k + count]
    return Starts(reached, expected)


def decoded(starts: Starts) -> tuple[float, float]:
    """Expected tokens and expected steps of a decoder that writes the text from its beginning.

    Parameters
    ----------
    starts : Starts
        Steps that begin after the last of these starts are not counted.

    Returns
    -------
    tokens, steps : float
        Each start counts with the probability that a step begins there.
    """
    begins = step_begins(starts.reached)
    return float(begins @ starts.expected), float(begins.sum())
