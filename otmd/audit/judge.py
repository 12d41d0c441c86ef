"""The statistics of the columns of a table: is each claim refuted, and where do tokens deviate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from otmd.audit import claims, statistics
from otmd.audit.claims import CLAIMS, CLASSES, DRAFTS, OUTPUTS, ROWS, SLOTS
from otmd.audit.statistics import CAUTIONS, NUMBERS_OF_CELLS, STAKES, CellBets, EventBets
from otmd.audit.table import POSITION, Table
from otmd.probabilities import BoolArray, FloatArray, IntArray
from otmd.storage.files import one_line

# Most cells of equal size for the numbers of a claim. Over many positions a fault changes slowly along the
# order, so few cells show it sooner.
MOST_CELLS = 16
_SAMPLES_A_CELL = 100
# A group has fewer rows, and shows larger deviations only.
_CELLS_OF_GROUPS = (2, 4, 16)
# Later groups of a grouping share the labels of the first ones.
MOST_GROUPS = 64
_BELOW_ONE = float(np.nextafter(1.0, 0.0))
_PARTS = 4
# Equal drafts have close numbers: this moves a difference of 0 to the middle of the first of 16 cells.
_SHIFT = 1 / 32
# Batches are powers of 2, as a rule, so slots of a batch recur in groups of every eighth row.
_EVERY = 8
_EXAMPLES = 10


class Classes(NamedTuple):
    """Classes of M outcomes: labels (M,), and the probabilities (M, K) or (K,) under the claim."""

    labels: IntArray
    probs: FloatArray


@dataclass(frozen=True)
class Group:
    """Bets on some of the rows.

    Attributes
    ----------
    title, name : str
        By what rows are grouped, such as "depth", and which group this is.
    num_samples : int
        The number of its samples.
    p_value : float
        Valid at any time, and corrected for the number of bets of the claim.
    excess : float
        The total variation on four cells, as counted: an estimate, too large by noise.
    detectable : float
        About the total variation that these bets find with probability 0.9.
    """

    title: str
    name: str
    num_samples: int
    p_value: float
    excess: float
    detectable: float


@dataclass(frozen=True)
class Claim:
    """Three statements about a claim on many positions, each with the same false-alarm rate.

    Attributes
    ----------
    name, side, order : str
        The name of the claim, "outputs" or "drafts", and the order of the tokens, "" for links of drafts.
    num_samples : int
        The number of samples.
    p_value : float
        That of the exact G-test of counts in equal cells, valid if the number of rows was fixed in advance.
    betting_p_value : float
        Valid at any time: half of its share is for all rows, the rest for the groups of them.
    total_variation_bound : float
        A lower bound of the mean total variation from the claimed distributions, over the held-out half of
        the samples.
    detectable : float
        The total variation on the cells that the G-test finds with probability 0.9.
    level : float
        The false-alarm rate of each statement.
    groups : tuple of Group
        The bets on groups of rows.
    """

    name: str
    side: str
    order: str
    num_samples: int
    p_value: float
    betting_p_value: float
    total_variation_bound: float
    detectable: float
    level: float
    groups: tuple[Group, ...] = ()

    @property
    def refuted(self) -> bool:
        """Whether any of the three statements contradicts the claim."""
        smallest = min(self.p_value, self.betting_p_value)
        return smallest <= self.level or self.total_variation_bound > 0

    @property
    def refuted_groups(self) -> list[Group]:
        """The groups in which the bets refute the claim, those with the smallest p-value first."""
        refuted = [group for group in self.groups if group.p_value <= self.level]
        return sorted(refuted, key=lambda group: group.p_value)


class Grouping(NamedTuple):
    """A partition of samples: labels (M,), known before the outcomes, and the name of each label.

    ``listed`` groupings have all their groups in the report, others only those that show a fault.
    """

    title: str
    labels: IntArray
    names: dict[int, str]
    listed: bool = False


def judge_claims(
    table: Table, level: float, *, of_texts: bool, rng: np.random.Generator
) -> tuple[Claim, ...]:
    """Judge the claims for which anything was recorded. Only the bounds count impossible outcomes."""
    is_tested = table["token"] >= 0
    found = []
    for side in (OUTPUTS, DRAFTS):
        rows = is_tested & ((table["slot"] == POSITION) == (side == OUTPUTS))
        tested = {name: column[rows] for name, column in table.items()}
        position = np.cumsum(table["slot"] == POSITION)[rows] - 1
        groupings = _groupings(tested, position, side, of_texts)
        # The order of token ids, the last one, links drafts.
        numbers = np.zeros(position.size)
        for claim in claims.ORDERED[side]:
            if claim.order in claims.BY_Q and side == OUTPUTS and not tested["q_is_known"].any():
                # These would be the order of token ids.
                continue
            # A uniform point of [before, before + mass).
            spread = tested["mass"] * rng.random(position.size)
            numbers = np.minimum(tested[claim.name] + spread, _BELOW_ONE)
            classes = [_classes(tested, claim.order)] if claim.order in CLASSES else []
            found.append((claim, numbers, tested["mass"] == 0, classes, groupings))
        if side == DRAFTS:
            found += _links(tested, position, numbers)
    return tuple(
        judge_claim(claim, numbers, impossible, classes, groupings, level, rng=rng)
        for claim, numbers, impossible, classes, groupings in sorted(
            found, key=lambda evidence: CLAIMS.index(evidence[0])
        )
        if numbers.size
    )


def _classes(tested: Table, order: str) -> Classes:
    masses = [tested[f"mass of class {k} by {order}"] for k in range(len(CLASSES[order]))]
    return Classes(tested[f"class by {order}"], np.stack(masses, axis=1))


def _groupings(tested: Table, position: IntArray, side: str, of_texts: bool) -> list[Grouping]:
    deepest = MOST_GROUPS - 2
    depth = np.minimum(tested["depth"], deepest)
    word = "token index" if of_texts else "depth"
    names = {d + 1: f"{word} {d}{' or more' * (d == deepest)}" for d in range(deepest + 1)}
    names[0] = "extra tokens (no drafts)"
    is_extra = (side == OUTPUTS) & (tested["num_drafts"] == 0) & (not of_texts)
    by_depth = np.where(is_extra, 0, depth + 1)
    requests: dict[str, int] = {}
    by_request = [requests.setdefault(x, len(requests)) for x in tested["request"].tolist()]
    first = {
        label % MOST_GROUPS: f"request {one_line(x)}" for x, label in reversed(requests.items())
    }
    by_row = position % _EVERY
    _, starts = np.unique(by_row, return_index=True)
    every = {int(by_row[i]): f"every {_EVERY}th row from row {tested['row'][i]}" for i in starts}
    return [
        Grouping(word, by_depth, {x: names[x] for x in _in_order(by_depth)}, listed=True),
        Grouping("request", np.array(by_request, np.int64) % MOST_GROUPS, first),
        Grouping("position in the batch", by_row, every),
    ]


def _in_order(labels: IntArray) -> list[int]:
    """The labels that occur, in the order in which they first do."""
    return list(dict.fromkeys(labels.tolist()))


Evidence = tuple[claims.Hypothesis, FloatArray, BoolArray, list[Classes], list[Grouping]]


def _links(tested: Table, position: IntArray, numbers: FloatArray) -> list[Evidence]:
    """The evidence on links of drafts: to the draft before, and to that of the slot at the position before.

    Of independent drafts, the difference of their numbers modulo 1 is uniform, and so is that of their
    quarters. That a draft repeats an earlier one has a known probability.
    """
    drawn = np.flatnonzero(tested["mass"] > 0)
    slot = tested["slot"][drawn]
    starts = np.flatnonzero(slot == 0)
    sizes = np.diff(np.append(starts, drawn.size))
    at = np.repeat(np.arange(starts.size), sizes)
    in_slots = np.flatnonzero(slot > 0)
    in_rows = np.flatnonzero(at > 0)
    in_rows = in_rows[slot[in_rows] < sizes[at[in_rows] - 1]]
    in_rows = in_rows[~np.isnan(tested["repeat_of_row"][drawn[in_rows]])]
    earlier = {SLOTS: in_slots - 1, ROWS: starts[at[in_rows] - 1] + slot[in_rows]}
    names = {SLOTS: ("repeats_slot", "repeat_in_slots"), ROWS: ("repeats_row", "repeat_of_row")}
    found: list[Evidence] = []
    for claim, linked in ((SLOTS, in_slots), (ROWS, in_rows)):
        lines = drawn[linked]
        now, before = numbers[lines], numbers[drawn[earlier[claim]]]
        happened, prob = (tested[name][lines] for name in names[claim])
        repeats = Classes(happened.astype(np.int64), np.stack([1.0 - prob, prob], axis=1))
        parts = ((_PARTS * now).astype(np.int64) - (_PARTS * before).astype(np.int64)) % _PARTS
        quarters = Classes(parts, np.full(_PARTS, 1 / _PARTS))
        difference = (now - before + _SHIFT) % 1.0
        found.append((claim, difference, np.zeros(lines.size, bool), [repeats, quarters], []))
    return found


def judge_claim(
    claim: claims.Hypothesis,
    numbers: FloatArray,
    impossible: BoolArray,
    classes: Sequence[Classes],
    groupings: Sequence[Grouping],
    level: float,
    *,
    rng: np.random.Generator,
) -> Claim:
    """Make the three statements of a :class:`Claim` on M outcomes.

    The ``numbers`` (M,) in [0, 1) are uniform given the past if the claim holds; ``impossible`` outcomes have
    probability zero under it.
    """
    num_cells = num_cells_for(numbers.size)
    cells = _equal_cells(numbers, num_cells)
    counted = [cells, *classes]
    bounds = [
        statistics.total_variation_bound(
            np.where(impossible, statistics.IMPOSSIBLE, of.labels),
            of.probs,
            level / len(counted),
            independent=False,
        )
        for of in counted
    ]
    possible = ~impossible
    observed = np.bincount(cells.labels[possible], minlength=num_cells)
    # The one group of a grouping has all rows.
    several = [grouping for grouping in groupings if len(grouping.names) > 1]
    groups = [
        group
        for grouping in several
        for group in _bets_by_group(numbers, possible, grouping, 0.5 / len(groupings), level)
    ]
    on_classes = [
        _bets(Classes(of.labels[possible], of.probs if of.probs.ndim == 1 else of.probs[possible]))
        for of in classes
    ]
    on_numbers = _bets_on_numbers(numbers[possible], NUMBERS_OF_CELLS)
    betting = statistics.anytime_p_value(statistics.mean_wealth([on_numbers, *on_classes]))
    if groupings:
        betting = min(1.0, 2.0 * betting, *(group.p_value for group in groups))
    listed = {grouping.title for grouping in groupings if grouping.listed}
    return Claim(
        name=claim.name,
        side=claim.side,
        order=claim.order,
        num_samples=numbers.size,
        p_value=statistics.exact_p_value(observed, cells.probs, level, rng=rng),
        betting_p_value=betting,
        total_variation_bound=max(bounds),
        detectable=statistics.detectable_total_variation(max(1, observed.sum()), num_cells, level),
        level=level,
        groups=tuple(group for group in groups if group.title in listed or group.p_value <= level),
    )


def num_cells_for(num_samples: int) -> int:
    """The number of equal cells of the G-test."""
    return max(2, min(MOST_CELLS, num_samples // _SAMPLES_A_CELL))


def _bets_by_group(
    numbers: FloatArray, possible: BoolArray, grouping: Grouping, share: float, level: float
) -> list[Group]:
    """Bets in each group by itself, and their product, with p-values divided by their part of the ``share``.

    Half of it is for the product, which finds deviations that differ from group to group, the rest is split
    equally. The number of rows of a group may depend on what came out, so no test of a fixed number fits.
    """
    gains = np.zeros(numbers.size)

    def judged(name: str, rows: BoolArray, path: FloatArray, part: float) -> Group:
        quarters = _equal_cells(numbers[rows], _PARTS).labels
        excess = np.abs(
            np.bincount(quarters, minlength=_PARTS) / max(1, quarters.size) - 1 / _PARTS
        )
        return Group(
            title=grouping.title,
            name=name,
            num_samples=path.size,
            p_value=min(1.0, statistics.anytime_p_value(path) / part),
            excess=0.5 * float(excess.sum()),
            detectable=detectable_by_bets(path.size, level * part),
        )

    groups = []
    for label, name in grouping.names.items():
        rows = possible & (grouping.labels == label)
        path = _bets_on_numbers(numbers[rows], _CELLS_OF_GROUPS)
        gains[rows] = np.diff(path, prepend=0.0)
        groups.append(judged(name, rows, path, 0.5 * share / MOST_GROUPS))
    name = f"each {grouping.title} by itself"
    return [*groups, judged(name, possible, np.cumsum(gains[possible]), 0.5 * share)]


def detectable_by_bets(num_samples: int, level: float) -> float:
    """About the total variation on two halves of the order that bets find with probability 0.9."""
    # The wealth grows by KL ≥ 2·(total variation)² a sample, less what the bets spend on learning; the factor
    # is that of simulations.
    return min(1.0, float(np.sqrt(-np.log(level) / (2.0 * max(1, num_samples)))) * 1.35)


def _bets_on_numbers(numbers: FloatArray, numbers_of_cells: Sequence[int]) -> FloatArray:
    paths = [_bets(_equal_cells(numbers, count)) for count in numbers_of_cells]
    return statistics.mean_wealth(paths)


def _equal_cells(numbers: FloatArray, num_cells: int) -> Classes:
    labels = np.minimum((numbers * num_cells).astype(np.int64), num_cells - 1)
    return Classes(labels, np.full(num_cells, 1.0 / num_cells))


def _bets(cells: Classes) -> FloatArray:
    bets = CellBets(cells.probs.shape[-1], CAUTIONS)
    return statistics.mean_wealth(bets.update(cells.labels, cells.probs))


def bet_on_events(happened: BoolArray, largest: FloatArray) -> float:
    """P-value, valid at any time, of the claim that events (M,) have at most the probabilities (M,)."""
    # With a stake of s·a the factor is 1 + s(X − a) ≤ exp(s(X − a)). So the last wealth is above 1 only if
    # more events happened than the probabilities expect.
    bets = [EventBets(stake * largest) for stake in STAKES]
    wealth = statistics.mean_wealth([bet.update(happened, largest) for bet in bets])
    return statistics.anytime_p_value(wealth[-1:])


@dataclass(frozen=True)
class PooledAcceptance:
    """Acceptance over all positions with sound drafts, compared with the ceiling of lossless verifiers.

    Rows with an output token of target probability zero are left out: they are proof.

    Attributes
    ----------
    num_positions : int
        The number of positions.
    rate : float
        The share of them whose output token was among the drafts.
    ceiling : float
        The mean of α*.
    p_value : float
        That of a bet that the rate is above the ceiling, valid at any time; 1 for a rate below.
    level : float
        A p-value of at most this is an alarm.
    """

    num_positions: int
    rate: float
    ceiling: float
    p_value: float
    level: float

    @property
    def too_high(self) -> bool:
        """Whether the rate is significantly above the ceiling, which proves a fault."""
        return self.p_value <= self.level

    def __str__(self) -> str:
        rate = f"{self.rate:.4f} of {self.num_positions:,} positions with drafts accept one"
        limit = f"a lossless verifier accepts at most {self.ceiling:.4f} of them on average"
        if self.rate <= self.ceiling:
            return f"{rate}; {limit}"
        size = "significantly more" if self.too_high else "more, but by no more than sampling noise"
        return f"{rate}; {limit}; this is {size} (p-value {self.p_value:.1e})"


def judge_acceptance(table: Table, level: float) -> PooledAcceptance | None:
    """Acceptance over all positions with a known ceiling; None if there are none."""
    known = ~np.isnan(table["ceiling"])
    accepted, ceilings = table["accepted"][known], table["ceiling"][known]
    if not accepted.size:
        return None
    p_value = bet_on_events(accepted, ceilings)
    return PooledAcceptance(
        accepted.size, float(accepted.mean()), float(ceilings.mean()), p_value, level
    )


@dataclass(frozen=True)
class Repetitions:
    """Positions whose context came before, and whose tokens agree with those of then.

    Attributes
    ----------
    num_positions : int
        The number of positions with an earlier context, but those of greedy decoding.
    agree, expected : int, float
        How many have the token that came out first, and how many independent draws would have.
    p_value : float
        That of a bet that more agree than independent draws do, valid at any time.
    level : float
        A p-value of at most this says that the draws depend on one another.
    """

    num_positions: int
    agree: int
    expected: float
    p_value: float
    level: float

    @property
    def dependent(self) -> bool:
        """Whether significantly more tokens agree than independent draws explain."""
        return self.p_value <= self.level

    def __str__(self) -> str:
        counted = (
            f"{self.num_positions:,} rows repeat a context, and {self.agree:,} of them its token"
        )
        expected = f"independent draws expect {self.expected:,.0f}"
        if not self.dependent:
            return f"{counted}; {expected}"
        return (
            f"{counted}, where {expected} (p-value {self.p_value:.1e}): drawn with a fixed key, such as a "
            "seed or a watermark. Each context counts once"
        )


def judge_repetitions(table: Table, level: float) -> Repetitions | None:
    """Whether tokens after equal contexts agree too often; None if no context is repeated."""
    again = ~np.isnan(table["agreement"])
    if not again.any():
        return None
    agrees, probs = table["agrees"][again], table["agreement"][again]
    p_value = bet_on_events(agrees, probs)
    return Repetitions(agrees.size, int(agrees.sum()), float(probs.sum()), p_value, level)


@dataclass(frozen=True)
class Band:
    """A class of tokens, and the number of output tokens in it.

    Attributes
    ----------
    name : str
        The class in words.
    observed : int
        The number of output tokens in it.
    expected : float
        The number that the targets expect.
    deviations : float
        The difference in standard deviations; 0 if the number cannot vary.
    """

    name: str
    observed: int
    expected: float
    deviations: float


def bands_of(table: Table, order: str) -> tuple[Band, ...]:
    """The classes of output tokens by p/q, p or earlier occurrences, without those that cannot vary."""
    names = CLASSES[order]
    labels, probs = _classes({name: x[is_output(table)] for name, x in table.items()}, order)
    observed = np.bincount(labels, minlength=len(names))
    expected = probs.sum(axis=0)
    spread = np.sqrt((probs * (1.0 - probs)).sum(axis=0))
    difference = observed - expected
    deviations = np.divide(difference, spread, out=np.zeros(difference.size), where=spread > 1e-6)
    bands = map(Band, names, observed.tolist(), expected.tolist(), deviations.tolist())
    varies = (spread > 0) | (observed != expected)
    return tuple(band for band, shown in zip(bands, varies, strict=True) if shown)


def quarters_of(table: Table, claim: Claim) -> tuple[Band, ...]:
    """The quarters of the output tokens in the order of a claim."""
    counts = np.bincount(_quarter(table, claim)[is_output(table)], minlength=_PARTS)
    expected = counts.sum() / _PARTS
    spread = np.sqrt(expected * (1 - 1 / _PARTS)) or 1.0
    return tuple(
        Band(
            f"quarter {k + 1} in order of {claim.order}", int(x), expected, (x - expected) / spread
        )
        for k, x in enumerate(counts)
    )


def _quarter(table: Table, claim: Claim) -> IntArray:
    """The quarter (M,) in which the middle of each token's mass lies, in the order of a claim."""
    middle = np.nan_to_num(table[claim.name] + 0.5 * table["mass"])
    return np.minimum((_PARTS * middle).astype(np.int64), _PARTS - 1)


