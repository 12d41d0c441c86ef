"""What an audit of a recorded run found, and how it reads."""

import re
from dataclasses import asdict, astuple, dataclass
from typing import Any, NamedTuple

import numpy as np

from otmd.audit.claims import CLAIMS, DRAFT_TOKENS, NUM_STATEMENTS, OUTPUTS
from otmd.audit.counts import detectable_total_variation
from otmd.audit.evidence import MOST_CELLS, Band, Claim
from otmd.audit.mistakes import Explanation

_OF_A_SIDE = {
    "nan": ("NaN in the {}",
        "an overflow, or a buffer that was never written"),
    "infinite": ("+inf in the {}",
        "an overflow in the forward pass or in a division"),
    "negative": ("negative {} probabilities",
        "logits or logarithms under the name of probabilities"),
    "sum": ("{} probabilities that do not sum to 1 within the rounding of their type",
        "recorded before they were normalised, or only in part, or logits under the name of "
        "probabilities"),
    "empty": ("no {} token with mass",
        "a mask that removed every token"),
    "id": ("a {} id beyond the vocabulary",
        "two tokenizers, or a padded vocabulary"),
}  # fmt: skip
# What may be wrong with a row: in words, and what it usually means.
KINDS = {
    f"{side}_{kind}": (what.format(side), usually)
    for side in ("target", "draft")
    for kind, (what, usually) in _OF_A_SIDE.items()
} | {
    "draft_missing": ("drafts without the distribution they were drawn from",
        "a deterministic drafter, which is audited under the law 'fixed'"),
    "draft_out_of_range": ("a draft token beyond the vocabulary",
        "two tokenizers, or ids shifted by special tokens"),
    "output_out_of_range": ("an output token beyond the vocabulary",
        "a search in running sums that ran past the end, or two tokenizers"),
    "draft_impossible": ("a draft of draft probability zero",
        "q recorded after top-k or top-p and drafts drawn before, or q of another position"),
    "draft_never": ("drafts that the declared law never draws",
        "another law than declared: duplicates, or tokens that are not the likeliest or in another "
        "order"),
    "output_impossible": ("an output token of target probability zero that is none of the drafts",
        "sampled without the top-k, top-p or min-p of the record; a few at the edge of top-p, or ties at "
        "temperature 0, may be logits cut in another precision"),
    "impossible_accepted": ("an accepted draft of target probability zero",
        "a coin compared with ≤ in place of <, or a verifier that did not see the processed target"),
    "output_improbable": ("an output token that is too improbable for this number of rows",
        "a buffer that was never written or is of another position, or sampled without the top-k, top-p "
        "or min-p of the record"),
    "draft_improbable": ("a draft that is too improbable for this number of rows",
        "q of another position, or drafts drawn before q was cut"),
    "output_missing": ("a position that was reached, and has no output token",
        "rows that were lost, or a last step that ended the text early: leave such a step out; what is left "
        "out by its outcome can hide a fault"),
    "after_rejection": ("a position decided after a rejection in the same step",
        "rows out of order, or positions that were not reached: those have no output token"),
    "depth_gap": ("a depth that does not follow the one before it in its step",
        "rows left out or out of order; no test is valid on rows chosen by their outcome"),
}  # fmt: skip
# The kinds of rows in which a token came out that cannot come out, or does in no run of this length.
OUTCOMES = {
    "draft_impossible", "draft_never", "draft_improbable",
    "output_impossible", "output_improbable", "impossible_accepted",
}  # fmt: skip
# Rows of this kind are no proof of a fault, but rule out a PASS.
_MISSING = "output_missing"
_GROUPS_SHOWN = 3
_METRICS = {
    "acceptance rate": "accepted tokens / positions that were reached with drafts",
    "optimal acceptance rate": "mean of α*(p, q) over positions that were reached with drafts: Σ min(p, q) "
    "for one draft",
    "draft acceptance rate": "accepted tokens / draft tokens proposed, those that were not reached too "
    "(vLLM's draft acceptance rate, SGLang's spec_accept_rate)",
    "accepted drafts per step": "accepted tokens / steps, the extra token not counted",
    "tokens per step": "1 + accepted tokens / steps: block efficiency, the extra token counted (vLLM's mean "
    "acceptance length, SGLang's spec_accept_length)",
}
_ALARM = {True: "REFUTED", False: "none"}
_NOT_TOO_HIGH = "no more is accepted than a lossless rule can"
_BY_DEPTH = (
    ("conditional acceptance", "accepted / reached at this depth"),
    ("acceptance per step", "accepted at this depth / steps (vLLM's per-position acceptance rate)"),
)


