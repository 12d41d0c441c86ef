"""The competitors of ``peers.py``: each takes two distributions and returns what otmd returns.

Those that research code would hold as tensors or draw beforehand get them before the clock starts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from global_resolution import resolve
from numpy.typing import NDArray

import otmd
from otmd.transport import ProblemShape, program_size

Floats = NDArray[np.float64]
LAWS = {"with": otmd.WithReplacement, "without": otmd.WithoutReplacement}
VERIFICATIONS = 100
MOST_KEPT = 1024
# Within rounding of the sums, far below the ten digits that are wanted.
_POT_STEPS = 10_000_000


class Outcome(NamedTuple):
    """An answer, and the seconds it took where not all of the call is the competitor's."""

    answer: float | None
    seconds: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Peer:
    """One competitor at one task.

    Attributes
    ----------
    name, task : str
        Who, and what is asked: "α*", "RRS", "RRSw", "overlap" or "sort".
    law : str
        Drafts "with" or "without" replacement.
    num_drafts : int
        n.
    ready : callable
        ``ready(p, q, size)``: prepares a position; what it returns is timed.
    known_bytes : callable, optional
        ``known_bytes(size)``: the arrays needed, in closed form, where tracing sees less.
    keeps : bool
        Whether the size is how many tokens are kept of a position of fixed vocabulary.
    """

    name: str
    task: str
    law: str
    num_drafts: int
    ready: Callable[[Floats, Floats, int], Callable[[], Outcome]]
    known_bytes: Callable[[int], int] | None = None
    keeps: bool = False


def timed(answer: Callable[[Floats, Floats], float | None]) -> Any:
    """Return the ``ready`` of a function of p and q that needs no preparation."""
    return lambda p, q, _: lambda: Outcome(answer(p, q))


def optimum(law: str, num_drafts: int, p: Floats, q: Floats) -> float:
    """α* by otmd, the law's own checks included."""
    return float(otmd.optimal_acceptance(p, LAWS[law](q, num_drafts)).rate)


def recursive_rejection(law: str, num_drafts: int, p: Floats, q: Floats) -> float:
    """Rate of recursive rejection by otmd, exact for these tasks."""
    return float(otmd.RecursiveRejection().acceptance_rate(p, LAWS[law](q, num_drafts)))


def sort_ratios(p: Floats, q: Floats) -> None:
    """Sort the tokens by p/q, and nothing else."""
    np.argsort(p / q)


def overlap(p: Floats, q: Floats) -> float:
    """α* of one draft: what speculative sampling costs to evaluate, and the floor of all."""
    return float(np.minimum(p, q).sum())


def scan_prefixes(law: str, num_drafts: int, p: Floats, q: Floats) -> float:
    """α* as the papers state it: sort by p/q, accumulate, and take the least prefix.

    Without replacement for two drafts, where g(H) = Σ q(x) (q(H) − q(x)) / (1 − q(x)) over H.
    """
    order = np.argsort(p / q)
    target, draft = p[order], q[order]
    inside = draft.cumsum()
    if law == "with":
        contained = inside**num_drafts
    else:
        share = draft / (1.0 - draft)
        contained = inside * share.cumsum() - (share * draft).cumsum()
    return 1.0 + min(0.0, float((target.cumsum() - contained).min()))


def solve_as_program(
    form: str, solver: str, num_drafts: int, limit: float, p: Floats, q: Floats
) -> float:
    """α* as a linear program or maximum flow, from the listing of the tuples to the certificate."""
    options = {"time_limit": limit} if solver == "highs" else None
    law = otmd.WithReplacement(q, num_drafts)
    found = otmd.solve_transport(p, law, form, solver, options=options, throw=False)
    if found.status == "time limit":
        raise TimeoutError
    return found.rate


def program_bytes(form: str, num_drafts: int, size: int) -> int:
    """Bytes of the program's arrays; a solver needs several times as much."""
    law = otmd.WithReplacement(np.full(size, 1.0 / size), num_drafts)
    return program_size(ProblemShape.of(law), form).bytes


