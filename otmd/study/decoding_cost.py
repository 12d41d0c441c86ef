"""The cost of ways of decoding: summed over texts, as a table, as JSON and as a figure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from otmd.models.decoding import STAGES, Decoded
from otmd.probabilities import wrong
from otmd.study.style import FAINT, QUIET, TWO_COLUMNS, save_figure
from otmd.study.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The stages of the time per token. Reading the prompt takes equally long in every way, and is left out.
GENERATION = STAGES[1:]
SHOWN_DEPTHS = 6
# From Okabe & Ito's palette, dark to light, so that they differ in a grey print.
COLOURS = {"target": "#0072B2", "draft": "#E69F00", "verification": "#009E73", "rest": FAINT}


class SpeedUp(NamedTuple):
    """Speed divided by that of the first way: mean over repeats and 95% interval, NaN for one repeat."""

    mean: float
    low: float = math.nan
    high: float = math.nan

    @property
    def verdict(self) -> str:
        """Whether it differs from the first way by more than the noise of the repeats."""
        if math.isnan(self.low):
            return "unknown"
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "noise"


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
    speed_up : SpeedUp
        Tokens per second divided by those of the first way.
    """

    name: str
    tokens: int
    steps: int
    acceptance: list[float]
    seconds_per_token: dict[str, float]
    prompt_seconds: float
    speed_up: SpeedUp

    @property
    def tokens_per_step(self) -> float:
        """New tokens per step."""
        return self.tokens / self.steps

    @property
    def tokens_per_second(self) -> float:
        """New tokens per second, not counting the time to read the prompt."""
        return 1.0 / sum(self.seconds_per_token.values())


def decoding_costs(texts: Sequence[Mapping[str, Decoded]], repeats: int = 1) -> list[DecodingCost]:
    """Sum the costs of several ways of decoding over texts, in the order of the ways.

    Parameters
    ----------
    texts : sequence of mappings
        From :func:`otmd.models.decode_in_turn`: for each prompt, the text decoded in each way. The first
        repeat of all prompts comes first, then the second, and so on.
    repeats : int
        How often all prompts were decoded. The number of texts must be a multiple of it, else ValueError. An
        interval of the speed-up needs at least two.
    """
    if not texts or repeats < 1 or len(texts) % repeats:
        counts = f"{len(texts)} for {repeats} repeats" if texts else "none"
        raise wrong("texts", counts, "at least one, equally many a repeat")
    size = len(texts) // repeats
    rounds = [texts[start : start + size] for start in range(0, len(texts), size)]
    speeds = {
        name: [_cost(name, part, SpeedUp(1.0)).tokens_per_second for part in rounds]
        for name in texts[0]
    }
    first = next(iter(speeds.values()))
    return [_cost(name, texts, _speed_up(speed, first)) for name, speed in speeds.items()]


def _speed_up(speeds: list[float], first: list[float]) -> SpeedUp:
    """The geometric mean of the ratios in each repeat, with Student's t interval for its logarithm."""
    from scipy.stats import t

    logs = np.log(np.divide(speeds, first))
    mean = float(logs.mean())
    repeats = len(logs)
    if repeats < 2:
        return SpeedUp(math.exp(mean))
    margin = float(t.ppf(0.975, repeats - 1) * logs.std(ddof=1) / math.sqrt(repeats))
    return SpeedUp(*(math.exp(mean + side * margin) for side in (0, -1, 1)))


def _cost(name: str, texts: Sequence[Mapping[str, Decoded]], speed_up: SpeedUp) -> DecodingCost:
    reached = Counter[int]()
    kept = Counter[int]()
    seconds = Counter[str]()
    tokens = steps = 0
    for text in (text[name] for text in texts):
        tokens += len(text.tokens)
        steps += len(text.steps)
        reached.update(text.reached)
        kept.update(text.kept)
        seconds.update(text.seconds)
    acceptance = [kept[depth] / reached[depth] for depth in sorted(reached)]
    per_token = {stage: seconds[stage] / tokens for stage in GENERATION}
    return DecodingCost(name, tokens, steps, acceptance, per_token, seconds["prompt"], speed_up)


def decoding_json(costs: Sequence[DecodingCost]) -> list[dict[str, Any]]:
    """The costs in JSON's types, one dictionary for each way. Times are in seconds; no interval is None."""
    return [
        vars(cost)
        | {
            "tokens_per_step": cost.tokens_per_step,
            "tokens_per_second": cost.tokens_per_second,
            "speed_up": [None if math.isnan(value) else value for value in cost.speed_up],
            "difference": cost.speed_up.verdict,
        }
        for cost in costs
    ]


def print_decoding(costs: Sequence[DecodingCost]) -> None:
    """Print a table with one column for each way."""
    ups = [cost.speed_up for cost in costs]
    ends = ["" if math.isnan(up.low) else f"{up.low:.2f} to {up.high:.2f}" for up in ups[1:]]
    rows = [
        ["tokens per step", *(f"{cost.tokens_per_step:.2f}" for cost in costs)],
        ["tokens per second", *(f"{cost.tokens_per_second:.1f}" for cost in costs)],
        ["speed-up", *(f"{up.mean:.2f}" for up in ups)],
        ["  95% interval", "", *ends],
        ["  compared with the first", "", *(up.verdict for up in ups[1:])],
        ["accepted by depth, %", *(_depths(cost.acceptance) for cost in costs)],
    ]
    for stage in GENERATION:
        times = [f"{1e3 * cost.seconds_per_token[stage]:.1f}" for cost in costs]
        rows.append([f"ms per token: {stage}", *times])
    print(Table("", ["", *(cost.name.replace("; ", "\n") for cost in costs)], rows))


def _depths(acceptance: list[float]) -> str:
    shown = [f"{100 * rate:.0f}" for rate in acceptance[:SHOWN_DEPTHS]]
    return " ".join(shown + ["…"] * (len(acceptance) > SHOWN_DEPTHS)) or "·"


def draw_decoding(
    costs: Sequence[DecodingCost], paths: Sequence[str | Path], source: str = ""
) -> list[Path]:
    """Draw milliseconds per token by stage, one bar for each way of decoding.

    Parameters
    ----------
    costs : sequence of DecodingCost
        The result of :func:`decoding_costs`; none is a ValueError.
    paths, source
        As for :func:`draw_gaps`, with the same result and errors.
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
