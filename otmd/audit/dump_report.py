"""What an audit of a recorded run found, and how it reads."""

from dataclasses import asdict, dataclass
from typing import Any

from otmd.audit.boundary import BoundaryCase
from otmd.audit.drawn import Explanation
from otmd.audit.dump_bands import Band, band_table
from otmd.audit.dump_claims import STATEMENTS, Claim
from otmd.audit.metrics import Metric

# Three claims with three statements each, and the acceptance.
NUM_STATEMENTS = 3 * STATEMENTS + 1


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
    p_value : float
        Of a bet that the rate is above the ceiling; valid whenever one looks.
    level : float
        Its false-alarm rate.
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
class DumpAudit:
    """What an audit of a recorded run found.

    Attributes
    ----------
    num_rows : int
    law : str
        The declared law of the drafts.
    false_alarm : float
        Probability, at most, that a sound engine's run is called faulty: shared equally by the three
        statements about each of three claims, and the acceptance. Boundary cases have no part in it, as
        they have no chance.
    cases : tuple of BoundaryCase
        Rows that no sound engine writes.
    claims : tuple of Claim
        Those that anything was recorded for.
    acceptance : PooledAcceptance or None
    bands : tuple of tuple of Band
        Classes of tokens by p/q and by p: how often they came out, and should have.
    explanations : dict of str to Explanation
        From a refuted claim to the mistake that explains it best.
    metrics : tuple of Metric
    """

    num_rows: int
    law: str
    false_alarm: float
    cases: tuple[BoundaryCase, ...]
    claims: tuple[Claim, ...]
    acceptance: PooledAcceptance | None
    bands: tuple[tuple[Band, ...], ...]
    explanations: dict[str, Explanation]
    metrics: tuple[Metric, ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why there is a fault, in words; empty if none was found."""
        found = [f"{own.what} in {own.count} rows" for own in self.cases]
        found += [f"refuted: {own.name}" for own in self.claims if own.refuted]
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
    def verdict(self) -> str:
        """One sentence."""
        if self.faulty:
            return f"fault found in {self.num_rows} rows: " + "; ".join(self.reasons)
        if not self.claims:
            return f"nothing to test in {self.num_rows} rows"
        sizes = ", ".join(f"{own.detectable:.3f}" for own in self.claims)
        return (
            f"no fault found in {self.num_rows} rows; a mean total variation of {sizes} that shows on the "
            "cells of the claims below would have been found with probability 0.9"
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON takes it."""
        found = asdict(self)
        for own, case in zip(found["cases"], self.cases, strict=True):
            own |= {"what": case.what, "usually": case.usually}
        for own, claim in zip(found["claims"], self.claims, strict=True):
            own["refuted"] = claim.refuted
        return {"verdict": self.verdict, "faulty": self.faulty, **found}

    def __str__(self) -> str:
        lines = [self.verdict]
        if self.cases:
            lines += ["", "rows that no sound engine writes:", *(f"  {own}" for own in self.cases)]
        level = self.false_alarm / NUM_STATEMENTS
        lines += ["", f"claims (alarm at {level:.1e}, {self.false_alarm:.0e} in all):"]
        for own in self.claims:
            lines += self._lines_of(own)
        if self.acceptance is not None:
            own = self.acceptance
            lines += [
                "",
                f"accepted {own.rate:.4f} of {own.num_positions} positions, a lossless rule at most "
                f"{own.ceiling:.4f}; p-value of being above {own.p_value:.1e}",
            ]
        lines += ["", "output tokens by class:", *(band_table(own) for own in self.bands if own)]
        lines += ["", "metrics:"]
        lines += [f"  {own.value:8.4f}  {own.name}: {own.definition}" for own in self.metrics]
        return "\n".join(lines)

    def _lines_of(self, own: Claim) -> list[str]:
        lines = [
            f"  {own.name}: {'REFUTED' if own.refuted else 'not refuted'} by {own.num_samples} samples",
            f"    p-value {own.p_value:.1e}, by betting {own.betting_p_value:.1e}; mean total variation at "
            f"least {own.total_variation_bound:.4f}",
        ]
        if own.name in self.explanations:
            lines.append(f"    best explained by: {self.explanations[own.name].mistake}")
        return lines
