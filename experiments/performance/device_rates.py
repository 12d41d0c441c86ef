"""What the rates on torch tensors cost on a device, beside a copy of the same probabilities.

    python experiments/performance/device_rates.py --device cuda
    python experiments/performance/device_rates.py --device cpu --rows 16 --output runs/cpu.parquet

The rates read every p and q at least once. The share of the bandwidth is these bytes per second over
the bytes per second that a copy reads and writes. The best of several rounds counts.
"""

import argparse
import platform
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import polars as pl
import torch
from torch import Tensor

from otmd.storage.parquet import write_parquet
from otmd.tensors import (
    TensorRatioCurve,
    greedy_rates,
    probs_from_logits,
    target_only_rates,
)

OUTPUT = Path("paper_figures/results/device_rates.parquet")
FROM_CURVE = {
    "optimal": TensorRatioCurve.optimal_rates,
    "recursive rejection": TensorRatioCurve.recursive_rejection_rates,
    "K-SEQ": TensorRatioCurve.k_sequential_rates,
}


def synthetic_pair(rows: int, vocab_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Normal logits, and a draft that adds noise to them, as float32 probabilities."""
    generator = torch.Generator(device).manual_seed(0)
    options = {"generator": generator, "device": device}
    logits = 2.5 * torch.randn(rows, vocab_size, **options)
    moved = logits + 0.7 * torch.randn(rows, vocab_size, **options)
    return probs_from_logits(logits), probs_from_logits(moved)


def rate_tasks(p: Tensor, q: Tensor, n: int) -> dict[str, Callable[[], Tensor]]:
    """Each rate from p and q; rates of the ratio curve also from a curve that is made before."""
    # Validation waits for the device.
    unchecked = {"validate": False}
    curve = TensorRatioCurve(p, q, **unchecked)

    def build() -> Tensor:
        return TensorRatioCurve(p, q, **unchecked).optimal_rates(1)

    def whole(rate: Callable[[TensorRatioCurve, int], Tensor]) -> Callable[[], Tensor]:
        return lambda: rate(TensorRatioCurve(p, q, **unchecked), n)

    def given(rate: Callable[[TensorRatioCurve, int], Tensor]) -> Callable[[], Tensor]:
        return lambda: rate(curve, n)

    def target_only() -> Tensor:
        return target_only_rates(p, q, n, **unchecked)

    def greedy() -> Tensor:
        return greedy_rates(p, q, n, **unchecked)

    def spechub() -> Tensor:
        return greedy_rates(p, q, 2, **unchecked)[..., 1:]

    def everything() -> Tensor:
        fresh = TensorRatioCurve(p, q, **unchecked)
        rates = [rate(fresh, n) for rate in FROM_CURVE.values()]
        rates += [target_only(), greedy(), spechub()]
        return torch.cat(rates, dim=-1)

    return {
        "ratio curve and one rate": build,
        **{name: whole(rate) for name, rate in FROM_CURVE.items()},
        **{f"{name}, curve given": given(rate) for name, rate in FROM_CURVE.items()},
        "target only": target_only,
        "greedy coupling": greedy,
        "SpecHub": spechub,
        "all six": everything,
    }


def best_seconds(task: Callable[[], object], device: torch.device, rounds: int) -> float:
    """The best of several rounds, after one that does not count; the device has finished each."""
    best = float("inf")
    for number in range(rounds + 1):
        _wait(device)
        start = perf_counter()
        task()
        _wait(device)
        if number:
            best = min(best, perf_counter() - start)
    return best


def copy_bandwidth(tensor: Tensor, rounds: int) -> float:
    """Bytes a second that a copy of the tensor reads and writes."""
    other = torch.empty_like(tensor)
    seconds = best_seconds(lambda: other.copy_(tensor), tensor.device, rounds)
    return 2 * tensor.nbytes / seconds


def measure(p: Tensor, q: Tensor, num_drafts: int, rounds: int) -> pl.DataFrame:
    """One row for each rate: its time, its mean for n drafts, and the memory it takes beside p and q.

    In the row of all six rates, the mean is SpecHub's. Rates of a given curve do not read p and q, and have
    no share of the bandwidth.
    """
    device, (rows, vocab_size) = p.device, p.shape
    bandwidth = copy_bandwidth(p, 4 * rounds)
    found = []
    for name, task in rate_tasks(p, q, num_drafts).items():
        print(f"{name} …", flush=True)
        before = _reset_peak(device)
        mean = float(task()[..., -1].mean())
        peak = None if before is None else torch.cuda.max_memory_allocated(device) - before
        seconds = best_seconds(task, device, rounds)
        share = (p.nbytes + q.nbytes) / seconds / bandwidth
        found.append(
            {
                "rate": name,
                "seconds": seconds,
                "positions_per_second": rows / seconds,
                "bandwidth_share": None if name.endswith("given") else share,
                "peak_bytes": peak,
                "mean": mean,
            }
        )
    at = {
        "device": _device_name(device),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "dtype": str(p.dtype).removeprefix("torch."),
        "rows": rows,
        "vocab_size": vocab_size,
        "num_drafts": num_drafts,
        "copy_bandwidth": bandwidth,
    }
    schema = {"peak_bytes": pl.Int64, "bandwidth_share": pl.Float64}
    return pl.DataFrame([at | row for row in found], schema_overrides=schema)


def print_table(table: pl.DataFrame) -> None:
    """Print one line a rate."""
    first = table.row(0, named=True)
    print(
        f"\n{first['device']}, torch {first['torch']}, {first['rows']} × {first['vocab_size']} "
        f"{first['dtype']}, n = {first['num_drafts']}; a copy moves "
        f"{first['copy_bandwidth'] / 1e9:.1f} GB/s\n"
    )
    print("| rate | ms | positions/s | share of copy bandwidth | peak memory, MB | mean |")
    print("|---|---|---|---|---|---|")
    for row in table.iter_rows(named=True):
        peak = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e6:.0f}"
        share = "" if row["bandwidth_share"] is None else f"{row['bandwidth_share']:.1%}"
        print(
            f"| {row['rate']} | {1e3 * row['seconds']:.2f} | {row['positions_per_second']:,.0f} | "
            f"{share} | {peak} | {row['mean']:.6f} |"
        )


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _reset_peak(device: torch.device) -> int | None:
    """Bytes held now, or None where torch does not count them."""
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def main(arguments: list[str] | None = None) -> pl.DataFrame:
    """Measure, print the table, write the rows and return them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rows", type=int, default=128, help="positions at a time")
    parser.add_argument("--vocab-size", type=int, default=151_936)
    parser.add_argument("--num-drafts", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    chosen = parser.parse_args(arguments)
    device = torch.device(chosen.device)
    p, q = synthetic_pair(chosen.rows, chosen.vocab_size, device)
    table = measure(p, q, chosen.num_drafts, chosen.rounds)
    print_table(table)
    write_parquet(chosen.output, table)
    return table


if __name__ == "__main__":
    main()
