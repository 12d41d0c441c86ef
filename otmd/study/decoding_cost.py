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
from otmd.probabilities import FloatArray, wrong
from otmd.study.jackknife import interval, left_out
from otmd.study.style import FAINT, QUIET, TWO_COLUMNS, save_figure
from otmd.study.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The stages of the time per token. Reading the prompt takes equally long in every way, and is left out.
GENERATION = STAGES[1:]
SHOWN_DEPTHS = 6
# From Okabe & Ito's palette, dark to light, so that they differ in a grey print.
COLOURS = {"target": "#0072B2", "draft": "#E69F00", "verification": "#009E73", "rest": FAINT}


class Estimate(NamedTuple):
    """A mean and its 95% interval, whose ends are NaN where there is none."""

    mean: float
    low: float = math.nan
    high: float = math.nan

    @property
    def verdict(self) -> str:
        """Of a ratio of speeds: whether it differs from 1 by more than the noise."""
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
        return self.per_step.mean

    @property
    def tokens_per_second(self) -> float:
        """New tokens per second, not counting the time to read the prompt."""
        return 1.0 / sum(self.seconds_per_token.values())


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
    size = len(texts) // repeats
    names = list(texts[0])
    amounts = {name: _amounts([text[name] for text in texts], size) for name in names}
    # Tokens per second of each repeat, and tokens, steps and seconds of each prompt.
    speeds = {name: rows[0].sum(axis=1) / rows[2].sum(axis=1) for name, rows in amounts.items()}
    by_prompt = {name: rows.sum(axis=1) for name, rows in amounts.items()}
    costs = []
    for i, name in enumerate(names):
        tokens, steps, seconds = by_prompt[name]
        estimates = {"per_step": _over_prompts((tokens, steps))}
        if compared_with is not None and i > names.index(compared_with):
            baseline, its_steps, its_seconds = by_prompt[compared_with]
            estimates["tokens_ratio"] = _over_prompts((tokens, steps), (baseline, its_steps))
            estimates["speed_ratio"] = _over_prompts((tokens, seconds), (baseline, its_seconds))
        speed_up = _speed_up(speeds[name], speeds[names[0]])
        costs.append(_cost(name, [text[name] for text in texts], speed_up, estimates))
    return costs


def _amounts(texts: Sequence[Decoded], size: int) -> FloatArray:
    """Tokens, steps and seconds by repeat and prompt, shape (3, repeats, prompts)."""
    rows = [
        (len(text.tokens), len(text.steps), sum(text.seconds[stage] for stage in GENERATION))
        for text in texts
    ]
    return np.array(rows, np.float64).T.reshape(3, -1, size)


def _over_prompts(
    ratio: tuple[FloatArray, FloatArray], *divisors: tuple[FloatArray, FloatArray]
) -> Estimate:
    """The ratio of two sums over prompts (N,), divided by other such ratios, with its interval."""
    value = float(ratio[0].sum() / ratio[1].sum())
    for above, below in divisors:
        value /= float(above.sum() / below.sum())
    if ratio[0].size < 2:
        return Estimate(value)
    without = left_out(*ratio)
    for divisor in divisors:
        without = without / left_out(*divisor)
    return Estimate(value, *interval(value, without))


def _speed_up(speeds: FloatArray, first: FloatArray) -> Estimate:
    """The geometric mean of the ratios in each repeat, with Student's t interval for its logarithm."""
    from scipy.stats import t

    logs = np.log(speeds / first)
    mean = float(logs.mean())
    repeats = len(logs)
    if repeats < 2:
        return Estimate(math.exp(mean))
    margin = float(t.ppf(0.975, repeats - 1) * logs.std(ddof=1) / math.sqrt(repeats))
    return Estimate(*(math.exp(mean + side * margin) for side in (0, -1, 1)))


def _cost(
    name: str, texts: Sequence[Decoded], speed_up: Estimate, estimates: dict[str, Estimate]
) -> DecodingCost:
    reached = Counter[int]()
    kept = Counter[int]()
    seconds = Counter[str]()
    tokens = steps = 0
    for text in texts:
        tokens += len(text.tokens)
        steps += len(text.steps)
        reached.update(text.reached)
        kept.update(text.kept)
        seconds.update(text.seconds)
    acceptance = [kept[depth] / reached[depth] for depth in sorted(reached)]
    per_token = {stage: seconds[stage] / tokens for stage in GENERATION}
    prompt = seconds["prompt"]
    return DecodingCost(name, tokens, steps, acceptance, per_token, prompt, speed_up, **estimates)


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
    return [
        {name: _in_json(value) for name, value in vars(cost).items()}
        | {
            "tokens_per_step": cost.tokens_per_step,
            "tokens_per_second": cost.tokens_per_second,
            "difference": cost.speed_up.verdict,
        }
        for cost in costs
    ]


def _in_json(value: Any) -> Any:
    if not isinstance(value, Estimate):
        return value
    return [None if math.isnan(number) else number for number in value]


def print_decoding(costs: Sequence[DecodingCost]) -> None:
    """Print a table with one column for each way.

    Parameters
    ----------
    costs : sequence of DecodingCost
        The result of :func:`decoding_costs`.
    """
    ups = [cost.speed_up for cost in costs]
    rows = _with_intervals("tokens per step", [cost.per_step for cost in costs])
    ratios = [cost.tokens_ratio for cost in costs]
    if any(ratios):
        rows += _with_intervals("  compared token by token", ratios)
    rows.append(["tokens per second", *(f"{cost.tokens_per_second:.1f}" for cost in costs)])
    if any(ratios):
        rows += _with_intervals("  compared token by token", [cost.speed_ratio for cost in costs])
    rows += _with_intervals("speed-up", [Estimate(1.0), *ups[1:]])
    rows += [
        ["  compared with the first", "", *(up.verdict for up in ups[1:])],
        ["accepted by depth, %", *(_depths(cost.acceptance) for cost in costs)],
    ]
    for stage in GENERATION:
        times = [f"{1e3 * cost.seconds_per_token[stage]:.1f}" for cost in costs]
        rows.append([f"ms per token: {stage}", *times])
    print(Table("", ["", *(cost.name.replace("; ", "\n") for cost in costs)], rows))


def _with_intervals(title: str, estimates: Sequence[Estimate | None]) -> list[list[str]]:
    """A row of means and a row of their intervals."""
    means = ["" if x is None else f"{x.mean:.2f}" for x in estimates]
    ends = [f"{x.low:.2f} to {x.high:.2f}" if x and x.low < x.high else "" for x in estimates]
    return [[title, *means], ["    95% interval", *ends]]


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
