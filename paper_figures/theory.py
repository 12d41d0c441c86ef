"""Figures of the theory pages, on small examples."""

from itertools import combinations
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import otmd
from otmd import trees
from otmd.study.style import FAINT, INK, MARKS, QUIET, TWO_COLUMNS
from otmd.trees.base import Context, DraftTree, Prefix
from otmd.trees.random_choices import Sampled
from otmd.trees.whole_tree import Layer

SIZE = (5.0, 3.2)
TARGET = np.array([1 / 3, 0, 2 / 3])
DRAFT = np.full(3, 1 / 3)
DRAFTS = 2
INSIDE, OUTSIDE = "#0072B2", "#D55E00"
STRATA = ("#0072B2", "#009E73", "#CC79A7")


def _axes(title: str, across: str, upwards: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left")
    axes.set_xlabel(across)
    axes.set_ylabel(upwards)
    return figure, axes


def _subsets(size: int) -> list[list[int]]:
    """Every set of tokens."""
    sizes = range(size + 1)
    return [list(subset) for k in sizes for subset in combinations(range(size), k)]


def curve() -> Figure:
    """W(C), with the loss of each verifier of drafts with replacement."""
    figure, axes = _axes("Every loss is a height of W", "ratio C", "mass of p above C·q")
    ratios = np.linspace(0, DRAFTS + 0.2, 400)
    ratio_curve = otmd.RatioCurve(TARGET, DRAFT)
    axes.plot(ratios, ratio_curve.hockey_stick(ratios), color=INK)
    law = otmd.WithReplacement(DRAFT, num_drafts=DRAFTS)
    ratio = 0.0
    for _ in range(DRAFTS):
        height = float(ratio_curve.hockey_stick(ratio))
        axes.plot([ratio, ratio, ratio + height], [0, height, 0], color=FAINT, lw=0.9, zorder=1)
        ratio += height
    for rule, label, above in (
        (otmd.RecursiveRejection(), "recursive rejection, at $C_3$", 0.03),
        (otmd.KSequential(), "K-SEQ, at ρ*", -0.005),
    ):
        mark = MARKS[type(rule).__name__]
        loss = 1 - float(otmd.acceptance_rate(rule, TARGET, law))
        at = ratios[int(np.argmin(abs(ratio_curve.hockey_stick(ratios) - loss)))]
        axes.plot(at, loss, mark.marker, color=mark.colour, ms=6)
        axes.annotate(f"{label}: {loss:.3f}", (at, loss), (at + 0.1, loss + above))
    best = 1 - float(otmd.optimal_acceptance(TARGET, law).rate)
    axes.axhline(best, color=MARKS["Optimal"].colour, lw=1.2, ls="--")
    axes.text(0.02, best + 0.015, f"the optimum: {best:.3f}", color=INK)
    axes.set_xlim(0, ratios[-1])
    axes.set_ylim(0, 1.02)
    return figure


def cut() -> Figure:
    """Every set of tokens in the plane of its masses, and the drafts' containment."""
    figure, axes = _axes("α* is one less the largest fall below the curve", "q(H)", "p(H)")
    share = np.linspace(0, 1, 200)
    axes.plot(share, share**DRAFTS, color=INSIDE)
    axes.text(0.38, 0.36, "$g(H) = q(H)^2$", color=INSIDE)
    sets = _subsets(len(TARGET))
    masses = np.array([[DRAFT[chosen].sum(), TARGET[chosen].sum()] for chosen in sets])
    axes.plot(*masses.T, "o", color=QUIET, ms=4)
    order = np.argsort(TARGET / DRAFT)
    prefix = np.array([[DRAFT[order[:k]].sum(), TARGET[order[:k]].sum()] for k in range(4)])
    axes.plot(*prefix.T, "o-", color=INK, lw=0.9, ms=4.5)
    axes.text(0.62, 0.12, "prefixes of the order by p/q", color=INK)
    axes.text(0.36, 0.78, "other sets", color=QUIET)
    best = otmd.optimal_acceptance(TARGET, otmd.WithReplacement(DRAFT, num_drafts=DRAFTS))
    inside = float(DRAFT[best.subset].sum())
    low, high = float(TARGET[best.subset].sum()), inside**DRAFTS
    axes.annotate("", (inside, low), (inside, high), arrowprops={"arrowstyle": "<->", "color": OUTSIDE})
    axes.text(0.01, 0.22, f"at H*: 1 − α* = {high - low:.3f}", color=OUTSIDE)
    return figure


def race() -> Figure:
    """One run of the race: the drafts are the first arrivals."""
    figure, axes = _axes("The first arrivals are the drafts", "time", "token")
    rates = np.array([0.35, 0.25, 0.2, 0.12, 0.08])
    in_cut = np.array([True, False, True, True, False])
    times = np.random.default_rng(4).exponential(1 / rates)
    drafted = np.sort(times)[:DRAFTS][-1]
    end = 1.1 * times.max()
    for token, (time, inside) in enumerate(zip(times, in_cut, strict=True)):
        colour = INSIDE if inside else OUTSIDE
        axes.plot([0, time], [token, token], color=colour, lw=1)
        axes.plot(time, token, "o", color=colour, ms=7 if time <= drafted else 4)
    axes.axvline(drafted, color=QUIET, lw=0.8, ls="--")
    axes.text(drafted + 0.02 * end, len(rates) - 0.45, "the second arrival: both drafts are known")
    axes.set_yticks(
        range(len(rates)),
        [
            f"rate {rate:.2f}, {'in H' if inside else 'not in H'}"
            for rate, inside in zip(rates, in_cut, strict=True)
        ],
    )
    axes.set_ylim(-0.5, len(rates))
    axes.set_xlim(0, end)
    return figure


def string() -> Figure:
    """Containment over target mass, and the string of a rule that loses less than it must."""
    figure, axes = _axes("Pull a string tight over the points", "p(H)", "g(H) − loss")
    target, draft = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.3, 0.5])
    law = otmd.WithReplacement(draft, num_drafts=DRAFTS)
    loss = 0.04
    sets = _subsets(3)
    masks = np.array([[token in chosen for token in range(3)] for chosen in sets])
    points = np.array([[target[mask].sum(), law.containment(mask) - loss] for mask in masks])
    axes.plot(*points.T, "o", color=QUIET, ms=4)
    axes.plot([0, 1], [0, 1], color=FAINT, lw=1, zorder=1)
    axes.text(0.53, 0.32, "slope 1: p itself", color=QUIET)
    output = otmd.lossy_frontier(target, law)
    budget = 1 - loss - float(otmd.optimal_acceptance(target, law).rate)
    output_distribution = output.output_distribution(budget)
    order = np.argsort(-output_distribution / target)
    across = np.concatenate([[0], np.cumsum(target[order])])
    along = np.concatenate([[0], np.cumsum(output_distribution[order])])
    axes.plot(across, along, color=OUTSIDE)
    axes.text(0.0, 0.7, "the string: its slopes are p′/p", color=OUTSIDE)
    return figure


