"""The ranking: the best tree of every rule within each budget, chosen on half of the prompts."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from otmd.measurement.summary import prompt_weights
from otmd.planning.latency import Latency, Shape
from otmd.planning.positions import CANDIDATES
from otmd.planning.texts import Steps, Text, reached_by_block, reached_by_chances, steps_along
from otmd.probabilities import FloatArray

RESAMPLES = 2000
TAIL = 0.025
LEAST_PROMPTS = 4


class Choice(NamedTuple):
    """What is set: a variant of the law, the draft's temperature, and the drafts a node by level."""

    variant: str
    draft_temperature: float
    shape: Shape

    @property
    def drafts(self) -> int:
        """How many tokens the tree holds."""
        return int(np.cumprod(self.shape).sum())

    @property
    def tree(self) -> str:
        """The shape as it is shown."""
        return "×".join(map(str, self.shape))


class Row(NamedTuple):
    """A rule within a budget, with the choice that was best on the other half of the prompts.

    ``value`` is tokens per second where times are known, else per step, with the ends ``low`` and ``high`` of
    its 95% interval; ``tokens_per_step`` is a mean. ``acceptance`` holds P(at least k drafts are accepted), k
    = 1, 2, …. ``rate`` and ``optimal`` (α*; NaN where unknown) are of the first level, ``by_domain`` tokens
    per step, and ``by_entropy`` the rate by thirds of the target's entropy. ``samples`` are resampled values,
    and ``fitted`` is the value on the half that the choice was made on.
    """

    rule: str
    budget: int
    choice: Choice
    value: float
    low: float
    high: float
    tokens_per_step: float
    acceptance: list[float]
    rate: float
    optimal: float
    by_domain: dict[str, float]
    by_entropy: list[float]
    samples: FloatArray
    fitted: float

    def to_dict(self) -> dict[str, Any]:
        """The row in JSON's types."""
        found = {k: None if v != v else v for k, v in self._asdict().items() if k != "samples"}
        candidate = CANDIDATES[self.rule]
        found |= {"title": candidate.title, "engine": candidate.engine}
        return found | {"choice": self.choice._asdict() | {"drafts": self.choice.drafts}}


def shapes(counts: Sequence[int], budget: int, depth: int) -> Iterator[Shape]:
    """Every tree within budget and depth whose levels draft ever fewer a node, out of ``counts``."""
    left: list[Shape] = [(n,) for n in counts if n <= budget]
    while left:
        shape = left.pop()
        yield shape
        if len(shape) < depth:
            longer = [(*shape, n) for n in counts if n <= shape[-1]]
            left += [more for more in longer if np.cumprod(more).sum() <= budget]


class Evidence:
    """A table of :func:`otmd.planning.chances_table`, ready to be read along its texts.

    Texts were cut at ``cut_at`` tokens, and no tree is deeper than ``depth``. ``fit`` and ``report`` number
    the texts of the two halves, alternating within domains.
    """

    def __init__(self, table: pl.DataFrame, texts: Sequence[Text], cut_at: int, depth: int) -> None:
        if len(texts) < LEAST_PROMPTS:
            raise ValueError(
                f"dataset: got {len(texts)} prompts, wanted at least {LEAST_PROMPTS}: trees are chosen on "
                "half of them and told on the other"
            )
        self.texts, self.cut_at, self.depth = texts, cut_at, depth
        order = sorted(range(len(texts)), key=lambda i: (texts[i].domain, texts[i].prompt_id))
        self.fit, self.report = np.array(order[::2]), np.array(order[1::2])
        self.columns: dict[tuple[str, str, float], dict[int, list[FloatArray]]] = {}
        self.means: dict[tuple[str, str, float, int], tuple[float, float, list[float]]] = {}
        edges = [float(table["entropy"].quantile(q) or 0.0) for q in (1 / 3, 2 / 3)]
        keys = ["rule", "variant", "draft_temperature", "num_drafts"]
        for group in table.sort("text", "place").partition_by(keys, maintain_order=True):
            rule, variant, draft, n = group.select(keys).row(0)
            parts = group.partition_by("text", maintain_order=True)
            column = self.columns.setdefault((rule, variant, draft), {})
            column[n] = [part["chance"].to_numpy() for part in parts]
            known = group.filter(pl.col("text").is_in(self.report.tolist()))
            self.means[rule, variant, draft, n] = _means(known, edges)

    def steps(self, rule: str, choice: Choice) -> list[Steps]:
        """What a decoder with this rule and choice does along each text."""
        column = self.columns[rule, choice.variant, choice.draft_temperature]
        found = []
        for i in range(len(self.texts)):
            if rule == "block":
                reached = reached_by_block(column[1][i], len(choice.shape))
            else:
                levels = np.stack([column[n][i] for n in choice.shape], axis=1)
                reached = reached_by_chances(levels)
            found.append(steps_along(reached, self.cut_at, self.depth))
        return found

    def choices(self, rule: str, budget: int) -> list[Choice]:
        """Everything that may be set for a rule within a budget."""
        return [
            Choice(variant, draft, shape)
            for own, variant, draft in self.columns
            if own == rule
            for shape in shapes(sorted(self.columns[own, variant, draft]), budget, self.depth)
        ]


