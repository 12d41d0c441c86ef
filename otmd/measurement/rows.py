"""One position's rows: α* and every verifier's rate for each law and number of drafts."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from otmd.drafts import DraftLaw
from otmd.measurement.settings import LawFactory, Settings
from otmd.optimum import optimal_acceptance
from otmd.probabilities import Processing, validate_probs
from otmd.ratio_curve import RatioCurve
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
    curve = RatioCurve(target_probs, draft_probs)
    for name, law in settings.laws:
        counts = [n for n in settings.num_drafts if (name, n) in settings.served]
        made = {n: _make(law, draft_probs, n) for n in counts}
        optima = _optima(law, target_probs, draft_probs, made, curve)
        for n, drafts in made.items():
            for label, rule in settings.served[name, n]:
                row = {"law": name, "num_drafts": n, "verifier": label}
                if isinstance(drafts, str):
                    yield row | {"status": drafts}
                else:
                    yield row | _rates(rule, target_probs, drafts, optima[n], settings.tol)


def _make(law: LawFactory, draft_probs: np.ndarray, n: int) -> DraftLaw | str:
    try:
        return law(draft_probs, n)
    except ValueError as error:
        return f"undefined: {error}"


def _optima(
    law: LawFactory,
    target_probs: np.ndarray,
    draft_probs: np.ndarray,
    made: dict[int, DraftLaw | str],
    curve: RatioCurve,
) -> dict[int, float]:
    defined = {n: drafts for n, drafts in made.items() if isinstance(drafts, DraftLaw)}
    if not defined:
        return {}
    largest = defined[max(defined)]
    # A law may draw from another distribution than q, to which the curve would not belong.
    drawn_from = getattr(largest, "draft_probs", np.empty(0))
    fits = drawn_from.shape == draft_probs.shape and np.allclose(drawn_from, draft_probs, 1e-12, 0)
    shared = curve if fits else None
    # A class is a family, whose smaller members come with the largest; a factory may be anything.
    if len(defined) > 1 and isinstance(law, type):
        rates = np.asarray(
            optimal_acceptance(target_probs, largest, every_n=True, curve=shared).rate
        )
        return {n: float(rates[n - 1]) for n in defined}
    return {
        n: float(optimal_acceptance(target_probs, drafts, curve=shared).rate)
        for n, drafts in defined.items()
    }


def _rates(
    rule: Verifier, target_probs: np.ndarray, drafts: DraftLaw, optimal: float, tol: float
) -> dict[str, Any]:
    low, high = (float(bound) for bound in rule.acceptance_bounds(target_probs, drafts, tol=tol))
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