@dataclass(frozen=True)
class BoundaryCase:
    """A kind of row that no sound engine writes: one such row is a fault, or else rules out a PASS.

    The ``kind`` is a key of ``otmd.audit.run_report.KINDS``. It was seen in ``count`` rows, and first in
    ``first_rows``, counted from 1.
    """

    kind: str
    count: int
    first_rows: tuple[int, ...]

    @property
    def what(self) -> str:
        """What is wrong with these rows, in words."""
        return KINDS[self.kind][0]

    @property
    def usually(self) -> str:
        """What usually causes them, in words."""
        return KINDS[self.kind][1]

    def __str__(self) -> str:
        return f"{_rows(self.count, self.first_rows)}: {self.what}; usually {self.usually}"


@dataclass(frozen=True)
class PooledAcceptance:
    """Acceptance over all positions with sound drafts, against what no lossless rule exceeds.

    The ``rate`` says how often the output token was among the drafts; the ``ceiling`` is the mean of α*.
    Rows with an output token of target probability zero are left out: they are proof by themselves. The
    ``p_value`` is of a bet that the rate is above the ceiling, and is 1 for a rate below. It is valid at any
    time, and an alarm if it is at most ``level``.
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
        most = f"a lossless verifier accepts at most {self.ceiling:.4f} of them on average"
        if self.rate <= self.ceiling:
            return f"{rate}; {most}"
        size = "significantly more" if self.too_high else "more, but by no more than sampling noise"
        return f"{rate}; {most}; this is {size} (p-value {self.p_value:.1e})"


@dataclass(frozen=True)
class Metric:
    """One of the many numbers that are called acceptance, with its name and definition."""

    name: str
    value: float
    definition: str


class Listing(NamedTuple):
    """A table of the report. ``line`` formats a row as text; floats have this many ``decimals`` on a page."""

    rows: list[tuple]
    title: str
    heads: tuple[str, ...]
    note: str
    decimals: int
    line: str

    def __str__(self) -> str:
        lines = [f"{self.title}. {self.note}"]
        if "<" in self.line:
            # The rows are aligned in columns: the heads take their widths, without the number formats.
            lines.append(re.sub(r"\+?(\d+)\.\d[ef]", r"\1", self.line).format(*self.heads))
        lines += [self.line.format(*row).replace("nan", "  –") for row in self.rows]
        return "\n  ".join(lines) if self.rows else ""


_LISTINGS = (
    ("Tests", ("claim", "alarm", "samples", "p-value", "by bets", "bias ≥", "finds"),
        "An alarm is a p-value of at most {:.1e}, or a bias above 0. The p-value is for a number of rows "
        "that was decided in advance, the one by bets is valid whenever one looks. Finds: the bias that the "
        "test finds with probability 0.9.",
        4, "{0:<66} {2:>8} {3:>8.1e} {4:>8.1e} {5:>7.4f} {6:>6.3f}  {1}"),
    ("Tests by depth", ("rows", "of", "alarm", "samples", "p-value", "in order of"),
        "The smallest p-value by bets at this depth, multiplied for the number of groups: an alarm is one of "
        "at most {:.1e}. Other groups are listed if they show a fault.",
        4, "{0:<40} {1:<7} {3:>8} {4:>8.1e}  {5:<19} {2}"),
    ("Rows that no sound engine writes", ("what", "rows", "usually"),
        "Each is a fault, but for positions without an output token, which rule out a PASS.",
        0, "{1}: {0}; usually {2}"),
    ("Rows of several vocabularies", ("tokens", "rows"), "If they are of several models, audit them apart.",
        0, "{0} tokens: {1}"),
    ("Output tokens by class", ("class", "observed", "expected", "deviations"),
        "Of p/q and of p, in standard deviations. Deviations without an alarm above mean nothing.",
        1, "{0:<44} {1:>9} {2:>11.1f} {3:>+11.1f}"),
    ("Metrics", ("metric", "value", "definition"),
        "Many numbers are called acceptance; each has its definition beside it.",
        4, "{1:8.4f}  {0}: {2}"),
)  # fmt: skip


@dataclass(frozen=True)
class Statement:
    """What is said of the outputs, or of the drafts.

    Attributes
    ----------
    subject : {"outputs", "drafts"}
    outcome : {"PASS", "FAULTY", "INCONCLUSIVE"}
    num_samples : int
        How many tokens were tested.
    orders : tuple of str
        In which orders of the tokens a deviation would have been seen.
    detectable : float
        The total variation, over all these tokens and in one of these orders, that would have been found with
        probability 0.9; 1 if nothing was tested.
    bias : float
        The total variation that has to be found for a PASS.
    rows_needed : int or None
        About how many rows like these are needed to find it; None if nothing is tested.
    reasons : tuple of str
        Why there is a fault, in words; empty if none was found.
    """

    subject: str
    outcome: str
    num_samples: int
    orders: tuple[str, ...]
    detectable: float
    bias: float
    rows_needed: int | None
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        head = f"{self.subject.capitalize()}: {self.outcome}."
        if not self.orders:
            return f"{head} Nothing could be tested."
        size = f"A bias of {self.detectable:.3f} or more (total variation) would have been found"
        orders = f"{', '.join(self.orders[:-1])} or {self.orders[-1]}"
        where = f"if it shows over all {self.num_samples:,} in order of {orders}"
        told = f"{size} with probability 0.9 {where}"
        if self.detectable >= 1:
            told = f"{self.num_samples:,} are too few to find any bias"
        more = "larger ones also at one depth, in one request or at every 8th row"
        if self.detectable > self.bias:
            more = f"for {self.bias:g} about {self.rows_needed:,} rows are needed"
        return f"{head} {told}; {more}."


@dataclass(frozen=True)
class RecordedRunAudit:
    """What an audit of a recorded run found.

    A sound engine's run is called faulty with probability ``false_alarm`` at most, shared equally by three
    statements about each claim of ``otmd.audit.claims``, the acceptance, and the least likely output and
    draft. Impossible tokens and malformed rows are proof and need no share.

    Attributes
    ----------
    bias : float
        The total variation that has to be found with probability 0.9 for a run to pass.
    vocabularies : dict of int to (int, tuple of int)
        From the size of a recorded vocabulary to the number of its rows and the first of them.
    claims, bands : tuple of Claim, tuple of tuple of Band
        The claims for which anything was recorded; the classes of output tokens by p/q, and by p.
    explanations : dict of str to Explanation
        From a refuted claim to the mistake that explains it best.
    most_repeated : str
        The two drafts of a position that are equal too often, in words; empty if none are.
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
    explanations: dict[str, Explanation]
    most_repeated: str
    metrics: tuple[Metric, ...]

    @property
    def statements(self) -> tuple[Statement, ...]:
        """What is said of the outputs and of the drafts; nothing of a side without tokens and faults."""
        every = (self._statement(side) for side in (OUTPUTS, DRAFT_TOKENS))
        return tuple(own for own in every if own.orders or own.reasons)

    def _statement(self, side: str) -> Statement:
        ordered = [own for own in self._claims_of(side) if CLAIMS[own.name].key]
        detectable = max((own.detectable for own in ordered), default=1.0)
        fewest, needed = min((own.num_samples for own in ordered), default=0), None
        if ordered:
            # Below 1, which it is at a million samples, it falls with the root of their number.
            at_a_million = detectable_total_variation(10**6, MOST_CELLS, ordered[0].level)
            needed = int(np.ceil(1e6 * (at_a_million / self.bias) ** 2 * self.num_rows / fewest))
        reasons = self._reasons(side)
        passed = detectable <= self.bias and (side != OUTPUTS or self._missing is None)
        return Statement(
            subject=side,
            outcome="FAULTY" if reasons else "PASS" if passed else "INCONCLUSIVE",
            num_samples=fewest,
            orders=tuple(CLAIMS[own.name].order for own in ordered),
            detectable=detectable,
            bias=self.bias,
            rows_needed=needed,
            reasons=reasons,
        )

    def _claims_of(self, side: str) -> list[Claim]:
        return [own for own in self.claims if CLAIMS[own.name].side == side]

    @property
    def _missing(self) -> BoundaryCase | None:
        return next((own for own in self.cases if own.kind == _MISSING), None)

    def _reasons(self, side: str) -> tuple[str, ...]:
        have, of_drafts = ["row has", "rows have"], side == DRAFT_TOKENS
        found = [
            f"{own.count} {have[own.count > 1]} {own.what}"
            for own in self.cases
            if own.kind != _MISSING and own.kind.startswith("draft_") == of_drafts
        ]
        refuted = [own for own in self._claims_of(side) if own.refuted]
        for words in dict.fromkeys(CLAIMS[own.name].refuted for own in refuted):
            alike = [own for own in refuted if CLAIMS[own.name].refuted == words]
            found += [words + _where(alike)]
        if not of_drafts and self.acceptance and self.acceptance.too_high:
            found.append(str(self.acceptance))
        return tuple(found)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why there is a fault, in words; empty if none was found."""
        return self._reasons(OUTPUTS) + self._reasons(DRAFT_TOKENS)

    @property
    def faulty(self) -> bool:
        """Whether a fault was found."""
        return bool(self.reasons)

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

        The drafts count in their place if no output was recorded. INCONCLUSIVE says that there are too few
        rows to tell, or positions without their output token.
        """
        if self.faulty:
            return "FAULTY"
        return self._first.outcome if self._first and self._missing is None else "INCONCLUSIVE"

    @property
    def verdict(self) -> str:
        """One sentence, which begins with the outcome."""
        many = self.num_rows > 1
        rows = f"{self.num_rows:,} row{'s' if many else ''}"
        if self.faulty:
            return f"FAULTY: in {rows}, {'; '.join(self.reasons)}"
        if self._first is None:
            return f"INCONCLUSIVE: {rows} with nothing to test, as no row has an output token or drafts"
        if self._missing is not None:
            where = _rows(self._missing.count, self._missing.first_rows)
            return f"INCONCLUSIVE: no fault found in {rows}, but {where} without an output token"
        if self.outcome == "PASS":
            return f"PASS: no fault found in {rows}"
        few = f"{rows} {'are' if many else 'is'} too few to find a bias of {self.bias:g}"
        return f"INCONCLUSIVE: no fault found, but {few}; about {self.rows_needed:,} would do"

    def to_dict(self) -> dict[str, Any]:
        """Everything, as values that JSON can hold."""
        names = ("outcome", "verdict", "faulty", "rows_needed")
        found = {name: getattr(self, name) for name in names} | asdict(self)
        found["statements"] = [asdict(x) for x in self.statements]
        found["cases"] = [asdict(x) | {"what": x.what, "usually": x.usually} for x in self.cases]
        found["claims"] = [asdict(x) | {"refuted": x.refuted} for x in self.claims]
        return found

    @property
    def tables(self) -> list[Listing]:
        """The tests, and the other tables that have rows."""
        tests = [(x.name, _ALARM[x.refuted], *astuple(x)[1:6]) for x in self.claims]
        if own := self.acceptance:
            counted = own.num_positions, np.nan, own.p_value, np.nan, np.nan
            tests.append((_NOT_TOO_HIGH, _ALARM[own.too_high], *counted))
        several = self.vocabularies.items() if len(self.vocabularies) > 1 else ()
        every = (
            tests,
            self._by_depth(),
            [(x.what, _rows(x.count, x.first_rows), x.usually) for x in self.cases],
            [(size, _rows(*where)) for size, where in several],
            [astuple(band) for bands in self.bands for band in bands],
            [astuple(own) for own in self.metrics],
        )
        found = [Listing(rows, *told) for rows, told in zip(every, _LISTINGS, strict=True)]
        level = self.false_alarm / NUM_STATEMENTS
        found[:2] = [own._replace(note=own.note.format(level)) for own in found[:2]]
        return found[:1] + [own for own in found[1:] if own.rows]

    def _by_depth(self) -> list[tuple]:
        """A row for each group of each side: the smallest p-value of its bets."""
        found: dict[tuple[str, str], tuple] = {}
        for claim in self.claims:
            kind = CLAIMS[claim.name]
            for own in claim.groups:
                alarm = _ALARM[own.p_value <= claim.level]
                row = (own.name, kind.side, alarm, own.num_samples, own.p_value, kind.order)
                found[own.name, kind.side] = min(found.get(row[:2], row), row, key=lambda x: x[4])
        alone = len({name for name, _ in found}) <= 2 and all(
            x[2] == _ALARM[False] for x in found.values()
        )
        return [] if alone else [*found.values()]

    def __str__(self) -> str:
        return "\n\n".join(filter(None, ["\n".join(self.said), *map(str, self.tables)]))

    @property
    def said(self) -> list[str]:
        """The verdict, what could be found, the likeliest cause and the acceptance, in sentences."""
        lines = [self.verdict]
        lines += map(str, self.statements)
        lines += map(str, self.explanations.values())
        if not self.explanations and self.cases:
            most = max(self.cases, key=lambda case: (case.kind != _MISSING, case.count))
            lines.append(f"Usual cause of such rows: {most.usually}")
        elif not self.explanations and any(own.refuted for own in self.claims):
            lines.append("Most likely cause: unknown, none of the known mistakes explains the rows")
        if self.most_repeated:
            lines.append(f"Most often equal: {self.most_repeated}")
        alarm = f"a sound engine is called faulty with probability {self.false_alarm:g} at most."
        lines.append(f"Drafts by law {self.law}; {alarm}")
        if self.acceptance:
            lines.append(f"Acceptance: {self.acceptance}.")
        return lines


