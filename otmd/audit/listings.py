"""The tables of the report on a recorded run, as text and for pages."""

from __future__ import annotations

import re
from dataclasses import astuple
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from otmd.storage.files import one_line

if TYPE_CHECKING:
    from otmd.audit.report import RecordedRunAudit

_ALARM = {True: "REFUTED", False: "none"}
_NOT_TOO_HIGH = "no more is accepted than a lossless verifier can"
_METRICS = {
    "acceptance rate": "accepted tokens / positions that were reached with drafts",
    "optimal acceptance rate": "mean of α*(p, q) over positions that were reached with drafts: Σ min(p, q) "
    "for one draft",
    "draft acceptance rate": "accepted tokens / draft tokens proposed, those that were not reached too "
    "(vLLM's draft acceptance rate, SGLang's spec_accept_rate)",
    "accepted drafts per step": "accepted tokens / steps, the bonus token not counted",
    "tokens per step": "1 + accepted tokens / steps: block efficiency, the bonus token counted (vLLM's mean "
    "acceptance length; SGLang's spec_accept_length counts the prefill's token too)",
    "conditional acceptance": "accepted / reached at this depth",
    "acceptance per step": "accepted at this depth / steps (vLLM's per-position acceptance rate)",
}


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
            lines.append(re.sub(r"\+?(\d+)\.\d[efg]", r"\1", self.line).format(*self.heads))
        lines += [self.line.format(*row).replace("nan", "  –") for row in self.rows]
        return "\n  ".join(lines)


def tables_of(audit: RecordedRunAudit) -> list[Listing]:
    """The tests, and the other tables that have rows."""
    tests, *others = (_tests(audit), _tests_by_group(audit), *_of_rows(audit))
    return [tests, *(table for table in others if table.rows)]


def _tests(audit: RecordedRunAudit) -> Listing:
    rows = [(x.name, _ALARM[x.refuted], *astuple(x)[3:8]) for x in audit.claims]
    if acceptance := audit.acceptance:
        numbers = (acceptance.num_positions, np.nan, acceptance.p_value, np.nan, np.nan)
        rows.append((_NOT_TOO_HIGH, _ALARM[acceptance.too_high], *numbers))
    return Listing(
        "Tests",
        ("claim", "alarm", "samples", "p-value", "anytime", "bias ≥", "detectable"),
        f"An alarm is a p-value of at most {audit.level:.1e}, or a bias above 0. The p-value is for a "
        "number of rows that was decided in advance, the anytime p-value (by bets) is valid whenever one "
        "looks. Detectable: the bias that the test finds with probability 0.9.",
        4,
        "{0:<66} {2:>8} {3:>8.1e} {4:>8.1e} {5:>7.4f} {6:>10.3f}  {1}",
        rows,
    )


def _tests_by_group(audit: RecordedRunAudit) -> Listing:
    # Of each group and side, the order with the smallest p-value.
    rows: dict[tuple[str, str], tuple] = {}
    for claim in audit.claims:
        for group in claim.groups:
            key = (group.name, claim.side)
            if key not in rows or group.p_value < rows[key][4]:
                rows[key] = (*key, _ALARM[group.p_value <= claim.level], *group[2:], claim.order)
    no_alarm = all(row[2] == _ALARM[False] for row in rows.values())
    too_few = len({name for name, _ in rows}) <= 2
    return Listing(
        f"Tests by {audit.groups}",
        ("rows", "of", "alarm", "samples", "anytime", "TV", "detectable", "in order of"),
        "The smallest anytime p-value of these rows, multiplied for the number of groups: an alarm is "
        f"one of at most {audit.level:.1e}. TV: the total variation on four cells, which noise makes too "
        "large. Detectable: about the bias that these bets find with probability 0.9. Other groups are "
        "listed if they show a fault.",
        4,
        "{0:<40} {1:<7} {3:>8} {4:>8.1e} {5:>6.3f} {6:>10.3f}  {7:<19} {2}",
        [] if too_few and no_alarm else [*rows.values()],
    )


def _of_rows(audit: RecordedRunAudit) -> list[Listing]:
    several = audit.vocabularies if len(audit.vocabularies) > 1 else {}
    title, shown = audit.examples
    return [
        Listing(
            "Rows that no sound engine records",
            ("what", "rows", "usually"),
            "Each is a fault, or else a mistake of the record, which rules out a PASS.",
            0,
            "{1}: {0}; usually {2}",
            [(x.what, _in_words(x.num_rows, x.first_rows), x.usually) for x in audit.events],
        ),
        Listing(
            "Rows of several vocabularies",
            ("tokens", "rows"),
            "If they are of several models, audit them apart.",
            0,
            "{0} tokens: {1}",
            [(size, _in_words(*rows)) for size, rows in several.items()],
        ),
        Listing(
            "Tokens by class",
            ("class", "observed", "expected", "deviations"),
            "Deviations are in standard deviations. Without an alarm above they mean nothing.",
            1,
            "{0:<44} {1:>9} {2:>11.1f} {3:>+11.1f}",
            [*audit.bands],
        ),
        Listing(
            f"Rows of the class that deviates most ({title})",
            ("row", "request", "depth", "token", "p", "q"),
            "The first of them.",
            6,
            "{0:>8} {1:<20} {2:>5} {3:>8} {4:>9.3g} {5:>9.3g}",
            [x._replace(request=one_line(x.request)[:20]) for x in shown],
        ),
        Listing(
            "Metrics",
            ("metric", "value", "definition"),
            "Many numbers are called acceptance; each is listed with its definition.",
            4,
            "{1:8.4f}  {0}: {2}",
            [(name, x, _METRICS[name.partition(" at depth")[0]]) for name, x in audit.metrics.items()],
        ),
    ]


def first_of(count: int, first_rows: tuple[int, ...]) -> str:
    """The first rows of a number of them."""
    return ", ".join(map(str, first_rows)) + ", …" * (count > len(first_rows))


def _in_words(count: int, first_rows: tuple[int, ...]) -> str:
    return f"{count} row{'s' if count > 1 else ''} ({first_of(count, first_rows)})"
