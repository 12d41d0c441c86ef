"""Figures of acceptance rates at one position."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from otmd.study.style import FAINT, INK, MARKS, QUIET, TWO_COLUMNS, Mark
from paper_figures.common import (
    COUNTS,
    LOOKS,
    PAIR,
    PAIRS,
    grid,
    headline,
    intervals,
    legend_below,
    means,
    read,
    read_positions,
    side_by_side,
)

RIVALS = {
    "greedy": ("greedy, preference rule", MARKS["GreedyCoupling"]),
    "with, preference": ("with replacement, preference rule", MARKS["Preference"]),
    "with, K-SEQ": ("with replacement, K-SEQ", MARKS["KSequential"]),
    "without, recursive": ("without replacement, recursive rejection", Mark("#E69F00", "^")),
    "certain": ("the most likely tokens, target only", Mark("#5a5a5a", "v")),
}
"""Laws and rules in closed form that are compared with strata and the preference rule."""


def choice(results: Path) -> Figure:
    """A panel for each pair: rates of four drafts, less that of strata, by temperature."""
    columns = ["choice", *(f"{end}_over_stratified" for end in ("value", "low", "high"))]
    table = read(results, columns).filter(num_drafts=4)
    figure = Figure(figsize=(TWO_COLUMNS, 2.9))
    panels = figure.subplots(1, len(PAIRS), sharey=True)
    figure.subplots_adjust(left=0.085, right=0.99, top=0.9, bottom=0.36, wspace=0.08)
    headline(figure, "Up to temperature 1, no other closed form is significantly ahead of strata")
    for axes, (draft, (label, _)) in zip(panels, PAIRS.items(), strict=True):
        for name, (words, mark) in RIVALS.items():
            rows = table.filter(draft=draft, choice=name).sort("temperature")
            ends = {end: pl.col(f"{end}_over_stratified") for end in ("value", "low", "high")}
            rows = rows.with_columns(**ends)
            intervals(axes, rows["temperature"], rows, mark, 100, label=words, markersize=3)
        axes.axhline(0.0, color=INK, lw=1.2)
        axes.set_title(label, loc="left", fontsize=7.5)
        axes.set_xlabel("temperature")
        grid(axes)
    panels[0].set_ylim(-30, 8)
    panels[0].set_ylabel("4 drafts, less 4 strata (points)")
    style = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.28), "columnspacing": 0.8}
    panels[2].legend(ncols=3, fontsize=6.8, **style)
    return figure


BASE = "α*, without"
LAWS = {
    "α*, with": ("with replacement", Mark(INK, "P")),
    "α*, 1 then without": ("top 1, rest without", Mark("#56B4E9", "v")),
    "α*, 2 then without": ("top 2, rest without", Mark("#0072B2", "s")),
    "greedy": ("top 3, one random (greedy)", Mark("#CC79A7", "^")),
}


def misstated(positions: pl.DataFrame) -> pl.DataFrame:
    """Mean and largest difference between α* of the two laws without replacement, by temperature and n."""
    parts = []
    for n in COUNTS:
        wide = side_by_side(positions.filter(draft=PAIR), [BASE, "α*, Poisson"], n)
        error = pl.col("α*, Poisson") - pl.col(BASE)
        largest = wide.group_by("temperature").agg(largest=error.abs().max())
        rows = means(wide, ["temperature"], {"error": error}).join(largest, on="temperature")
        parts.append(rows.with_columns(num_drafts=pl.lit(n)).sort("temperature"))
    return pl.concat(parts)


def laws(results: Path) -> Figure:
    """Laws at the left, the error of taking one law for another at the right."""
    positions = read_positions(results)
    figure = Figure(figsize=(TWO_COLUMNS, 2.9))
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.08, right=0.985, top=0.91, bottom=0.33, wspace=0.22)
    headline(figure, "Low temperatures punish drafts with replacement, high ones deterministic tokens")
    wide = side_by_side(positions.filter(draft=PAIR), [BASE, *LAWS], 4)
    lead = means(wide, ["temperature"], {name: pl.col(name) - pl.col(BASE) for name in LAWS})
    for name, (label, mark) in LAWS.items():
        rows = lead.filter(name=name).sort("temperature")
        intervals(left, rows["temperature"], rows, mark, 100, label=label)
    left.set_ylabel("α* − α* without replacement (pp)")
    left.set_title("laws for 4 drafts, less without replacement", loc="left")
    errors = misstated(positions)
    for n, mark in COUNTS.items():
        rows = errors.filter(num_drafts=n)
        intervals(right, rows["temperature"], rows, mark, 100, label=f"mean, n = {n}")
        style: dict[str, Any] = {"color": mark.colour, "ls": ":", "lw": 0.9}
        largest = 100 * rows["largest"]
        right.plot(rows["temperature"], largest, label=f"largest |…|, n = {n}", **style)
    right.set_ylabel("α* Poisson − α* without (pp)")
    right.set_title("error of taking one law for the other", loc="left")
    for axes in (left, right):
        axes.axhline(0.0, color=QUIET, lw=0.6)
        axes.set_xlabel("temperature")
        grid(axes)
        legend_below(axes, -0.2)
    return figure


DOMAIN_RULES = ("α*, without", "α*, with", "greedy", "RRSw", "K-SEQ", "RRS")


def domain_rates(results: Path) -> Figure:
    """Rates of three drafts by temperature, by domain, and by draft."""
    wide = side_by_side(read_positions(results), DOMAIN_RULES, 3)
    pair, ladder = wide.filter(draft=PAIR), wide.filter(temperature=1.0)
    distance = ladder.group_by("draft").agg(distance=pl.col("total_variation").mean().round(3))
    cold = pair.filter(temperature=0.7)
    shown = [
        ("by temperature", "temperature", pair, "temperature"),
        ("by domain, T = 0.7", "domain", cold, "domain"),
        (
            "by draft, T = 1",
            "distance",
            ladder.join(distance, on="draft"),
            "mean total variation of the draft",
        ),
    ]
    figure = Figure(figsize=(TWO_COLUMNS, 2.75))
    panels = figure.subplots(1, 3, sharey=True)
    figure.subplots_adjust(left=0.07, right=0.985, top=0.9, bottom=0.29, wspace=0.06)
    headline(figure, "Three drafts: the optimum rises with the temperature, greedy drafts do not")
    for axes, (title, column, rows, label) in zip(panels, shown, strict=True):
        _points(axes, column, means(rows, [column], DOMAIN_RULES).sort(column))
        axes.set_title(title, loc="left")
        axes.set_xlabel(label)
        grid(axes)
    panels[0].set_ylabel("acceptance rate")
    figure.legend(*panels[0].get_legend_handles_labels(), ncols=6, loc="lower center", fontsize=7)
    return figure


def _points(axes: Axes, column: str, table: pl.DataFrame) -> None:
    names = table[column].unique(maintain_order=True).to_list()
    discrete = table[column].dtype == pl.String
    for number, name in enumerate(DOMAIN_RULES):
        rows = table.filter(name=name)
        x = rows[column].to_list()
        style: dict[str, Any] = {}
        if discrete:
            # Next to each other, so that the intervals can be told apart.
            x = [names.index(value) + 0.11 * (number - 2.5) for value in x]
            style["ls"] = "none"
        intervals(axes, x, rows, LOOKS[name], label=name, **style)
    if discrete:
        axes.set_xticks(range(len(names)), labels=names)


FAMILIES = {
    "surplus": ("surplus tokens", "#009E73", "^"),
    "missing": ("missing tokens", "#D55E00", "v"),
    "noise": ("noise", "#0072B2", "o"),
}
BY_SIZE = {
    "α*, without": ("WithoutReplacement", "RecursiveRejection", "optimal"),
    "α*, with": ("WithReplacement", "KSequential", "optimal"),
    "K-SEQ": ("WithReplacement", "KSequential", "rate"),
    "RRS": ("WithReplacement", "RecursiveRejection", "rate"),
    "greedy": ("Greedy", "GreedyCoupling", "rate"),
}


def largest_optimum(distance: np.ndarray, num_drafts: int) -> np.ndarray:
    """Largest α* at a total variation d, with n ≥ 2 drafts with replacement; derived in ``docs/claims.md``.

    It is 1 + max over x of x − (x + d)^n, at most 1.
    """
    x = np.clip(num_drafts ** (-1 / (num_drafts - 1)) - distance, 0.0, None)
    return np.minimum(1.0, 1.0 + x - (x + distance) ** num_drafts)


def read_quality(results: str | Path = "draft_quality") -> pl.DataFrame:
    """Rates with four drafts of synthetic pairs, a row for each pair, law and verifier."""
    columns = ["family", "quality", "vocab_size", "total_variation", "law", "verifier", "rate_low"]
    rate = (pl.col("rate_low") + pl.col("rate_high")) / 2
    # Before version 0.3, the most likely token had another name.
    family = pl.col("family").str.replace(r"^\w+est token$", "most likely token")
    return read(results, columns).filter(num_drafts=4).with_columns(rate=rate, family=family)


def draft_quality(results: Path) -> Figure:
    """α* against total variation at the left, rates against the vocabulary's size at the right.

    Positions of real models are read from ``real_positions.parquet`` in the folder of the results.
    """
    table = read_quality(results)
    figure = Figure(figsize=(TWO_COLUMNS, 2.9))
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.07, right=0.985, top=0.92, bottom=0.3, wspace=0.2)
    headline(figure, "Total variation bounds the optimum; the vocabulary's size hardly matters")
    _scatter(left, table, read_positions(results.with_name("real_positions.parquet")))
    left.set_title("4 drafts with replacement", loc="left")
    noise = table.filter(family="noise", quality=1.0)
    sizes: list[int] = []
    for name, (law, verifier, column) in BY_SIZE.items():
        groups = noise.filter(law=law, verifier=verifier).group_by("vocab_size")
        value = pl.col(column)
        rows = groups.agg(value.mean(), error=1.96 * value.std() / pl.len().sqrt())
        rows = rows.sort("vocab_size")
        sizes = rows["vocab_size"].to_list()
        look = LOOKS[name]
        style: dict[str, Any] = {"color": look.colour, "marker": look.marker, "label": name}
        right.errorbar(sizes, rows[column], rows["error"], **style)
    right.set_xscale("log")
    right.set_xticks(sizes, labels=[f"{size // 1000}k" for size in sizes])
    right.set_xticks([], minor=True)
    right.set_xlabel("vocabulary V")
    right.set_ylabel("acceptance rate")
    right.set_title("Zipf target, noise 1, 4 drafts", loc="left")
    grid(right)
    for axes in (left, right):
        legend_below(axes, -0.2, 3, columnspacing=1.0, handletextpad=0.4)
    return figure


def _scatter(axes: Axes, table: pl.DataFrame, positions: pl.DataFrame) -> None:
    x = np.linspace(0.0, 1.0, 201)
    style: dict[str, Any] = {"color": FAINT, "alpha": 0.6, "label": "possible", "lw": 0}
    axes.fill_between(x, 1.0 - x, largest_optimum(x, 4), **style)
    wide = side_by_side(positions.filter(temperature=1.0), ["α*, with"], 4)
    dots: dict[str, Any] = {"ls": "none", "marker": ".", "ms": 2, "color": QUIET, "alpha": 0.6}
    points = wide["total_variation"], wide["α*, with"]
    axes.plot(*points, label="real positions", rasterized=True, **dots)
    for family, (label, colour, marker) in FAMILIES.items():
        rows = table.filter(law="WithReplacement", verifier="KSequential", family=family)
        look = {"marker": marker, "color": colour, "markeredgecolor": "white", "mew": 0.3}
        axes.plot(rows["total_variation"], rows["optimal"], ls="none", label=label, **look)
    axes.set_xlabel("total variation between target and draft")
    axes.set_ylabel("α*")
    grid(axes)


SPECTR_PAIRS = (("Bernoulli", 0.25, 0.05), ("Zipf", 1.2, 0.8))
LINES = {
    "bound": ("upper bound", {"color": QUIET, "ls": (0, (4, 2))}),
    "optimal": ("α*", {"color": INK, "marker": "P"}),
    "k_sequential": ("K-SEQ", {"color": MARKS["KSequential"].colour, "marker": "s"}),
    "recursive_rejection": ("RRS", {"color": MARKS["RecursiveRejection"].colour, "marker": "o"}),
    "floor_n": ("(1 − (1 − 1/n)ⁿ) α*", {"color": "#009E73", "ls": "-."}),
    "floor": ("(1 − 1/e) α*", {"color": "#009E73", "ls": ":"}),
}


def spectr_acceptance(results: Path) -> Figure:
    """Rates of two pairs, and the worst cases found.

    The searches are read from ``spectr_floor.parquet`` in the folder of the results.
    """
    table = read(results, ["num_drafts", *LINES])
    searches = read(results.with_name("spectr_floor.parquet"), ["num_drafts", "ratio", "floor"])
    figure = Figure(figsize=(TWO_COLUMNS, 2.75))
    panels = figure.subplots(1, 3)
    figure.subplots_adjust(left=0.07, right=0.985, top=0.89, bottom=0.29, wspace=0.3)
    headline(figure, "K-SEQ stays far above what is guaranteed, and below the optimum")
    for axes, (family, target, draft) in zip(panels, SPECTR_PAIRS, strict=False):
        rows = table.filter(family=family, target=target, draft=draft).sort("num_drafts")
        axes.set_title(f"{family} {target} (p), {draft} (q)", loc="left", fontsize=7)
        for column, (label, look) in LINES.items():
            axes.plot(rows["num_drafts"], rows[column], label=label, markersize=3, **look)
        axes.set_ylabel("acceptance rate")
        _log_counts(axes)
    least = searches.group_by("num_drafts").agg(pl.col("ratio", "floor").min()).sort("num_drafts")
    axes = panels[2]
    axes.set_title("smallest K-SEQ/α* found", loc="left", fontsize=7)
    axes.plot(least["num_drafts"], least["ratio"], **LINES["k_sequential"][1])
    axes.plot(least["num_drafts"], least["floor"], **LINES["floor_n"][1])
    n, ratio, floor = least.row(-1)
    axes.text(n, ratio + 0.02, "found", ha="right", fontsize=7)
    axes.text(n, floor - 0.012, "guaranteed", ha="right", va="top", fontsize=7)
    axes.set_ylabel("K-SEQ / α*")
    axes.set_ylim(0.55, 1.0)
    _log_counts(axes)
    figure.legend(*panels[0].get_legend_handles_labels(), ncols=6, loc="lower center", fontsize=7)
    return figure


def _log_counts(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    ticks = (1, 2, 4, 8, 16)
    axes.set_xticks(ticks, labels=map(str, ticks))
    axes.set_xticks([], minor=True)
    axes.set_xlabel("number of drafts n")
    grid(axes)


HUB_RULES = {
    "SpecHub": ("hub", LOOKS["SpecHub"]),
    "RRS": ("recursive_with", LOOKS["RRS"]),
    "RRSw": ("recursive_without", Mark("#CC79A7", "^")),
    "α*, with": ("optimal_with", LOOKS["α*, with"]),
    "α*, without": ("optimal_without", LOOKS["α*, without"]),
}


def spechub(results: Path) -> Figure:
    """Toy vocabularies, real positions, and the hub's lead by the largest draft probability.

    Positions of real models are read from ``real_positions.parquet`` in the folder of the results.
    """
    columns = [column for column, _ in HUB_RULES.values()]
    table = read(results, ["likeness", "top_draft", *columns]).filter(likeness=0.7)
    toy = table.group_by("temperature").agg(pl.col(columns).mean()).sort("temperature")
    positions = read_positions(results.with_name("real_positions.parquet")).filter(draft=PAIR)
    wide = side_by_side(positions, list(HUB_RULES), 2)
    real = means(wide, ["temperature"], list(HUB_RULES)).sort("temperature")
    figure = Figure(figsize=(TWO_COLUMNS, 2.75))
    panels = figure.subplots(1, 3)
    figure.subplots_adjust(left=0.085, right=0.985, top=0.9, bottom=0.3, wspace=0.36)
    headline(figure, "Hub drafts win where one token has half of the draft's mass")
    for name, (column, mark) in HUB_RULES.items():
        style: dict[str, Any] = {"color": mark.colour, "marker": mark.marker, "label": name}
        panels[0].plot(toy["temperature"], toy[column], **style)
        rows = real.filter(name=name)
        intervals(panels[1], rows["temperature"], rows, mark)
    panels[0].set_title("random pairs, V = 5 to 50", loc="left")
    panels[1].set_title("real positions", loc="left")
    for axes in panels[:2]:
        axes.set_xlabel("temperature")
        axes.set_ylabel("acceptance rate, n = 2")
        grid(axes)
    _hub_lead(panels[2], wide)
    figure.legend(*panels[0].get_legend_handles_labels(), ncols=5, loc="lower center", fontsize=7)
    return figure


def _hub_lead(axes: Axes, wide: pl.DataFrame) -> None:
    lead = 100 * (wide["SpecHub"] - wide["α*, with"])
    axes.axhline(0.0, color=QUIET, lw=0.6)
    axes.axvline(0.5, color=QUIET, lw=0.6, ls=(0, (4, 2)))
    dots: dict[str, Any] = {"ls": "none", "marker": ".", "ms": 2, "alpha": 0.5}
    colour = MARKS["SpecHub"].colour
    axes.plot(wide["top_draft"], lead, color=colour, rasterized=True, **dots)
    axes.set_xlabel("largest draft probability q(a)")
    axes.set_ylabel("SpecHub − α* with (pp)")
    axes.set_title("all temperatures", loc="left")
    grid(axes)