def strata() -> Figure:
    """A draft distribution cut into three strata of equal weight."""
    figure, axes = _axes("One draft from each stratum", "token, by q", "probability")
    draft = np.exp(-0.28 * np.arange(16))
    draft /= draft.sum()
    law = otmd.Stratified(draft, num_drafts=3)
    for stratum, colour in enumerate(STRATA):
        tokens = np.flatnonzero(law.strata == stratum)
        share = draft[tokens].sum()
        axes.bar(tokens, draft[tokens], color=colour, label=f"stratum {stratum}: q = {share:.2f}")
    axes.plot(law.inclusion_probs(), "o", color=INK, ms=3.5, label="probability to be drafted")
    axes.legend()
    axes.set_xticks([])
    return figure


WORDS = "ABC"
ROW, MASS, COLUMN = 0.3, 1.7, 3.1
"""Height of a token's row, length of a bar of mass 1, and width of a layer."""


def layers() -> Figure:
    """A drawn tree of two layers, with the scores and the masses of layer verification."""
    after_one = [[0.6, 0.2, 0.2], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]]
    target = trees.TableModel([[0.5, 0.3, 0.2], after_one])
    law = trees.TokenTree(trees.TableModel([[0.2, 0.3, 0.5]]), (2, 1), otmd.Stratified)
    context = Context(target, law)
    tree = law.draft_tree(context, Sampled(np.random.default_rng(4)))
    decided = trees.LayerVerification().layers(context, tree)
    figure = Figure(figsize=(TWO_COLUMNS, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.axis("off")
    corners: dict[Prefix, tuple[float, float]] = {(): (0.0, 0.0)}
    for depth, layer in enumerate(decided):
        score = float(layer.scores.sum())
        stopping_prob = layer.stopping_prob if depth else 1.0
        words = f"layer {depth}, s = {score:.2f}" if depth else "root, s = 1"
        words += f"\nstops with probability {stopping_prob:.2f}"
        axes.text(COLUMN * depth, 1.95, words, va="top", fontweight="bold")
        for i in range(len(layer.nodes)):
            _node(axes, context, tree, layer, i, corners)
    tokens = 1 + sum(float(layer.scores.sum()) for layer in decided[1:])
    axes.set_title(f"These drafts yield 1 + Σ s = {tokens:.2f} tokens on average", loc="left")
    axes.barh([-9], [0], color=INSIDE, label="a, accepted below")
    axes.barh([-9], [0], color=STRATA[2], alpha=0.55, label="w M − a, left to the layer")
    axes.plot([], [], "d", color=INK, ms=4, label="q")
    axes.plot([], [], " ", label="bold: drafted")
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, -0.05))
    axes.set_xlim(-0.2, 2 * COLUMN + 1.9)
    axes.set_ylim(-1.65, 2.0)
    return figure


