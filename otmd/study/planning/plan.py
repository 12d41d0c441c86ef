"""A plan: what to draft and how to verify it, from a dataset of texts, with the tables that it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from otmd import __version__
from otmd.models.dataset import Dataset
from otmd.probabilities import Processing, validate_count, validate_counts
from otmd.storage.files import one_line
from otmd.study.planning.advice import advice, temperatures_of, tree_of
from otmd.study.planning.candidates import CANDIDATES
from otmd.study.planning.ceiling import ceilings
from otmd.study.planning.goodness_of_fit import check_texts
from otmd.study.planning.latency import Latency
from otmd.study.planning.ranking import Evidence, Key, Ranking, Row, Trees, rank
from otmd.study.planning.texts import Text, longest_text, read_texts
from otmd.study.planning.token_table import Settings, probs_table
from otmd.study.planning.tree_choices import (
    Choice,
    deterministic_trees,
    most_likely_trees,
    shapes,
)
from otmd.study.planning.whole_trees import NodeByNode, WalkSettings, drawn_trees, reach_table
from otmd.study.table import Cell, Table

# The optimal rule takes long, and preference accepts more than recursive rejection and K-SEQ.
_SLOW = ("optimal", "stratified-optimal", "rrs", "k-seq")
DEFAULT_RULES = tuple(name for name in CANDIDATES if name.removesuffix("-paths") not in _SLOW)
NO_PATHS = "most likely paths are not ranked: the dataset has none (otmd collect --paths 10)"
NO_TREES = (
    "not ranked: {}; the dataset has no such drawn trees within these budgets and depths, at these draft "
    "temperatures and without --draft-top-k (otmd collect --trees 2x1x1x1,quota:2x2x2x2: adaptive trees are "
    "compared with fixed ones)"
)
MEASURED = (
    "Lossless rules alone. Trees and parameters were chosen on the fitting half of the prompts; values and "
    "95% intervals (jackknife over prompts) are of the held-out half. Bound: the value if every step "
    "accepted the most that any lossless rule may with the same drafts."
)
NOTATION = (
    "Trees: × counts drafts per node, so 2×1×1 has two drafts at the first level, and one below each node of "
    "the next two. + counts drafts per level, so 2+3+3 has two at the first level and three at each of the "
    "next two, spread unevenly over the nodes, at most as many in an adaptive tree; of independent paths, "
    "3+3+3 is three paths of three. A chain has one draft per level."
)
SUBTREE = "stratified-subtree"


class Plan(NamedTuple):
    """Rankings of candidates, and the advice that follows from the first.

    Attributes
    ----------
    rankings : list of Ranking
        With times, one for each number of concurrent requests; else a single one.
    said : list of str
        The advice in sentences, the decision first.
    about : dict of str to str
        Settings and provenance.
    """

    rankings: list[Ranking]
    said: list[str]
    about: dict[str, str]

    @property
    def rows(self) -> list[Row]:
        """The rows of the first ranking."""
        return self.rankings[0].rows

    def to_dict(self) -> dict[str, Any]:
        """The plan in JSON's types."""
        by_requests = {
            ranking.requests: [row.to_dict() for row in ranking.rows] for ranking in self.rankings
        }
        first = by_requests[self.rankings[0].requests]
        plan: dict[str, Any] = {"advice": self.said, "ranking": first}
        if len(by_requests) > 1:
            plan["by_requests"] = by_requests
        return plan | {"about": self.about}

    def by_budget(self) -> dict[int, Table]:
        """The ranking within each tree budget that changes it, the largest first."""
        unit = "tokens/s" if "latency" in self.about else "tokens/step"
        budgets = sorted({row.budget for row in self.rows}, reverse=True)
        tables = {budget: _ranking(_within(self.rows, budget), budget, unit) for budget in budgets}
        return tables | {budgets[0]: tables[budgets[0]]._replace(note=f"{MEASURED}\n{NOTATION}")}

    def tables(self) -> list[Table]:
        """Rankings by budget with a key of rules, by requests, acceptance by depth, losses, domains."""
        rankings = self.by_budget()
        rows = _within(self.rows, max(rankings))
        largest, *smaller = rankings.values()
        tables = [largest, _rules(rows), *smaller]
        if len(self.rankings) > 1:
            tables.append(_by_requests(self.rankings))
        tables.append(_depths(rows))
        if with_rates := [row for row in rows if row.by_entropy]:
            tables.append(_losses(with_rates))
        if len(rows[0].by_domain) > 1:
            tables.append(_domains(rows))
        return tables


