"""What an audit of a recorded run found, and how it reads."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from otmd.audit.counts import detectable_total_variation
from otmd.audit.draft_samples import Explanation
from otmd.audit.evidence import MOST_CELLS, Band, Claim
from otmd.probabilities import IntArray

OUTPUT, OUTPUT_BY_MASS, DRAFTS, SLOTS, ROWS = (
    "the output follows the target, tokens by p/q",
    "the output follows the target, tokens by p",
    "the drafts follow their distribution",
    "the drafts of a position do not depend on one another",
    "drafts do not depend on those of the position before",
)
_REFUTED = {
    OUTPUT: "the output tokens do not follow the target distribution",
    OUTPUT_BY_MASS: "the output tokens do not follow the target distribution",
    DRAFTS: "the drafts were not drawn from the recorded draft distribution",
    SLOTS: "the drafts of a position depend on one another",
    ROWS: "drafts depend on those of the position before: are random numbers used twice?",
}
NUM_STATEMENTS = 3 * len(_REFUTED) + 1
"""That share the false-alarm rate: three for each claim, and the acceptance."""
_OF_A_SIDE = {
    "nan": ("NaN in what was recorded", "an overflow, or a buffer that was never written"),
    "infinite": ("+inf in what was recorded", "an overflow in the forward pass or in a division"),
    "negative": ("negative probabilities", "logits or logarithms under the name of probabilities"),
    "sum": (
        "probabilities whose sum is further from 1 than their type allows",
        "recorded before they were normalised, or only in part, or logits under the name of probabilities",
    ),
    "empty": ("no token with mass", "a mask that removed every token"),
    "id": (
        "an id beyond the vocabulary of the other side",
        "two tokenizers, or a padded vocabulary",
    ),
}
KINDS = {
    **{
        f"{side}_{kind}": (f"{side}: {what}", usually)
        for side in ("target", "draft")
        for kind, (what, usually) in _OF_A_SIDE.items()
    },
    "draft_missing": (
        "drafts without the distribution they were drawn from",
        "a deterministic drafter, which is audited under the law 'fixed'",
    ),
    "draft_out_of_range": (
        "a draft token beyond the vocabulary",
        "two tokenizers, or ids shifted by special tokens",
    ),
    "output_out_of_range": (
        "an output token beyond the vocabulary",
        "a search in running sums that ran past the end, or two tokenizers",
    ),
    "draft_impossible": (
        "a draft of draft probability zero: proof that it was not drawn from the recorded distribution",
        "q recorded after top-k or top-p and drafts drawn before, or q of another position",
    ),
    "draft_never": (
        "drafts that the declared law never draws: proof",
        "another law than declared: duplicates, or greedy drafts that are not the likeliest",
    ),
    "output_impossible": (
        "an output token of target probability zero, none of the drafts: proof",
        "the engine sampled without the top-k, top-p or min-p of the record; a few at the edge of top-p, or "
        "ties at temperature 0, may be logits cut in another precision",
    ),
    "impossible_accepted": (
        "an accepted draft of target probability zero: proof",
        "a coin compared with ≤ in place of <, or a verifier that did not see the processed target",
    ),
    "after_rejection": (
        "a position that was decided after a rejection in the same step",
        "rows out of order, or positions that were not reached: those have no output token",
    ),
    "depth_gap": (
        "a depth that does not follow the one before it in its step",
        "rows left out or out of order; no test is valid on rows chosen by their outcome",
    ),
}
"""What may be wrong with a row: in words, and what it usually means."""


@dataclass(frozen=True)
class BoundaryCase:
    """A kind of row that no sound engine writes.

    Attributes
    ----------
    kind : str
        A key of :data:`KINDS`.
    count : int
        In how many rows it was seen.
    first_rows : tuple of int
        The first of them, from 1.
    """

    kind: str
    count: int
    first_rows: tuple[int, ...]

    @classmethod
    def of(cls, found: Mapping[str, tuple[int, tuple[int, ...]]]) -> tuple["BoundaryCase", ...]:
        """The kinds that were seen, each with its count and first rows, in the order of :data:`KINDS`."""
        return tuple(cls(kind, *found[kind]) for kind in KINDS if kind in found)

    @property
    def what(self) -> str:
        """The kind, in words."""
        return KINDS[self.kind][0]

    @property
    def usually(self) -> str:
        """What it usually means."""
        return KINDS[self.kind][1]

    def __str__(self) -> str:
        return f"{_rows(self.count, self.first_rows)}: {self.what}; usually {self.usually}"


@dataclass(frozen=True)
class PooledAcceptance:
    """Acceptance over all positions with sound drafts, against what no lossless rule exceeds.

    Attributes
    ----------
    num_positions : int
    rate : float
        How often the output token was among the drafts.
    ceiling : float
        The mean of α* over the positions.
    p_value, level : float
        Of a bet that the rate is above the ceiling, valid whenever one looks, and its false-alarm rate.
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
    """A number that is called acceptance, with its name and definition, as there are many."""

    name: str
    value: float
    definition: str


