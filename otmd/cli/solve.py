"""``otmd solve``: the optimum and every verifier's rate for one pair of distributions."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from otmd.cli import UsageError
from otmd.cli import options as o
from otmd.cli.options import PositiveInt, about
from otmd.registry import VERIFIERS
from otmd.storage.arrays import read_npy, read_npz
from otmd.storage.files import parse_json

if TYPE_CHECKING:
    from otmd.laws import DraftLaw

FIELDS = ("target_probs", "draft_probs")
SUFFIXES = (".npy", ".npz", ".json")
LONGEST_JSON = 32 << 20
SHOWN_TOKENS = 12
# What ten digits cannot show.
INVISIBLE = 5e-11

EXAMPLES = """
otmd solve 1/3,0,2/3 1/3,1/3,1/3 --num-drafts 2
otmd solve 0.5,0.25,0.25 0.25,0.25,0.5 --law without-replacement --json
otmd solve target.npy draft.npy --num-drafts 4 --law top-then --top 2
otmd solve problem.npz --law hub"""


def solve(
    target: Annotated[str, o.INPUT, about("1/3,0,2/3, .npy, .json; or .npz or .json of both.")],
    draft: Annotated[str | None, o.INPUT, about("In the same forms; (n, V) if independent.")] = None,
    *,
    law: o.Law = "with-replacement",
    num_drafts: Annotated[PositiveInt | None, about("2 unless given.")] = None,
    top: o.Top = 1,
    tol: o.Tol = 1e-6,
    json_output: o.Json = False,
) -> None:
    """Print α*, the cut that proves it, and each verifier's rate and gap, the best first."""
    target_probs, draft_probs = read_problem(target, draft)
    if target_probs.ndim != 1:
        raise UsageError(f"TARGET: got shape {target_probs.shape}, expected one distribution (V,)")
    name, make = o.read_law(law, top)
    # Independent drafts from n distributions are n drafts.
    count = draft_probs.shape[0] if name == "Independent" and draft_probs.ndim == 2 else 2
    drafts = make(draft_probs, num_drafts or count)
    if drafts.batch_shape:
        raise UsageError(f"DRAFT: got shape {draft_probs.shape}, expected one distribution (V,)")
    answer = {"law": law} | _solved(target_probs, drafts, tol)
    if json_output:
        print(json.dumps(answer, indent=1))
    else:
        _show(answer)


def read_problem(target: str, draft: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Read the target's and the draft's distribution, in the forms of :func:`solve`; neither is checked."""
    content = _load("TARGET", target)
    if draft is not None:
        return _array("TARGET", target, content), _array("DRAFT", draft, _load("DRAFT", draft))
    if not isinstance(content, dict):
        raise UsageError(f"DRAFT: got nothing, expected it after {target!r}, or a file with both")
    if not {*FIELDS} <= {*content}:
        raise UsageError(f"TARGET: {target} holds {sorted(content)}, expected {' and '.join(FIELDS)}")
    first, second = (_array("TARGET", target, content[name]) for name in FIELDS)
    return first, second


def _load(argument: str, text: str) -> Any:
    """The content of the file that the text names, or the numbers that it lists."""
    if not text.endswith(SUFFIXES):
        return np.array(o.numbers(argument, text, "1/3,0,2/3 or 0.2,0.8"))
    path = Path(text)
    if not path.is_file():
        raise UsageError(f"{argument}: there is no file {text}")
    try:
        if path.suffix == ".json":
            if path.stat().st_size > LONGEST_JSON:
                raise ValueError(f"more than {LONGEST_JSON} bytes; write it as .npz")
            return parse_json(path.read_text("utf-8"))
        return read_npz(path) if path.suffix == ".npz" else read_npy(path)
    except ValueError as error:
        raise UsageError(f"{path}: cannot be read ({error})") from error


def _array(argument: str, source: str, value: Any) -> np.ndarray:
    if isinstance(value, dict):
        raise UsageError(f"{argument}: got {source}, which names several arrays, expected one array")
    if isinstance(value, np.ndarray):
        return value
    try:
        numbers = [o.exact_number(item) for item in np.ravel(np.array(value, dtype=object))]
        return np.array(numbers).reshape(np.shape(value))
    except (TypeError, ValueError, ArithmeticError) as error:
        raise UsageError(f"{source}: got an array that is not of numbers ({error})") from error


def _solved(target_probs: np.ndarray, law: "DraftLaw", tol: float) -> dict[str, Any]:
    from otmd.optimum import optimal_acceptance
    from otmd.optimum.bounds import draft_probability_bound, k_sequential_floor

    best = optimal_acceptance(target_probs, law)
    optimal = float(best.rate)
    rates = {}
    for name, entry in VERIFIERS.items():
        rule = entry.load()()
        if not entry.coupling and rule.supports(law):
            low, high = (float(b) for b in rule.acceptance_bounds(target_probs, law, tol=tol))
            rate = (low + high) / 2
            rates[name] = {"rate": rate, "low": low, "high": high, "gap": optimal - rate}
    # Rates that differ by rounding alone stay in the order of VERIFIERS.
    best_first = sorted(rates, key=lambda name: -round(rates[name]["rate"], 10))
    floor = k_sequential_floor(law.num_drafts) * optimal
    return {
        "num_drafts": law.num_drafts,
        "vocab_size": law.vocab_size,
        "optimal": optimal,
        "subset": [int(token) for token in np.flatnonzero(best.subset)],
        "subset_target_mass": float(np.asarray(target_probs, float)[best.subset].sum()),
        "subset_containment": float(law.containment(best.subset)),
        "upper_bound": float(draft_probability_bound(target_probs, law)),
        "k_sequential_floor": floor if law.position_structure.single else None,
        "verifiers": {name: rates[name] for name in best_first},
    }


def _show(answer: dict[str, Any]) -> None:
    from otmd.study.table import Table, wrapped

    tokens = answer["subset"]
    listed = ", ".join(map(str, tokens[:SHOWN_TOKENS]))
    listed += f", … ({len(tokens)} tokens)" if len(tokens) > SHOWN_TOKENS else ""
    target_mass = answer["subset_target_mass"]
    containment = answer["subset_containment"]
    best, rate = next(iter(answer["verifiers"].items()))
    attained = "attained by" if abs(rate["gap"]) < INVISIBLE else "nearest to it:"
    facts = {
        "optimal α*": f"{answer['optimal']:.10f}, {attained} {best}",
        "drafts": f"{answer['num_drafts']} {answer['law']}, V = {answer['vocab_size']}",
        "cut H*": f"{{{listed}}}",
        "": f"p(H*) = {target_mass:.10f}, g(H*) = {containment:.10f}",
        "SpecTr's upper bound": f"{answer['upper_bound']:.10f}",
    }
    if answer["k_sequential_floor"] is not None:
        facts["K-SEQ is at least"] = f"{answer['k_sequential_floor']:.10f}"
    for name, value in facts.items():
        print(wrapped(f"{name:20}  {value}"))
    rows = []
    for name, rate in answer["verifiers"].items():
        apart = (rate["high"] - rate["low"]) / 2
        margin = f" ±{apart:.1e}" if apart > INVISIBLE else ""
        gap = round(100 * rate["gap"], 6) + 0.0
        rows.append([name, f"{rate['rate']:.10f}{margin}", f"{gap:.6f}"])
    print()
    print(Table("", ["verifier", "acceptance rate", "gap to α*, pp"], rows))