def _node(
    axes: Axes,
    context: Context,
    tree: DraftTree,
    layer: Layer,
    i: int,
    corners: dict[Prefix, tuple[float, float]],
) -> None:
    """Bars of the target's mass at a node, split into a and R, and lines to the corners of its children."""
    prefix = layer.nodes[i]
    score = float(layer.scores[i])
    left, middle = corners[prefix]
    name = f"{''.join(WORDS[token] for token in prefix)}: w = {score:.2f}" if prefix else "w = 1"
    axes.text(left, middle + 1.8 * ROW, name)
    node = tree.node(prefix)
    drafted = [] if node is None else node.tokens.tolist()
    masses = score * context.target(prefix)
    rests = score * layer.left_by(i)
    draft_probs = np.asarray(context.law.draft_model(prefix))
    for token, (mass, rest) in enumerate(zip(masses.tolist(), rests.tolist(), strict=True)):
        y = middle + (1 - token) * ROW
        weight = "bold" if token in drafted else "normal"
        axes.text(left - 0.06, y, WORDS[token], ha="right", va="center", fontweight=weight)
        accepted = mass - rest
        bar: dict[str, Any] = {"y": y, "height": 0.6 * ROW}
        axes.barh(width=MASS * accepted, left=left, color=INSIDE, **bar)
        start = left + MASS * accepted
        axes.barh(width=MASS * rest, left=start, color=STRATA[2], alpha=0.55, **bar)
        end, numbers = mass, f"{rest:.2f}"
        if node is not None:
            axes.plot(left + MASS * draft_probs[token], y, "d", color=INK, ms=4)
            end = max(mass, float(draft_probs[token]))
            numbers = f"{accepted:.2f} + {rest:.2f}"
        axes.text(left + MASS * end + 0.12, y, numbers, va="center")
        if token in drafted:
            above = 0.8 * (1.0 if token == min(drafted) else -1.0) if len(drafted) > 1 else 0.0
            child = left + COLUMN, middle + above
            corners[*prefix, token] = child
            line: dict[str, Any] = {"color": QUIET, "lw": 0.8}
            axes.plot([left + 1.95, child[0] - 0.1], [y, child[1] + 2 * ROW], **line)


FIGURES = (curve, cut, race, string, strata, layers)
