"""``otmd solve``: the optimum and every verifier's rate for one pair of distributions."""

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from cyclopts.types import NonNegativeInt, PositiveFloat, PositiveInt

from otmd.cli import UsageError
from otmd.cli.options import LAWS, VERIFIERS, Json
from otmd.cli.problem import read_problem

if TYPE_CHECKING:
    from otmd.drafts import DraftLaw

SINGLE_LAWS = (*LAWS, "top-then", "independent")
SHOWN_TOKENS = 12

EXAMPLES = """Examples:

  otmd solve 1/3,0,2/3 1/3,1/3,1/3 --num-drafts 2

  otmd solve 0.5,0.25,0.25 0.25,0.25,0.5 --law without-replacement --json

  otmd solve target.npy draft.npy --num-drafts 4 --law top-then --top 2

  otmd solve problem.npz --law hub"""


def solve(
    target: str,
    draft: str | None = None,
    *,
    law: str = "with-replacement",
    num_drafts: PositiveInt | None = None,
    top: NonNegativeInt = 1,
    tol: PositiveFloat = 1e-6,
    json_output: Json = False,
) -> None:
    """Print α*, the cut that proves it, and each verifier's rate and gap.

    Parameters
    ----------
    target : str
        The target's distribution p: numbers or fractions with commas, a .npy file, a .json file
        with a list; or an .npz or .json file with target_probs and draft_probs.
    draft : str
        The draft's distribution q, in the same forms; for independent drafts a file of shape
        (n, V).
    law : str
        with-replacement, without-replacement, conditional-poisson, greedy, hub, top-then or
        independent.
    num_drafts : int
        How many tokens are drafted; 2 unless given.
    top : int
        For top-then: how many of the likeliest tokens are always drafted.
    tol : float
        How far apart the certain bounds of a rate may be where there is no closed form.
    json_output : bool
        Print a JSON object instead of a table.
    """
    target_probs, draft_probs = read_problem(target, draft)
    if target_probs.ndim != 1:
        raise UsageError(f"TARGET: got shape {target_probs.shape}, wanted one distribution (V,)")
    drafts = _make_law(law, draft_probs, num_drafts, top)
    answer = {"law": law} | _solved(target_probs, drafts, tol)
    if json_output:
        print(json.dumps(answer, indent=1))
    else:
        _show(answer)


def _make_law(law: str, draft_probs: np.ndarray, num_drafts: int | None, top: int) -> "DraftLaw":
    from otmd import drafts

    if law == "independent":
        return drafts.Independent(draft_probs, num_drafts)
    count = 2 if num_drafts is None else num_drafts
    if law == "top-then":
        return drafts.TopThen(draft_probs, count, top=top)
    if law not in LAWS:
        raise UsageError(f"--law: got {law!r}, wanted one of {', '.join(SINGLE_LAWS)}")
    return getattr(drafts, LAWS[law])(draft_probs, count)


def _solved(target_probs: np.ndarray, law: "DraftLaw", tol: float) -> dict[str, Any]:
    from otmd import verifiers
    from otmd.drafts import WithReplacement
    from otmd.optimum import optimal_acceptance
    from otmd.optimum.bounds import draft_probability_bound, k_sequential_floor

    best = optimal_acceptance(target_probs, law)
    optimal = float(best.rate)
    rates = {}
    for name, class_name in VERIFIERS.items():
        rule = getattr(verifiers, class_name)()
        if rule.supports(law):
            low, high = (float(b) for b in rule.acceptance_bounds(target_probs, law, tol=tol))
            rate = (low + high) / 2
            rates[name] = {"rate": rate, "low": low, "high": high, "gap": optimal - rate}
    floor = None
    if isinstance(law, WithReplacement):
        floor = k_sequential_floor(law.num_drafts) * optimal
    return {
        "num_drafts": law.num_drafts,
        "vocab_size": law.vocab_size,
        "optimal": optimal,
        "subset": [int(token) for token in np.flatnonzero(best.subset)],
        "subset_target_mass": float(np.asarray(target_probs, float)[best.subset].sum()),
        "subset_containment": float(law.containment(best.subset)),
        "upper_bound": float(draft_probability_bound(target_probs, law)),
        "k_sequential_floor": floor,
        "verifiers": rates,
    }


def _show(answer: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    tokens = answer["subset"]
    listed = ", ".join(map(str, tokens[:SHOWN_TOKENS]))
    listed += f", … ({len(tokens)} tokens)" if len(tokens) > SHOWN_TOKENS else ""
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_row("drafts", f"{answer['num_drafts']} {answer['law']}, V = {answer['vocab_size']}")
    facts.add_row("optimal α*", f"[bold]{answer['optimal']:.10f}[/bold]")
    facts.add_row("cut H*", f"{{{listed}}}")
    masses = answer["subset_target_mass"], answer["subset_containment"]
    facts.add_row("", f"p(H*) = {masses[0]:.10f}, g(H*) = {masses[1]:.10f}")
    facts.add_row("SpecTr's upper bound", f"{answer['upper_bound']:.10f}")
    if answer["k_sequential_floor"] is not None:
        facts.add_row("K-SEQ is at least", f"{answer['k_sequential_floor']:.10f}")
    console.print(facts)
    console.print()
    table = Table(box=None, pad_edge=False)
    table.add_column("verifier")
    table.add_column("acceptance rate", justify="right")
    table.add_column("gap to α*, pp", justify="right")
    for name, found in answer["verifiers"].items():
        apart = (found["high"] - found["low"]) / 2
        margin = f" ±{apart:.1e}" if apart else ""
        gap = round(100 * found["gap"], 6) + 0.0
        table.add_row(name, f"{found['rate']:.10f}{margin}", f"{gap:.6f}")
    console.print(table)
