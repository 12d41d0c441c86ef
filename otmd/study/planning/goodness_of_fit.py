"""The test of whether the target sampled the texts: the goodness-of-fit test of the audit of runs."""

from collections.abc import Iterator, Sequence

import numpy as np

from otmd.audit import counts
from otmd.models.dataset import Dataset
from otmd.study.planning.texts import Text
from otmd.study.planning.token_table import Settings, located, target_probs
from otmd.study.rows import process

# The probability, at most, that texts of the target are refused.
FALSE_ALARM = 1e-4
ORDERS = ("p", "p/q")
# Random numbers of the test are not those of an engine with the same seed.
_STREAM = 0x7E575
_TOKENS_A_CELL = 20
_MOST_CELLS = 16


def check_texts(dataset: Dataset, texts: Sequence[Text], settings: Settings) -> None:
    """Raise a ValueError for texts that the target did not sample with these settings.

    Each token becomes a number that is uniform in [0, 1) given the text before it, if the target sampled it:
    the mass of the tokens before it in an order, and a random part of its own. The numbers are counted in
    cells of equal mass for an exact G-test, once in the order of p and once in that of p/q.

    Parameters
    ----------
    dataset, texts, settings
        As for :func:`otmd.study.planning.probs_table`.
    """
    rng = np.random.default_rng([settings.seed, _STREAM])
    numbers = np.array([*_numbers(dataset, texts, settings, rng)])
    level = FALSE_ALARM / len(ORDERS)
    num_cells = int(np.clip(len(numbers) // _TOKENS_A_CELL, 2, _MOST_CELLS))
    uniform = np.full(num_cells, 1.0 / num_cells)
    cells = np.minimum((numbers * num_cells).astype(np.int64), num_cells - 1)
    for order, labels in zip(ORDERS, cells.T, strict=True):
        seen = np.bincount(labels, minlength=num_cells)
        if counts.exact_p_value(seen, uniform, level, rng=rng) <= level:
            more = "more" if numbers[:, 0].mean() < 0.5 else "less"
            raise ValueError(
                f"dataset: got texts that the target did not sample at {settings.target} (G-test in the "
                f"order of {order}, false-alarm rate {FALSE_ALARM:g}; their tokens are {more} likely than "
                "its samples), expected its own texts, the temperature and cuts that they were sampled with, "
                "and at each position the token that came there"
            )


def _numbers(
    dataset: Dataset, texts: Sequence[Text], settings: Settings, rng: np.random.Generator
) -> Iterator[list[float]]:
    """The numbers of each token, one for each order."""
    for number, text in enumerate(texts):
        for index, (row, token) in enumerate(zip(text.rows, text.tokens, strict=True)):
            with located(number, index):
                target, draft = (side[0] for side in dataset.arrays([row]))
                p = target_probs(target, dataset.kind, settings.target, token)
                q = process("draft_probs", draft, dataset.kind, settings.drafts[0])
            keys = -p, counts.ratios(p, q)
            yield [counts.mass_before(p, key, token) + p[token] * rng.random() for key in keys]
