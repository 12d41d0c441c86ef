"""The competitors of ``peers.py``: each takes two distributions and returns what otmd returns.

Tensors that research code would hold, and drafts that it would draw beforehand, are made before the clock
starts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import comb
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import otmd
from experiments.performance.global_resolution import resolve

Floats = NDArray[np.float64]
LAWS = {"with": otmd.WithReplacement, "without": otmd.WithoutReplacement}
TASKS = [("α*", "with", 1), ("α*", "with", 2), ("α*", "with", 4), ("α*", "without", 2)]
TASKS += [("α*", "without", 4), ("RRS", "with", 2), ("RRS", "with", 4), ("RRSw", "without", 2)]
VERIFICATIONS = 100
HIGHS, NETWORKX = ("compact", "highs"), ("max_flow", "networkx")


class Outcome(NamedTuple):
    """An answer, and the seconds it took where not all of the call is the competitor's."""

    answer: float | None
    seconds: float | None = None
    note: str = ""


Run = Callable[[], Outcome]
Ready = Callable[[Floats, Floats, int], Run]


@dataclass(frozen=True)
class Peer:
    """One competitor at one task.

    ``ready(p, q, size)`` prepares a position, and the call that it returns is timed. ``known_bytes(size)`` is
    the size of arrays that tracing does not see. If ``kept_of`` is not 0, the size is the number of
    ``kept_of`` tokens that are kept.
    """

    name: str
    task: str
    law: str
    num_drafts: int
    ready: Ready
    known_bytes: Callable[[int], int] | None = None
    kept_of: int = 0


def timed(answer: Callable[[Floats, Floats], float | None]) -> Ready:
    """Time a function of p and q that needs no preparation."""
    return lambda p, q, _: lambda: Outcome(answer(p, q))


def rate_by_otmd(task: str, law: str, num_drafts: int, p: Floats, q: Floats) -> float:
    """α*, or the exact rate of recursive rejection, from arrays to number: all checks included."""
    drafts = LAWS[law](q, num_drafts)
    if task == "α*":
        return float(otmd.optimal_acceptance(p, drafts).rate)
    return float(otmd.RecursiveRejection().acceptance_rate(p, drafts))


def scan_prefixes(law: str, num_drafts: int, p: Floats, q: Floats) -> float:
    """α* as the papers state it: sort by p/q, accumulate, and take the least prefix.

    Without replacement for two drafts, where g(H) = Σ q(x) (q(H) − q(x)) / (1 − q(x)) over H.
    """
    order = np.argsort(p / q)
    target, draft = p[order], q[order]
    inside = draft.cumsum()
    contained = inside**num_drafts
    if law == "without":
        share = draft / (1.0 - draft)
        contained = inside * share.cumsum() - (share * draft).cumsum()
    return 1.0 + min(0.0, float((target.cumsum() - contained).min()))


def solve_as_program(form: str, solver: str, num_drafts: int, limit: float, p: Floats, q: Floats) -> float:
    """α* as a linear program or maximum flow, from the listing of the tuples to the certificate."""
    law = otmd.WithReplacement(q, num_drafts)
    options = {"time_limit": limit}
    options = options if solver == "highs" else None
    solution = otmd.solve_transport(p, law, form, solver, options=options, throw=False)
    if solution.status == "time limit":
        raise TimeoutError
    return solution.rate


def program_bytes(form: str, num_drafts: int, size: int) -> int:
    """Bytes of the program's arrays, about 40 for each token of each set; a solver needs more."""
    sets = sum(comb(size, drafted) for drafted in range(1, num_drafts + 1))
    return 40 * sets * (size if form == "full" else num_drafts)


def ready_pot(p: Floats, q: Floats, _: int) -> Run:
    """α* of two drafts by POT on the full coupling, pairs with equal tokens merged."""
    try:
        import ot  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError("POT is not installed, and not compared: `pip install pot`") from error

    def run() -> Outcome:
        first, second = np.triu_indices(q.size)
        supply = np.where(first == second, 1.0, 2.0) * q[first] * q[second]
        cost = np.ones((first.size, q.size))
        np.put_along_axis(cost, np.column_stack([first, second]), 0.0, axis=1)
        plan: Any = ot.emd(supply / supply.sum(), p, cost, numItermax=10**7)
        return Outcome(1.0 - float((plan * cost).sum()), note=f"POT {ot.__version__}")

    return run


