"""Figures of tokens per step, with draft trees."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from otmd.study.estimate import Estimate, estimate
from otmd.study.plan import SCHEMA
from otmd.study.style import INK, MARKS, ONE_COLUMN, QUIET, Mark
from paper_figures.common import grid, headline, read

RULE_MARKS = {
    "RRS": MARKS["RecursiveRejection"],
    "RRSw": Mark("#D55E00", "^"),
    "K-SEQ": MARKS["KSequential"],
    "SpecHub": MARKS["SpecHub"],
    "optimal": MARKS["Optimal"],
    "optimal at each token": MARKS["Optimal"],
    "optimal, with replacement": MARKS["Optimal"],
    "optimal, without": Mark("#56B4E9", "X"),
    "block verification": Mark("#CC79A7", "v"),
    "Traversal": Mark("#E69F00", "h"),
}
# Ninety-five per cent of a normal distribution.
ERRORS = 1.96
PUBLISHED: dict[str, Any] = {
    "ls": "none",
    "marker": "_",
    "markersize": 9,
    "color": INK,
    "markeredgewidth": 1.0,
}
EDGE: dict[str, Any] = {
    "markeredgecolor": "white",
    "markeredgewidth": 0.4,
    "elinewidth": 0.8,
}


def line(axes: Axes, xs: Sequence[float], rows: pl.DataFrame, rule: str, **style: Any) -> None:
    """Values of one rule with their 95% intervals."""
    mark = RULE_MARKS[rule]
    look = {"color": mark.colour, "marker": mark.marker, "label": rule, **EDGE, **style}
    errors = (ERRORS * rows["error"]).to_list()
    axes.errorbar(xs, rows["value"].to_list(), yerr=errors, **look)


STEP_LABELS = {
    ("most likely paths", "target only"): "the draft's most likely paths (EAGLE-2)",
    ("sampled paths", "K-SEQ"): "2 sampled paths, position by position (K-SEQ)",
    ("sampled paths", "greedy multi-path"): "2 sampled paths, a path as a whole (GBV)",
    ("sampled paths", "layer by layer"): "2 sampled paths, layer by layer",
    ("strata", "layer by layer"): "2 stratified paths, layer by layer",
}
"""Labels in the first figure of laws and rules of a plan."""

LEADS = {
    ("sampled paths", "layer by layer"): {
        "K-SEQ": "over K-SEQ",
        "greedy multi-path": "over GBV",
    },
    ("strata", "layer by layer"): {"preference": "over position by position"},
}
"""The rules that a bar is compared with, on the same drawn trees."""

STEP_TREES = ("16 nodes", "2 paths of 8")


def tokens_per_step(results: Path) -> Figure:
    """A bar for each law of trees and rule, and the leads on the same trees with their 95% intervals."""
    table = read(results, SCHEMA).filter(pl.col("tree").is_in(STEP_TREES))
    means = {
        (row["law"], row["rule"]): tokens["tokens"]
        for row, tokens in estimate(table, ["law", "rule"], ["tokens"], "steps")
    }
    if missing := sorted({*STEP_LABELS} - {*means}):
        raise ValueError(f"results: {results} lacks {missing}, expected those of `otmd plan`")
    figure = Figure(figsize=(ONE_COLUMN, 2.8))
    axes = figure.subplots()
    figure.subplots_adjust(left=0.02, right=0.98, top=0.99, bottom=0.15)
    headline(figure, "Verify draft trees layer by layer")
    for y, ((law, rule), label) in enumerate(STEP_LABELS.items()):
        tokens = means[law, rule]
        colour = "#D55E00" if rule == "layer by layer" else "#0072B2"
        axes.barh(-y, tokens[0], 0.46, color=colour)
        axes.text(0.0, 0.27 - y, label, va="bottom")
        value = axes.text(0.06, -y, f"{tokens[0]:.2f}", va="center", color="#fafafa")
        value.set_fontweight("bold")
        leads = []
        for rival, words in LEADS.get((law, rule), {}).items():
            lead, low, high = Estimate.of(100 * (tokens / means[law, rival] - 1.0))
            leads.append(f"{lead:+.0f}% [{low:.0f}, {high:.0f}]".replace("-", "−") + f" {words}")
        axes.text(0.6, -y, ", ".join(leads), va="center", color="#fafafa", fontsize=6.5)
    axes.set_ylim(-len(STEP_LABELS) + 0.65, 0.75)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlim(-0.04, 4.2)
    axes.set_xticks(range(5))
    axes.set_xlabel("tokens per step, 16 drafts, temperature 1")
    return figure


SPECTR = {4: ((1, 8), (2.4, 3.1)), 8: ((1, 8), (2.9, 4.0))}
"""Of each depth, paths and block efficiencies in SpecTr's table: K-SEQ, PaLM-2, LM1B."""


