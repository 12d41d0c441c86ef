"""What otmd's rates cost beside other ways to find them, against the vocabulary; one thread.

    python experiments/performance/peers.py
    python experiments/performance/peers.py --quick --output runs/quick.parquet

Competitors run in turn, round by round, and the best call of each counts; slow ones have fewer rounds. A
competitor that passes the time limit, or would pass the memory limit, is not tried at larger sizes.
"""

import argparse
import signal
import tracemalloc
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import polars as pl
from optimal_plan import run_in_one_thread, synthetic_positions
from peer_solvers import Floats, Peer, Run, list_peers

import otmd
from otmd.kernel import every_kernel_compiled
from otmd.storage.parquet import write_parquet
from otmd.verifiers import verifiers_serving

OUTPUT = Path("paper_figures/results/peers.parquet")
LARGE = 151_936
SIZES = [*(2**k for k in range(2, 11)), 48, 96, *(4**k for k in range(6, 10)), 49_152, LARGE]
MOST_KEPT, ENOUGH, WARM_UP, MEMORY_LIMIT = 1024, 1.0, 60.0, 4 * 2**30
STATUS = {TimeoutError: "time limit", MemoryError: "memory limit", ImportError: "not installed"}
SHOWN = (48, 1024, 16_384, LARGE)
KEYS = ["task", "law", "num_drafts"]
LAWS = [(law, n) for law in (otmd.WithReplacement, otmd.WithoutReplacement) for n in (2, 4)]
LAWS += [(otmd.Greedy, 2), (otmd.Hub, 2)]


def pair_of(size: int) -> tuple[Floats, Floats]:
    """Softmax of normal logits, and of the same logits with the larger noise of ``optimal_plan.py``."""
    *_, position = synthetic_positions(size, (1.0,))
    return position.target, position.draft


def traced_peak(run: Callable[[], object]) -> int:
    """Bytes that Python and NumPy hold at most during a call, beyond those before it."""
    tracemalloc.start()
    run()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def call(run: Run) -> dict[str, Any]:
    """What a competitor answers, and its seconds."""
    start = perf_counter()
    answer, own, note = run()
    return {"answer": answer, "seconds": own or perf_counter() - start, "note": note}


def describe(peer: Peer, size: int) -> dict[str, Any]:
    """The competitor and its task, and how much memory the task is known to need."""
    row = {name: getattr(peer, name) for name in ("name", *KEYS)}
    needed = float(peer.known_bytes(size)) if peer.known_bytes else None
    return {**row, "size": size, "vocab_size": peer.kept_of or size, "known_bytes": needed}


def first_call(peer: Peer, pair: tuple, size: int, limit: float) -> tuple[dict, Run | None]:
    """The row of a competitor's first call, and what to call again if it solved the task."""
    row = {**describe(peer, size), "status": "solved", "rounds": 1}
    try:
        if (row["known_bytes"] or 0.0) > MEMORY_LIMIT:
            raise MemoryError
        run = peer.ready(pair[0], pair[1], size)
        signal.setitimer(signal.ITIMER_REAL, limit)
        return {**row, **call(run)}, run
    except (*STATUS, ValueError) as error:
        status = next((name for kind, name in STATUS.items() if isinstance(error, kind)), "refused")
        return {**row, "status": status, "note": str(error)}, None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _stop(*_: object) -> None:
    raise TimeoutError


def measure_at(size: int, peers: list[Peer], rounds: int, limit: float) -> list[dict]:
    """One row for each competitor. Quick ones are timed again, in turn."""
    pairs = {vocab_size: pair_of(vocab_size) for vocab_size in {p.kept_of or size for p in peers}}
    rows, again = [], []
    for peer in peers:
        row, run = first_call(peer, pairs[peer.kept_of or size], size, limit)
        rows.append(row)
        again += [(row, run)] if run else []
    # Twice in a row: the first call pays for what the one before it left in the caches.
    for turn, (row, run) in product(range(1, rounds + 1), again):
        if turn * row["seconds"] < ENOUGH:
            row["seconds"] = min(row["seconds"], call(run)["seconds"], call(run)["seconds"])
            row["rounds"] += 1
    for row, run in again:
        row["traced_bytes"] = traced_peak(run)
    return rows


