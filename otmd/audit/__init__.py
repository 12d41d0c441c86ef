"""Audits: is a verifier lossless, and were its drafts drawn from the declared law.

=================================================  ================================================
subject                                                  modules, each using only those above it
=================================================  ================================================
statistics: counts in cells, bets                        ``counts``, ``bets``
arguments, reports, ceilings and declared laws           ``samples``
a verifier, by samples and by enumeration                ``by_samples``, ``by_enumeration``
a recorded run: its rows, their claims and evidence      ``records``, ``boundary_cases``, ``claims``, ``tally``
mistakes that explain drafts and output tokens           ``mistakes``, ``draft_mistakes``, ``output_mistakes``
drafts of a law                                          ``draft_samples``
the cause of a fault in a recorded run                   ``positions``, ``causes``
the report on a recorded run, and the audit in one pass  ``metrics``, ``run_report``, ``run_audit``
=================================================  ================================================
"""

from otmd.audit.boundary_cases import BoundaryCase
from otmd.audit.by_enumeration import EnumeratedAudit, GuiltyDrafts, enumerated
from otmd.audit.by_samples import Losslessness, SequentialAudit, losslessness, samples_to_detect
from otmd.audit.claims import Band, Claim, Group
from otmd.audit.draft_samples import DraftLawAudit, draft_law
from otmd.audit.metrics import Metric, PooledAcceptance
from otmd.audit.mistakes import Explanation
from otmd.audit.run_audit import recorded_run
from otmd.audit.run_report import RecordedRunAudit, Statement
from otmd.audit.samples import Acceptance, TokenDeviation, sampler_of

__all__ = [
    "Acceptance", "Band", "BoundaryCase", "Claim", "DraftLawAudit", "EnumeratedAudit", "Explanation",
    "Group", "GuiltyDrafts", "Losslessness", "Metric", "PooledAcceptance", "RecordedRunAudit",
    "SequentialAudit", "Statement", "TokenDeviation", "draft_law", "enumerated", "losslessness",
    "recorded_run", "sampler_of", "samples_to_detect",
]  # fmt: skip
