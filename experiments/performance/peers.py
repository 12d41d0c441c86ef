"""Time and memory of otmd's rates compared with other ways to find them, by vocabulary; one thread.

    python -m experiments peers
    python -m experiments peers --quick --output runs/quick.parquet

Competitors run in turn, round by round, and the best call of each counts; slow ones have fewer rounds. A
competitor that passes the time limit, or would pass the memory limit, is not tried at larger sizes.
"""

import signal
import tracemalloc
from collections.abc import Callable
from functools import partial
from itertools import product
from time import perf_counter
from typing import Any

import polars as pl

import otmd
from experiments.performance.peer_solvers import Floats, Peer, Run, list_peers
from experiments.performance.timing import synthetic_positions
from experiments.runner import RESULTS, markdown, options, save
from otmd.kernel import every_kernel_compiled
from otmd.verifiers import verifiers_serving

ONE_THREAD = True
LARGE = 151_936
SIZES = [*(2**k for k in range(2, 11)), 48, 96, *(4**k for k in range(6, 10)), 49_152, LARGE]
MOST_KEPT = 1024
ENOUGH = 1.0
WARM_UP = 60.0
MEMORY_LIMIT = 4 * 2**30
STATUS = {TimeoutError: "time limit", MemoryError: "memory limit", ImportError: "not installed"}
SHOWN = (48, 1024, 16_384, LARGE)
KEYS = ["task", "law", "num_drafts"]
LAWS = [(law, n) for law in (otmd.WithReplacement, otmd.WithoutReplacement) for n in (2, 4)]
LAWS += [(otmd.Greedy, 2), (otmd.Hub, 2)]


def pair_of(size: int) -> tuple[Floats, Floats]:
    """Softmax of normal logits, and of the same logits with the larger noise of ``timing.py``."""
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
    """A competitor's answer, and its seconds."""
    start = perf_counter()
    answer, seconds, note = run()
    return {"answer": answer, "seconds": seconds or perf_counter() - start, "note": note}


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
    rows: list[dict[str, Any]] = []
    again: list[tuple[dict[str, Any], Run]] = []
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
    rows: list[dict[str, Any]] = []
    stopped: dict[Peer, dict[str, str]] = {}
    for size in sizes:
        print(f"V = {size:,}", flush=True)
        rows += [{**describe(peer, size), **status} for peer, status in stopped.items()]
        left = [p for p in peers if p not in stopped and (size <= MOST_KEPT or not p.kept_of)]
        measured = measure_at(size, left, rounds, limit)
        for peer, row in zip(left, measured, strict=True):
            if row["status"] != "solved":
                stopped[peer] = {"status": row["status"], "note": "not tried"}
        rows += measured
    return compare(pl.DataFrame(rows, infer_schema_length=None))


def compare(table: pl.DataFrame) -> pl.DataFrame:
    """Compare every row with otmd's own and with the sort, at the same position."""
    answer = pl.col("answer")
    seconds = pl.col("seconds")
    ours = pl.col("name") == "otmd"
    at = [*KEYS, "vocab_size"]
    sorts = seconds.filter(pl.col("task") == "sort").first().over("vocab_size")
    return table.with_columns(
        difference=answer - answer.filter(ours).first().over(at),
        to_otmd=seconds / seconds.filter(ours).first().over(at),
        in_sorts=seconds / sorts,
    )


def measure_memory(size: int) -> pl.DataFrame:
    """Peak memory of otmd from p and q to a rate, in vectors of V float64, with compiled kernels."""
    p, q = pair_of(size)
    rows = []
    for law, n in LAWS:
        for rule in (None, *verifiers_serving(law(q, n))):
            ask = rule.acceptance_rate if rule else otmd.optimal_acceptance
            run = partial(lambda ask, law, n: ask(p, law(q, n)), ask, law, n)
            run()
            row = {"name": "otmd, memory", "law": law.__name__, "num_drafts": n, "size": size}
            peak = traced_peak(run)
            row["task"] = type(rule).__name__ if rule else "α*"
            rows.append({**row, "traced_bytes": peak, "vectors": peak / 8 / size})
    return pl.DataFrame(rows)


def print_tables(table: pl.DataFrame, memory: pl.DataFrame) -> None:
    """Print milliseconds at some sizes, the end of each competitor, and the error of its answer."""
    lines = []
    for at, rows in table.group_by(*KEYS, "name", maintain_order=True):
        solved = rows.filter(status="solved").to_dicts()
        times = {row["size"]: 1e3 * row["seconds"] for row in solved}
        last = solved[-1] if solved else {}
        numbers = [*map(times.get, SHOWN), *map(last.get, ("size", "to_otmd", "in_sorts"))]
        numbers.append(rows["difference"].abs().max())
        ends = rows.filter(pl.col("status") != "solved")["status"].to_list()
        lines.append([*at, *map(_short, numbers), *[*ends, ""][:1]])
    heads = ["rate", "drafts", "n", "by", *(f"V = {size:,}, ms" for size in SHOWN), "largest V"]
    print("\n" + markdown([*heads, "otmds", "sorts", "off by", "then"], lines))
    heads = [f"otmd, V = {memory['size'][0]:,}", "drafts", "n", "float64 vectors"]
    columns = memory.select("task", "law", "num_drafts", pl.col("vectors").round(2))
    print("\n" + markdown(heads, columns.rows()))


def _short(number: Any) -> str:
    return "–" if number is None else f"{number:,}" if isinstance(number, int) else f"{number:.3g}"


def main(arguments: list[str]) -> pl.DataFrame:
    """Measure, print the tables, write the rows and return them."""
    defaults: dict[str, Any] = {"output": RESULTS / "peers.parquet", "rounds": 9, "quick": False}
    chosen = options(__name__, arguments, **defaults, time_limit=3.0)
    sizes = [4, 8, 150] if chosen.quick else sorted(SIZES)
    table = measure(sizes, chosen.rounds, chosen.time_limit)
    memory = measure_memory(min(LARGE, sizes[-1]))
    print_tables(table, memory)
    limits = {"time_limit": pl.lit(chosen.time_limit), "memory_limit": pl.lit(float(MEMORY_LIMIT))}
    rows = pl.concat([table, memory], how="diagonal_relaxed").with_columns(**limits)
    save(chosen.output, rows, chosen)
    return rows
