"""The ceiling: how much any law that sees only q could still accept.

A law drafts token y with probability π_y, Σ π_y = n, and no rule accepts more than Σ min(p_y, π_y). Of all π
that are functions of q, the best is that of a newsvendor: P(p_y > π_y | q) is the same λ for all tokens of
a position. Here π_y is a function of q_y and λ: the quantile of p given q_y, ascending in q_y. It is
estimated on one half of the prompts, and the bound is evaluated on the other.

With a fixed n, λ is found at each position. With a dynamic budget it is the same at all positions, and n is
the mean over them. Beside it stands the bound for π ∝ q, capped at 1, which nothing is fitted for.
"""

import numpy as np
import polars as pl
from draft_laws import COUNTS, DRAFTS, chosen_prompts, text_file

import otmd
from otmd.probabilities import FloatArray, IntArray

EDGES = np.append(np.exp(np.linspace(np.log(1e-9), 0.0, 64)), np.inf)
LEVELS = np.exp(np.linspace(np.log(2e-6), np.log(0.999), 120))
LIKELY = 1e-3
CEILING_AT = (0.6, 1.0, 1.5)
NAMES = ("ceiling, π ∝ q", "ceiling, fixed n", "ceiling, dynamic n")


def ceilings(about: pl.DataFrame) -> dict[int, dict[str, FloatArray]]:
    """Bounds for each row of a table of positions, by number of drafts and name.

    NaN at temperatures other than CEILING_AT.
    """
    found = {n: {name: np.full(about.height, np.nan) for name in NAMES} for n in COUNTS}
    for draft in DRAFTS:
        stored = _stored(draft)
        for temperature in CEILING_AT:
            step = otmd.Processing(temperature)
            rows = about.filter(draft=draft, temperature=temperature)
            pairs = [
                (step(stored[prompt][0][at]), step(stored[prompt][1][at]))
                for prompt, at in rows.select("prompt_id", "position").iter_rows()
            ]
            half, places = rows["half"].to_numpy(), rows["row"].to_numpy()
            for side in (0, 1):
                own = np.flatnonzero(half == side)
                ratios = quantiles([pairs[i] for i in np.flatnonzero(half != side)])
                for n in COUNTS:
                    bounds = newsvendor([pairs[i] for i in own], ratios, n)
                    for name, values in zip(NAMES, bounds, strict=True):
                        found[n][name][places[own]] = values
    return found


def _stored(draft: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Logits of target and draft at the positions of each prompt."""
    found = {}
    for prompt in chosen_prompts():
        if text_file(prompt).exists():
            with np.load(text_file(prompt)) as arrays:
                found[prompt.id] = (arrays["target"], arrays[draft])
    return found


def proportional(target: FloatArray, draft: FloatArray, num_drafts: int) -> float:
    """Σ min(p, π) for π = min(1, c q) with Σ π = n."""
    order = np.argsort(-draft)
    left = np.append(draft[order][::-1].cumsum()[::-1], 0.0)
    certain = 0
    while certain < num_drafts and draft[order[certain]] * (num_drafts - certain) >= left[certain]:
        certain += 1
    rest = order[certain:]
    scaled = draft[rest] * ((num_drafts - certain) / left[certain]) if left[certain] > 0 else 0.0
    return float(target[order[:certain]].sum() + np.minimum(target[rest], scaled).sum())


def quantiles(pairs: list[tuple[FloatArray, FloatArray]]) -> FloatArray:
    """π/q by range of q (edges − 1,) and level (levels,): quantiles of p/q, with π ascending in q."""
    target, draft = (np.concatenate(side) for side in zip(*pairs, strict=True))
    number = np.digitize(draft, EDGES)
    order = np.argsort(number, kind="stable")
    ends = np.searchsorted(number[order], np.arange(EDGES.size + 1))
    inclusion = np.zeros((EDGES.size, LEVELS.size))
    for b in range(EDGES.size):
        own = order[ends[b] : ends[b + 1]]
        if own.size:
            inclusion[b] = np.quantile(target[own] / np.maximum(draft[own], 1e-300), 1.0 - LEVELS)
    middle = _middles()[:, None]
    return np.maximum.accumulate(inclusion * middle, axis=0) / middle


def _middles() -> FloatArray:
    low = np.append(EDGES[0] / 2, EDGES[:-1])
    return np.sqrt(low * np.append(EDGES[:-1], 1.0))


def newsvendor(
    pairs: list[tuple[FloatArray, FloatArray]], ratios: FloatArray, num_drafts: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Bounds (positions,) for π ∝ q, with a fixed n, and with one level for all positions."""
    numbers = [np.digitize(q, EDGES) for _, q in pairs]
    totals = np.array([_totals(q, b, ratios) for (_, q), b in zip(pairs, numbers, strict=True)])
    one = _crossing(totals.mean(axis=0), num_drafts)
    plain, fixed, dynamic = np.empty((3, len(pairs)))
    for i, ((p, q), number) in enumerate(zip(pairs, numbers, strict=True)):
        plain[i] = proportional(p, q, num_drafts)
        for bounds, level in ((fixed, _crossing(totals[i], num_drafts)), (dynamic, one)):
            ratio = _between(ratios, level)
            bounds[i] = np.minimum(p, np.minimum(1.0, ratio[number] * q)).sum()
    return plain, fixed, dynamic


def _totals(draft: FloatArray, number: IntArray, ratios: FloatArray) -> FloatArray:
    """Σ π at each level, (levels,); only likely tokens can reach π = 1."""
    likely = draft > LIKELY
    capped = np.minimum(1.0, ratios[number[likely]] * draft[likely, None])
    others = np.bincount(number[~likely], draft[~likely], ratios.shape[0])
    return capped.sum(axis=0) + others @ ratios


def _crossing(totals: FloatArray, num_drafts: int) -> float:
    """The level, as a place between two of those that are known, at which Σ π is n."""
    # Totals fall as the level rises; the lowest level is taken where all of them are too small.
    return float(np.interp(-num_drafts, -totals, np.arange(totals.size)))


def _between(ratios: FloatArray, level: float) -> FloatArray:
    low = int(level)
    high = min(low + 1, ratios.shape[1] - 1)
    return ratios[:, low] + (level - low) * (ratios[:, high] - ratios[:, low])