def make_plan(
    dataset: Dataset,
    output: Path,
    *,
    rules: Sequence[str] = DEFAULT_RULES,
    num_drafts: int | Iterable[int] = (1, 2, 4),
    budgets: int | Iterable[int] = (4, 8, 16),
    depth: int = 8,
    target: Processing | None = None,
    draft_temperatures: Sequence[float] = (),
    draft_top_k: int | None = None,
    latency: Latency | Sequence[Latency] | None = None,
    seed: int = 0,
    workers: int | None = None,
    progress: bool = False,
    overwrite: bool = False,
) -> Plan:
    """Rank candidates, and say what to draft and how to verify it.

    Parameters
    ----------
    dataset : Dataset
        Texts, as :func:`read_texts` takes them.
    output : Path
        A folder in which finished texts are kept, so that an interrupted run resumes.
    rules : sequence of str
        Names of :data:`otmd.study.planning.CANDIDATES`.
    num_drafts, budgets, depth
        How many drafts a node may have; the most tokens of a tree, each with its own tree; the most levels.
    target : Processing, optional
        How the texts were sampled; by default at the dataset's temperature, or at 1.
    draft_temperatures : sequence of float
        The draft's temperatures to try; by default the target's, or 1 if that is 0.
    draft_top_k : int, optional
        Sampled drafts come from this many most likely tokens of the draft.
    latency : Latency or sequence of Latency, optional
        Times; with them rows are ranked by tokens per second of a request. One ranking for each; the advice
        is that of the first.
    seed, workers, progress, overwrite
        As for :func:`otmd.measure`.

    Returns
    -------
    Plan
        The rankings, the best first, with the advice in sentences.

    Raises
    ------
    ValueError
        For texts with gaps, texts that the target did not sample with these settings, texts shorter than the
        depth, or a latency table that does not reach a budget.
    """
    num_drafts = validate_counts("num_drafts", num_drafts)
    budgets = sorted(validate_counts("budgets", budgets))
    depth = validate_count("depth", depth)
    texts = read_texts(dataset)
    cut_at = longest_text(dataset.metadata, texts)
    if cut_at <= depth:
        raise ValueError(
            f"dataset: its longest text has {cut_at} tokens, expected more than the depth {depth}: "
            "otmd collect --consecutive 48, or --depth"
        )
    latencies = [latency] if isinstance(latency, Latency) else list(latency or ())
    for times in latencies:
        times.check(budgets[-1])
    sampled = _sampled_with(dataset, target)
    cut = sampled.cut_to(draft_top_k)
    temperatures = draft_temperatures or [sampled.temperature or 1.0]
    drafts = tuple(replace(cut, temperature=temperature) for temperature in temperatures)
    named = {rule: CANDIDATES[rule] for rule in rules}
    tabled = tuple(rule for rule in rules if named[rule].variants and not named[rule].tree_rule)
    settings = Settings(tabled, tuple(sorted(num_drafts)), sampled, drafts, seed)
    trees = _deterministic_trees(dataset, texts, rules, drafts, budgets[-1], depth)
    walked = _walked(dataset, rules, settings, budgets, depth)
    if not (tabled or trees or walked.rules):
        raise ValueError(_unranked(rules, trees)[-1])
    check_texts(dataset, texts, settings)
    table = probs_table(dataset, texts, settings, output, workers, progress, overwrite)
    if walked.rules:
        reach = reach_table(dataset, texts, walked, output, workers, progress, overwrite)
        trees |= _whole_trees(dataset, texts, rules, reach, settings, depth)
    if not (tabled or trees):
        raise ValueError(_unranked(rules, trees)[-1])
    evidence = Evidence(table, ceilings(dataset, texts, settings), texts, cut_at, depth, trees)
    rankings = [Ranking(rank(evidence, budgets, times), times) for times in latencies or [None]]
    said = advice(rankings[0].rows, len(texts), rankings[0].latency)
    said += [f"{reason[0].upper()}{reason[1:]}." for reason in _unranked(rules, trees)]
    return Plan(rankings, said, _about(dataset, evidence, settings, latencies))


