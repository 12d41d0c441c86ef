"""The ranking: the best tree of every rule within each budget, chosen on half of the prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from otmd.probabilities import FloatArray
from otmd.study import jackknife
from otmd.study.planning.candidates import CANDIDATES
from otmd.study.planning.latency import Latency
from otmd.study.planning.texts import Text, halves, steps_along
from otmd.study.planning.tree_choices import (
    Choice,
    EqualLevels,
    IndependentPaths,
    MostLikelyTrees,
    StaticTrees,
)
from otmd.study.planning.whole_trees import DrawnTrees, NodeByNode

# Rule, variant of the law, and draft temperature.
Key = tuple[str, str, float]


Trees = StaticTrees | MostLikelyTrees | NodeByNode | DrawnTrees


class FirstLevel(NamedTuple):
    """The fields of a :class:`Row` that are of the first level of its tree."""

    rate: float
    optimal: float
    proportional: float
    ceiling: float
    by_entropy: list[float]


UNKNOWN = FirstLevel(np.nan, np.nan, np.nan, np.nan, [])


class Row(NamedTuple):
    """A rule within a budget, with the choice that was best on the fitting half of the prompts.

    Attributes
    ----------
    rule : str
        A key of :data:`otmd.study.planning.CANDIDATES`.
    budget : int
        The most tokens that the tree was allowed.
    choice : Choice
    draft_temperatures : list of float
        Those at which this choice is equally good: where drafts do not depend on it, all that were tried.
    most_tried : int
        The most tokens of a tree that was tried for the rule, whatever the budget.
    value, low, high : float
        Tokens per second where times are known, else per step, and the ends of its 95% interval.
    bound : float
        The value of a decoder with these drafts whose reach at every token is the most that any lossless rule
        has; see :func:`otmd.trees.inclusion_bound`. NaN for adaptive trees.
    tokens_per_step, acceptance : float, list of float
        The latter is P(at least k drafts are accepted), k = 1, 2, …; it is empty for rules that
        are measured on drawn trees.
    rate, optimal : float
        At the first level: how often a draft is accepted, and α* of the same drafts.
    proportional, ceiling : float
        Bounds there for every rule with other laws of as many drafts: with π ∝ q, and with a fitted π. NaN,
        as ``rate`` and ``optimal`` are, for most likely paths and static trees of deterministic drafts.
    by_domain : dict of str to float
        Tokens per step.
    by_entropy : list of float
        The rate by thirds of the target's entropy; empty where the rate is NaN.
    without, fitted : ndarray of float64, shape (prompts,), and float
        The value without each of the prompts of the held-out half, and on the fitting half.
    """

    rule: str
    budget: int
    choice: Choice
    draft_temperatures: list[float]
    most_tried: int
    value: float
    low: float
    high: float
    bound: float
    tokens_per_step: float
    acceptance: list[float]
    rate: float
    optimal: float
    proportional: float
    ceiling: float
    by_domain: dict[str, float]
    by_entropy: list[float]
    without: FloatArray
    fitted: float

    def to_dict(self) -> dict[str, Any]:
        """The row in JSON's types."""
        row = {k: None if v != v else v for k, v in self._asdict().items() if k != "without"}
        candidate = CANDIDATES[self.rule]
        row |= {"title": candidate.title, "engines": candidate.engines}
        return row | {"choice": self.choice._asdict() | {"drafts": self.choice.drafts}}


class Ranking(NamedTuple):
    """The best choice of each rule within each budget, best first, with the times that were used.

    Attributes
    ----------
    rows : list of Row
    latency : Latency or None
        The times for a number of concurrent requests; None if rows are ranked by tokens per step.
    """

    rows: list[Row]
    latency: Latency | None = None

    @property
    def requests(self) -> int:
        """The number of concurrent requests."""
        return self.latency.requests if self.latency else 1


