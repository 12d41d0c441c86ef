"""Audits: is a rule lossless, and were its drafts drawn from the declared law."""

from otmd.audit.draft_samples import DraftLawAudit, draft_law
from otmd.audit.evidence import Band, Claim, Group, SequentialAudit
from otmd.audit.mistakes import Explanation
from otmd.audit.rule_faults import Control, negative_controls
from otmd.audit.rules import (
    EnumeratedAudit,
    GuiltyDrafts,
    Losslessness,
    enumerated,
    losslessness,
    samples_to_detect,
)
from otmd.audit.run_audit import recorded_run
from otmd.audit.run_report import (
    BoundaryCase,
    Metric,
    PooledAcceptance,
    RecordedRunAudit,
    Statement,
)
from otmd.audit.samples import Acceptance, TokenDeviation, sampler_of

__all__ = [
    "Acceptance", "Band", "BoundaryCase", "Claim", "Control", "DraftLawAudit", "EnumeratedAudit",
    "Explanation", "Group", "GuiltyDrafts", "Losslessness", "Metric", "PooledAcceptance",
    "RecordedRunAudit", "SequentialAudit", "Statement", "TokenDeviation", "draft_law", "enumerated",
    "losslessness", "negative_controls", "recorded_run", "sampler_of", "samples_to_detect",
]  # fmt: skip
