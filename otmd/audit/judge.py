"""The statistics of the columns of a table: is each claim refuted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from otmd.audit import claims, statistics
from otmd.audit.claims import CLASS_COLUMNS, DRAFTS, OUTPUTS, ROWS, SLOTS
from otmd.audit.statistics import CAUTIONS, NUMBERS_OF_CELLS, STAKES, CellBets, EventBets
from otmd.audit.table import POSITION, Table
from otmd.probabilities import BoolArray, FloatArray, IntArray
from otmd.storage.files import shortened

# Most cells of equal size for the numbers of a claim. Over many positions a fault changes slowly along the
# order, so few cells show it sooner.
MOST_CELLS = 16
_SAMPLES_A_CELL = 100
# A group has fewer rows, and shows larger deviations only.
_CELLS_OF_GROUPS = (2, 4, 16)
# Later groups of a grouping share the labels of the first ones.
MOST_GROUPS = 64
_BELOW_ONE = float(np.nextafter(1.0, 0.0))
PARTS = 4
# Equal drafts have close numbers: this moves a difference of 0 to the middle of the first of 16 cells.
_SHIFT = 1 / 32
# Batches are powers of 2, as a rule, so slots of a batch recur in groups of every eighth row.
_EVERY = 8


class Classes(NamedTuple):
    """Classes of M outcomes: labels (M,), and the probabilities (M, K) or (K,) under the claim."""

    labels: IntArray
    probs: FloatArray


class Group(NamedTuple):
    """Bets on the samples of one group, such as those of one depth; ``title`` says by what they are grouped.

    The p-value is valid at any time, and corrected for the number of bets of the claim. ``excess`` is the
    total variation on four cells as counted, which noise makes too large; ``detectable`` is about the total
    variation that these bets find with probability 0.9.
    """

    title: str
    name: str
    num_samples: int
    p_value: float
    excess: float
    detectable: float


class Rate(NamedTuple):
    """A rate over positions, and the most that is expected: of acceptance, or of agreement after a context.

    The p-value is that of a bet that the rate is above the mean of what is expected, valid at any time. One
    of at most ``level`` is an alarm.
    """

    num_positions: int
    rate: float
    most: float
    p_value: float
    level: float

    @property
    def too_high(self) -> bool:
        """Whether the rate is significantly above what is expected."""
        return self.p_value <= self.level


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
    def refuted_by_tests(self) -> bool:
        """Whether the test or the bets contradict the claim, which leave out impossible tokens."""
        return min(self.p_value, self.betting_p_value) <= self.level

    @property
    def refuted(self) -> bool:
        """Whether any of the three statements contradicts the claim."""
        return self.refuted_by_tests or self.total_variation_bound > 0

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


class Evidence(NamedTuple):
    """M outcomes of a claim, their classes and groups.

    The ``numbers`` (M,) in [0, 1) are uniform given the past if the claim holds; ``impossible`` outcomes have
    probability zero under it.
    """

    claim: claims.Hypothesis
    numbers: FloatArray
    impossible: BoolArray
    classes: Sequence[Classes] = ()
    groupings: Sequence[Grouping] = ()


def judge_claims(
    table: Table, level: float, *, of_texts: bool, rng: np.random.Generator
) -> tuple[Claim, ...]:
    """Judge the claims for which anything was recorded. Only the bounds count impossible outcomes."""
    recorded: list[Evidence] = []
    for side in (OUTPUTS, DRAFTS):
        lines = is_tested(table, side)
        tested = {name: column[lines] for name, column in table.items()}
        position = np.cumsum(table["slot"] == POSITION)[lines] - 1
        groupings = _groupings(tested, position, side, of_texts)
        impossible = tested["mass"] == 0
        # The order of token ids, the last one, links drafts.
        numbers = np.zeros(position.size)
        for claim in claims.ORDERED[side]:
            if claim.order in claims.BY_Q and side == OUTPUTS and not tested["q_is_known"].any():
                # These would be the order of token ids.
                continue
            # A uniform point of [before, before + mass).
            spread = tested["mass"] * rng.random(position.size)
            numbers = np.minimum(tested[claim.name] + spread, _BELOW_ONE)
            classes = [classes_of(tested, claim.order)] if claim.order in CLASS_COLUMNS else []
            recorded.append(Evidence(claim, numbers, impossible, classes, groupings))
        if side == DRAFTS:
            recorded += _links(tested, numbers)
    return tuple(judge_claim(x, level, rng=rng) for x in recorded if x.numbers.size)


def classes_of(tested: Table, order: str) -> Classes:
    """The recorded classes of output tokens in an order."""
    label, masses = CLASS_COLUMNS[order]
    return Classes(tested[label], np.stack([tested[name] for name in masses], axis=1))


def _groupings(tested: Table, position: IntArray, side: str, of_texts: bool) -> list[Grouping]:
    deepest = MOST_GROUPS - 2
    depth = np.minimum(tested["depth"], deepest)
    word = "token index" if of_texts else "depth"
    names = {d + 1: f"{word} {d}{' or more' * (d == deepest)}" for d in range(deepest + 1)}
    names[0] = "bonus tokens (no drafts)"
    is_bonus = (side == OUTPUTS) & (tested["num_drafts"] == 0) & (not of_texts)
    by_depth = np.where(is_bonus, 0, depth + 1)
    requests: dict[str, int] = {}
    by_request = [requests.setdefault(x, len(requests)) for x in tested["request"].tolist()]
    first = {label % MOST_GROUPS: f"request {shortened(x)}" for x, label in reversed(requests.items())}
    by_row = position % _EVERY
    _, starts = np.unique(by_row, return_index=True)
    every = {int(by_row[i]): f"every {_EVERY}th row from row {tested['row'][i]}" for i in starts}
    return [
        Grouping(word, by_depth, {x: names[x] for x in dict.fromkeys(by_depth.tolist())}, listed=True),
        Grouping("request", np.array(by_request, np.int64) % MOST_GROUPS, first),
        Grouping("position in the batch", by_row, every),
    ]


def _links(tested: Table, numbers: FloatArray) -> Iterator[Evidence]:
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
    for claim, linked, earlier, repeats, of_repeat in (
        (SLOTS, in_slots, in_slots - 1, "repeats_slot", "repeat_in_slots"),
        (ROWS, in_rows, starts[at[in_rows] - 1] + slot[in_rows], "repeats_row", "repeat_of_row"),
    ):
        lines = drawn[linked]
        now, before = numbers[lines], numbers[drawn[earlier]]
        prob = tested[of_repeat][lines]
        repetitions = Classes(tested[repeats][lines].astype(np.int64), np.stack([1.0 - prob, prob], axis=1))
        parts = ((PARTS * now).astype(np.int64) - (PARTS * before).astype(np.int64)) % PARTS
        quarters = Classes(parts, np.full(PARTS, 1 / PARTS))
        difference = (now - before + _SHIFT) % 1.0
        yield Evidence(claim, difference, np.zeros(lines.size, bool), [repetitions, quarters])


def judge_claim(evidence: Evidence, level: float, *, rng: np.random.Generator) -> Claim:
    """Make the three statements of a :class:`Claim`."""
    claim, numbers, impossible, classes, groupings = evidence
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
        quarters = _equal_cells(numbers[rows], PARTS).labels
        excess = np.abs(np.bincount(quarters, minlength=PARTS) / max(1, quarters.size) - 1 / PARTS)
        return Group(
            title=grouping.title,
            name=name,
            num_samples=path.size,
            p_value=min(1.0, statistics.anytime_p_value(path) / part),
            excess=0.5 * float(excess.sum()),
            detectable=_detectable_by_bets(path.size, level * part),
        )

    groups = []
    for label, name in grouping.names.items():
        rows = possible & (grouping.labels == label)
        path = _bets_on_numbers(numbers[rows], _CELLS_OF_GROUPS)
        gains[rows] = np.diff(path, prepend=0.0)
        groups.append(judged(name, rows, path, 0.5 * share / MOST_GROUPS))
    name = f"each {grouping.title} by itself"
    return [*groups, judged(name, possible, np.cumsum(gains[possible]), 0.5 * share)]


def _detectable_by_bets(num_samples: int, level: float) -> float:
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


def judge_rate(table: Table, happened: str, most: str, level: float) -> Rate | None:
    """Whether events happen more often than with the probabilities of a column, where it is no NaN."""
    lines = ~np.isnan(table[most])
    if not lines.any():
        return None
    events, probs = table[happened][lines], table[most][lines]
    # With a stake of s·a the factor is 1 + s(X − a) ≤ exp(s(X − a)). So the last wealth is above 1 only if
    # more events happened than the probabilities expect.
    bets = [EventBets(stake * probs) for stake in STAKES]
    wealth = statistics.mean_wealth([bet.update(events, probs) for bet in bets])
    p_value = statistics.anytime_p_value(wealth[-1:])
    return Rate(events.size, float(events.mean()), float(probs.mean()), p_value, level)


def is_tested(table: Table, side: str) -> BoolArray:
    """Lines (M,) of the tested tokens of a side."""
    return (table["token"] >= 0) & ((table["slot"] == POSITION) == (side == OUTPUTS))


def improbable_rows(table: Table, level: float) -> dict[str, IntArray]:
    """Rows with tokens so improbable that a sound run has any with probability ``level``, by event."""
    # A tail mass is at most x with probability x at most; there is one for each token of the side.
    rows = {}
    for kind, side in (("output_improbable", OUTPUTS), ("draft_improbable", DRAFTS)):
        lines = is_tested(table, side) & (table["mass"] > 0)
        small = table["tail"] * np.count_nonzero(is_tested(table, side)) <= level
        rows[kind] = np.unique(table["row"][lines & small])
    return rows
