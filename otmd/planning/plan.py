"""A plan: what to draft and how to verify it, from a dataset of texts, with the tables that it rests on."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from otmd import __version__
from otmd.harness.dataset import Dataset
from otmd.measurement.page import Cell, Table
from otmd.planning.candidates import certain_trees, likeliest_trees
from otmd.planning.ceiling import ceilings
from otmd.planning.latency import Latency
from otmd.planning.positions import CANDIDATES, Settings, chances_table
from otmd.planning.ranking import Evidence, Row, difference, prompts_needed, rank
from otmd.planning.texts import longest_text, read_texts
from otmd.probabilities import Processing, validate_count, validate_counts

# The optimal rule takes long, and preference accepts more than recursive rejection and K-SEQ.
_SLOW = ("optimal", "stratified-optimal", "rrs", "k-seq")
DEFAULT_RULES = tuple(name for name in CANDIDATES if name.removesuffix("-paths") not in _SLOW)
NO_PATHS = "likeliest paths are not ranked: the dataset has none (otmd collect --paths 10)"


class Plan(NamedTuple):
    """What could be drafted, and what to do.

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
        known = [row for row in best if row.by_entropy]
        return [*tables, _losses(known)] if known else tables


def make_plan(
    dataset: Dataset,
    output: Path,
    *,
    rules: Sequence[str] = DEFAULT_RULES,
    num_drafts: int | Iterable[int] = (1, 2, 4),
    budgets: int | Iterable[int] = (4, 8, 16),
    depth: int = 6,
    target: Processing | None = None,
    draft_temperatures: Sequence[float] = (),
    latency: Latency | None = None,
    seed: int = 0,
    workers: int | None = None,
    progress: bool = False,
    overwrite: bool = False,
) -> Plan:
    """Rank what could be drafted and how it could be verified, and say what to do.

    Parameters
    ----------
    dataset : Dataset
        Texts, as :func:`read_texts` takes them.
    output : Path
        A folder in which finished texts are kept, so that an interrupted run goes on.
    rules : sequence of str
        Names of :data:`otmd.planning.CANDIDATES`.
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
        For texts with gaps, settings that they were not sampled with, texts shorter than the depth, or a
        latency table that does not reach a budget.
    """
    num_drafts = validate_counts("num_drafts", num_drafts)
    budgets, depth = validate_counts("budgets", budgets), validate_count("depth", depth)
    texts = read_texts(dataset)
    cut_at = longest_text(dataset.metadata, texts)
    if cut_at <= depth:
        raise ValueError(
            f"dataset: its longest text has {cut_at} tokens, wanted more than the depth {depth}: "
            "otmd collect --consecutive 48, or --depth"
        )
    if latency:
        latency.check(max(budgets))
    sampled = _sampled_with(dataset, target)
    temperatures = tuple(draft_temperatures) or (sampled.temperature or 1.0,)
    drafts = tuple(replace(sampled, temperature=own) for own in temperatures)
    tabled = tuple(rule for rule in rules if CANDIDATES[rule].variants)
    settings = Settings(tabled, tuple(sorted(num_drafts)), sampled, drafts, seed)
    trees = {}
    if "static-tree" in rules:
        trees["static-tree", "", 1.0] = certain_trees(dataset, texts, max(budgets), depth)
    if "likeliest" in rules and (paths := likeliest_trees(dataset, texts, depth)):
        trees["likeliest", "", 1.0] = paths
    if not (tabled or trees):
        raise ValueError(NO_PATHS)
    table = chances_table(dataset, texts, settings, output, workers, progress, overwrite)
    evidence = Evidence(table, ceilings(dataset, texts, settings), texts, cut_at, depth, trees)
    rows = rank(evidence, sorted(budgets), latency)
    prompts = len(evidence.report)
    about = {
        "dataset": f"{dataset.path.name}, {len(dataset)} positions",
        "texts": f"{len(texts)}; values are of {prompts} of them",
        **{role: _short(dataset.metadata.get(role)) for role in ("target", "draft", "prompts")},
        "texts sampled with": str(sampled),
        "draft temperatures": ", ".join(f"{step.temperature:g}" for step in drafts),
        "otmd": __version__,
    }
    if latency:
        about["latency"] = f"target alone {1e3 * latency.alone:.2f} ms, context {latency.context}"
    about |= {f"rule {name}": CANDIDATES[name].title for name in rules}
    said = advice(rows, prompts, latency)
    if "likeliest" in {*rules} - {rule for rule, *_ in trees}:
        said.append(f"{NO_PATHS.capitalize()}.")
    return Plan(rows, said, {k: v for k, v in about.items() if v})


def _short(about: Any) -> str:
    """What a dataset's metadata say of a model or of its prompts, in a line."""
    if not isinstance(about, dict):
        return ""
    known = (about.get(name) for name in ("name", "revision", "backend", "count", "sha256"))
    return ", ".join(str(part) for part in known if part)


def _sampled_with(dataset: Dataset, target: Processing | None) -> Processing:
    known = dataset.metadata.get("temperature")
    if not isinstance(known, (int, float)):
        return target or Processing()
    own = Processing(float(known))
    if target not in (None, own):
        raise ValueError(
            f"--temperature: got {target}, but the texts were sampled at {known:g} without cuts; collect "
            "others (otmd collect --temperature), or leave it out: --draft-temperature is free"
        )
    return own


