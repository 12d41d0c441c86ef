"""Two real models reduced to V tokens: their distributions after a text, on a tree of few tokens.

At every prefix the V − 1 tokens with the largest sum of target and draft probability are kept, and all others
are merged into one. After the merged token the models continue as after one of the merged tokens, drawn from
the target. So every distribution of the small models is a real one with tokens merged, at a prefix that the
target may write. Merging can hide differences between the two models, and adds none.
"""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from otmd.laws.base import draw_tokens
from otmd.models.continuations import Continuations
from otmd.probabilities import FloatArray
from otmd.trees import TableModel
from otmd.trees.base import Prefix


def reduced_models(
    models: Sequence[Continuations],
    probs: Callable[[np.ndarray], FloatArray],
    vocab_size: int,
    depth: int,
    rng: np.random.Generator,
) -> tuple[TableModel, TableModel]:
    """Target and draft over V tokens, from the end of a text on.

    Parameters
    ----------
    models : sequence of Continuations
        Target and draft at the end of the text.
    probs : callable
        From logits to probabilities.
    vocab_size : int
        V, at least 2.
    depth : int
        Prefixes of up to ``depth`` tokens are read.
    rng : numpy.random.Generator
        Draws the token that stands for the merged ones. Equal seeds give equal models.

    Returns
    -------
    target, draft : TableModel
    """
    written: dict[Prefix, Prefix] = {(): ()}
    tables: list[FloatArray] = []
    for length in range(depth + 1):
        prefixes = list(product(range(vocab_size), repeat=length))
        reals = [written[prefix] for prefix in prefixes]
        rows = []
        for prefix, *logits in zip(prefixes, *(m.logits(reals) for m in models), strict=True):
            target, draft = map(probs, logits)
            kept, reduced = merge_rest(target, draft, vocab_size)
            others = target.copy()
            others[kept] = 0.0
            tokens = [*kept.tolist(), int(draw_tokens(others, rng, 1)[0])]
            written |= {(*prefix, i): (*written[prefix], t) for i, t in enumerate(tokens)}
            rows.append(reduced)
        shape = (2, *(vocab_size,) * (length + 1))
        tables.append(np.moveaxis(np.array(rows), 1, 0).reshape(shape))
    return TableModel([table[0] for table in tables]), TableModel([table[1] for table in tables])


def merge_rest(
    target: FloatArray, draft: FloatArray, vocab_size: int
) -> tuple[np.ndarray, FloatArray]:
    """The V − 1 tokens likeliest under the sum of both laws, and both laws (2, V) with the rest merged."""
    kept = np.argsort(-(target + draft), kind="stable")[: vocab_size - 1]
    both = np.stack([target, draft])
    own = both[:, kept]
    beside = both.copy()
    beside[:, kept] = 0.0
    reduced = np.column_stack([own, beside.sum(axis=1)])
    return kept, reduced / reduced.sum(axis=1, keepdims=True)
