"""A plan: what to draft and how to verify it, from a dataset of texts, with the tables that it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from otmd import __version__
from otmd.models.dataset import Dataset
from otmd.probabilities import Processing, validate_count, validate_counts
from otmd.study.jackknife import FEW_PROMPTS
from otmd.study.planning.candidates import CANDIDATES
from otmd.study.planning.ceiling import ceilings
from otmd.study.planning.goodness_of_fit import check_texts
from otmd.study.planning.latency import Latency
from otmd.study.planning.ranking import (
    Evidence,
    Key,
    Row,
    Trees,
    difference,
    prompts_needed,
    rank,
)
from otmd.study.planning.texts import Text, longest_text, read_texts
from otmd.study.planning.token_table import Settings, probs_table
from otmd.study.planning.tree_choices import (
    Choice,
    deterministic_trees,
    most_likely_trees,
    shapes,
)
from otmd.study.planning.whole_trees import NodeByNode, WalkSettings, layer_by_layer, reach_table
from otmd.study.table import Cell, Table
from otmd.trees import SubtreeVerification

# The optimal rule takes long, and preference accepts more than recursive rejection and K-SEQ.
_SLOW = ("optimal", "stratified-optimal", "rrs", "k-seq")
DEFAULT_RULES = tuple(name for name in CANDIDATES if name.removesuffix("-paths") not in _SLOW)
NO_PATHS = "most likely paths are not ranked: the dataset has none (otmd collect --paths 10)"
NO_TREES = (
    "layer by layer is not ranked: the dataset has no drawn trees within these budgets, depths and draft "
    "temperatures (otmd collect --trees 2x1x1x1x1x1x1x1)"
)
LAYER, SUBTREE = "stratified-layer", "stratified-subtree"


class Plan(NamedTuple):
    """A ranking of candidates, and the advice that follows from it.

    Attributes
    ----------
    rows : list of Row
        The best choice of each rule within each budget, best first.
    said : list of str
        The advice in sentences, the decision first.
    about : dict of str to str
        Settings and provenance.
    """

    rows: list[Row]
    said: list[str]
    about: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """The plan in JSON's types."""
        ranking = [row.to_dict() for row in self.rows]
        return {"advice": self.said, "ranking": ranking, "about": self.about}

    def tables(self) -> list[Table]:
        """The ranking, acceptance by depth, and where drafts are lost."""
        unit = "tokens/s" if "latency" in self.about else "tokens/step"
        first = dict.fromkeys(row.rule for row in self.rows)
        best = [next(row for row in self.rows if row.rule == rule) for rule in first]
        tables = [_ranking(self.rows, unit), _depths(best)]
        with_rates = [row for row in best if row.by_entropy]
        return [*tables, _losses(with_rates)] if with_rates else tables


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
    latency: Latency | None = None,
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
    latency : Latency, optional
        Times; with them rows are ranked by tokens per second.
    seed, workers, progress, overwrite
        As for :func:`otmd.measure`.

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
    if latency:
        latency.check(budgets[-1])
    sampled = _sampled_with(dataset, target)
    temperatures = tuple(draft_temperatures) or (sampled.temperature or 1.0,)
    drafts = tuple(replace(sampled, temperature=temperature) for temperature in temperatures)
    named = {rule: CANDIDATES[rule] for rule in rules}
    tabled = tuple(rule for rule in rules if named[rule].variants and not named[rule].tree_rule)
    settings = Settings(tabled, tuple(sorted(num_drafts)), sampled, drafts, seed)
    trees: dict[Key, Trees] = {}
    if "static-tree" in rules:
        ranks = deterministic_trees(dataset, texts, budgets[-1], depth)
        # A rank does not depend on the temperature.
        for temperature in temperatures:
            trees["static-tree", "", temperature] = ranks._replace(draft_temperature=temperature)
    if "most-likely" in rules and (paths := most_likely_trees(dataset, texts, depth)):
        trees["most-likely", "", 1.0] = paths
    walked = _walked(dataset, rules, settings, budgets, depth)
    if not (tabled or trees or walked.rules):
        raise ValueError(NO_TREES if LAYER in rules else NO_PATHS)
    check_texts(dataset, texts, settings)
    table = probs_table(dataset, texts, settings, output, workers, progress, overwrite)
    if walked.rules:
        reach = reach_table(dataset, texts, walked, output, workers, progress, overwrite)
        trees |= _whole_trees(dataset, texts, rules, reach)
    if not (tabled or trees):
        raise ValueError(NO_TREES)
    evidence = Evidence(table, ceilings(dataset, texts, settings), texts, cut_at, depth, trees)
    rows = rank(evidence, budgets, latency)
    said = advice(rows, len(texts), latency)
    missing = {*rules} - {rule for rule, *_ in trees}
    said += [
        f"{reason[0].upper()}{reason[1:]}."
        for rule, reason in (("most-likely", NO_PATHS), (LAYER, NO_TREES))
        if rule in missing
    ]
    return Plan(rows, said, _about(dataset, evidence, settings, latency, rules))