@dataclass(frozen=True)
class RecordedRunAudit:
    """What an audit of a recorded run found.

    Attributes
    ----------
    num_rows : int
    law : str
        The declared law of the drafts.
    false_alarm : float
        Probability, at most, that a sound engine's run is called faulty: shared equally by the three
        statements about each of five claims, and the acceptance. Boundary cases are proof and need no share.
    bias : float
        The total variation that has to be found with probability 0.9 for a run to pass.
    cases : tuple of BoundaryCase
    vocabularies : dict of int to (int, tuple of int)
        Sizes of the recorded vocabularies, each with how many rows have it and the first of them.
    claims : tuple of Claim
        Those that anything was recorded for.
    acceptance : PooledAcceptance or None
    bands : tuple of tuple of Band
        Classes of tokens by p/q and by p.
    explanations : dict of str to Explanation
        From a refuted claim to the mistake that explains it best.
    most_repeated : str
        The two drafts of a position that are equal too often, in words.
    metrics : tuple of Metric
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
        found = [f"{own.what} in {own.count} rows" for own in self.cases]
        found += dict.fromkeys(_REFUTED[own.name] for own in self.claims if own.refuted)
        own = self.acceptance
        if own is not None and own.too_high:
            found.append(
                f"{own.rate:.4f} of the positions accept a draft, and a lossless rule accepts at most "
                f"{own.ceiling:.4f} of them"
            )
        return tuple(found)

    @property
    def faulty(self) -> bool:
        """Whether a fault was found."""
        return bool(self.reasons)

    @property
    def rows_needed(self) -> int | None:
        """About how many rows of this kind let :attr:`bias` be found; None where nothing is tested."""
        needed = 0.0
        for own in self._decisive:
            # Far enough that the total variation is below 1, from where it falls with the root of the number.
            at_a_million = detectable_total_variation(10**6, MOST_CELLS, own.level)
            samples = 1e6 * (at_a_million / self.bias) ** 2
            needed = max(needed, samples * self.num_rows / own.num_samples)
        return int(np.ceil(needed)) or None

    @property
    def outcome(self) -> str:
        """PASS, FAULTY, or INCONCLUSIVE where too few rows were recorded to tell."""
        if self.faulty:
            return "FAULTY"
        told = self._decisive and all(own.detectable <= self.bias for own in self._decisive)
        return "PASS" if told else "INCONCLUSIVE"

    @property
    def _decisive(self) -> list[Claim]:
        return [own for own in self.claims if own.name in (OUTPUT, OUTPUT_BY_MASS, DRAFTS)]

    @property
    def verdict(self) -> str:
        """One sentence, which begins with the outcome."""
        rows = f"{self.num_rows:,} row{'s' if self.num_rows > 1 else ''}"
        if self.faulty:
            return f"FAULTY: in {rows}, {'; '.join(self.reasons)}"
        if self.outcome == "PASS":
            return f"PASS: no fault found in {rows}"
        if not self._decisive:
            return f"INCONCLUSIVE: {rows} with nothing to test, as no row has an output token or drafts"
        return (
            f"INCONCLUSIVE: no fault found, but {rows} are too few to find a bias of {self.bias:g}; about "
            f"{self.rows_needed:,} would do"
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON takes it."""
        found = asdict(self)
        for own, case in zip(found["cases"], self.cases, strict=True):
            own |= {"what": case.what, "usually": case.usually}
        for own, claim in zip(found["claims"], self.claims, strict=True):
            own["refuted"] = claim.refuted
        head = {"outcome": self.outcome, "verdict": self.verdict, "faulty": self.faulty}
        return head | {"rows_needed": self.rows_needed} | found

    def __str__(self) -> str:
        own = self.acceptance
        sizes = self.vocabularies.items() if len(self.vocabularies) > 1 else ()
        parts = [
            self._lines_of_outcome(),
            ["Rows that no sound engine writes:", *(f"  {own}" for own in self.cases)],
            [
                "Rows of several vocabularies; if they are of several models, audit them apart:",
                *(f"  {size} tokens: {_rows(*where)}" for size, where in sizes),
            ],
            self._lines_of_claims(),
            []
            if own is None
            else [
                f"Acceptance: {own.rate:.4f} of {own.num_positions} positions accept a draft; a lossless "
                f"rule accepts at most {own.ceiling:.4f} (p-value of being above {own.p_value:.1e})."
            ],
            self._lines_of_bands(),
            [
                "Metrics:",
                *(f"  {own.value:8.4f}  {own.name}: {own.definition}" for own in self.metrics),
            ],
        ]
        # A heading without lines says nothing.
        shown = [lines for lines in parts if lines and (len(lines) > 1 or lines[0][-1] != ":")]
        return "\n\n".join("\n".join(lines) for lines in shown)

    def _lines_of_outcome(self) -> list[str]:
        lines = [self.verdict]
        lines += [f"Likeliest cause: {own.mistake}" for own in self.explanations.values()]
        if self.most_repeated and any(own.refuted for own in self.claims if own.name == SLOTS):
            lines.append(f"Most often equal: {self.most_repeated}")
        if self._decisive:
            found = max(own.detectable for own in self._decisive)
            lines.append(
                f"With probability 0.9, this many rows show a bias of {found:.3f} or more (total variation: "
                "the share of tokens that come out wrong)."
            )
        alarm = f"{self.false_alarm:g} at most."
        return [*lines, f"A sound engine is called faulty with probability {alarm}"]

    def _lines_of_claims(self) -> list[str]:
        level = self.claims[0].level if self.claims else self.false_alarm
        head = f"{'samples':>8} {'p-value':>8} {'by bets':>8} {'bias ≥':>7} {'shows':>6}"
        lines = [f"Tests (alarm: a p-value of {level:.1e} or less, or a bias above 0):"]
        lines += [f"  {'':<53} {head}"] if self.claims else []
        for own in self.claims:
            cells = f"{own.num_samples:>8} {own.p_value:>8.1e} {own.betting_p_value:>8.1e}"
            sizes = f"{own.total_variation_bound:>7.4f} {own.detectable:>6.3f}"
            lines.append(f"  {own.name:<53} {cells} {sizes}{'  REFUTED' if own.refuted else ''}")
        return lines

    def _lines_of_bands(self) -> list[str]:
        lines = ["Output tokens by class. Deviations without an alarm above mean nothing:"]
        for bands in filter(None, self.bands):
            lines.append(f"  {'':<44} {'observed':>9} {'expected':>11} {'deviations':>11}")
            lines += [
                f"  {own.name:<44} {own.observed:>9} {own.expected:>11.1f} {own.deviations:>+11.1f}"
                for own in bands
            ]
        return lines


