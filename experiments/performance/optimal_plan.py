"""Time of the optimal verifier at a language model's vocabulary, in sorts of p/q; one thread.

    python -m experiments optimal_plan
    python -m experiments optimal_plan --dataset runs/pair
    python -m experiments optimal_plan --quick --vocab-size 3000 --output runs/quick.parquet

Preparing the verifier, finding α* and sorting p/q are timed in turn, round by round, and the best
round of each counts. Global Resolution solves the same positions. ``--positions`` of the data set are read.
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import otmd
from experiments.performance.global_resolution import resolve
from experiments.performance.timing import Position, best_times, synthetic_positions
from experiments.runner import RESULTS, markdown, options, save
from otmd.kernel import every_kernel_compiled
from otmd.models import open_dataset

ONE_THREAD = True
TEMPERATURES = (0.3, 0.6, 1.0, 2.0)
NUM_DRAFTS = (4, 2, 8)
LAWS = (otmd.WithReplacement, otmd.WithoutReplacement)
TRUNCATIONS = ((10, 2), (10, 4), (100, 2), (100, 4))
TOLERANCE = 1e-10


def real_positions(
    path: Path, count: int, temperatures: tuple[float, ...] = (0.6, 1.0)
) -> Iterator[Position]:
    """Positions spread over a data set; stored probabilities are taken as they are."""
    dataset = open_dataset(path)
    for row in np.linspace(0, len(dataset) - 1, min(count, len(dataset))).astype(int):
        arrays = [values[0].astype(np.float64) for values in dataset.arrays([row])]
        for temperature in temperatures if dataset.kind == "logits" else (1.0,):
            pair = arrays
            if dataset.kind == "logits":
                pair = [otmd.probs_from_logits(values, temperature) for values in arrays]
            p, q = (values / values.sum() for values in pair)
            yield Position("real", f"row {row}", temperature, p, q)


def sort_ratios(position: Position) -> np.ndarray:
    """Sort the tokens by p/q, tokens that are never drafted last."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.argsort(position.target / position.draft)


def measure_rule(position: Position, law: type, num_drafts: int, rounds: int) -> dict[str, Any]:
    """Time the verifier against a sort, and compare what it attains with the optimum."""
    drafts = law(position.draft, num_drafts)
    rule = otmd.Optimal(TOLERANCE)
    tasks = {
        "sort": lambda: sort_ratios(position),
        "optimum": lambda: otmd.optimal_acceptance(position.target, drafts),
        "prepare": lambda: rule.prepare(position.target, drafts),
    }
    seconds = best_times(tasks, rounds)
    proof = rule.certificate(position.target, drafts)
    return {
        **{f"{name}_seconds": time for name, time in seconds.items()},
        "prepare_ratio": seconds["prepare"] / seconds["sort"],
        "optimum_ratio": seconds["optimum"] / seconds["sort"],
        "optimum": proof.upper_bound,
        "attained": proof.attained,
        "gap": proof.gap,
    }


def measure_resolution(position: Position, k: int, num_drafts: int) -> dict[str, Any]:
    """Global Resolution on the same position, against the optimum at the whole vocabulary."""
    resolution = resolve(position.target, position.draft, k, num_drafts)
    drafts = otmd.WithReplacement(position.draft, num_drafts)
    optimum = float(otmd.optimal_acceptance(position.target, drafts).rate)
    return {"kept": k, "optimum": optimum, **vars(resolution)}


def measure(positions: list[Position], rounds: int, quick: bool) -> pl.DataFrame:
    """One row a position, method and number of drafts."""
    rows = []
    for number, position in enumerate(positions, start=1):
        print(f"[{number}/{len(positions)}] {position.source} {position.label}", flush=True)
        at = {
            "source": position.source,
            "label": position.label,
            "temperature": position.temperature,
            "vocab_size": position.target.size,
        }
        for law, n in product(LAWS, NUM_DRAFTS[:1] if quick else NUM_DRAFTS):
            about = {**at, "method": law.__name__, "num_drafts": n}
            rows.append(about | measure_rule(position, law, n, rounds))
        for k, n in TRUNCATIONS[:1] if quick else TRUNCATIONS:
            about = {**at, "method": "global resolution", "num_drafts": n}
            rows.append(about | measure_resolution(position, k, n))
    return pl.DataFrame(rows, infer_schema_length=None)


def print_tables(table: pl.DataFrame) -> None:
    """Print medians, and the worst ratio and gap."""
    lines = []
    keys = ["method", "source", "vocab_size", "num_drafts"]
    rules = table.filter(pl.col("method") != "global resolution").sort(keys)
    for at, rows in rules.group_by(keys, maintain_order=True):
        names = ("sort", "optimum", "prepare")
        times = [f"{_median(rows, f'{name}_seconds', 1e3):.2f}" for name in names]
        ratio = f"{_median(rows, 'prepare_ratio'):.2f} ({rows['prepare_ratio'].max():.2f})"
        lines.append([*at, *times, ratio, f"{rows['gap'].max():.1e}"])
    heads = ["drafts", "positions", "V", "n", "sort, ms", r"α\*, ms", "prepare, ms"]
    print("\n" + markdown([*heads, "prepare, sorts (worst)", "worst gap"], lines))
    lines = []
    keys = ["source", "kept", "num_drafts"]
    resolved = table.filter(method="global resolution").sort(keys)
    for at, rows in resolved.group_by(keys, maintain_order=True):
        converged = f"{rows['converged'].sum()}/{rows.height}"
        rates = [f"{rows['rate'].mean():.4f}", f"{rows['optimum'].mean():.4f}"]
        time = f"{_median(rows, 'seconds', 1e3):.2f}"
        lines.append([*at, time, converged, *rates, f"{_median(rows, 'distance'):.1e}"])
    heads = ["global resolution", "k", "n", "ms", "converged", "rate, truncated"]
    print("\n" + markdown([*heads, "α* at V", "TV from p"], lines))


def _median(rows: pl.DataFrame, column: str, scale: float = 1.0) -> float:
    return scale * float(np.median(rows[column].to_numpy()))


def main(arguments: list[str]) -> pl.DataFrame:
    """Measure, print the tables, write the rows and return them."""
    defaults: dict[str, Any] = {"dataset": None, "output": RESULTS / "optimal_plan.parquet"}
    defaults |= {"vocab_size": 151_936, "positions": 8, "rounds": 9, "quick": False}
    chosen = options(__name__, arguments, **defaults)
    temperatures = TEMPERATURES[2:3] if chosen.quick else TEMPERATURES
    positions = list(synthetic_positions(chosen.vocab_size, temperatures))
    if chosen.dataset is not None:
        positions += real_positions(chosen.dataset, chosen.positions)
    with every_kernel_compiled():
        table = measure(positions, chosen.rounds, chosen.quick)
    print_tables(table)
    save(chosen.output, table, chosen)
    return table