def _walked(
    dataset: Dataset,
    rules: Sequence[str],
    settings: Settings,
    budgets: Sequence[int],
    depth: int,
) -> WalkSettings:
    """The rules and trees that are followed node by node: what is measured on drawn trees rests on it."""
    walked = [rule for rule in rules if isinstance(CANDIDATES[rule].tree_rule, SubtreeVerification)]
    counts = range(1, max(settings.num_drafts) + 1)
    trees = {*shapes(counts, max(budgets), depth)}
    measured = [tree.shape for tree in dataset.trees if not tree.adaptive]
    drawn = {shape for shape in measured if LAYER in rules and len(shape) <= depth}
    within = {shape for shape in drawn if Choice("", 1.0, shape).drafts <= max(budgets)}
    if within and SUBTREE not in walked:
        walked.append(SUBTREE)
    ordered = tuple(sorted(trees | within))
    return WalkSettings(tuple(walked), ordered, settings.target, settings.drafts)


def _whole_trees(
    dataset: Dataset, texts: Sequence[Text], rules: Sequence[str], reach: dict[Key, NodeByNode]
) -> dict[Key, Trees]:
    """Trees that are verified as a whole, by rule."""
    trees: dict[Key, Trees] = {key: kind for key, kind in reach.items() if key[0] in rules}
    # Trees are drawn at the temperature of the texts.
    key = SUBTREE, "equal strata", dataset.metadata.get("temperature") or 1.0
    if LAYER in rules and key in reach:
        drawn = layer_by_layer(dataset, texts, reach[key])
        if drawn.gains:
            trees[LAYER, *key[1:]] = drawn
    return trees


def _about(
    dataset: Dataset,
    evidence: Evidence,
    settings: Settings,
    latency: Latency | None,
    rules: Sequence[str],
) -> dict[str, str]:
    """Settings and provenance of a plan."""
    about = {
        "dataset": f"{dataset.path.name}, {len(dataset)} positions",
        "texts": f"{len(evidence.texts)}; values are of {len(evidence.report)} of them",
        **{role: _short(dataset.metadata.get(role)) for role in ("target", "draft", "prompts")},
        "texts sampled with": str(settings.target),
        "draft temperatures": ", ".join(f"{step.temperature:g}" for step in settings.drafts),
        "otmd": __version__,
    }
    if latency:
        about["latency"] = f"target alone {1e3 * latency.alone:.2f} ms, context {latency.context}"
    about |= {f"rule {name}": CANDIDATES[name].title for name in rules}
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