def _means(rows: pl.DataFrame, edges: list[float]) -> tuple[float, float, list[float]]:
    """Mean rate, mean α*, and the rate by thirds of the entropy."""
    # Block verification accepts q/p, capped, of a first token.
    chances = np.minimum(rows["chance"].to_numpy(), 1.0)
    gaps = rows["optimal"].to_numpy() - chances
    known = gaps[~np.isnan(gaps)]
    bins = np.digitize(rows["entropy"].to_numpy(), edges)
    thirds = [float(chances[bins == i].mean()) if (bins == i).any() else np.nan for i in range(3)]
    optimal = float(chances.mean() + known.mean()) if known.size else np.nan
    return float(chances.mean()), optimal, thirds


def rank(evidence: Evidence, budgets: Sequence[int], latency: Latency | None = None) -> list[Row]:
    """The best choice of every rule within every budget of tokens, best first.

    Raises ValueError for a latency table that does not reach a budget.
    """
    weights = prompt_weights(len(evidence.report), RESAMPLES, 0).astype(np.float64)
    rows = []
    for rule in dict.fromkeys(rule for rule, _, _ in evidence.columns):
        fitted: dict[Choice, tuple[float, int]] = {}
        for choice in evidence.choices(rule, max(budgets)):
            cost = latency.step(choice.shape) if latency else 1.0
            value = _mean(_totals(evidence.steps(rule, choice))[evidence.fit]) / cost
            # Of equals the smaller tree.
            fitted[choice] = (value, -choice.drafts)
        taken = None
        for budget in sorted(budgets):
            within = [choice for choice in fitted if choice.drafts <= budget]
            best = max(within, key=fitted.__getitem__, default=taken)
            # A larger budget that changes nothing has no row.
            if best is not None and best != taken:
                taken = best
                cost = latency.step(best.shape) if latency else 1.0
                rows.append(_row(evidence, rule, budget, best, cost, weights, fitted[best][0]))
    return sorted(rows, key=lambda row: (-round(row.value, 12), row.choice.drafts, row.budget))


def _totals(steps: Sequence[Steps]) -> FloatArray:
    """Tokens and steps of each text, shape (texts, 2)."""
    return np.array([[one.tokens, one.steps] for one in steps])


def _mean(totals: FloatArray) -> float:
    return float(totals[:, 0].sum() / max(totals[:, 1].sum(), 1e-300))


def _row(
    evidence: Evidence,
    rule: str,
    budget: int,
    choice: Choice,
    cost: float,
    weights: FloatArray,
    fitted: float,
) -> Row:
    steps = evidence.steps(rule, choice)
    totals = _totals(steps)[evidence.report]
    drawn = weights @ totals
    samples = drawn[:, 0] / np.maximum(drawn[:, 1], 1e-300) / cost
    low, high = np.quantile(samples, [TAIL, 1 - TAIL]).tolist()
    kept = np.sum([steps[i].kept for i in evidence.report], axis=0) / totals[:, 1].sum()
    domains: dict[str, list[Steps]] = {}
    for i in evidence.report:
        domains.setdefault(evidence.texts[i].domain, []).append(steps[i])
    mean = _mean(totals)
    first = evidence.means[rule, choice.variant, choice.draft_temperature, choice.shape[0]]
    rate, optimal, by_entropy = first
    by_domain = {name: _mean(_totals(own)) for name, own in domains.items()}
    head = (rule, budget, choice, mean / cost, low, high, mean, kept.tolist())
    return Row(*head, rate, optimal, by_domain, by_entropy, samples, fitted)


def difference(first: Row, second: Row) -> tuple[float, float, float]:
    """How much more the first row yields, and its 95% interval over the same prompts."""
    low, high = np.quantile(first.samples - second.samples, [TAIL, 1 - TAIL]).tolist()
    return first.value - second.value, low, high


def prompts_needed(first: Row, second: Row, prompts: int) -> int | None:
    """How many prompts would tell two rows apart, if the difference stays as it is; None for none."""
    gain = abs(first.value - second.value)
    spread = float((first.samples - second.samples).std(ddof=1))
    # Half of the prompts choose the trees.
    return None if gain <= 1e-9 else 2 * int(np.ceil(prompts * (1.96 * spread / gain) ** 2))