def ready_chain(num_drafts: int, p: Floats, q: Floats, _: int) -> Run:
    """Rate of RRS in torch and float32: 1 minus what n rejections in a row leave of the target."""
    import torch

    target, draft = (torch.tensor(mass, dtype=torch.float32) for mass in (p, q))

    def run() -> Outcome:
        left = target
        rejected = 1.0
        for _ in range(num_drafts):
            left = torch.relu(left - draft)
            mass = left.sum()
            left, rejected = left / mass, rejected * float(mass)
        return Outcome(1.0 - rejected, note="float32")

    return run


def ready_verifications(p: Floats, q: Floats, _: int) -> Run:
    """RRSw in torch, one draw of two drafts after the other; the time is of one verification."""
    import torch

    torch.manual_seed(0)
    target, draft = torch.tensor(p, dtype=torch.float32), torch.tensor(q, dtype=torch.float32)
    draws = [torch.multinomial(draft, 2).tolist() for _ in range(VERIFICATIONS)]

    def verify(tokens: list[int]) -> bool:
        left, drawn = target, draft
        for token in tokens:
            if torch.rand(()) < left[token] / drawn[token]:
                return True
            left = torch.relu(left - drawn)
            left = left / left.sum()
            drawn = drawn.clone()
            drawn[token] = 0.0
            drawn = drawn / drawn.sum()
        torch.multinomial(left, 1)
        return False

    def run() -> Outcome:
        start = perf_counter()
        rate = sum(map(verify, draws)) / VERIFICATIONS
        seconds = (perf_counter() - start) / VERIFICATIONS
        return Outcome(rate, seconds, f"seconds of one; the rate is a mean of {VERIFICATIONS}")

    return run


def ready_resolution(num_drafts: int, p: Floats, q: Floats, size: int) -> Run:
    """Global Resolution on the target's most likely tokens; only its own part of the call is timed."""

    def run() -> Outcome:
        end = resolve(p, q, size, num_drafts)
        note = f"TV from p {end.distance:.1e}, converged {end.converged}, sampled {end.sampled}"
        return Outcome(end.rate, end.seconds, note)

    return run


def list_peers(limit: float, kept_of: int) -> list[Peer]:
    """Every competitor at every task, otmd first; ``limit`` is the seconds that HiGHS is given."""
    peers = [Peer("otmd", *task, timed(partial(rate_by_otmd, *task))) for task in TASKS]
    overlap = timed(lambda p, q: float(np.minimum(p, q).sum()))
    sort = timed(lambda p, q: (np.argsort(p / q), None)[1])
    peers.append(Peer("min(p, q).sum()", "α*", "with", 1, overlap))
    peers.append(Peer("argsort(p/q)", "sort", "with", 1, sort))
    for n in (2, 4):
        scan = timed(partial(scan_prefixes, "with", n))
        peers.append(Peer("sort-and-scan", "α*", "with", n, scan))
        for name, how in (("HiGHS, compact LP", HIGHS), ("networkx max-flow", NETWORKX)):
            solve = timed(partial(solve_as_program, *how, n, limit))
            peers.append(Peer(name, "α*", "with", n, solve, partial(program_bytes, how[0], n)))
        how = partial(ready_resolution, n)
        peers.append(Peer("Global Resolution", "α*", "with", n, how, None, kept_of))
        how = partial(ready_chain, n)
        peers.append(Peer("torch chain", "RRS", "with", n, how, lambda v: 12 * v))
    scan = Peer("sort-and-scan", *TASKS[3], timed(partial(scan_prefixes, "without", 2)))
    loop = Peer("torch, ONE verification", *TASKS[-1], ready_verifications, lambda v: 16 * v)
    # The bytes of POT are those of the cost and the plan, for every pair of tokens.
    pot = Peer("POT emd, full", "α*", "with", 2, ready_pot, lambda v: 8 * v * v * (v + 1))
    return [*peers, scan, loop, pot]