def spectr_paths(results: Path) -> Figure:
    """A panel for each depth L: tokens per step against the number of paths K, a line for each rule."""
    table = read(results, ["paths", "depth", "rule", "value", "error"])
    depths = sorted(set(table["depth"]))
    figure = Figure(figsize=(ONE_COLUMN, 2.6), layout="constrained")
    panels = figure.subplots(1, len(depths), sharey=True, squeeze=False)[0]
    headline(figure, "The more paths, the more the rule matters")
    for axes, depth in zip(panels, depths, strict=True):
        _paths(axes, table.filter(depth=depth).sort("paths"), depth)
    panels[0].set_ylabel("tokens per step")
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2, handlelength=1.5, fontsize=7)
    return figure


def _paths(axes: Axes, table: pl.DataFrame, depth: int) -> None:
    grid(axes)
    axes.set_title(f"L = {depth}", loc="left")
    axes.set_xscale("log", base=2)
    paths = sorted(set(table["paths"]))
    axes.set_xticks(paths, labels=[str(count) for count in paths])
    axes.set_xticks([], minor=True)
    axes.margins(x=0.12)
    axes.set_xlabel("paths K")
    for rule in ("optimal", "K-SEQ", "RRS", "block verification"):
        rows = table.filter(rule=rule)
        if not rows.is_empty():
            line(axes, rows["paths"].to_list(), rows, rule)
    if depth in SPECTR:
        axes.plot(*SPECTR[depth], label="K-SEQ in SpecTr (PaLM-2)", **PUBLISHED)


HUB_STYLES = {
    "optimal, without": "-",
    "SpecHub": "-",
    "RRSw": "-",
    "optimal, with replacement": "--",
    "RRS": "--",
}
SPECHUB = ((1, 4), (1.616, 2.403))
"""Depths, and SpecHub's tokens per step in its paper: JackFram-68m for Llama-2-7b-chat, CNN, T = 0.6."""


def spechub_depths(results: Path) -> Figure:
    """Tokens a step of binary trees by depth at one temperature, and by temperature at one depth."""
    columns = ["temperature", "depth", "rule", "value", "error", "difference", "difference_error"]
    table = read(results, columns)
    temperatures = sorted(set(table["temperature"]))
    temperature = 0.6 if 0.6 in temperatures else temperatures[0]
    depth = min(4, max(table["depth"]))
    figure = Figure(figsize=(ONE_COLUMN, 4.4), layout="constrained")
    upper, lower = figure.subplots(2, 1)
    headline(figure, "Hub trees gain when cold, lose when hot")
    _by_depth(upper, table.filter(temperature=temperature).sort("depth"))
    upper.set_title(f"T = {temperature:g}", loc="left")
    _gains(lower, table.filter(depth=depth).sort("temperature"))
    lower.set_title(f"depth {depth}: gain over RRS", loc="left")
    handles = upper.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2, handlelength=1.8, fontsize=7)
    return figure


def _by_depth(axes: Axes, table: pl.DataFrame) -> None:
    grid(axes)
    for rule, style in HUB_STYLES.items():
        rows = table.filter(rule=rule)
        line(axes, rows["depth"].to_list(), rows, rule, ls=style)
    axes.plot(*SPECHUB, label="SpecHub in its paper", **PUBLISHED)
    axes.set_xticks(sorted(set(table["depth"])))
    axes.set_xlabel("depth of the binary tree")
    axes.set_ylabel("tokens per step")


def _gains(axes: Axes, table: pl.DataFrame) -> None:
    grid(axes)
    axes.axhline(0.0, color=QUIET, linewidth=0.6)
    for rule, style in list(HUB_STYLES.items())[:-1]:
        rows = table.filter(rule=rule)
        gains = rows.select(value="difference", error="difference_error")
        line(axes, rows["temperature"].to_list(), gains, rule, ls=style)
    axes.set_xticks(sorted(set(table["temperature"])))
    axes.set_xlabel("temperature")
    axes.set_ylabel("tokens per step, gained")


def sequence_optimum(results: Path) -> Figure:
    """A row for each law of drafts and size, a mark for each rule: its distance in tokens per step."""
    columns = ["vocab_size", "depth", "law", "rule", "value", "difference", "difference_error"]
    table = read(results, columns)
    keys = columns[:3]
    groups = table.select(keys).unique(maintain_order=True).rows()
    figure = Figure(figsize=(ONE_COLUMN, 1.5 + 0.3 * len(groups)), layout="constrained")
    axes = figure.subplots()
    headline(figure, "On one path block verification is optimal")
    grid(axes, "x")
    for rule, mark in RULE_MARKS.items():
        rows = table.filter(rule=rule)
        if rows.is_empty():
            continue
        heights = [groups.index(key) for key in rows.select(keys).rows()]
        errors = (ERRORS * rows["difference_error"]).to_list()
        look = {"color": mark.colour, "marker": mark.marker, "markersize": 5, **EDGE}
        short = (-rows["difference"]).to_list()
        axes.errorbar(short, heights, xerr=errors, ls="none", label=rule, **look)
    axes.set_yticks(range(len(groups)), labels=[f"{law}, L = {depth}" for _, depth, law in groups])
    axes.invert_yaxis()
    axes.set_xlim(left=-0.01)
    axes.set_xlabel("tokens per step short of the optimum", loc="right")
    figure.legend(loc="outside lower center", ncols=2, handletextpad=0.2, fontsize=7)
    return figure
