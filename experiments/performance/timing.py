"""Shared by the benchmarks: synthetic positions, and fair times of tasks that take turns."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

import otmd

NOISES = (0.3, 1.0)
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True, eq=False)
class Position:
    """Two distributions (V,), and where they come from."""

    source: str
    label: str
    temperature: float
    target: np.ndarray
    draft: np.ndarray


def synthetic_logits(shape: tuple[int, ...], noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Normal logits of the target, and a draft that adds noise to them."""
    rng = np.random.default_rng(seed)
    logits = 2.5 * rng.standard_normal(shape)
    return logits, logits + noise * rng.standard_normal(shape)


def synthetic_positions(vocab_size: int, temperatures: tuple[float, ...]) -> Iterator[Position]:
    """Positions of :func:`synthetic_logits`, by noise and temperature."""
    for seed, noise in enumerate(NOISES):
        logits = synthetic_logits((vocab_size,), noise, seed)
        for temperature in temperatures:
            pair = (otmd.probs_from_logits(x, temperature) for x in logits)
            yield Position("synthetic", f"noise {noise}", temperature, *pair)


def best_times(
    tasks: Mapping[Any, Callable[[], object]],
    rounds: int,
    clock: Callable[[], float] = perf_counter,
) -> dict[Any, float]:
    """Seconds of each task: the best of rounds in which all take turns, after one that does not count."""
    best = dict.fromkeys(tasks, np.inf)
    for number in range(rounds + 1):
        for name, task in tasks.items():
            start = clock()
            task()
            if number:
                best[name] = min(best[name], clock() - start)
    return best


def use_one_thread() -> None:
    """Start the program anew, unless every library has one thread."""
    if any(os.environ.get(name) != "1" for name in THREADS):
        # Libraries count their threads when they are loaded, which they are by now.
        os.environ.update(dict.fromkeys(THREADS, "1"))
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