class Evidence:
    """The probabilities of every candidate along the texts.

    Parameters
    ----------
    table, bounds : polars.DataFrame
        Of :func:`otmd.study.planning.probs_table` and :func:`otmd.study.planning.ceilings`, with the same
        settings.
    texts : sequence of Text
        The texts of both tables, in their order.
    cut_at : int
        The length at which texts were cut; see :func:`otmd.study.planning.longest_text`.
    depth : int
        The most levels of a tree.
    trees : dict of (str, str, float) to StaticTrees, MostLikelyTrees, NodeByNode or DrawnTrees
        Trees of deterministic drafts whose nodes differ, and trees that are verified as a whole, by rule,
        variant and draft temperature. Static trees of other rules are added.

    Attributes
    ----------
    fit, report : ndarray of int64
        Numbers of the texts that choices are made on, and of those that values are reported for. ValueError
        for fewer than four texts.
    """

    def __init__(
        self,
        table: pl.DataFrame,
        bounds: pl.DataFrame,
        texts: Sequence[Text],
        cut_at: int,
        depth: int,
        trees: Mapping[Key, Trees] | None = None,
    ) -> None:
        self.texts = texts
        self.cut_at = cut_at
        self.depth = depth
        self.fit, self.report = halves(texts)
        self.levels: dict[Key, EqualLevels] = {}
        self.trees: dict[Key, Trees] = dict(trees or {})
        self.first_levels: dict[tuple[Key, int], FirstLevel] = {}
        edges = [float(table["entropy"].quantile(q) or 0.0) for q in (1 / 3, 2 / 3)]
        keys = ["rule", "variant", "draft_temperature"]
        for candidate in table.sort("text", "index").partition_by(keys, maintain_order=True):
            key: Any = candidate.select(keys).row(0)
            by_count = {
                group["num_drafts"][0]: group
                for group in candidate.partition_by("num_drafts", maintain_order=True)
            }
            self._add_trees(key, by_count)
            for n, group in by_count.items():
                held_out = group.filter(pl.col("text").is_in(self.report.tolist()))
                self.first_levels[key, n] = _first_level(held_out, bounds, edges)

    def _add_trees(self, key: Key, by_count: Mapping[int, pl.DataFrame]) -> None:
        """Add the trees of a candidate, from its rows for each number of drafts."""
        rule, variant, temperature = key
        is_paths = CANDIDATES[rule].paths
        if not is_paths:
            probs = {n: _by_text(group, "prob") for n, group in by_count.items()}
            ratios = {
                n: [rows.sum(axis=1) for rows in _by_text(group, "included")]
                for n, group in by_count.items()
            }
            is_block = rule == "block"
            self.levels[key] = EqualLevels(
                variant, temperature, probs, ratios, self.depth, is_block
            )
        slots = {
            n: _by_text(group, "parts")
            for n, group in by_count.items()
            if group["parts"].null_count() == 0
        }
        if slots:
            included = {n: _by_text(by_count[n], "included") for n in slots}
            kind = IndependentPaths if is_paths else StaticTrees
            self.trees[key] = kind(variant, temperature, slots, included, self.fit, self.depth)

    def steps(self, rule: str, choice: Choice, bound: bool = False) -> tuple[FloatArray, ...]:
        """Tokens and steps with a rule and a choice: the fields of ``Steps``, with an axis of texts.

        With ``bound``, those of a decoder that accepts at every token as much as any lossless rule may.
        """
        key = rule, choice.variant, choice.draft_temperature
        is_level = key in self.levels and not choice.budget
        trees = self.levels[key] if is_level else self.trees[key]
        steps = []
        for i in range(len(self.texts)):
            reached = trees.bound(i, choice) if bound else trees.reached(i, choice)
            more = None
            if isinstance(trees, DrawnTrees) and not bound:
                more = trees.more(i, choice)
            steps.append(steps_along(reached, self.cut_at, self.depth, more))
        return tuple(map(np.array, zip(*steps, strict=True)))

    def choices(self, rule: str, budgets: Sequence[int]) -> list[Choice]:
        """Every choice for a rule within these budgets."""
        pairs = [*self.levels.items(), *self.trees.items()]
        kinds = (trees for key, trees in pairs if key[0] == rule)
        return [choice for trees in kinds for choice in trees.choices(budgets)]


def _by_text(rows: pl.DataFrame, column: str) -> list[FloatArray]:
    parts = rows.partition_by("text", maintain_order=True)
    return [np.array(part[column].to_list(), float) for part in parts]


def _first_level(rows: pl.DataFrame, bounds: pl.DataFrame, edges: list[float]) -> FirstLevel:
    """Means of rates, α* and bounds where these are known; the mean probability by thirds of the entropy."""
    with_rates = rows.join(bounds, ["text", "index", "draft_temperature", "num_drafts"])
    means = with_rates.select("rate", "optimal", "proportional", "fitted").to_numpy().mean(axis=0)
    rate, optimal, proportional, ceiling = means.tolist()
    # Block verification accepts a first token with probability min(1, q/p).
    probs = np.minimum(rows["prob"].to_numpy(), 1.0)
    bins = np.digitize(rows["entropy"].to_numpy(), edges)
    thirds = [float(probs[bins == i].mean()) if (bins == i).any() else np.nan for i in range(3)]
    return FirstLevel(rate, optimal, proportional, ceiling, thirds)


