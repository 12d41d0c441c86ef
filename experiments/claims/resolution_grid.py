"""Global Resolution (Thomas & Pal) compared with the optimal verifier: acceptance, error and time.

    python -m experiments resolution_grid --workers 1

Global Resolution is this project's reimplementation, and keeps the k most likely tokens. The two methods are
timed in turn in one thread, a call for each position of a real pair. Run it with one worker, and read the
ratio rather than milliseconds.
"""

from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import polars as pl

import otmd
from experiments.claims.real_positions import collected
from experiments.performance.global_resolution import resolve
from experiments.runner import run, show

ONE_THREAD = True
DRAFT = "skip:13,15,17"
# An output that is off by more than this is not counted as a success.
CLOSE = 0.01


def timed(task: Callable[[], Any]) -> tuple[Any, float]:
    """The answer, and the seconds it took."""
    start = perf_counter()
    answer = task()
    return answer, perf_counter() - start


def positions(
    rng: np.random.Generator, kept: int, num_drafts: int, temperature: float, count: int
) -> Iterator[dict[str, Any]]:
    """Both methods at positions spread over the dataset."""
    dataset = collected(DRAFT)
    step = otmd.Processing(temperature)
    rule = otmd.Optimal()
    for number in np.linspace(0, len(dataset) - 1, count).astype(int):
        position = dataset.positions[number]
        target, draft = (step(logits[0]) for logits in dataset.arrays([number]))
        law = otmd.WithReplacement(draft, num_drafts)
        resolution, seconds = timed(partial(resolve, target, draft, kept, num_drafts))
        # The certificate comes first, so that the compiler's time is not in the call that counts.
        proof = rule.certificate(target, law)
        _, optimal_seconds = timed(partial(rule.prepare, target, law))
        yield {
            "prompt_id": position.prompt_id,
            "domain": position.domain,
            "optimal": proof.upper_bound,
            "attained": proof.attained,
            "optimal_seconds": optimal_seconds,
            "rate": resolution.rate,
            "seconds": seconds,
            "distance": resolution.distance,
            "converged": resolution.converged,
            "sampled": resolution.sampled,
        }


def identify(tasks: list[dict[str, Any]]) -> str:
    """Collect the pair unless it is there; return what identifies it."""
    dataset = collected(DRAFT)
    return repr((dataset.metadata, [position.prompt_id for position in dataset.positions]))


def main(arguments: list[str]) -> pl.DataFrame:
    """Run the sweep and print a line for each k and n."""
    table = run(positions, arguments, 10.0, data=identify)
    milliseconds = {
        name: 1e3 * pl.col(column).median()
        for name, column in (("ms", "seconds"), ("optimal_ms", "optimal_seconds"))
    }
    lines = table.group_by("num_drafts", "kept").agg(
        pl.len().alias("positions"),
        pl.col("optimal", "attained", "rate").mean(),
        pl.col("converged").mean(),
        close=(pl.col("distance") < CLOSE).mean(),
        distance=pl.col("distance").median(),
        **milliseconds,
        ratio=(pl.col("seconds") / pl.col("optimal_seconds")).median(),
    )
    show(lines.sort("num_drafts", "kept"))
    return table
