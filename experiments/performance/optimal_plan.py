"""What the optimal verifier costs at a language model's vocabulary, in sorts of p/q; one thread.

    python experiments/performance/optimal_plan.py
    python experiments/performance/optimal_plan.py --dataset runs/pair
    python experiments/performance/optimal_plan.py --quick --output runs/quick.parquet

Preparing the verifier, finding α* and sorting p/q are timed in turn, round by round, and the best
round of each counts. Beside them stands Global Resolution on the same positions.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import polars as pl
from global_resolution import resolve

import otmd
from otmd.kernel import every_kernel_compiled
from otmd.models import open_dataset
from otmd.storage.parquet import write_parquet

OUTPUT = Path("paper_figures/results/optimal_plan.parquet")
TEMPERATURES = (0.3, 0.6, 1.0, 2.0)
NOISES = (0.3, 1.0)
NUM_DRAFTS = (4, 2, 8)
LAWS = (otmd.WithReplacement, otmd.WithoutReplacement)
TRUNCATIONS = ((10, 2), (10, 4), (100, 2), (100, 4))
TOLERANCE = 1e-10
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True, eq=False)
class Position:
    """Two distributions (V,), and where they come from."""

    source: str
    label: str
    temperature: float
    target: np.ndarray
    draft: np.ndarray


def synthetic_logits(
    shape: tuple[int, ...], noise: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
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


def real_positions(
    path: Path, count: int, temperatures: tuple[float, ...] = (0.6, 1.0)
) -> Iterator[Position]:
    """Positions spread over a data set; stored probabilities are taken as they are."""
    dataset = open_dataset(path)
    for row in np.linspace(0, len(dataset) - 1, min(count, len(dataset))).astype(int):
        arrays = [values[0] for values in dataset.arrays([row])]
        for temperature in temperatures if dataset.kind == "logits" else (1.0,):
            pair = arrays
            if dataset.kind == "logits":
                pair = [otmd.probs_from_logits(values, temperature) for values in arrays]
            masses = (np.asarray(values, np.float64) for values in pair)
            whole = (values / values.sum() for values in masses)
            yield Position("real", f"row {row}", temperature, *whole)


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


def sort_ratios(position: Position) -> np.ndarray:
    """Sort the tokens by p/q, tokens that are never drafted last."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.argsort(position.target / position.draft)


def measure_rule(position: Position, law: type, num_drafts: int, rounds: int) -> dict[str, Any]:
    """Time the verifier against a sort, and hold what it attains against the optimum."""
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
        **{f"{name}_seconds": taken for name, taken in seconds.items()},
        "prepare_ratio": seconds["prepare"] / seconds["sort"],
        "optimum_ratio": seconds["optimum"] / seconds["sort"],
        "optimum": proof.upper_bound,
        "attained": proof.attained,
        "gap": proof.gap,
    }


def measure_resolution(position: Position, k: int, num_drafts: int) -> dict[str, Any]:
    """Global Resolution on the same position, against the optimum at the whole vocabulary."""
    found = resolve(position.target, position.draft, k, num_drafts)
    drafts = otmd.WithReplacement(position.draft, num_drafts)
    optimum = float(otmd.optimal_acceptance(position.target, drafts).rate)
    return {"kept": k, "optimum": optimum, **vars(found)}


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
            found = measure_rule(position, law, n, rounds)
            rows.append({**at, "method": law.__name__, "num_drafts": n, **found})
        for k, n in TRUNCATIONS[:1] if quick else TRUNCATIONS:
            found = measure_resolution(position, k, n)
            rows.append({**at, "method": "global resolution", "num_drafts": n, **found})
    return pl.DataFrame(rows, infer_schema_length=None)


def print_table(table: pl.DataFrame) -> None:
    """Print medians, and the worst ratio and gap."""
    columns = r"sort, ms | α\*, ms | prepare, ms | prepare, sorts (worst) | worst gap"
    print(f"\n| drafts | positions | V | n | {columns} |\n{'|---' * 9}|")
    keys = ["method", "source", "vocab_size", "num_drafts"]
    rules = table.filter(pl.col("method") != "global resolution").sort(keys)
    for at, rows in rules.group_by(keys, maintain_order=True):
        timed = ("sort", "optimum", "prepare")
        times = [f"{_median(rows, f'{name}_seconds', 1e3):.2f}" for name in timed]
        ratio = f"{_median(rows, 'prepare_ratio'):.2f} ({rows['prepare_ratio'].max():.2f})"
        print(
            f"| {' | '.join(map(str, at))} | {' | '.join(times)} | {ratio} | {rows['gap'].max():.1e} |"
        )
    columns = "k | n | ms | converged | rate, truncated | α* at V | TV from p"
    print(f"\n| global resolution | {columns} |\n{'|---' * 8}|")
    keys = ["source", "kept", "num_drafts"]
    found = table.filter(method="global resolution").sort(keys)
    for (source, k, n), rows in found.group_by(keys, maintain_order=True):
        share = f"{rows['converged'].sum()}/{rows.height}"
        rates = f"{rows['rate'].mean():.4f} | {rows['optimum'].mean():.4f}"
        middle, off = _median(rows, "seconds", 1e3), _median(rows, "distance")
        print(f"| {source} | {k} | {n} | {middle:.2f} | {share} | {rates} | {off:.1e} |")


def _median(rows: pl.DataFrame, column: str, scale: float = 1.0) -> float:
    return scale * float(np.median(rows[column].to_numpy()))


def main(arguments: list[str] | None = None) -> pl.DataFrame:
    """Measure, print the tables, write the rows and return them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dataset", type=Path, help="made by `otmd collect`, or a dump")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--vocab-size", type=int, default=151_936, help="of synthetic positions")
    parser.add_argument("--positions", type=int, default=8, help="positions of the data set")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="one temperature, n and k")
    chosen = parser.parse_args(arguments)
    temperatures = TEMPERATURES[2:3] if chosen.quick else TEMPERATURES
    positions = list(synthetic_positions(chosen.vocab_size, temperatures))
    if chosen.dataset is not None:
        positions += real_positions(chosen.dataset, chosen.positions)
    with every_kernel_compiled():
        table = measure(positions, chosen.rounds, chosen.quick)
    print_table(table)
    write_parquet(chosen.output, table)
    return table


def run_in_one_thread(run: Callable[[], object]) -> None:
    """Run a script's function; first start the script anew, unless every library has one thread."""
    if any(os.environ.get(name) != "1" for name in THREADS):
        # Libraries count their threads when they are loaded, which they are by now.
        os.environ.update(dict.fromkeys(THREADS, "1"))
        os.execv(sys.executable, [sys.executable, *sys.argv])
    run()


if __name__ == "__main__":
    run_in_one_thread(main)
