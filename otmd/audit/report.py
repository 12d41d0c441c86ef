"""The result of an audit of a recorded run, and its report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from otmd.audit.bands import Band, Example
from otmd.audit.base import Report
from otmd.audit.claims import CLAIMS, DRAFTS, EVENTS, MISTAKES, NUM_STATEMENTS, OUTPUTS
from otmd.audit.declared import NO_DRAFTS
from otmd.audit.judge import MOST_CELLS, Claim, Rate, num_cells_for
from otmd.audit.listings import Listing, first_of, tables_of
from otmd.audit.statistics import detectable_total_variation

_GROUPS_SHOWN = 3
# Logits that half precision confuses.
_CLOSE = 0.05
_IMPOSSIBLE = {
    OUTPUTS: ("output_impossible", "impossible_accepted"),
    DRAFTS: ("draft_impossible", "draft_never"),
}


class Event(NamedTuple):
    """Rows that no sound engine records: a fault, or a mistake of the record that rules out a PASS.

    ``kind`` is a key of ``otmd.audit.claims.EVENTS``; ``first_rows`` are counted from 1.
    """

    kind: str
    num_rows: int
    first_rows: tuple[int, ...]

    @property
    def what(self) -> str:
        """The fault of these rows, in words."""
        return EVENTS[self.kind][0]

    @property
    def usually(self) -> str:
        """The usual cause, in words."""
        return EVENTS[self.kind][1]

    def __str__(self) -> str:
        return f"{self.num_rows} {'rows have' if self.num_rows > 1 else 'row has'} {self.what}"


class Statement(NamedTuple):
    """The verdict on the outputs or on the drafts: PASS, FAULTY or INCONCLUSIVE.

    ``num_samples`` tokens were tested in these ``orders``. A total variation of ``detectable``, over all of
    them and in one order, would have been found with probability 0.9; it is 1 if nothing was tested.
    ``reasons`` are the faults in words, and ``groups`` says by what rows are grouped: "depth", or "token
    index".
    """

    subject: str
    outcome: str
    num_samples: int
    orders: tuple[str, ...]
    detectable: float
    reasons: tuple[str, ...]
    groups: str

    def __str__(self) -> str:
        head = f"{self.subject.capitalize()}: {self.outcome}."
        if not self.orders:
            return f"{head} Nothing could be tested."
        if self.detectable >= 1:
            return f"{head} {self.num_samples:,} are too few to find any bias."
        size = f"A bias of {self.detectable:.3f} or more (total variation) would have been found"
        orders = f"{', '.join(self.orders[:-1])} or {self.orders[-1]}"
        where = f"if it shows over all {self.num_samples:,} in order of {orders}"
        more = f"larger ones also at one {self.groups}, in one request or at every 8th row"
        return f"{head} {size} with probability 0.9 {where}; {more}."


@dataclass(frozen=True)
class RecordedRunAudit(Report):
    """The result of an audit of a recorded run, or of texts alone.

    A sound engine's run is called faulty with probability ``false_alarm`` at most, shared equally by three
    statements about each claim of ``otmd.audit.claims``, the acceptance, repeated contexts, and the least
    likely output and draft. Impossible tokens and malformed rows are proof and need no share.

    Attributes
    ----------
    num_rows : int
        The number of rows; of texts, that of their tokens.
    num_draft_tokens : int
        The number of drafts, those that have nothing to test too.
    num_in_drafted_steps : int
        The output tokens that were tested in steps with drafts: a PASS rests on them. Of texts and of plain
        decoding, all output tokens.
    law, rule : str
        The law of the drafts and the rule that were declared; empty for texts.
    bias : float
        The total variation that has to be found with probability 0.9 for a run to pass.
    events : tuple of Event
        Rows that no sound engine records.
    vocabularies : dict of int to (int, tuple of int)
        From the size of a recorded vocabulary to the number of its rows and the first of them.
    claims : tuple of Claim
        The claims for which anything was recorded.
    acceptance : Rate or None
        Acceptance over all positions with sound drafts, and the mean of α*, which no lossless verifier
        exceeds. Rows with an output token of target probability zero are left out: they are proof.
    repetitions : Rate or None
        Agreement with the token that came out first after the same context, and that of independent draws.
        Greedy positions are left out.
    gaps : tuple of float
        Of tokens that the settings exclude, how far the logit lies below that of the last one allowed.
    bands : tuple of Band
        The classes of output tokens by p/q and by p, and those of refuted claims (quarters of their order).
    examples : (str, tuple of Example)
        The class that deviates most, and the first rows of it; empty if no claim is refuted.
    metrics : dict of str to float
        The numbers that are called acceptance, by name.
    """

    num_rows: int
    num_draft_tokens: int
    num_in_drafted_steps: int
    law: str
    rule: str
    false_alarm: float
    bias: float
    events: tuple[Event, ...]
    vocabularies: dict[int, tuple[int, tuple[int, ...]]]
    claims: tuple[Claim, ...]
    acceptance: Rate | None
    repetitions: Rate | None
    gaps: tuple[float, ...]
    bands: tuple[Band, ...]
    examples: tuple[str, tuple[Example, ...]]
    metrics: dict[str, float]

    @property
    def statements(self) -> tuple[Statement, ...]:
        """The verdicts on the outputs and on the drafts; none on a side without tokens and faults."""
        statements = (self._statement(side) for side in (OUTPUTS, DRAFTS))
        return tuple(x for x in statements if x.orders or x.reasons)

    def _statement(self, side: str) -> Statement:
        ordered = [claim for claim in self.claims if claim.side == side and claim.order]
        detectable = max((claim.detectable for claim in ordered), default=1.0)
        reasons = self._reasons(side)
        passed = detectable <= self.bias
        if side == OUTPUTS:
            passed = self.detectable <= self.bias and not self.mistakes
        return Statement(
            subject=side,
            outcome="FAULTY" if reasons else "PASS" if passed else "INCONCLUSIVE",
            num_samples=min((claim.num_samples for claim in ordered), default=0),
            orders=tuple(claim.order for claim in ordered),
            detectable=detectable,
            reasons=reasons,
            groups=self.groups,
        )

    @property
    def groups(self) -> str:
        """The property by which rows are grouped."""
        return "depth" if self.law else "token index"

    @property
    def mistakes(self) -> tuple[Event, ...]:
        """Mistakes of the record, which prove no fault."""
        return tuple(event for event in self.events if event.kind in MISTAKES)

    def _reasons(self, side: str) -> tuple[str, ...]:
        reasons = [
            str(event)
            for event in self.events
            if event.kind not in MISTAKES and event.kind.startswith("draft_") == (side == DRAFTS)
        ]
        # Of impossible tokens, which the bounds count too, the events say all.
        counted = any(event.kind in _IMPOSSIBLE[side] for event in self.events)
        refuted = [
            claim
            for claim in self.claims
            if claim.side == side and (claim.refuted_by_tests if counted else claim.refuted)
        ]
        words_of = {claim.name: claim.refuted for claim in CLAIMS}
        for words in dict.fromkeys(words_of[claim.name] for claim in refuted):
            alike = [claim for claim in refuted if words_of[claim.name] == words]
            reasons.append(words + _where(alike))
        if side == OUTPUTS and self.acceptance and self.acceptance.too_high:
            reasons.append(_acceptance_in_words(self.acceptance))
        return tuple(reasons)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The faults in words; empty if none was found."""
        return self._reasons(OUTPUTS) + self._reasons(DRAFTS)

    @property
    def faulty(self) -> bool:
        """Whether a fault was found."""
        return bool(self.reasons)

    @property
    def level(self) -> float:
        """The false-alarm rate of each statement."""
        return self.false_alarm / NUM_STATEMENTS

    @property
    def detectable(self) -> float:
        """The total variation of the outputs in steps with drafts that would have been found.

        With probability 0.9, by the G-test of one order; 1 if there are none.
        """
        number = self.num_in_drafted_steps
        if not number or not any(claim.side == OUTPUTS for claim in self.claims):
            return 1.0
        return detectable_total_variation(number, num_cells_for(number), self.level)

    @property
    def rows_needed(self) -> int | None:
        """About how many rows like these are needed to find :attr:`bias`; None if nothing is tested."""
        if not self.num_in_drafted_steps:
            return None
        # Below 1, which it is at a million samples, it falls with the root of their number.
        at_a_million = detectable_total_variation(10**6, MOST_CELLS, self.level)
        samples_needed = 1e6 * (at_a_million / self.bias) ** 2
        return int(np.ceil(samples_needed * self.num_rows / self.num_in_drafted_steps))

    @property
    def outcome(self) -> str:
        """FAULTY if a fault was found; else PASS, or INCONCLUSIVE.

        INCONCLUSIVE says that too few rows were recorded to tell, that no drafts were, or that the record has
        mistakes.
        """
        if self.faulty:
            return "FAULTY"
        return "PASS" if self.detectable <= self.bias and not self.mistakes else "INCONCLUSIVE"

    @property
    def verdict(self) -> str:
        """One sentence, which begins with the outcome."""
        many = self.num_rows > 1
        rows = f"{self.num_rows:,} {'row' if self.law else 'token'}{'s' if many else ''}"
        if self.faulty:
            return f"FAULTY: in {rows}, {'; '.join(self.reasons)}"
        num_outputs = max((x.num_samples for x in self.statements if x.subject == OUTPUTS), default=0)
        if not self.statements:
            return f"INCONCLUSIVE: {rows} with nothing to test, as no row has an output token or drafts"
        if self.mistakes:
            first = self.mistakes[0]
            where = first_of(first.num_rows, first.first_rows)
            return f"INCONCLUSIVE: no fault found in {rows}, but {first} ({where}): {first.usually}"
        if not self.num_in_drafted_steps:
            missing = "no output token was recorded where there were drafts"
            if not self.num_draft_tokens:
                missing = "no drafts were recorded"
            return (
                f"INCONCLUSIVE: no fault found in {rows}, but {missing}: nothing about speculation was "
                f"tested (plain decoding is declared by law {NO_DRAFTS!r})"
            )
        of_them = ""
        if self.num_in_drafted_steps < num_outputs:
            of_them = f", of which {self.num_in_drafted_steps:,} have an output token in a step with drafts"
        if self.outcome == "PASS":
            return f"PASS: no fault found in {rows}{of_them}"
        comma = "," if of_them else ""
        few = f"{rows}{of_them}{comma} {'are' if many else 'is'} too few to find a bias of {self.bias:g}"
        return f"INCONCLUSIVE: no fault found, but {few}; about {self.rows_needed:,} would do"

    def to_dict(self) -> dict[str, Any]:
        """Everything, as values that JSON can hold."""
        names = ("outcome", "verdict", "faulty", "detectable", "rows_needed", "statements")
        values = {name: getattr(self, name) for name in names} | asdict(self)
        values["events"] = [x._asdict() | {"what": x.what, "usually": x.usually} for x in self.events]
        values["claims"] = [asdict(x) | {"refuted": x.refuted} for x in self.claims]
        return _for_json(values)

    @property
    def tables(self) -> list[Listing]:
        """The tests, and the other tables that have rows."""
        return tables_of(self)

    @property
    def details(self) -> list[str]:
        """The sentences below the verdict, and the tables, each after an empty line."""
        return [*self.said[1:], *(f"\n{table}" for table in self.tables if table.rows)]

    @property
    def said(self) -> list[str]:
        """The verdict, what could be found, the usual cause of bad rows and the acceptance, in sentences."""
        lines = [self.verdict]
        if self._may_be_of_a_block:
            lines.append(
                "If the engine decides on a block or a tree as a whole, this may be no fault: declare "
                'rule="block" or rule="tree".'
            )
        lines += map(str, self.statements)
        if self.events:
            most = max(self.events, key=lambda event: (event.kind not in MISTAKES, event.num_rows))
            lines.append(f"Usual cause of such rows: {most.usually}.")
        if self.gaps:
            lines.append(_gaps_in_words(np.array(self.gaps)))
        if self.repetitions:
            lines.append(_repetitions_in_words(self.repetitions))
        alarm = f"sound engine is called faulty with probability {self.false_alarm:g} at most."
        declared = f"Drafts by law {self.law}, decided by {self.rule}; a {alarm}"
        lines.append(declared if self.law else f"A {alarm}")
        if self.acceptance:
            lines.append(f"Acceptance: {_acceptance_in_words(self.acceptance)}.")
        return lines

    @property
    def _may_be_of_a_block(self) -> bool:
        """Whether a rule for blocks or trees is among the explanations of a fault."""
        is_deep = "acceptance per step at depth 1" in self.metrics
        return self.faulty and self.rule == "token" and is_deep