def _deterministic_trees(
    dataset: Dataset,
    texts: Sequence[Text],
    rules: Sequence[str],
    drafts: Sequence[Processing],
    budget: int,
    depth: int,
) -> dict[Key, Trees]:
    """Static trees of ranks and most likely paths, by rule."""
    trees: dict[Key, Trees] = {}
    if "static-tree" in rules:
        ranks = deterministic_trees(dataset, texts, budget, depth)
        # A rank does not depend on the temperature.
        for step in drafts:
            of_step = ranks._replace(draft_temperature=step.temperature)
            trees["static-tree", "", step.temperature] = of_step
    if "most-likely" in rules and (paths := most_likely_trees(dataset, texts, depth)):
        trees["most-likely", "", 1.0] = paths
    return trees


def _unranked(rules: Sequence[str], trees: dict[Key, Trees]) -> list[str]:
    """Reasons why rules are not ranked whose trees the dataset does not have."""
    missing = [rule for rule in rules if all(rule != key[0] for key in trees)]
    drawn = [rule for rule in missing if CANDIDATES[rule].drawn]
    reasons = [NO_PATHS] if "most-likely" in missing else []
    return [*reasons, NO_TREES.format(", ".join(drawn))] if drawn else reasons


def _walked(
    dataset: Dataset,
    rules: Sequence[str],
    settings: Settings,
    budgets: Sequence[int],
    depth: int,
) -> WalkSettings:
    """The rules and trees that are followed node by node: what is measured on drawn trees rests on it."""
    on_trees = [rule for rule in rules if CANDIDATES[rule].tree_rule]
    walked = [rule for rule in on_trees if not CANDIDATES[rule].drawn]
    counts = range(1, max(settings.num_drafts) + 1)
    trees = {*shapes(counts, max(budgets), depth)}
    measured = [tree.shape for tree in dataset.trees if not tree.adaptive]
    drawn = {shape for shape in measured if walked != on_trees and len(shape) <= depth}
    within = {shape for shape in drawn if Choice("", 1.0, shape).drafts <= max(budgets)}
    if within and SUBTREE not in walked:
        walked.append(SUBTREE)
    ordered = tuple(sorted(trees | within))
    return WalkSettings(tuple(walked), ordered, settings.target, settings.drafts)


def _whole_trees(
    dataset: Dataset,
    texts: Sequence[Text],
    rules: Sequence[str],
    reach: dict[Key, NodeByNode],
    settings: Settings,
    depth: int,
) -> dict[Key, Trees]:
    """The trees of rules for whole trees, by rule."""
    trees: dict[Key, Trees] = {key: kind for key, kind in reach.items() if key[0] in rules}
    # Trees are drawn with the temperature and the cuts of the texts.
    key = SUBTREE, "equal strata", dataset.metadata.get("temperature") or 1.0
    drafts = settings.drafts[0]
    are_cut_alike = drafts == replace(settings.target, temperature=drafts.temperature)
    for rule in rules if key in reach and are_cut_alike else ():
        if CANDIDATES[rule].drawn:
            drawn = drawn_trees(dataset, texts, reach[key], CANDIDATES[rule], depth)
            if drawn.gains:
                trees[rule, *key[1:]] = drawn
    return trees


def _about(
    dataset: Dataset,
    evidence: Evidence,
    settings: Settings,
    latencies: Sequence[Latency],
) -> dict[str, str]:
    """Settings and provenance of a plan."""
    about = {
        "dataset": f"{dataset.path.name}, {len(dataset)} positions",
        "texts": f"{len(evidence.texts)}; values are of {len(evidence.report)} of them",
        **{role: _short(dataset.metadata.get(role)) for role in ("target", "draft", "prompts")},
        "texts sampled with": str(settings.target),
        "draft temperatures": ", ".join(f"{step.temperature:g}" for step in settings.drafts),
        "draft top-k": str(settings.drafts[0].top_k or ""),
        "otmd": __version__,
    }
    if latencies:
        times = latencies[0]
        about["latency"] = f"target alone {1e3 * times.alone:.2f} ms, context {times.context}"
        about["concurrent requests"] = ", ".join(str(times.requests) for times in latencies)
    return {name: text for name, text in about.items() if text}


def _short(about: Any) -> str:
    """A dataset's metadata of a model or of its prompts, in a line."""
    if not isinstance(about, dict):
        return ""
    values = (about.get(name) for name in ("name", "revision", "backend", "count", "sha256"))
    return ", ".join(str(part) for part in values if part)