def advice(rows: Sequence[Row], prompts: int, latency: Latency | None) -> list[str]:
    """Advice in sentences: the decision, its support, where more drafts stop paying, the headroom.

    ``prompts`` is how many the dataset has; about half of them are held out.
    """
    unit = "tokens a second" if latency else "tokens a step"
    best = max(rows, key=lambda row: row.fitted)
    speed = ""
    value = f"{best.value:.2f} {unit} [{best.low:.2f}, {best.high:.2f}]"
    warnings = _few_prompts(best.without.size, prompts)
    said = [_decision(best, rows, value, prompts), *_led_by(rows, best), *warnings]
    if latency:
        times, *ends = (part * latency.alone for part in (best.value, best.low, best.high))
        alone = f"the {1.0 / latency.alone:.2f} {unit} of the target alone"
        speed = f"{times:.2f}× [{ends[0]:.2f}, {ends[1]:.2f}] {alone}"
        if times <= 1.0:
            chosen = f"{_named(best)}, the best on the fitting half, has {value}"
            return [f"Do not draft: {chosen}, {speed}.", *warnings]
        if ends[0] <= 1.0:
            said.insert(0, f"Undecided whether to draft: {speed}, not significant.")
        else:
            said.append(f"That is {speed}.")
    said += [*_by_engine(rows), _when_it_stops(best, rows)]
    return [*said, _headroom(best)] if best.by_entropy else said


def _decision(best: Row, rows: Sequence[Row], value: str, prompts: int) -> str:
    engines = [row for row in rows if CANDIDATES[row.rule].engines]
    baseline = max(engines, key=lambda row: row.fitted, default=best)
    if baseline is best:
        return f"Take {_named(best)}: {value}."
    gain = difference(best, baseline)
    compared = (
        f"compared with the best that engines run, {_named(baseline)}: {_percent(gain, baseline)}"
    )
    if gain[1] > 0:
        return f"Take {_named(best)}: {value}; {compared}."
    measured = best.without.size
    needed = prompts_needed(best, baseline, measured) if gain[0] > 0 else None
    more = (
        f"about {needed} prompts would show it (now {prompts}, of which {measured} measure)"
        if needed
        else "it is not ahead on the held-out half"
    )
    chosen = f"Chosen on the fitting half: {_named(best)}, {value}"
    return f"Undecided. {chosen}; {compared}, not significant; {more}."


def _led_by(rows: Sequence[Row], best: Row) -> list[str]:
    leader = max(rows, key=lambda row: row.value)
    if leader is best:
        return []
    gain = difference(leader, best)
    significance = "significant, but it was picked there" if gain[1] > 0 else "not significant"
    ahead = f"{_named(leader)} is ahead of it: {_percent(gain, best)}, {significance}"
    return [f"The choice is that of the fitting half; on the held-out half {ahead}."]


def _few_prompts(measured: int, prompts: int) -> list[str]:
    if measured >= FEW_PROMPTS:
        return []
    many = f"Only {measured} of {prompts} prompts measure"
    return [f"{many}: intervals over so few are wide, and may miss the truth."]


def _by_engine(rows: Sequence[Row]) -> list[str]:
    """The best rows of the engines that most servers run, by themselves."""
    sentences = []
    for engine in ("vLLM", "SGLang"):
        runs = [row for row in rows if engine in CANDIDATES[row.rule].engines]
        if runs:
            best = max(runs, key=lambda row: row.fitted)
            ends = f"[{best.low:.2f}, {best.high:.2f}]"
            sentences.append(
                f"The best of {engine} alone: {_named(best)}, {best.value:.2f} {ends}."
            )
    return sentences


def _headroom(best: Row) -> str:
    most = max(best.optimal, best.proportional, best.ceiling)
    law = f"no law of {_drafts(best.choice.shape[0])} that was fitted here would exceed {100 * most:.1f}%"
    return (
        f"At its first level {100 * best.rate:.1f}% are accepted; the optimum of the same drafts is "
        f"{100 * best.optimal:.1f}%, and {law}."
    )


