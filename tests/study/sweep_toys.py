import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from otmd.study import Sweep, run_sweep

GRID = [{"shift": shift, "count": count} for shift in (0.0, 1.0, 2.5) for count in (1, 3)]


def draws(rng: np.random.Generator, shift: float, count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"number": number, "value": shift + rng.random()}


def slow(rng: np.random.Generator, shift: float, count: int) -> Iterator[dict[str, Any]]:
    time.sleep(0.3)
    yield from draws(rng, shift, count)


def deadly(rng: np.random.Generator, shift: float, count: int, mark: str) -> list[dict[str, Any]]:
    """Kills its own process the first time that it comes to the last task."""
    if shift == 2.5 and count == 3 and not Path(mark).exists():
        time.sleep(0.5)
        Path(mark).touch()
        os.kill(os.getpid(), 9)
    return list(draws(rng, shift, count))


def other_keys(rng: np.random.Generator, shift: float, count: int) -> list[dict[str, Any]]:
    return [{"shift": shift + count}] if count > 1 else []


if __name__ == "__main__":
    run_sweep(Sweep(slow, GRID), sys.argv[1], workers=int(sys.argv[2]))
