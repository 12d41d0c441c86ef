"""Time of the rates on torch tensors, on a device, compared with a copy of the same probabilities.

    python -m experiments device_rates --device cuda
    python -m experiments device_rates --device cpu --rows 16 --output runs/cpu.parquet

The rates read every p and q of ``--rows`` positions at least once. The share of the bandwidth is these bytes
per second over the bytes per second that a copy reads and writes. The best of several rounds counts.
"""

import platform
from collections.abc import Callable
from functools import partial
from time import perf_counter

import polars as pl
import torch
from torch import Tensor

from experiments.runner import RESULTS, markdown, options, save
from otmd.tensors import TensorRatioCurve, greedy_rates, probs_from_logits, target_only_rates

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
    new_curve = partial(TensorRatioCurve, p, q, validate=False)
    target_only = partial(target_only_rates, p, q, n, validate=False)
    greedy = partial(greedy_rates, p, q, n, validate=False)
    curve = new_curve()

    def spechub() -> Tensor:
        return greedy_rates(p, q, 2, validate=False)[..., 1:]

    def everything() -> Tensor:
        fresh = new_curve()
        rates = [rate(fresh, n) for rate in FROM_CURVE.values()]
        return torch.cat([*rates, target_only(), greedy(), spechub()], dim=-1)

    return {
        "ratio curve and one rate": lambda: new_curve().optimal_rates(1),
        **{name: lambda rate=rate: rate(new_curve(), n) for name, rate in FROM_CURVE.items()},
        **{f"{name}, curve given": partial(rate, curve, n) for name, rate in FROM_CURVE.items()},
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
    copy = torch.empty_like(tensor)
    seconds = best_seconds(lambda: copy.copy_(tensor), tensor.device, rounds)
    return 2 * tensor.nbytes / seconds


def measure(p: Tensor, q: Tensor, num_drafts: int, rounds: int) -> pl.DataFrame:
    """One row for each rate: its time, its mean for n drafts, and the memory it takes in addition to p and q.

    In the row of all six rates, the mean is SpecHub's. Rates of a given curve do not read p and q, and have
    no share of the bandwidth.
    """
    device = p.device
    rows, vocab_size = p.shape
    bandwidth = copy_bandwidth(p, 4 * rounds)
    measured = []
    for name, task in rate_tasks(p, q, num_drafts).items():
        print(f"{name} …", flush=True)
        before = _reset_peak(device)
        mean = float(task()[..., -1].mean())
        peak = None if before is None else torch.cuda.max_memory_allocated(device) - before
        seconds = best_seconds(task, device, rounds)
        share = (p.nbytes + q.nbytes) / seconds / bandwidth
        measured.append(
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
    return pl.DataFrame([at | row for row in measured], schema_overrides=schema)


def as_table(table: pl.DataFrame) -> str:
    """One line a rate, as Markdown."""
    lines = []
    for row in table.iter_rows(named=True):
        peak = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e6:.0f}"
        share = "" if row["bandwidth_share"] is None else f"{row['bandwidth_share']:.1%}"
        times = [f"{1e3 * row['seconds']:.2f}", f"{row['positions_per_second']:,.0f}"]
        lines.append([row["rate"], *times, share, peak, f"{row['mean']:.6f}"])
    heads = ("rate", "ms", "positions/s", "share of copy bandwidth", "peak memory, MB", "mean")
    return markdown(heads, lines)


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


def main(arguments: list[str]) -> pl.DataFrame:
    """Measure, print the table, write the rows and return them."""
    sizes = {"rows": 128, "vocab_size": 151_936, "num_drafts": 4, "rounds": 5}
    output = RESULTS / "device_rates.parquet"
    chosen = options(__name__, arguments, device="cpu", **sizes, output=output)
    device = torch.device(chosen.device)
    p, q = synthetic_pair(chosen.rows, chosen.vocab_size, device)
    table = measure(p, q, chosen.num_drafts, chosen.rounds)
    at = table.row(0, named=True)
    print(
        f"\n{at['device']}, torch {at['torch']}, {at['rows']} × {at['vocab_size']} {at['dtype']}, "
        f"n = {at['num_drafts']}; a copy moves {at['copy_bandwidth'] / 1e9:.1f} GB/s\n\n{as_table(table)}"
    )
    save(chosen.output, table, chosen)
    return table
