"""Audits: is a verifier lossless, and were its drafts drawn from the declared law."""

from otmd.audit.boundary_cases import BoundaryCase
from otmd.audit.by_enumeration import EnumeratedAudit, GuiltyDrafts, enumerated
from otmd.audit.by_samples import Losslessness, losslessness, samples_to_detect
from otmd.audit.draft_samples import DraftLawAudit, draft_law
from otmd.audit.evidence import Band, Claim, Group
from otmd.audit.faulty_verifiers import Control, negative_controls
from otmd.audit.metrics import Metric, PooledAcceptance
from otmd.audit.mistakes import Explanation
from otmd.audit.run_audit import recorded_run
from otmd.audit.run_report import RecordedRunAudit, Statement
from otmd.audit.samples import Acceptance, TokenDeviation, sampler_of
from otmd.audit.sequential import SequentialAudit

__all__ = [
    "Acceptance", "Band", "BoundaryCase", "Claim", "Control", "DraftLawAudit", "EnumeratedAudit",
    "Explanation", "Group", "GuiltyDrafts", "Losslessness", "Metric", "PooledAcceptance",
    "RecordedRunAudit", "SequentialAudit", "Statement", "TokenDeviation", "draft_law", "enumerated",
    "losslessness", "negative_controls", "recorded_run", "sampler_of", "samples_to_detect",
]  # fmt: skip
