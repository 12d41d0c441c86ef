"""Ceilings: bounds on what any law that sees only q could accept.

The bounds are those of ``otmd.study.planning.ceiling``, for π ∝ q and for a fitted π. The fitted one is
evaluated on the prompts that it was not fitted on (somewhat too low) and on those that it was fitted on
(too high).

With a dynamic budget, π ∝ q and n depends on the draft's entropy. There are more drafts where the bound gains
most from them on the held-out half of the prompts, and n has the same mean.
"""

import numpy as np
import polars as pl

import otmd
from experiments.claims.draft_laws import COUNTS
from experiments.claims.positions import MODELS, chosen_prompts, stored, text_file
from otmd.probabilities import FloatArray, IntArray
from otmd.study.planning.ceiling import newsvendor, proportional, quantiles

CEILING_AT = (0.6, 1.0, 1.5)
NAMES = ("ceiling, π ∝ q", "ceiling, fitted", "ceiling, fitted on itself", "ceiling, dynamic n")
BUDGETS = np.arange(1, 17)
ENTROPIES = 6


def ceilings(about: pl.DataFrame) -> dict[int, dict[str, FloatArray]]:
    """Bounds for each row of a table of positions, by number of drafts and name.

    NaN at temperatures other than CEILING_AT.
    """
    bounds = {n: {name: np.full(about.height, np.nan) for name in NAMES} for n in COUNTS}
    for draft in about["draft"].unique().sort():
        logits = _logits(draft)
        for temperature in CEILING_AT:
            step = otmd.Processing(temperature)
            rows = about.filter(draft=draft, temperature=temperature)
            pairs = [
                (step(logits[prompt][0][at]), step(logits[prompt][1][at]))
                for prompt, at in rows.select("prompt_id", "position").iter_rows()
            ]
            half = rows["half"].to_numpy()
            numbers = rows["row"].to_numpy()
            by_count = _bounds(pairs, half, rows["entropy"].to_numpy())
            for n, by_name in zip(COUNTS, by_count, strict=True):
                for name, values in zip(NAMES, by_name, strict=True):
                    bounds[n][name][numbers] = values
    return bounds


def _bounds(
    pairs: list[tuple[FloatArray, FloatArray]], half: IntArray, entropy: FloatArray
) -> FloatArray:
    """Bounds of one draft at one temperature, shape (COUNTS, NAMES, positions)."""
    plain = np.array([proportional(p, q, BUDGETS.tolist()) for p, q in pairs])
    bounds = np.empty((len(COUNTS), len(NAMES), len(pairs)))
    bounds[:, 0] = plain[:, np.array(COUNTS) - 1].T
    for side in (0, 1):
        held_out, fit = np.flatnonzero(half == side), np.flatnonzero(half != side)
        ratios = quantiles([pairs[i] for i in fit])
        for name, rows in ((1, held_out), (2, fit)):
            bounds[:, name, rows] = np.array(
                [newsvendor(*pairs[i], ratios, COUNTS) for i in rows]
            ).T
        for i, n in enumerate(COUNTS):
            budget = budgets(entropy[fit], plain[fit], n)[levels(entropy[held_out])]
            bounds[i, 3, held_out] = plain[held_out, budget - 1]
    return bounds


def _logits(draft: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Logits of target and draft at the positions of each prompt."""
    [models] = (models for models in MODELS.values() if draft in models.drafts)
    prompts = [prompt for prompt in chosen_prompts() if text_file(prompt, models).exists()]
    arrays = {prompt.id: stored(prompt, models) for prompt in prompts}
    return {name: (of["target"], of[draft]) for name, of in arrays.items()}


def levels(entropy: FloatArray) -> IntArray:
    """Sixth of each position, 0 to 5, by the draft's entropy."""
    return np.argsort(np.argsort(entropy)) * ENTROPIES // entropy.size


def budgets(entropy: FloatArray, bounds: FloatArray, num_drafts: int) -> IntArray:
    """Number of drafts in each sixth, n in the mean, from bounds (positions, budgets)."""
    level = levels(entropy)
    means = np.array([bounds[level == b].mean(axis=0) for b in range(ENTROPIES)])
    gains = np.diff(means, axis=1)
    chosen = np.zeros(ENTROPIES, np.int64)
    for _ in range(ENTROPIES * (num_drafts - 1)):
        able = np.flatnonzero(chosen < gains.shape[1])
        chosen[able[np.argmax(gains[able, chosen[able]])]] += 1
    return BUDGETS[chosen]
