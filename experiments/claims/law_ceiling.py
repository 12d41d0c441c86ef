"""The ceiling: how much any law that sees only q could accept.

The bounds are those of ``otmd.study.planning.ceiling``, for π ∝ q and for a fitted π. The fitted one is
evaluated on the prompts that it was not fitted on (somewhat too low) and on those that it was fitted on
(too high).

With a dynamic budget, π ∝ q and n depends on the draft's entropy. There are more drafts where the bound gains
most from them on the other half of the prompts, and n has the same mean.
"""

import numpy as np
import polars as pl
from draft_laws import COUNTS, PAIRS, chosen_prompts, text_file

import otmd
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
    found = {n: {name: np.full(about.height, np.nan) for name in NAMES} for n in COUNTS}
    for draft in about["draft"].unique().sort():
        stored = _stored(draft)
        for temperature in CEILING_AT:
            step = otmd.Processing(temperature)
            rows = about.filter(draft=draft, temperature=temperature)
            pairs = [
                (step(stored[prompt][0][at]), step(stored[prompt][1][at]))
                for prompt, at in rows.select("prompt_id", "position").iter_rows()
            ]
            half, places = rows["half"].to_numpy(), rows["row"].to_numpy()
            plain = np.array([proportional(p, q, BUDGETS.tolist()) for p, q in pairs])
            entropy = rows["entropy"].to_numpy()
            for side in (0, 1):
                own, fit = half == side, half != side
                one, other = ([pairs[i] for i in np.flatnonzero(rows)] for rows in (own, fit))
                ratios = quantiles(other)
                fitted, on_itself = (
                    np.array([newsvendor(p, q, ratios, COUNTS) for p, q in side])
                    for side in (one, other)
                )
                for i, n in enumerate(COUNTS):
                    found[n][NAMES[0]][places[own]] = plain[own, n - 1]
                    found[n][NAMES[1]][places[own]] = fitted[:, i]
                    found[n][NAMES[2]][places[fit]] = on_itself[:, i]
                    budget = budgets(entropy[fit], plain[fit], n)[levels(entropy[own])]
                    found[n][NAMES[3]][places[own]] = plain[own, budget - 1]
    return found


def _stored(draft: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Logits of target and draft at the positions of each prompt."""
    found = {}
    (pairs,) = (each for each in PAIRS.values() if draft in each.drafts)
    for prompt in chosen_prompts():
        if text_file(prompt, pairs).exists():
            with np.load(text_file(prompt, pairs)) as arrays:
                found[prompt.id] = (arrays["target"], arrays[draft])
    return found


def levels(entropy: FloatArray) -> IntArray:
    """The part of each position, 0 to 5: six equal parts of the positions by the draft's entropy."""
    return np.argsort(np.argsort(entropy)) * ENTROPIES // entropy.size


def budgets(entropy: FloatArray, bounds: FloatArray, num_drafts: int) -> IntArray:
    """How many drafts to make in each part, n in the mean, from bounds (positions, budgets)."""
    level = levels(entropy)
    means = np.array([bounds[level == b].mean(axis=0) for b in range(ENTROPIES)])
    gains, chosen = np.diff(means, axis=1), np.zeros(ENTROPIES, np.int64)
    for _ in range(ENTROPIES * (num_drafts - 1)):
        able = np.flatnonzero(chosen < gains.shape[1])
        chosen[able[np.argmax(gains[able, chosen[able]])]] += 1
    return BUDGETS[chosen]
