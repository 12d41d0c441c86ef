"""One position's rows: α* and every verifier's rate for each law and number of drafts."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from otmd.drafts import DraftLaw
from otmd.measurement.settings import LawFactory, Settings
from otmd.optimum import optimal_acceptance
from otmd.probabilities import Processing, validate_probs
from otmd.verifiers import Verifier

SCHEMA: dict[str, Any] = {
    "index": pl.Int64,
    "prompt_id": pl.String,
    "domain": pl.String,
    "position": pl.Int64,
    "temperature": pl.Float64,
    "top_k": pl.Int64,
    "top_p": pl.Float64,
    "min_p": pl.Float64,
    "law": pl.String,
    "num_drafts": pl.Int64,
    "verifier": pl.String,
    "optimal": pl.Float64,
    "rate": pl.Float64,
    "rate_low": pl.Float64,
    "rate_high": pl.Float64,
    "gap": pl.Float64,
    "gap_low": pl.Float64,
    "gap_high": pl.Float64,
    "status": pl.String,
}


# Two sums of the same terms in another order may differ by this much.
ROUNDING = 1e-12


def process(name: str, values: np.ndarray, kind: str, step: Processing) -> np.ndarray:
    """Turn stored rows into probabilities in float64.

    Raises
    ------
    ValueError
        If probabilities are to be processed further, or the values are no distribution.
    """
    if kind == "logits":
        return step(values)
    if step != Processing():
        raise ValueError(
            f"processing: got {step} for a dataset of probabilities, wanted Processing(): "
            "they are taken as they are (to process them here, store their logarithms as logits)"
        )
    return validate_probs(name, values)


def position_rows(
    target_probs: np.ndarray, draft_probs: np.ndarray, settings: Settings
) -> Iterator[dict[str, Any]]:
    """Measure every law, number of drafts and verifier on one pair of distributions.

    Parameters
    ----------
    target_probs, draft_probs : ndarray, shape (V,)
    settings : Settings

    Yields
    ------
    dict
        The columns from ``law`` to ``status``. Where the draft distribution does not admit a law
        (fewer tokens with mass than drafts) the rates are None and the status says why.
    """
    for name, law in settings.laws:
        counts = [n for n in settings.num_drafts if (name, n) in settings.served]
        made = {n: _make(law, draft_probs, n) for n in counts}
        defined = {n: drafts for n, drafts in made.items() if isinstance(drafts, DraftLaw)}
        # A class is a family, whose smaller members come with the largest; a factory may be anything.
        family = isinstance(law, type)
        optima = _every_count(defined, family, partial(_optimal_rates, target_probs))
        rules = dict.fromkeys(pair for n in counts for pair in settings.served[name, n])
        bounds = {}
        for label, rule in rules:
            own = {n: d for n, d in defined.items() if (label, rule) in settings.served[name, n]}
            whole = family and sorted(own) == list(range(1, len(own) + 1))
            ask = partial(_rule_bounds, rule, target_probs, settings.tol)
            bounds[label] = _every_count(own, whole, ask)
        for n, drafts in made.items():
            for label, rule in settings.served[name, n]:
                row = {"law": name, "num_drafts": n, "verifier": label}
                if isinstance(drafts, str):
                    yield row | {"status": drafts}
                else:
                    low, high = bounds[label][n]
                    yield row | _rates(rule, drafts, low, high, float(optima[n]), settings.tol)


def _make(law: LawFactory, draft_probs: np.ndarray, n: int) -> DraftLaw | str:
    try:
        return law(draft_probs, n)
    except ValueError as error:
        return f"undefined: {error}"


def _every_count(
    laws: dict[int, DraftLaw], family: bool, ask: Callable[[DraftLaw, bool], np.ndarray]
) -> dict[int, np.ndarray]:
    """Ask for each number of drafts, for all at once of a family."""
    if family and len(laws) > 1:
        every = ask(laws[max(laws)], True)
        return {n: every[..., n - 1] for n in laws}
    return {n: ask(drafts, False) for n, drafts in laws.items()}


def _optimal_rates(target_probs: np.ndarray, drafts: DraftLaw, every_n: bool) -> np.ndarray:
    return np.asarray(optimal_acceptance(target_probs, drafts, every_n=every_n).rate)


def _rule_bounds(
    rule: Verifier, target_probs: np.ndarray, tol: float, drafts: DraftLaw, every_n: bool
) -> np.ndarray:
    return np.asarray(rule.acceptance_bounds(target_probs, drafts, tol=tol, every_n=every_n))


def _rates(
    rule: Verifier, drafts: DraftLaw, low: float, high: float, optimal: float, tol: float
) -> dict[str, Any]:
    low, high = float(low), float(high)
    if not low <= high + ROUNDING:
        raise ValueError(
            f"verifiers: {rule!r} gave the bounds {low!r} and {high!r} for {drafts.num_drafts} "
            f"drafts of {type(drafts).__name__}, wanted the first no larger than the second"
        )
    rate = (low + high) / 2
    wide = high - low > tol * (1 + 1e-9)
    return {
        "optimal": optimal,
        "rate": rate,
        "rate_low": low,
        "rate_high": high,
        "gap": optimal - rate,
        "gap_low": optimal - high,
        "gap_high": optimal - low,
        "status": f"bounds {high - low:.2g} apart, wanted {tol:g}" if wide else "ok",
    }