def _rows(count: int, first: tuple[int, ...]) -> str:
    more = ", …" if count > len(first) else ""
    return f"{count} row{'s' if count > 1 else ''} ({', '.join(map(str, first))}{more})"


_PLAIN_METRICS = {
    "acceptance rate": "accepted tokens / positions that were reached with drafts",
    "optimal acceptance rate": "mean of α*(p, q) over positions that were reached with drafts: Σ min(p, q) "
    "for one draft",
    "draft acceptance rate": "accepted tokens / draft tokens proposed, those that were not reached too "
    "(vLLM's draft acceptance rate, SGLang's spec_accept_rate)",
    "accepted drafts per step": "accepted tokens / steps, the extra token not counted",
    "tokens per step": "1 + accepted tokens / steps: block efficiency, the extra token counted (vLLM's mean "
    "acceptance length, SGLang's spec_accept_length)",
}


def metrics_of(positions: IntArray, ceilings: list[float]) -> tuple[Metric, ...]:
    """The metrics in use, by counting; those that nothing was recorded for are left out.

    ``positions`` (N, 4) holds depth, number of drafts, whether the position was reached, whether a draft was
    accepted. A step is a row of depth 0 with what follows it. ``ceilings`` are α* at the positions that were
    reached with sound drafts.
    """
    depth, drafts, reached, hit = positions.T
    verified = (reached == 1) & (drafts > 0)
    steps = int(np.count_nonzero(verified & (depth == 0)))
    accepted, values = int(hit.sum()), {}
    if steps:
        values["acceptance rate"] = accepted / int(verified.sum())
    if ceilings:
        values["optimal acceptance rate"] = float(np.mean(ceilings))
    if steps:
        values["draft acceptance rate"] = accepted / int(drafts.sum())
        values["accepted drafts per step"] = accepted / steps
        values["tokens per step"] = 1.0 + accepted / steps
    found = [Metric(name, own, _PLAIN_METRICS[name]) for name, own in values.items()]
    deepest = int(depth[verified].max()) if steps else 0
    by_depth = np.bincount(depth[verified], minlength=deepest + 1)
    hits = np.bincount(depth[hit == 1], minlength=deepest + 1)
    for own in np.flatnonzero(by_depth) if deepest else ():
        name, share = f"conditional acceptance at depth {own}", hits[own] / by_depth[own]
        found.append(Metric(name, share, "accepted / reached at this depth"))
        told = "accepted at this depth / steps (vLLM's per-position acceptance rate)"
        found.append(Metric(f"acceptance per step at depth {own}", hits[own] / steps, told))
    return tuple(found)