def _sampled_with(dataset: Dataset, target: Processing | None) -> Processing:
    """The processing that the texts were sampled with: that of the metadata, or else ``target``."""
    recorded = {name: dataset.metadata.get(name) for name in asdict(Processing())}
    recorded = {name: value for name, value in recorded.items() if value is not None}
    if not recorded:
        return target or Processing()
    processing = Processing(**recorded)
    if target not in (None, processing):
        raise ValueError(
            f"--temperature: got {target}, but the texts were sampled with {processing}; collect others "
            "(otmd collect --temperature), or leave it out: --draft-temperature is free"
        )
    return processing


def _within(rows: Sequence[Row], budget: int) -> list[Row]:
    """The row of each rule within a budget, best first."""
    allowed = sorted((row for row in rows if row.budget <= budget), key=lambda row: row.budget)
    largest = {row.rule: row for row in allowed}
    return [row for row in rows if largest.get(row.rule) is row]


def _ranking(rows: Sequence[Row], budget: int, unit: str) -> Table:
    heads = ["rule", unit, "low", "high", "bound", "tree", "drafts", "law", "draft T"]
    table: list[list[Cell]] = []
    for row in rows:
        numbers = [row.value, row.low, row.high, row.bound, tree_of(row.choice), row.choice.drafts]
        table.append([row.rule, *numbers, row.choice.variant, temperatures_of(row)])
    title = f"Ranking of trees of at most {budget} draft{'s' * (budget > 1)}"
    return Table(title, heads, table, interval=(unit, "low", "high"))


def _rules(rows: Sequence[Row]) -> Table:
    table: list[list[Cell]] = []
    for row in rows:
        candidate = CANDIDATES[row.rule]
        table.append([row.rule, candidate.title, ", ".join(candidate.engines) or "–"])
    return Table("Rules", ["rule", "drafts and verifier", "engines that run it"], table)


def _by_requests(rankings: Sequence[Ranking]) -> Table:
    heads = ["requests", "rule", "tokens/s", "low", "high", "× target alone", "tree", "drafts"]
    table: list[list[Cell]] = []
    for ranking in rankings:
        assert ranking.latency
        best = max(ranking.rows, key=lambda row: row.fitted)
        speed = best.value * ranking.latency.alone
        ends = best.value, best.low, best.high
        tree = tree_of(best.choice)
        table.append([ranking.requests, best.rule, *ends, speed, tree, best.choice.drafts])
    note = (
        "The best row on the fitting half for each number of concurrent requests; tokens per second of one "
        "request. Where the target alone is as fast (× 1 or less), do not draft."
    )
    return Table("By concurrent requests", heads, table, note)


def _depths(rows: Sequence[Row]) -> Table:
    depth = max(len(row.acceptance) for row in rows)
    table = []
    for row in rows:
        none = [None] * (depth - len(row.acceptance))
        table.append([row.rule, tree_of(row.choice), *row.acceptance, *none])
    note = (
        "P(at least k drafts are accepted): AcceptanceCounts.acceptance_by_position of an engine."
    )
    heads = ["rule", "tree", *(f"≥ {k + 1}" for k in range(depth))]
    return Table("Acceptance by depth", heads, table, note, decimals=3)


def _losses(rows: Sequence[Row]) -> Table:
    table: list[list[Cell]] = []
    for row in rows:
        bounds = (row.proportional, row.ceiling)
        shares = (row.rate, row.optimal, row.optimal - row.rate, *bounds, *row.by_entropy)
        table.append([row.rule, row.choice.shape[0], *(100 * part for part in shares)])
    note = (
        "In per cent, at the first level, on every eighth token: how often one of the drafts is accepted, α* "
        "of the same drafts, the gap between the two, and what no rule exceeds with other laws of as many "
        "drafts (π ∝ q: the probability that a token is drafted is proportional to q; fitted π: a function "
        "of q, from the fitting half). The last three are the acceptance in the thirds of tokens with the "
        "lowest, middle and highest entropy of the target."
    )
    heads = ["rule", "drafts", "accepted", "α*", "gap", "π ∝ q", "fitted π"]
    heads += ["low entropy", "middle", "high"]
    return Table("Where drafts are lost, %", heads, table, note)


def _domains(rows: Sequence[Row]) -> Table:
    table: list[list[Cell]] = [
        [row.rule, tree_of(row.choice), *row.by_domain.values()] for row in rows
    ]
    return Table(
        "Tokens per step by domain", ["rule", "tree", *map(one_line, rows[0].by_domain)], table
    )
