"""The figure of decoding: where each way's time for a token goes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from otmd.measurement.decoding import GENERATION, DecodingCost
from otmd.measurement.style import FAINT, QUIET, TWO_COLUMNS, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of Okabe & Ito's palette; from dark to light in this order, so that grey paper tells them apart too.
COLOURS = {"target": "#0072B2", "draft": "#E69F00", "verification": "#56B4E9", "rest": FAINT}


def draw_decoding(
    costs: Sequence[DecodingCost], paths: Sequence[str | Path], source: str = ""
) -> list[Path]:
    """Draw milliseconds per token by stage, one bar a way of decoding.

    Parameters
    ----------
    costs : sequence of DecodingCost
        From :func:`otmd.measurement.decoding_costs`.
    paths : sequence of str or Path
        Where to save; the ending names the format (``.png``, ``.pdf``, ``.svg``).
    source : str
        The command; kept in the files' metadata, not drawn.

    Returns
    -------
    list of Path
        The files written.

    Raises
    ------
    ValueError
        For no costs, or a path of another ending.
    """
    if not costs:
        raise ValueError("costs: got none, wanted at least one")
    return save_figure(lambda: make_decoding_figure(costs), paths, source)


def make_decoding_figure(costs: Sequence[DecodingCost]) -> "Figure":
    """Lay out the bars; :func:`draw_decoding` saves them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(TWO_COLUMNS, 0.9 + 0.38 * len(costs)), layout="constrained")
    axes = figure.subplots()
    places = range(len(costs))
    ends = [0.0] * len(costs)
    for stage in sorted(GENERATION, key=list(COLOURS).index):
        widths = [1e3 * cost.seconds_per_token[stage] for cost in costs]
        axes.barh(places, widths, 0.62, ends, color=COLOURS[stage], label=stage, zorder=3)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    for place, end, cost in zip(places, ends, costs, strict=True):
        axes.annotate(
            f"{cost.tokens_per_second:.0f} tokens/s, {cost.tokens_per_step:.2f} a step",
            (end, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
            color=QUIET,
        )
    axes.set_yticks(list(places), labels=[cost.name for cost in costs])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.32 * max(ends))
    axes.set_xlabel("milliseconds per token, once the prompt is read")
    axes.grid(axis="x", color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    figure.legend(loc="outside upper center", ncols=len(COLOURS))
    return figure
