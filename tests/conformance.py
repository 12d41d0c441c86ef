"""The laws that the shared tests run over: those of the registry, and their variants."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import otmd
from otmd.registry import LAWS

# What a law of the registry takes besides one distribution and the number of drafts.
_FURTHER: dict[str, Callable[..., otmd.DraftLaw]] = {
    "hub": lambda q, n: otmd.Hub(q),
    "top-then": lambda q, n: otmd.TopThen(q, n, top=1, rest=otmd.WithReplacement),
    "independent": lambda q, n: otmd.Independent(
        np.stack([np.roll(q, j, axis=-1) for j in range(n)], axis=-2)
    ),
}
REGISTERED = {name: _FURTHER.get(name, entry.load()) for name, entry in LAWS.items()}
"""From a distribution (…, V) and a number of drafts to the law, by its name on the command line."""
VARIANTS: dict[str, Callable[..., otmd.DraftLaw]] = {
    **REGISTERED,
    "top, then without replacement": lambda q, n: otmd.TopThen(q, n, top=1),
    "top, then conditional Poisson": lambda q, n: otmd.TopThen(q, n, top=1, rest=otmd.ConditionalPoisson),
    "top, then strata": lambda q, n: otmd.TopThen(q, n, top=1, rest=otmd.Stratified),
    "sharp strata": lambda q, n: otmd.Stratified(q, n, sharpness=2.0),
}
