"""Global Resolution (Thomas & Pal) beside the optimal verifier: acceptance, error and time at real positions.

    python experiments/claims/resolution_grid.py --workers 1

Global Resolution is this project's reimplementation, and keeps the k likeliest tokens. The two methods are
timed in turn, a call for each position. Run the script with one worker and one thread (`make experiments`
does), and read the ratio rather than milliseconds.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import polars as pl
import sweep_script
from real_positions import collected, folder_of

import otmd
from otmd.models import open_dataset

sys.path.append(str(Path(__file__).parents[1] / "performance"))
from global_resolution import resolve

DRAFT = "skip:13,15,17"
# An output law that is off by more than this is not counted as a success.
CLOSE = 0.01


def timed(task: Callable[[], Any]) -> tuple[Any, float]:
    """The answer, and the seconds it took."""
    start = perf_counter()
    answer = task()
    return answer, perf_counter() - start


def positions(
    rng: np.random.Generator, kept: int, num_drafts: int, temperature: float, count: int
) -> Iterator[dict[str, Any]]:
    """Both methods at positions spread over the data set."""
    dataset, step = open_dataset(folder_of(DRAFT)), otmd.Processing(temperature)
    rule = otmd.Optimal()
    for number in np.linspace(0, len(dataset) - 1, count).astype(int):
        place = dataset.positions[number]
        target, draft = (step(logits[0]) for logits in dataset.arrays([number]))
        law = otmd.WithReplacement(draft, num_drafts)
        found, seconds = timed(partial(resolve, target, draft, kept, num_drafts))
        # The certificate comes first, so that the compiler's time is not in the call that counts.
        proof = rule.certificate(target, law)
        _, optimal_seconds = timed(partial(rule.prepare, target, law))
        yield {
            "prompt_id": place.prompt_id,
            "domain": place.domain,
            "optimal": proof.upper_bound,
            "attained": proof.attained,
            "optimal_seconds": optimal_seconds,
            "rate": found.rate,
            "seconds": seconds,
            "distance": found.distance,
            "converged": found.converged,
            "sampled": found.sampled,
        }


def main(arguments: list[str] | None = None) -> pl.DataFrame:
    """Run the sweep and print a line for each k and n."""
    about, data = __doc__ or "", lambda tasks: collected(DRAFT)
    table = sweep_script.run(positions, about, 10.0, arguments, data)
    milliseconds = [1e3 * pl.col(name).median() for name in ("seconds", "optimal_seconds")]
    lines = table.group_by("num_drafts", "kept").agg(
        pl.len().alias("positions"),
        pl.col("optimal", "attained", "rate").mean(),
        pl.col("converged").mean(),
        close=(pl.col("distance") < CLOSE).mean(),
        distance=pl.col("distance").median(),
        ms=milliseconds[0],
        optimal_ms=milliseconds[1],
        ratio=(pl.col("seconds") / pl.col("optimal_seconds")).median(),
    )
    with pl.Config(tbl_rows=-1, tbl_cols=-1, float_precision=4, tbl_hide_dataframe_shape=True):
        print(lines.sort("num_drafts", "kept"))
    return table


if __name__ == "__main__":
    main()