def rank(evidence: Evidence, budgets: Sequence[int], latency: Latency | None = None) -> list[Row]:
    """Find the best choice of every rule within every budget on the fitting half; its value is held out.

    Parameters
    ----------
    evidence : Evidence
        The probabilities of the candidates along the texts.
    budgets : sequence of int
        The most tokens of a tree, one ranking for all of them.
    latency : Latency, optional
        Times; with them values are tokens per second, else tokens per step.

    Returns
    -------
    list of Row
        The best first. A larger budget that changes nothing has no row.
    """
    rows = []
    keys = [*(key for key, _ in evidence.first_levels), *evidence.trees]
    for rule in dict.fromkeys(rule for rule, *_ in keys):
        fitted: dict[Choice, float] = {}
        for choice in evidence.choices(rule, budgets):
            tokens, steps, *_ = (part[evidence.fit] for part in evidence.steps(rule, choice))
            fitted[choice] = _ratio(tokens, steps) / _cost(choice, latency)
        previous = None
        for budget in sorted(budgets):
            within = [choice for choice in fitted if choice.drafts <= budget]
            # Of equally good trees, the smaller one.
            best = max(
                within, key=lambda choice: (fitted[choice], -choice.drafts), default=previous
            )
            if best is not None and best != previous:
                previous = best
                rows.append(_row(evidence, rule, budget, best, fitted, latency))
    return sorted(rows, key=lambda row: (-round(row.value, 12), row.choice.drafts, row.budget))


def _cost(choice: Choice, latency: Latency | None) -> float:
    return latency.step(choice.shape, choice.budget) if latency else 1.0


def _equal_temperatures(best: Choice, fitted: Mapping[Choice, float]) -> list[float]:
    """The draft temperatures with which a choice has the same value, in ascending order."""
    return sorted(
        choice.draft_temperature
        for choice, value in fitted.items()
        if choice._replace(draft_temperature=best.draft_temperature) == best
        and np.isclose(value, fitted[best], 1e-9)
    )


def _ratio(tokens: FloatArray, steps: FloatArray) -> float:
    return float(tokens.sum() / max(steps.sum(), 1e-300))


def _row(
    evidence: Evidence,
    rule: str,
    budget: int,
    choice: Choice,
    fitted: Mapping[Choice, float],
    latency: Latency | None,
) -> Row:
    tokens, steps, kept = (part[evidence.report] for part in evidence.steps(rule, choice))
    most, most_steps, _ = (part[evidence.report] for part in evidence.steps(rule, choice, True))
    candidate = CANDIDATES[rule]
    cost = _cost(choice, latency)
    mean = _ratio(tokens, steps)
    without = jackknife.left_out(tokens, steps) / cost
    low, high = jackknife.interval(mean / cost, without)
    domains = np.array([evidence.texts[i].domain for i in evidence.report])
    by_domain = {
        name: _ratio(tokens[domains == name], steps[domains == name])
        for name in dict.fromkeys(domains.tolist())
    }
    key = candidate.same_drafts or rule, choice.variant, choice.draft_temperature
    first = evidence.first_levels.get((key, choice.shape[0]), UNKNOWN)
    return Row(
        rule=rule,
        budget=budget,
        choice=choice,
        draft_temperatures=_equal_temperatures(choice, fitted),
        most_tried=max(tried.drafts for tried in fitted),
        value=mean / cost,
        # A step emits at least one token.
        low=max(low, 1.0 / cost),
        high=high,
        bound=_ratio(most, most_steps) / cost,
        tokens_per_step=mean,
        acceptance=[] if candidate.drawn else (kept.sum(axis=0) / steps.sum()).tolist(),
        **first._asdict(),
        by_domain=by_domain,
        without=without,
        fitted=fitted[choice],
    )


def difference(first: Row, second: Row) -> tuple[float, float, float]:
    """Difference of the values of two rows, and its 95% interval.

    Parameters
    ----------
    first, second : Row
        Rows of one ranking.

    Returns
    -------
    tuple of (float, float, float)
        First minus second, and the ends of the jackknife's interval over prompts.
    """
    gain = first.value - second.value
    return gain, *jackknife.interval(gain, first.without - second.without)


def prompts_needed(first: Row, second: Row, prompts: int) -> int | None:
    """Count the prompts that would tell two rows of a ranking apart, if the difference stays as it is.

    Parameters
    ----------
    first, second : Row
        Rows of one ranking.
    prompts : int
        The number of prompts that the rows report on.

    Returns
    -------
    int or None
        The prompts of a whole dataset, half of which choose the trees; None without a difference.
    """
    gain = abs(first.value - second.value)
    if gain <= 1e-9:
        return None
    # Errors fall with the root of the prompts.
    errors = np.sqrt(prompts) * jackknife.standard_error(first.without - second.without) / gain
    needed = max(2, int(np.ceil((jackknife.student_quantile(10**9) * errors) ** 2)))
    while jackknife.student_quantile(needed) * errors > np.sqrt(needed):
        needed += 1
    return 2 * needed
