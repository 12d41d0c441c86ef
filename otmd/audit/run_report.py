"""The result of an audit of a recorded run, and its report."""

from __future__ import annotations

import re
from dataclasses import asdict, astuple, dataclass
from typing import Any, NamedTuple

import numpy as np

from otmd.audit.boundary_cases import OUTPUT_MISSING, BoundaryCase, rows_in_words
from otmd.audit.claims import CLAIMS, DRAFT_TOKENS, MOST_CELLS, NUM_STATEMENTS, OUTPUTS, Band, Claim
from otmd.audit.metrics import Metric, PooledAcceptance
from otmd.audit.statistics import detectable_total_variation
from otmd.audit.verifiers import Report

_GROUPS_SHOWN = 3
_ALARM = {True: "REFUTED", False: "none"}
_NOT_TOO_HIGH = "no more is accepted than a lossless verifier can"


class Listing(NamedTuple):
    """A table of the report. ``line`` formats a row as text; floats have this many ``decimals`` on a page."""

    title: str
    heads: tuple[str, ...]
    note: str
    decimals: int
    line: str
    rows: list[tuple]

    def __str__(self) -> str:
        lines = [f"{self.title}. {self.note}"]
        if "<" in self.line:
            # The rows are aligned in columns: the heads take their widths, without the number formats.
            lines.append(re.sub(r"\+?(\d+)\.\d[ef]", r"\1", self.line).format(*self.heads))
        lines += [self.line.format(*row).replace("nan", "  –") for row in self.rows]
        return "\n  ".join(lines)


@dataclass(frozen=True)
class Statement:
    """The verdict on the outputs, or on the drafts.

    Attributes
    ----------
    subject : {"outputs", "drafts"}
    outcome : {"PASS", "FAULTY", "INCONCLUSIVE"}
    num_samples : int
        The number of tokens that were tested.
    orders : tuple of str
        The orders of the tokens in which a deviation would have been seen.
    detectable : float
        The total variation, over all these tokens and in one of these orders, that would have been found with
        probability 0.9; 1 if nothing was tested.
    bias : float
        The total variation that has to be found for a PASS.
    rows_needed : int or None
        About how many rows like these are needed to find it; None if nothing is tested.
    reasons : tuple of str
        The faults in words; empty if none was found.
    groups : str
        By what rows are grouped: "depth", or "token index".
    """

    subject: str
    outcome: str
    num_samples: int
    orders: tuple[str, ...]
    detectable: float
    bias: float
    rows_needed: int | None
    reasons: tuple[str, ...]
    groups: str = "depth"

    def __str__(self) -> str:
        head = f"{self.subject.capitalize()}: {self.outcome}."
        if not self.orders:
            return f"{head} Nothing could be tested."
        size = f"A bias of {self.detectable:.3f} or more (total variation) would have been found"
        orders = f"{', '.join(self.orders[:-1])} or {self.orders[-1]}"
        where = f"if it shows over all {self.num_samples:,} in order of {orders}"
        power = f"{size} with probability 0.9 {where}"
        if self.detectable >= 1:
            power = f"{self.num_samples:,} are too few to find any bias"
        more = f"larger ones also at one {self.groups}, in one request or at every 8th row"
        if self.detectable > self.bias:
            more = f"for {self.bias:g} about {self.rows_needed:,} rows are needed"
        return f"{head} {power}; {more}."


