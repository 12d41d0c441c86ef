"""What an audit of a recorded run found, and how it reads."""

import re
from dataclasses import asdict, astuple, dataclass
from typing import Any, NamedTuple

import numpy as np

from otmd.audit.counts import detectable_total_variation
from otmd.audit.evidence import MOST_CELLS, Band, Claim
from otmd.audit.mistakes import Explanation

OUTPUT, OUTPUT_BY_MASS, DRAFTS, SLOTS, ROWS = (
    "output tokens follow the target (in order of p/q)",
    "output tokens follow the target (in order of p)",
    "drafts follow their distribution",
    "no link between the drafts of a position",
    "no link to the drafts of the position before",
)
_REFUTED = {
    OUTPUT: "the output tokens do not follow the target distribution",
    OUTPUT_BY_MASS: "the output tokens do not follow the target distribution",
    DRAFTS: "the drafts were not drawn from the recorded draft distribution",
    SLOTS: "the drafts of a position depend on one another",
    ROWS: "drafts depend on those of the position before: are random numbers used twice?",
}
# How many statements share the false-alarm rate: three about each claim, and the acceptance.
NUM_STATEMENTS = 3 * len(_REFUTED) + 1
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
    "after_rejection": ("a position decided after a rejection in the same step",
        "rows out of order, or positions that were not reached: those have no output token"),
    "depth_gap": ("a depth that does not follow the one before it in its step",
        "rows left out or out of order; no test is valid on rows chosen by their outcome"),
}  # fmt: skip
# The kinds of rows in which a token came out that cannot come out.
OUTCOMES = {"draft_impossible", "draft_never", "output_impossible", "impossible_accepted"}
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
    """A kind of row that no sound engine writes: one such row proves a fault.

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
    The ``p_value`` is of a bet that the rate is above the ceiling. It is valid at any time, and an alarm if
    it is at most ``level``.
    """

    num_positions: int
    rate: float
    ceiling: float
    p_value: float
    level: float

    @property
    def too_high(self) -> bool:
        """Whether the rate is above the ceiling beyond chance, which proves a fault."""
        return self.p_value <= self.level


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
        4, "{0:<51} {2:>8} {3:>8.1e} {4:>8.1e} {5:>7.4f} {6:>6.3f}  {1}"),
    ("Rows that no sound engine writes", ("what", "rows", "usually"), "Each is proof of a fault.",
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
class RecordedRunAudit:
    """What an audit of a recorded run found.

    A sound engine's run is called faulty with probability ``false_alarm`` at most, shared equally by three
    statements about each of five claims, and the acceptance. Boundary cases are proof and need no share.

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
    def reasons(self) -> tuple[str, ...]:
        """Why there is a fault, in words; empty if none was found."""
        have = ["row has", "rows have"]
        found = [f"{own.count} {have[own.count > 1]} {own.what}" for own in self.cases]
        found += dict.fromkeys(_REFUTED[own.name] for own in self.claims if own.refuted)
        own = self.acceptance
        if own is not None and own.too_high:
            most = f"a lossless rule accepts at most {own.ceiling:.4f} of them"
            found.append(f"{own.rate:.4f} of the positions accept a draft, and {most}")
        return tuple(found)

    @property
    def faulty(self) -> bool:
        """Whether a fault was found."""
        return bool(self.reasons)

    @property
    def detectable(self) -> float:
        """The total variation that would have been found with probability 0.9, by the weakest test."""
        return max((own.detectable for own in self._decisive), default=1.0)

    @property
    def rows_needed(self) -> int | None:
        """About how many rows like these are needed to find :attr:`bias`; None if nothing is tested."""
        if not self._decisive:
            return None
        # Below 1, the total variation found falls with the root of the number of samples. It is at a million.
        level = self._decisive[0].level
        samples = 1e6 * (detectable_total_variation(10**6, MOST_CELLS, level) / self.bias) ** 2
        fewest = min(own.num_samples for own in self._decisive)
        return int(np.ceil(samples * self.num_rows / fewest))

    @property
    def outcome(self) -> str:
        """PASS, FAULTY, or INCONCLUSIVE if there are too few rows to tell."""
        if self.faulty:
            return "FAULTY"
        return "PASS" if self._decisive and self.detectable <= self.bias else "INCONCLUSIVE"

    @property
    def _decisive(self) -> list[Claim]:
        return [own for own in self.claims if own.name in (OUTPUT, OUTPUT_BY_MASS, DRAFTS)]

    @property
    def verdict(self) -> str:
        """One sentence, which begins with the outcome."""
        many = self.num_rows > 1
        rows = f"{self.num_rows:,} row{'s' if many else ''}"
        if self.faulty:
            return f"FAULTY: in {rows}, {'; '.join(self.reasons)}"
        if self.outcome == "PASS":
            return f"PASS: no fault found in {rows}"
        if not self._decisive:
            return f"INCONCLUSIVE: {rows} with nothing to test, as no row has an output token or drafts"
        few = f"{rows} {'are' if many else 'is'} too few to find a bias of {self.bias:g}"
        return f"INCONCLUSIVE: no fault found, but {few}; about {self.rows_needed:,} would do"

    def to_dict(self) -> dict[str, Any]:
        """Everything, as values that JSON can hold."""
        names = ("outcome", "verdict", "faulty", "rows_needed")
        found = {name: getattr(self, name) for name in names} | asdict(self)
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
            [(x.what, _rows(x.count, x.first_rows), x.usually) for x in self.cases],
            [(size, _rows(*where)) for size, where in several],
            [astuple(band) for bands in self.bands for band in bands],
            [astuple(own) for own in self.metrics],
        )
        found = [Listing(rows, *told) for rows, told in zip(every, _LISTINGS, strict=True)]
        found[0] = found[0]._replace(note=found[0].note.format(self.false_alarm / NUM_STATEMENTS))
        return found[:1] + [own for own in found[1:] if own.rows]

    def __str__(self) -> str:
        return "\n\n".join(filter(None, ["\n".join(self.said), *map(str, self.tables)]))

    @property
    def said(self) -> list[str]:
        """The verdict, what could be found, the likeliest cause and the acceptance, in sentences."""
        lines = [self.verdict]
        if self.detectable < 1:
            found = f"A bias of {self.detectable:.3f} or more would have been found with probability 0.9"
            bias = "a bias is the share of tokens that would have to change (total variation)."
            lines.append(f"{found}; {bias}")
        lines += map(str, self.explanations.values())
        if not self.explanations and self.cases:
            lines.append(
                f"Usual cause of such rows: {max(self.cases, key=lambda own: own.count).usually}"
            )
        elif not self.explanations and any(own.refuted for own in self.claims):
            lines.append("Most likely cause: unknown, none of the known mistakes explains the rows")
        if self.most_repeated:
            lines.append(f"Most often equal: {self.most_repeated}")
        alarm = f"a sound engine is called faulty with probability {self.false_alarm:g} at most."
        lines.append(f"Drafts by law {self.law}; {alarm}")
        if own := self.acceptance:
            most = f"{own.ceiling:.4f} (p-value of being above {own.p_value:.1e})"
            rate = f"{own.rate:.4f} of {own.num_positions:,} positions with drafts accept one"
            lines.append(f"Acceptance: {rate}; a lossless rule accepts at most {most}.")
        return lines


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