def _for_json(value: Any) -> Any:
    """The value with tuples by name as dicts, and None for NaN and infinity, which JSON lacks."""
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = cast(Any, value)._asdict()
    if isinstance(value, dict):
        return {name: _for_json(x) for name, x in value.items()}
    return [_for_json(x) for x in value] if isinstance(value, list | tuple) else value


def _where(refuted: list[Claim]) -> str:
    """The orders and the groups in which claims with the same words are refuted."""
    orders = [claim.order for claim in refuted if claim.order]
    words = [f"in order of {', '.join(orders)}"] if orders else []
    groups = [group for claim in refuted for group in claim.refuted_groups]
    by_p_value = sorted(groups, key=lambda group: group.p_value)
    names = [*dict.fromkeys(group.name for group in by_p_value)][:_GROUPS_SHOWN]
    words += [f"in these groups: {', '.join(names)}"] if names else []
    return f" ({'; '.join(words)})" if words else ""


def _acceptance_in_words(accepted: Rate) -> str:
    rate = f"{accepted.rate:.4f} of {accepted.num_positions:,} positions with drafts accept one"
    limit = f"a lossless verifier accepts at most {accepted.most:.4f} of them on average"
    if accepted.rate <= accepted.most:
        return f"{rate}; {limit}"
    size = "significantly more" if accepted.too_high else "more, but by no more than sampling noise"
    return f"{rate}; {limit}; this is {size} (p-value {accepted.p_value:.1e})"


def _repetitions_in_words(agreeing: Rate) -> str:
    agree, expected = (round(x * agreeing.num_positions) for x in (agreeing.rate, agreeing.most))
    counted = f"{agreeing.num_positions:,} rows repeat a context, and {agree:,} of them its token"
    if not agreeing.too_high:
        return f"{counted}; independent draws expect {expected:,}."
    return (
        f"{counted}, where independent draws expect {expected:,} (p-value {agreeing.p_value:.1e}): they were "
        "drawn with a fixed key, such as a seed or a watermark. Each context counts once."
    )


def _gaps_in_words(gaps: np.ndarray) -> str:
    near = np.sort(gaps[np.isfinite(gaps)])
    masked = f"{gaps.size - near.size:,} are masked"
    if not near.size:
        return f"Of {gaps.size:,} tokens that the settings exclude, {masked}."
    size = f"by {near[0]:.3g} to {near[-1]:.3g} (median {near[near.size // 2]:.3g})"
    count = np.count_nonzero(near < _CLOSE)
    close = f"{count:,} of them by less than {_CLOSE}, as rounding may explain"
    return (
        f"Of {gaps.size:,} tokens that the settings exclude, {masked}; the logit of the others lies below "
        f"that of the last one allowed {size}, {close}."
    )
