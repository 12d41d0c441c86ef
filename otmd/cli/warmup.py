"""``otmd warmup``: compile every kernel now, so that later answers do not wait for the compiler."""

import time

import numpy as np

from otmd.cli.options import LAWS, read_law

EXAMPLES = """
otmd warmup
otmd warmup > warmup.log
otmd warmup && otmd measure runs/pair"""

VOCAB_SIZE = 20_000
# The optimum for independent drafts lists all V^n tuples.
FEW_TOKENS = 6


def warmup() -> None:
    """Compile all kernels now, law by law, and keep them on disk, for example in a container image.

    They are kept next to the package, or in the folder that the environment variable NUMBA_CACHE_DIR names.
    """
    for name in LAWS:
        start = time.perf_counter()
        compile_law(name)
        print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)


def compile_law(name: str) -> None:
    """Compile the kernels of a law: its optimum, its draws, and every verifier's rate and answer."""
    from otmd import optimal_acceptance
    from otmd.kernel import every_kernel_compiled
    from otmd.verifiers import verifiers_serving

    rng = np.random.default_rng(0)
    size = FEW_TOKENS if name == "independent" else VOCAB_SIZE
    target_probs, draft_probs = rng.dirichlet(np.full(size, 0.1), size=2)
    _, make = read_law(name, top=1)
    with every_kernel_compiled():
        for num_drafts in (1, 2, 3, 4):
            try:
                law = make(draft_probs, num_drafts)
            except ValueError:
                # Some laws do not exist for every number of drafts.
                continue
            # Probabilities in float32 are checked by other compiled kernels than those in float64.
            optimal_acceptance(target_probs.astype(np.float32), law)
            _ = optimal_acceptance(target_probs, law).subset
            draft_tokens = law.sample(rng=rng)
            for verifier in verifiers_serving(law):
                verifier.acceptance_bounds(target_probs, law, tol=1e-3)
                verifier.prepare(target_probs, law).verify(draft_tokens, rng=rng)