def _when_it_stops(best: Row, rows: Sequence[Row]) -> str:
    alike = sorted(
        (row for row in rows if row.rule == best.rule), key=lambda row: row.choice.drafts
    )
    for smaller, larger in pairwise(alike):
        gain = difference(larger, smaller)
        if gain[1] <= 0:
            more = f"{_percent(gain, smaller)} with {larger.choice.drafts}"
            return f"No significant gain beyond {_drafts(smaller.choice.drafts)}: {more}."
    most = alike[-1].choice.drafts
    if most < best.most_tried:
        tried = f"Up to {_drafts(best.most_tried)} were tried"
        return f"{tried}; on the fitting half {most} was best."
    if len(alike) == 1:
        return f"More than {_drafts(most)} were not tried."
    return f"More drafts pay up to {most}, the most that was tried for this rule."


def _drafts(count: int) -> str:
    return f"{count} draft{'s' * (count > 1)}"


def _temperatures(row: Row) -> str:
    return " or ".join(f"{temperature:g}" for temperature in row.draft_temperatures)


def _named(row: Row) -> str:
    choice = row.choice
    chain = max(choice.shape) == 1
    shape = f"a chain of {len(choice.shape)}" if chain else f"the tree {choice.tree}"
    details = [part for part in (choice.variant, f"draft T {_temperatures(row)}") if part]
    return f"{row.rule} with {shape} ({', '.join(details)})"


def _percent(gain: tuple[float, float, float], base: Row) -> str:
    mean, low, high = (100 * part / base.value for part in gain)
    return f"{mean:+.1f}% [{low:+.1f}, {high:+.1f}]"


def _ranking(rows: Sequence[Row], unit: str) -> Table:
    heads = ["rule", unit, "low", "high", "bound", "tree", "drafts", "law", "draft T", "engines"]
    table: list[list[Cell]] = []
    for row in rows:
        numbers = [row.value, row.low, row.high, row.bound, row.choice.tree, row.choice.drafts]
        engines = ", ".join(CANDIDATES[row.rule].engines) or "–"
        table.append([row.rule, *numbers, row.choice.variant, _temperatures(row), engines])
    note = (
        "Lossless rules alone. Trees and parameters were chosen on the fitting half of the prompts; values "
        "and 95% intervals (jackknife over prompts) are of the held-out half. Bound: the value if every step "
        "accepted the most that any lossless rule may with the same drafts."
    )
    return Table("Ranking", heads, table, note, interval=(unit, "low", "high"))


def _depths(rows: Sequence[Row]) -> Table:
    depth = max(len(row.acceptance) for row in rows)
    table = []
    for row in rows:
        none = [None] * (depth - len(row.acceptance))
        table.append([row.rule, row.choice.tree, *row.acceptance, *none])
    note = (
        "P(at least k drafts are accepted): what vLLM takes as synthetic_acceptance_rates, and llama.cpp "
        "as --spec-synthetic-acceptance-rates, for a chain as long as the tree is deep."
    )
    heads = ["rule", "tree", *(f"≥ {k + 1}" for k in range(depth))]
    return Table("Acceptance by depth", heads, table, note, decimals=3)


def _losses(rows: Sequence[Row]) -> Table:
    table = []
    for row in rows:
        bounds = (row.proportional, row.ceiling)
        shares = (row.rate, row.optimal, row.optimal - row.rate, *bounds, *row.by_entropy)
        table.append([row.rule, *(100 * part for part in shares), *row.by_domain.values()])
    note = (
        "At the first level, on every eighth token: how often a draft is accepted, α* of the same drafts, "
        "and what no rule exceeds with other laws of as many drafts (π ∝ q: the probability that a token is "
        "drafted is proportional to q; fitted π: a function of q, from the fitting half). Then "
        "acceptance by thirds of the target's entropy, and tokens per step by domain."
    )
    heads = ["rule", "accepted %", "α* %", "gap", "π ∝ q %", "fitted π %"]
    heads += ["sure %", "between %", "open %", *rows[0].by_domain]
    return Table("Where drafts are lost", heads, table, note)
