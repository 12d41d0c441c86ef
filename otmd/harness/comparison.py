"""Ways of decoding, side by side: the same prompts, the same machine, in turn."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from otmd.harness.decoding import Decoded, Speculation, decode
from otmd.harness.models import LanguageModel
from otmd.probabilities import Processing

WARM_UP_TOKENS = 8
Ways = Mapping[str, Speculation | None]


def decode_in_turn(
    target: LanguageModel,
    prompts: Sequence[Sequence[int]],
    ways: Ways,
    max_new_tokens: int,
    processing: Processing,
    seed: int = 0,
) -> Iterator[dict[str, Decoded]]:
    """Continue each prompt in several ways.

    The ways take turns prompt by prompt, and another one begins each time, so that what else the machine does
    falls on all of them. One short text in every way comes before, and does not count: it compiles.

    Parameters
    ----------
    target : LanguageModel
        The target model.
    prompts : sequence of sequences of int
        Token ids, none empty.
    ways : mapping of str to Speculation or None
        How to speculate, by name; None is the target alone.
    max_new_tokens : int
        Where a text stops, if no token ends it before.
    processing : Processing
        From the target's logits to probabilities.
    seed : int
        Of the sampling, in each way and for each prompt anew.

    Yields
    ------
    dict of str to Decoded
        For each prompt, by name.

    Raises
    ------
    ValueError
        See :func:`otmd.harness.decode`.
    """
    names = list(ways)
    for name in names:
        rng = np.random.default_rng(seed)
        decode(target, prompts[0], WARM_UP_TOKENS, ways[name], processing, rng=rng)
    for number, prompt in enumerate(prompts):
        found = {}
        for turn in range(len(names)):
            name = names[(number + turn) % len(names)]
            rng = np.random.default_rng([seed, number])
            found[name] = decode(target, prompt, max_new_tokens, ways[name], processing, rng=rng)
        yield {name: found[name] for name in names}