@dataclass(frozen=True)
class RecordedRunAudit(Report):
    """The result of an audit of a recorded run, or of texts alone.

    A sound engine's run is called faulty with probability ``false_alarm`` at most, shared equally by three
    statements about each claim of ``otmd.audit.claims``, the acceptance, and the least likely output and
    draft. Impossible tokens and malformed rows are proof and need no share.

    Attributes
    ----------
    num_rows : int
        The number of rows; of texts, that of their tokens.
    law : str
        The name of the law of the drafts; empty for texts.
    bias : float
        The total variation that has to be found with probability 0.9 for a run to pass.
    vocabularies : dict of int to (int, tuple of int)
        From the size of a recorded vocabulary to the number of its rows and the first of them.
    claims, bands : tuple of Claim, tuple of tuple of Band
        The claims for which anything was recorded; the classes of output tokens by p/q, and by p.
    """

    num_rows: int
    law: str
    false_alarm: float
    bias: float
    cases: tuple[BoundaryCase, ...]
    vocabularies: dict[int, tuple[int, tuple[int, ...]]]
    claims: tuple[Claim, ...]
    acceptance: PooledAcceptance | None
    bands: tuple[tuple[Band, ...], ...]
    metrics: tuple[Metric, ...]

    @property
    def statements(self) -> tuple[Statement, ...]:
        """The verdicts on the outputs and on the drafts; none on a side without tokens and faults."""
        statements = (self._statement(side) for side in (OUTPUTS, DRAFT_TOKENS))
        return tuple(x for x in statements if x.orders or x.reasons)

    def _statement(self, side: str) -> Statement:
        ordered = [claim for claim in self._claims_of(side) if CLAIMS[claim.name].key]
        detectable = max((claim.detectable for claim in ordered), default=1.0)
        fewest = min((claim.num_samples for claim in ordered), default=0)
        rows_needed = None
        if ordered:
            # Below 1, which it is at a million samples, it falls with the root of their number.
            at_a_million = detectable_total_variation(10**6, MOST_CELLS, ordered[0].level)
            samples_needed = 1e6 * (at_a_million / self.bias) ** 2
            rows_needed = int(np.ceil(samples_needed * self.num_rows / fewest))
        reasons = self._reasons(side)
        passed = detectable <= self.bias and (side != OUTPUTS or self._missing is None)
        return Statement(
            subject=side,
            outcome="FAULTY" if reasons else "PASS" if passed else "INCONCLUSIVE",
            num_samples=fewest,
            orders=tuple(CLAIMS[claim.name].order for claim in ordered),
            detectable=detectable,
            bias=self.bias,
            rows_needed=rows_needed,
            reasons=reasons,
            groups=self._groups,
        )

    @property
    def _groups(self) -> str:
        return "depth" if self.law else "token index"

    def _claims_of(self, side: str) -> list[Claim]:
        return [claim for claim in self.claims if CLAIMS[claim.name].side == side]

    @property
    def _missing(self) -> BoundaryCase | None:
        return next((case for case in self.cases if case.kind == OUTPUT_MISSING), None)

    def _reasons(self, side: str) -> tuple[str, ...]:
        of_drafts = side == DRAFT_TOKENS
        reasons = [
            f"{case.count} {'rows have' if case.count > 1 else 'row has'} {case.what}"
            for case in self.cases
            if case.kind != OUTPUT_MISSING and case.kind.startswith("draft_") == of_drafts
        ]
        refuted = [claim for claim in self._claims_of(side) if claim.refuted]
        for words in dict.fromkeys(CLAIMS[claim.name].refuted for claim in refuted):
            alike = [claim for claim in refuted if CLAIMS[claim.name].refuted == words]
            reasons.append(words + _where(alike))
        if not of_drafts and self.acceptance and self.acceptance.too_high:
            reasons.append(str(self.acceptance))
        return tuple(reasons)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The faults in words; empty if none was found."""
        return self._reasons(OUTPUTS) + self._reasons(DRAFT_TOKENS)

    @property
    def faulty(self) -> bool:
        """Whether a fault was found."""
        return bool(self.reasons)

    @property
    def _level(self) -> float:
        return self.false_alarm / NUM_STATEMENTS

    @property
    def _first(self) -> Statement | None:
        return next(iter(self.statements), None)

    @property
    def detectable(self) -> float:
        """The total variation that would have been found with probability 0.9, by the weakest test.

        It is that of the outputs, and that of the drafts only if no output was recorded.
        """
        return self._first.detectable if self._first else 1.0

    @property
    def rows_needed(self) -> int | None:
        """About how many rows like these are needed to find :attr:`bias`; None if nothing is tested."""
        return self._first.rows_needed if self._first else None

    @property
    def outcome(self) -> str:
        """FAULTY if a fault was found; else PASS or INCONCLUSIVE, as the outputs are.

        The drafts decide if no output was recorded. INCONCLUSIVE says that there are too few
        rows to tell, or positions without their output token.
        """
        if self.faulty:
            return "FAULTY"
        return self._first.outcome if self._first and self._missing is None else "INCONCLUSIVE"

    @property
    def verdict(self) -> str:
        """One sentence, which begins with the outcome."""
        many = self.num_rows > 1
        rows = f"{self.num_rows:,} {'row' if self.law else 'token'}{'s' if many else ''}"
        if self.faulty:
            return f"FAULTY: in {rows}, {'; '.join(self.reasons)}"
        if self._first is None:
            return f"INCONCLUSIVE: {rows} with nothing to test, as no row has an output token or drafts"
        if self._missing is not None:
            missing = self._missing.rows
            return f"INCONCLUSIVE: no fault found in {rows}, but {missing} without an output token"
        if self.outcome == "PASS":
            return f"PASS: no fault found in {rows}"
        few = f"{rows} {'are' if many else 'is'} too few to find a bias of {self.bias:g}"
        return f"INCONCLUSIVE: no fault found, but {few}; about {self.rows_needed:,} would do"

    def to_dict(self) -> dict[str, Any]:
        """Everything, as values that JSON can hold."""
        names = ("outcome", "verdict", "faulty", "rows_needed")
        values = {name: getattr(self, name) for name in names} | asdict(self)
        values["statements"] = [asdict(x) for x in self.statements]
        values["cases"] = [asdict(x) | {"what": x.what, "usually": x.usually} for x in self.cases]
        values["claims"] = [asdict(x) | {"refuted": x.refuted} for x in self.claims]
        return values

    @property
    def tables(self) -> list[Listing]:
        """The tests, and the other tables that have rows."""
        tests, *others = (self._tests(), self._tests_by_depth(), *self._tables_of_rows())
        return [tests, *(table for table in others if table.rows)]

    def _tests(self) -> Listing:
        rows = [(claim.name, _ALARM[claim.refuted], *astuple(claim)[1:6]) for claim in self.claims]
        if acceptance := self.acceptance:
            numbers = (acceptance.num_positions, np.nan, acceptance.p_value, np.nan, np.nan)
            rows.append((_NOT_TOO_HIGH, _ALARM[acceptance.too_high], *numbers))
        return Listing(
            "Tests",
            ("claim", "alarm", "samples", "p-value", "by bets", "bias ≥", "finds"),
            f"An alarm is a p-value of at most {self._level:.1e}, or a bias above 0. The p-value is for a "
            "number of rows that was decided in advance, the one by bets is valid whenever one looks. Finds: "
            "the bias that the test finds with probability 0.9.",
            4,
            "{0:<66} {2:>8} {3:>8.1e} {4:>8.1e} {5:>7.4f} {6:>6.3f}  {1}",
            rows,
        )

    def _tests_by_depth(self) -> Listing:
        return Listing(
            f"Tests by {self._groups}",
            ("rows", "of", "alarm", "samples", "p-value", "in order of"),
            "The smallest p-value by bets of these rows, multiplied for the number of groups: an alarm is "
            f"one of at most {self._level:.1e}. Other groups are listed if they show a fault.",
            4,
            "{0:<40} {1:<7} {3:>8} {4:>8.1e}  {5:<19} {2}",
            self._depth_rows(),
        )

    def _tables_of_rows(self) -> list[Listing]:
        several = self.vocabularies if len(self.vocabularies) > 1 else {}
        return [
            Listing(
                "Rows that no sound engine writes",
                ("what", "rows", "usually"),
                "Each is a fault, but for positions without an output token, which rule out a PASS.",
                0,
                "{1}: {0}; usually {2}",
                [(case.what, case.rows, case.usually) for case in self.cases],
            ),
            Listing(
                "Rows of several vocabularies",
                ("tokens", "rows"),
                "If they are of several models, audit them apart.",
                0,
                "{0} tokens: {1}",
                [(size, rows_in_words(*several[size])) for size in several],
            ),
            Listing(
                "Output tokens by class",
                ("class", "observed", "expected", "deviations"),
                "Of p/q and of p, in standard deviations. Deviations without an alarm above mean nothing.",
                1,
                "{0:<44} {1:>9} {2:>11.1f} {3:>+11.1f}",
                [astuple(band) for bands in self.bands for band in bands],
            ),
            Listing(
                "Metrics",
                ("metric", "value", "definition"),
                "Many numbers are called acceptance; each is listed with its definition.",
                4,
                "{1:8.4f}  {0}: {2}",
                [astuple(metric) for metric in self.metrics],
            ),
        ]

    def _depth_rows(self) -> list[tuple]:
        """A row for each group of each side: the smallest p-value of its bets."""
        rows: dict[tuple[str, str], tuple] = {}
        for claim in self.claims:
            kind = CLAIMS[claim.name]
            for group in claim.groups:
                alarm = _ALARM[group.p_value <= claim.level]
                row = (group.name, kind.side, alarm, group.num_samples, group.p_value, kind.order)
                smallest = rows.setdefault(row[:2], row)
                if group.p_value < smallest[4]:
                    rows[row[:2]] = row
        no_alarm = all(row[2] == _ALARM[False] for row in rows.values())
        too_few = len({name for name, _ in rows}) <= 2
        return [] if too_few and no_alarm else [*rows.values()]

    @property
    def details(self) -> list[str]:
        """The sentences below the verdict, and the tables, each after an empty line."""
        return [*self.said[1:], *(f"\n{table}" for table in self.tables if table.rows)]

    @property
    def said(self) -> list[str]:
        """The verdict, what could be found, the usual cause of bad rows and the acceptance, in sentences."""
        lines = [self.verdict]
        lines += map(str, self.statements)
        if self.cases:
            most = max(self.cases, key=lambda case: (case.kind != OUTPUT_MISSING, case.count))
            lines.append(f"Usual cause of such rows: {most.usually}")
        alarm = f"sound engine is called faulty with probability {self.false_alarm:g} at most."
        lines.append(f"Drafts by law {self.law}; a {alarm}" if self.law else f"A {alarm}")
        if self.acceptance:
            lines.append(f"Acceptance: {self.acceptance}.")
        return lines


def _where(refuted: list[Claim]) -> str:
    """The orders and the groups in which claims with the same words are refuted."""
    orders = [CLAIMS[claim.name].order for claim in refuted if CLAIMS[claim.name].order]
    words = [f"in order of {', '.join(orders)}"] if orders else []
    groups = [group for claim in refuted for group in claim.refuted_groups]
    by_p_value = sorted(groups, key=lambda group: group.p_value)
    names = [*dict.fromkeys(group.name for group in by_p_value)][:_GROUPS_SHOWN]
    words += [f"in these groups: {', '.join(names)}"] if names else []
    return f" ({'; '.join(words)})" if words else ""