def measure(sizes: list[int], rounds: int, limit: float) -> pl.DataFrame:
    """Measure growing sizes. A competitor that gave up keeps its status at all larger ones."""
    signal.signal(signal.SIGALRM, _stop)
    peers = list_peers(limit, kept_of=min(LARGE, sizes[-1]))
    # Compiles and imports: the alarm may not interrupt the compiler. What otmd does depends on the size.
    with every_kernel_compiled():
        measure_at(4, peers, 1, WARM_UP)
    measure_at(5000, [peer for peer in peers if peer.name == "otmd"], 1, WARM_UP)
    rows, stopped = [], {}
    for size in sizes:
        print(f"V = {size:,}", flush=True)
        rows += [{**describe(peer, size), **status} for peer, status in stopped.items()]
        here = [p for p in peers if p not in stopped and (size <= MOST_KEPT or not p.kept_of)]
        found = measure_at(size, here, rounds, limit)
        for peer, row in zip(here, found, strict=True):
            if row["status"] != "solved":
                stopped[peer] = {"status": row["status"], "note": "not tried"}
        rows += found
    return compare(pl.DataFrame(rows, infer_schema_length=None))


def compare(table: pl.DataFrame) -> pl.DataFrame:
    """Set every row beside otmd's own and beside the sort, at the same position."""
    answer, seconds = pl.col("answer"), pl.col("seconds")
    ours, at = pl.col("name") == "otmd", [*KEYS, "vocab_size"]
    sorts = seconds.filter(pl.col("task") == "sort").first().over("vocab_size")
    return table.with_columns(
        difference=answer - answer.filter(ours).first().over(at),
        to_otmd=seconds / seconds.filter(ours).first().over(at),
        in_sorts=seconds / sorts,
    )


def measure_memory(size: int) -> pl.DataFrame:
    """Peak memory of otmd from p and q to a rate, in vectors of V float64, with compiled kernels."""
    (p, q), rows = pair_of(size), []
    for law, n in LAWS:
        for rule in (None, *verifiers_serving(law(q, n))):
            ask = rule.acceptance_rate if rule else otmd.optimal_acceptance
            run = partial(lambda ask, law, n: ask(p, law(q, n)), ask, law, n)
            run()
            row = {"name": "otmd, memory", "law": law.__name__, "num_drafts": n, "size": size}
            taken, task = traced_peak(run), type(rule).__name__ if rule else "α*"
            rows.append({**row, "task": task, "traced_bytes": taken, "vectors": taken / 8 / size})
    return pl.DataFrame(rows)


def print_tables(table: pl.DataFrame, memory: pl.DataFrame) -> None:
    """Print milliseconds at some sizes, where each competitor ends, and how far its answer is off."""
    heads = " | ".join(f"V = {size:,}, ms" for size in SHOWN)
    print(f"\n| rate | drafts | n | by | {heads} | largest V | otmds | sorts | off by | then |")
    print("|---" * (9 + len(SHOWN)) + "|")
    for at, rows in table.group_by(*KEYS, "name", maintain_order=True):
        solved = rows.filter(status="solved").to_dicts()
        times = {row["size"]: 1e3 * row["seconds"] for row in solved}
        last = solved[-1] if solved else {}
        numbers = [*map(times.get, SHOWN), *map(last.get, ("size", "to_otmd", "in_sorts"))]
        numbers.append(rows["difference"].abs().max())
        ends = rows.filter(pl.col("status") != "solved")["status"].to_list()
        print(f"| {' | '.join([*map(str, at), *map(_short, numbers), *[*ends, ''][:1]])} |")
    print(f"\n| otmd, V = {memory['size'][0]:,} | drafts | n | float64 vectors |\n{'|---' * 4}|")
    for row in memory.iter_rows(named=True):
        print("| {task} | {law} | {num_drafts} | {vectors:.2f} |".format(**row))


def _short(number: Any) -> str:
    return "–" if number is None else f"{number:,}" if isinstance(number, int) else f"{number:.3g}"


def main() -> None:
    """Measure, print the tables and write the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--time-limit", type=float, default=3.0, help="seconds a call")
    parser.add_argument("--quick", action="store_true", help="tiny vocabularies, in seconds")
    chosen = parser.parse_args()
    sizes = [4, 8, 300] if chosen.quick else sorted(SIZES)
    table = measure(sizes, chosen.rounds, chosen.time_limit)
    memory = measure_memory(min(LARGE, sizes[-1]))
    print_tables(table, memory)
    limits = {"time_limit": pl.lit(chosen.time_limit), "memory_limit": pl.lit(float(MEMORY_LIMIT))}
    rows = pl.concat([table, memory], how="diagonal_relaxed")
    write_parquet(chosen.output, rows.with_columns(**limits))


if __name__ == "__main__":
    run_in_one_thread(main)