@dataclass(frozen=True)
class Examples:
    """Rows of the class that holds most tokens too many.

    Attributes
    ----------
    title : str
        The class in words.
    rows : tuple of tuple
        The number of the row, its request and depth, the token, p and q; q is NaN if it is unknown.
    """

    title: str
    rows: tuple[tuple[int, str, int, int, float, float], ...]


def examples_of(table: Table, judged: Sequence[Claim]) -> Examples | None:
    """Rows that show the strongest deviation; None if no ordered claim is refuted."""
    refuted = [claim for claim in judged if claim.refuted and claim.order]
    if not refuted:
        return None
    claim = min(refuted, key=lambda x: min(x.p_value, x.betting_p_value))
    lines = is_output(table)
    if claim.side == DRAFTS:
        lines = (table["token"] >= 0) & ~lines
    label = _quarter(table, claim)
    names = [f"quarter {k + 1} in order of {claim.order}" for k in range(_PARTS)]
    expected = np.full(_PARTS, lines.sum() / _PARTS)
    if claim.side == OUTPUTS and claim.order in CLASSES:
        names = list(CLASSES[claim.order])
        of_lines = {name: column[lines] for name, column in table.items()}
        label, expected = (
            table[f"class by {claim.order}"],
            _classes(of_lines, claim.order).probs.sum(axis=0),
        )
    excess = np.bincount(label[lines], minlength=len(names)) - expected
    worst = int(np.argmax(excess / np.sqrt(np.maximum(expected, 1.0))))
    shown = np.flatnonzero(lines & (label == worst))[:_EXAMPLES]
    columns = (
        table[name][shown].tolist()
        for name in ("row", "request", "depth", "token", "mass", "draft_mass")
    )
    return Examples(f"{claim.side}: {names[worst]}", tuple(zip(*columns, strict=True)))


def is_output(table: Table) -> BoolArray:
    """Lines (M,) of output tokens that are tested."""
    return (table["slot"] == POSITION) & (table["token"] >= 0)


def improbable_rows(table: Table, level: float) -> dict[str, IntArray]:
    """Rows with tokens so improbable that a sound run has any with probability ``level``, by event."""
    # A tail mass is at most x with probability x at most; there is one for each token of the side.
    tested = table["token"] >= 0
    sides = {"output_improbable": is_output(table), "draft_improbable": tested & ~is_output(table)}
    return {
        kind: np.unique(
            table["row"][lines & (table["tail"] * lines.sum() <= level) & (table["mass"] > 0)]
        )
        for kind, lines in sides.items()
    }