def _where(refuted: list[Claim]) -> str:
    """In which orders, and in which groups, claims with the same words are refuted."""
    orders = [CLAIMS[own.name].order for own in refuted if CLAIMS[own.name].order]
    found = [f"in order of {', '.join(orders)}"] if orders else []
    groups = sorted(
        (own for claim in refuted for own in claim.refuted_groups), key=lambda x: x.p_value
    )
    names = [*dict.fromkeys(own.name for own in groups)][:_GROUPS_SHOWN]
    found += [f"in these groups: {', '.join(names)}"] if names else []
    return f" ({'; '.join(found)})" if found else ""


def _rows(count: int, first: tuple[int, ...]) -> str:
    more = ", …" if count > len(first) else ""
    return f"{count} row{'s' if count > 1 else ''} ({', '.join(map(str, first))}{more})"


def metrics_of(
    positions: list[tuple[int, int, bool, bool]], ceilings: list[float]
) -> tuple[Metric, ...]:
    """The metrics, from each position: its depth, number of drafts, if it was reached, if it accepted."""
    depth, drafts, reached, hit = np.array(positions, np.int64).T
    verified = (reached == 1) & (drafts > 0)
    steps, accepted = int(np.count_nonzero(verified & (depth == 0))), int(hit.sum())
    values = {"optimal acceptance rate": float(np.mean(ceilings))} if ceilings else {}
    if steps:
        values |= {
            "acceptance rate": accepted / int(verified.sum()),
            "draft acceptance rate": accepted / int(drafts.sum()),
            "accepted drafts per step": accepted / steps,
            "tokens per step": 1.0 + accepted / steps,
        }
    found = [Metric(name, values[name], told) for name, told in _METRICS.items() if name in values]
    if not steps or not depth[verified].any():
        return tuple(found)
    by_depth = np.bincount(depth[verified])
    hits = np.bincount(depth[hit == 1], minlength=by_depth.size)
    for own in np.flatnonzero(by_depth):
        for (name, told), trials in zip(_BY_DEPTH, (by_depth[own], steps), strict=True):
            found.append(Metric(f"{name} at depth {own}", float(hits[own] / trials), told))
    return tuple(found)
