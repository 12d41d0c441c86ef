"""The cost of ways of decoding: summed over texts, as a table, as JSON and as a figure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from otmd.models.decoding import STAGES, Decoded
from otmd.probabilities import FloatArray, wrong
from otmd.study.estimate import Estimate, ratios
from otmd.study.style import FAINT, QUIET, TWO_COLUMNS, save_figure
from otmd.study.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The stages of the time per token. Reading the prompt takes equally long in every way, and is left out.
GENERATION = STAGES[1:]
SHOWN_DEPTHS = 6
# From Okabe & Ito's palette, dark to light, so that they differ in a grey print.
COLOURS = {"target": "#0072B2", "draft": "#E69F00", "verification": "#009E73", "rest": FAINT}


@dataclass(frozen=True)
class DecodingCost:
    """The cost of a way of decoding, over all texts.

    Attributes
    ----------
    name : str
        The name of the way.
    tokens, steps : int
        How many tokens were written, and in how many steps. A step is one call of the target.
    acceptance : list of float
        For each depth, how often a token was accepted where the path above was accepted and drafts followed.
    seconds_per_token : dict of str to float
        By stage: "draft", "target", "verification", "rest".
    prompt_seconds : float
        The time to read the prompts, which no other number includes.
    speed_up : Estimate
        Tokens per second divided by those of the first way, with an interval over the repeats.
    per_step : Estimate
        New tokens per step. This interval and the next ones are over the prompts.
    tokens_ratio, speed_ratio : Estimate, optional
        Tokens per step and per second divided by those of the way that this one is compared with.
    """

    name: str
    tokens: int
    steps: int
    acceptance: list[float]
    seconds_per_token: dict[str, float]
    prompt_seconds: float
    speed_up: Estimate
    per_step: Estimate
    tokens_ratio: Estimate | None = None
    speed_ratio: Estimate | None = None

    @property
    def tokens_per_step(self) -> float:
        """New tokens per step."""
        return self.per_step.value

    @property
    def tokens_per_second(self) -> float:
        """New tokens per second, not counting the time to read the prompt."""
        return 1.0 / sum(self.seconds_per_token.values())

    @property
    def difference(self) -> str:
        """Whether the speed-up differs from 1 by more than the noise."""
        _, low, high = self.speed_up
        if low is None or high is None:
            return "unknown"
        return "faster" if low > 1 else "slower" if high < 1 else "noise"


def decoding_costs(
    texts: Sequence[Mapping[str, Decoded]], repeats: int = 1, compared_with: str | None = None
) -> list[DecodingCost]:
    """Sum the costs of several ways of decoding over texts, in the order of the ways.

    Parameters
    ----------
    texts : sequence of mappings
        From :func:`otmd.models.decode_in_turn`: for each prompt, the text decoded in each way. The first
        repeat of all prompts comes first, then the second, and so on.
    repeats : int
        How often all prompts were decoded. The number of texts must be a multiple of it, else ValueError. An
        interval of the speed-up needs at least two.
    compared_with : str, optional
        The name of a way: those after it are compared with it on the same prompts. Intervals over prompts are
        the jackknife's, and need at least two prompts.

    Returns
    -------
    list of DecodingCost
        One for each way.
    """
    if not texts or repeats < 1 or len(texts) % repeats:
        counts = f"{len(texts)} for {repeats} repeats" if texts else "none"
        raise wrong("texts", counts, "at least one, equally many a repeat")
    costs: list[DecodingCost] = []
    first: FloatArray | None = None
    compared: list[FloatArray] = []
    for name in texts[0]:
        decoded = [text[name] for text in texts]
        amounts = [
            (len(text.tokens), len(text.steps), sum(text.seconds[stage] for stage in GENERATION))
            for text in decoded
        ]
        # By repeat and prompt.
        tokens, steps, seconds = np.array(amounts, np.float64).T.reshape(3, repeats, -1)
        speeds = tokens.sum(axis=1) / seconds.sum(axis=1)
        first = speeds if first is None else first
        # Over repeats, a geometric mean.
        logs = Estimate.of(ratios(np.log(speeds / first), np.ones(repeats)))
        ends = (None if end is None else math.exp(end) for end in logs[1:])
        rates = [ratios(tokens.sum(axis=0), below.sum(axis=0)) for below in (steps, seconds)]
        reached, kept, by_stage = Counter[int](), Counter[int](), Counter[str]()
        for text in decoded:
            reached.update(text.reached)
            kept.update(text.kept)
            by_stage.update(text.seconds)
        count = int(tokens.sum())
        cost = DecodingCost(
            name,
            count,
            int(steps.sum()),
            [kept[depth] / reached[depth] for depth in sorted(reached)],
            {stage: by_stage[stage] / count for stage in GENERATION},
            by_stage["prompt"],
            Estimate(math.exp(logs.value), *ends),
            Estimate.of(rates[0]),
            *(Estimate.of(rate / base) for rate, base in zip(rates, compared, strict=False)),
        )
        costs.append(cost)
        if name == compared_with:
            compared = rates
    return costs


def decoding_json(costs: Sequence[DecodingCost]) -> list[dict[str, Any]]:
    """The costs in JSON's types.

    Parameters
    ----------
    costs : sequence of DecodingCost
        The result of :func:`decoding_costs`.

    Returns
    -------
    list of dict
        One for each way. Times are in seconds. Estimates are lists of the mean and the ends of the interval,
        None where there is none.
    """
    derived = ("tokens_per_step", "tokens_per_second", "difference")
    return [vars(cost) | {name: getattr(cost, name) for name in derived} for cost in costs]


def print_decoding(costs: Sequence[DecodingCost]) -> None:
    """Print a table with one column for each way.

    Parameters
    ----------
    costs : sequence of DecodingCost
        The result of :func:`decoding_costs`.
    """
    by_token = "  compared position by position"
    compares = any(cost.tokens_ratio for cost in costs)
    rows = _with_intervals("tokens per step", [cost.per_step for cost in costs])
    if compares:
        rows += _with_intervals(by_token, [cost.tokens_ratio for cost in costs])
    rows.append(["tokens per second", *(f"{cost.tokens_per_second:.1f}" for cost in costs)])
    if compares:
        rows += _with_intervals(by_token, [cost.speed_ratio for cost in costs])
    rows += _with_intervals("speed-up", [cost.speed_up for cost in costs])
    rows += [
        ["  compared with the target", "", *(cost.difference for cost in costs[1:])],
        ["accepted by depth, %", *(_depths(cost.acceptance) for cost in costs)],
    ]
    for stage in GENERATION:
        times = [f"{1e3 * cost.seconds_per_token[stage]:.1f}" for cost in costs]
        rows.append([f"ms per token: {stage}", *times])
    print(Table("", ["", *(cost.name.replace("; ", "\n") for cost in costs)], rows))


def _with_intervals(title: str, estimates: Sequence[Estimate | None]) -> list[list[str]]:
    """A row of means and a row of their intervals."""
    means = ["" if x is None else f"{x.value:.2f}" for x in estimates]
    return [[title, *means], ["    95% interval", *map(_ends, estimates)]]


def _ends(estimate: Estimate | None) -> str:
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    # The first way has a speed-up of exactly 1.
    return f"{estimate.low:.2f} to {estimate.high:.2f}" * (estimate.low < estimate.high)


def _depths(acceptance: list[float]) -> str:
    shown = [f"{100 * rate:.0f}" for rate in acceptance[:SHOWN_DEPTHS]]
    return " ".join(shown + ["…"] * (len(acceptance) > SHOWN_DEPTHS)) or "·"


def draw_decoding(costs: Sequence[DecodingCost], paths: Sequence[str | Path], source: str = "") -> list[Path]:
    """Draw milliseconds per token by stage, one bar for each way of decoding.

    Parameters
    ----------
    costs : sequence of DecodingCost
        The result of :func:`decoding_costs`; none is a ValueError.
    paths, source
        As for :func:`draw_gaps`, with the same errors.

    Returns
    -------
    list of Path
        The files that were written.
    """
    if not costs:
        raise wrong("costs", "none", "at least one")
    return save_figure(lambda: _bars(costs), paths, source)


def _bars(costs: Sequence[DecodingCost]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(TWO_COLUMNS, 0.9 + 0.38 * len(costs)), layout="constrained")
    axes = figure.subplots()
    heights = range(len(costs))
    ends = [0.0] * len(costs)
    for stage in sorted(GENERATION, key=list(COLOURS).index):
        widths = [1e3 * cost.seconds_per_token[stage] for cost in costs]
        axes.barh(heights, widths, 0.62, ends, color=COLOURS[stage], label=stage, zorder=3)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    for place, end, cost in zip(heights, ends, costs, strict=True):
        text = f"{cost.tokens_per_second:.0f} tokens/s, {cost.tokens_per_step:.2f} a step"
        offset = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(text, (end, place), **offset, fontsize=7, color=QUIET)
    axes.set_yticks(list(heights), labels=[cost.name for cost in costs])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.32 * max(ends))
    axes.set_xlabel("milliseconds per token, once the prompt is read")
    axes.grid(axis="x", color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    figure.legend(loc="outside upper center", ncols=len(COLOURS))
    return figure