def ready_pot(p: Floats, q: Floats, _: int) -> Callable[[], Outcome]:
    """α* of two drafts by POT on the full coupling, pairs with equal tokens merged."""
    try:
        import ot
    except ImportError as error:
        raise ImportError("POT is not installed, and not compared: `pip install pot`") from error

    def run() -> Outcome:
        first, second = np.triu_indices(q.size)
        supply = np.where(first == second, 1.0, 2.0) * q[first] * q[second]
        cost = np.ones((first.size, q.size))
        rows = np.arange(first.size)
        cost[rows, first] = cost[rows, second] = 0.0
        plan: Any = ot.emd(supply / supply.sum(), p, cost, numItermax=_POT_STEPS)
        return Outcome(1.0 - float((plan * cost).sum()), note=f"POT {ot.__version__}")

    return run


def pot_bytes(size: int) -> int:
    """Bytes of the cost and the plan alone."""
    return 16 * size * (size * (size + 1) // 2)


def ready_chain(num_drafts: int, p: Floats, q: Floats, _: int) -> Callable[[], Outcome]:
    """Rate of RRS in torch and float32: what n rejections in a row leave of the target."""
    import torch

    target, draft = torch.tensor(p, dtype=torch.float32), torch.tensor(q, dtype=torch.float32)

    def run() -> Outcome:
        left, rejected = target, 1.0
        for _ in range(num_drafts):
            left = torch.relu(left - draft)
            mass = left.sum()
            rejected *= float(mass)
            left = left / mass
        return Outcome(1.0 - rejected, note="float32")

    return run


def ready_verifications(p: Floats, q: Floats, _: int) -> Callable[[], Outcome]:
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
        error = (rate * (1.0 - rate) / VERIFICATIONS) ** 0.5
        note = f"one verification; the rate is a mean of {VERIFICATIONS}, ± {error:.2f}"
        return Outcome(rate, (perf_counter() - start) / VERIFICATIONS, note)

    return run


def ready_resolution(num_drafts: int, p: Floats, q: Floats, size: int) -> Callable[[], Outcome]:
    """Global Resolution on the target's likeliest tokens; only its own part of the call is timed."""

    def run() -> Outcome:
        found = resolve(p, q, size, num_drafts)
        how = "sampled tuples" if found.sampled else "all tuples"
        ends = "converged" if found.converged else "not converged"
        return Outcome(found.rate, found.seconds, f"{how}, {ends}, TV from p {found.distance:.1e}")

    return run


def list_peers(limit: float) -> list[Peer]:
    """Every competitor at every task, otmd first; ``limit`` is the seconds that HiGHS is given."""
    ours = [("α*", optimum, "with", n) for n in (1, 2, 4)]
    ours += [("α*", optimum, "without", n) for n in (2, 4)]
    ours += [("RRS", recursive_rejection, "with", n) for n in (2, 4)]
    ours += [("RRSw", recursive_rejection, "without", 2)]
    found = [Peer("otmd", task, law, n, timed(partial(f, law, n))) for task, f, law, n in ours]
    found.append(Peer("min(p, q).sum()", "α*", "with", 1, timed(overlap)))
    found.append(Peer("argsort(p/q)", "sort", "with", 1, timed(sort_ratios)))
    for law, n in (("with", 2), ("with", 4), ("without", 2)):
        scan = partial(scan_prefixes, law, n)
        found.append(Peer("NumPy sort-and-scan", "α*", law, n, timed(scan)))
    for n in (2, 4):
        for name, form, solver in (
            ("HiGHS, compact LP", "compact", "highs"),
            ("networkx max-flow", "max_flow", "networkx"),
        ):
            solve = partial(solve_as_program, form, solver, n, limit)
            known = partial(program_bytes, form, n)
            found.append(Peer(name, "α*", "with", n, timed(solve), known))
        resolution = partial(ready_resolution, n)
        found.append(Peer("Global Resolution, top k", "α*", "with", n, resolution, keeps=True))
        # Target, difference and what is left of it stand in memory at once.
        chain = partial(ready_chain, n)
        found.append(Peer("torch chain", "RRS", "with", n, chain, lambda size: 12 * size))
    found.append(Peer("POT emd, full coupling", "α*", "with", 2, ready_pot, pot_bytes))
    one = "torch, ONE verification"
    found.append(Peer(one, "RRSw", "without", 2, ready_verifications, lambda size: 16 * size))
    return found
