"""One position's rows: α* and every verifier's rate for each law and number of drafts."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import numpy as np
import polars as pl

from otmd.drafts import DraftLaw
from otmd.measurement.settings import LawFactory, Settings
from otmd.optimum.acceptance import family_rates
from otmd.probabilities import Processing, validate_probs
from otmd.verifiers import Verifier

Answer = TypeVar("Answer")

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
        made = _make(law, draft_probs, counts)
        # A class is a family, which is asked for all numbers of drafts at once.
        family = isinstance(law, type)
        laws = {n: drafts for n, drafts in made.items() if isinstance(drafts, DraftLaw)}
        optima = _asked(laws, family, partial(family_rates, target_probs))
        bounds = {}
        for pair in dict.fromkeys(pair for n in counts for pair in settings.served[name, n]):
            own = {n: drafts for n, drafts in laws.items() if pair in settings.served[name, n]}
            ask = partial(pair[1].family_bounds, target_probs, tol=settings.tol)
            bounds[pair] = _asked(own, family, ask)
        for n, drafts in made.items():
            for pair in settings.served[name, n]:
                label, rule = pair
                row = {"law": name, "num_drafts": n, "verifier": label}
                if isinstance(drafts, str):
                    yield row | {"status": drafts}
                else:
                    low, high = bounds[pair][n]
                    yield row | _rates(rule, drafts, low, high, optima[n], settings.tol)


def _make(law: LawFactory, draft_probs: np.ndarray, counts: list[int]) -> dict[int, DraftLaw | str]:
    """The law for each number of drafts, or why it is undefined."""
    made: dict[int, DraftLaw | str] = {}
    largest: DraftLaw | None = None
    for n in reversed(counts):
        try:
            made[n] = drafts = largest.with_num_drafts(n) if largest else law(draft_probs, n)
        except ValueError as error:
            made[n] = f"undefined: {error}"
        else:
            # The smaller members of a class come with the largest, whose input is checked once.
            largest = drafts if isinstance(law, type) else None
    return {n: made[n] for n in counts}


def _asked(
    laws: dict[int, DraftLaw], family: bool, ask: Callable[[list[DraftLaw]], list[Answer]]
) -> dict[int, Answer]:
    """Ask about each number of drafts, about all at once of a family."""
    together = [list(laws)] if family and laws else [[n] for n in laws]
    return {
        n: answer
        for counts in together
        for n, answer in zip(counts, ask([laws[n] for n in counts]), strict=True)
    }


def _rates(
    verifier: Verifier, law: DraftLaw, low: float, high: float, optimal: float, tol: float
) -> dict[str, Any]:
    if not low <= high + ROUNDING:
        raise ValueError(
            f"verifiers: {verifier!r} gave the bounds {low!r} and {high!r} for {law.num_drafts} "
            f"drafts of {type(law).__name__}, wanted the first no larger than the second"
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
