"""Compile the kernels of every law and verifier, and keep them on disk.

tests/conftest.py runs this twice, side by side, before the workers of pytest-xdist start. The two processes
take the same list from its two ends: what the other has compiled by then is read from disk.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
from conformance import REGISTERED

import otmd
from otmd.kernel import every_kernel_compiled
from otmd.verifiers import Verifier, verifiers_serving

VOCAB_SIZE = 5_000
TARGET_PROBS, DRAFT_PROBS = np.random.default_rng(0).dirichlet(np.full(VOCAB_SIZE, 0.1), size=2)


def compile_law(law: otmd.DraftLaw) -> None:
    """Compile the kernels of a law: its optimum and its inclusion probabilities."""
    # Probabilities in float32 are checked by other compiled kernels than those in float64.
    otmd.optimal_acceptance(TARGET_PROBS.astype(np.float32), law)
    _ = otmd.optimal_acceptance(TARGET_PROBS, law).subset
    law.inclusion_probs()


def compile_verifier(verifier: Verifier, law: otmd.DraftLaw) -> None:
    """Compile the kernels of a verifier's rate and answer."""
    verifier.acceptance_bounds(TARGET_PROBS, law, tol=1e-3)
    verifier.prepare(TARGET_PROBS, law).verify(law.sample(rng=0), rng=0)


def all_calls() -> list[Callable[[], None]]:
    """List the calls; those of `Optimal`, the longest, come first, and the optimum's last."""
    of_optimal, of_others, of_laws = [], [], []
    for make_law in REGISTERED.values():
        for num_drafts in (1, 2, 3):
            try:
                law = make_law(DRAFT_PROBS, num_drafts)
            except ValueError:
                # Some laws do not exist for every number of drafts.
                continue
            of_laws.append(partial(compile_law, law))
            for verifier in verifiers_serving(law):
                calls = of_optimal if isinstance(verifier, otmd.Optimal) else of_others
                calls.append(partial(compile_verifier, verifier, law))
    return of_optimal + of_others + of_laws


if __name__ == "__main__":
    warnings.simplefilter("error")
    with every_kernel_compiled():
        for call in all_calls()[:: int(sys.argv[1])]:
            call()
