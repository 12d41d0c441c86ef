"""Compile the kernels of one half of the laws, by its number 0 or 1, and keep them on disk.

tests/conftest.py runs both halves side by side before the workers of pytest-xdist start.
"""

from __future__ import annotations

import sys
import warnings

import numpy as np
from conformance import REGISTERED

import otmd
from otmd.kernel import every_kernel_compiled
from otmd.verifiers import verifiers_serving

VOCAB_SIZE = 5_000
# The first half compiles the plans of drafts without replacement, the longest of all.
HALVES = (
    ["without-replacement"],
    [name for name in REGISTERED if name != "without-replacement"],
)


def compile_law(name: str) -> None:
    """Compile the kernels of a law: its optimum, its draws, and every verifier's rate and answer."""
    rng = np.random.default_rng(0)
    target_probs, draft_probs = rng.dirichlet(np.full(VOCAB_SIZE, 0.1), size=2)
    with every_kernel_compiled():
        for num_drafts in (1, 2, 3):
            try:
                law = REGISTERED[name](draft_probs, num_drafts)
            except ValueError:
                # Some laws do not exist for every number of drafts.
                continue
            # Probabilities in float32 are checked by other compiled kernels than those in float64.
            otmd.optimal_acceptance(target_probs.astype(np.float32), law)
            _ = otmd.optimal_acceptance(target_probs, law).subset
            law.inclusion_probs()
            draft_tokens = law.sample(rng=rng)
            for verifier in verifiers_serving(law):
                verifier.acceptance_bounds(target_probs, law, tol=1e-3)
                verifier.prepare(target_probs, law).verify(draft_tokens, rng=rng)


if __name__ == "__main__":
    warnings.simplefilter("error")
    for law_name in HALVES[int(sys.argv[1])]:
        compile_law(law_name)