def advice(rows: Sequence[Row], prompts: int, latency: Latency | None) -> list[str]:
    """What to do, in sentences: the decision, when more drafts stop paying, and the headroom."""
    unit = "tokens a second" if latency else "tokens a step"
    best = max(rows, key=lambda row: row.fitted)
    engines = [row for row in rows if CANDIDATES[row.rule].engine]
    value = f"{best.value:.2f} {unit} [{best.low:.2f}, {best.high:.2f}]"
    known = max(engines, key=lambda row: row.fitted, default=best)
    gain = difference(best, known)
    if known is best:
        decision = f"Take {_named(best)}: {value}. {_led_by(rows, best)}"
    elif gain[1] > 0:
        beside = f"{_percent(gain, known)} beside the best that engines run, {_named(known)}"
        decision = f"Take {_named(best)}: {value}, {beside}."
    else:
        needed = prompts_needed(best, known, prompts) if gain[0] > 0 else None
        wanted = f"{needed} prompts would" if needed else "on this half it is behind"
        decision = (
            f"No difference that this data shows between {_named(best)} ({value}) and the best that "
            f"engines run, {_named(known)}: {_percent(gain, known)}; {wanted}."
        )
    said = [decision, _when_it_stops(best, rows)]
    if best.by_entropy:
        drafts = f"{best.choice.shape[0]} draft{'s' * (best.choice.shape[0] > 1)}"
        most = max(best.optimal, best.proportional, best.ceiling)
        said.append(
            f"At its first level {100 * best.rate:.1f}% are accepted; the optimum of the same drafts is "
            f"{100 * best.optimal:.1f}%, and no law of {drafts} that was fitted here would exceed "
            f"{100 * most:.1f}%."
        )
    if latency:
        alone = 1.0 / latency.alone
        said.append(
            f"The target alone writes {alone:.1f} {unit}: {best.value / alone:.2f}× with drafts."
        )
    return said


def _led_by(rows: Sequence[Row], best: Row) -> str:
    leader = max(rows, key=lambda row: row.value)
    gain = difference(leader, best)
    if leader is best:
        return "Nothing else led it on either half."
    shown = "but was picked there" if gain[1] > 0 else "no difference that this data shows"
    ahead = f"{_named(leader)} is ahead by {_percent(gain, best)}"
    return f"It led on the fitting half; on the other, {ahead}, {shown}."


def _when_it_stops(best: Row, rows: Sequence[Row]) -> str:
    own = sorted((row for row in rows if row.rule == best.rule), key=lambda row: row.choice.drafts)
    for smaller, larger in pairwise(own):
        gain = difference(larger, smaller)
        if gain[1] <= 0:
            told = f"{_percent(gain, smaller)} with {larger.choice.drafts}"
            return f"Beyond {smaller.choice.drafts} drafts this data shows no gain ({told})."
    return f"Up to {own[-1].choice.drafts} drafts, the most that was tried, more of them pay."


def _named(row: Row) -> str:
    choice = row.choice
    chain = max(choice.shape) == 1
    shape = f"a chain of {len(choice.shape)}" if chain else f"the tree {choice.tree}"
    details = [part for part in (choice.variant, f"T {choice.draft_temperature:g}") if part]
    return f"{row.rule} with {shape} ({', '.join(details)})"


def _percent(gain: tuple[float, float, float], base: Row) -> str:
    mean, low, high = (100 * part / base.value for part in gain)
    return f"{mean:+.1f}% [{low:+.1f}, {high:+.1f}]"


def _ranking(rows: Sequence[Row], unit: str) -> Table:
    heads = ["rule", unit, "low", "high", "tree", "drafts", "law", "draft T", "engine"]
    found: list[list[Cell]] = []
    for row in rows:
        variant, draft, engine = *row.choice[:2], CANDIDATES[row.rule].engine
        numbers = [row.value, row.low, row.high, row.choice.tree, row.choice.drafts]
        found.append([row.rule, *numbers, variant, draft, "yes" if engine else "no"])
    note = (
        "Lossless rules alone. Trees and parameters were chosen on half of the prompts; values and 95% "
        "intervals (a bootstrap over prompts) are of the other half."
    )
    return Table("Ranking", heads, found, note, interval=(unit, "low", "high"))


def _depths(rows: Sequence[Row]) -> Table:
    depth = max(len(row.acceptance) for row in rows)
    found = []
    for row in rows:
        none = [None] * (depth - len(row.acceptance))
        found.append([row.rule, row.choice.tree, *row.acceptance, *none])
    note = (
        "P(at least k drafts are accepted): what vLLM takes as synthetic_acceptance_rates, and llama.cpp "
        "as --spec-synthetic-acceptance-rates, for a chain as long as the tree is deep."
    )
    heads = ["rule", "tree", *(f"≥ {k + 1}" for k in range(depth))]
    return Table("Acceptance by depth", heads, found, note, decimals=3)


def _losses(rows: Sequence[Row]) -> Table:
    found = []
    for row in rows:
        bounds = (row.proportional, row.ceiling)
        shares = (row.rate, row.optimal, row.optimal - row.rate, *bounds, *row.by_entropy)
        found.append([row.rule, *(100 * part for part in shares), *row.by_domain.values()])
    note = (
        "At the first level, on every eighth token: how often a draft is accepted, α* of the same drafts, "
        "and what no rule exceeds with other laws of as many drafts (π ∝ q: the chance that a token is "
        "drafted is proportional to q; fitted π: a function of q that the fitting half says). Then "
        "acceptance by thirds of the target's entropy, and tokens per step by domain."
    )
    heads = ["rule", "accepted %", "α* %", "gap", "π ∝ q %", "fitted π %"]
    heads += ["sure %", "between %", "open %", *rows[0].by_domain]
    return Table("Where drafts are lost", heads, found, note)
