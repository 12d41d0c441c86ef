"""Audits: is a verifier lossless, and were its drafts drawn from the declared law.

Modules, each of which uses only those above it:

- ``statistics``: tests of counts in cells, and bets that are valid whenever one looks;
- ``verifiers``: audits of a verifier, by samples and by enumeration; their arguments and reports;
- ``drafts``: the audit of drafts;
- ``declared``: laws of drafts by name;
- ``shards``, ``records``, ``boundary_cases``, ``claims``, ``metrics``: a recorded run;
- ``observer``, ``numbers``, ``recorder``, ``tally``: its rows as numbers, written by an engine and counted;
- ``run_report``, ``run_audit``: the report on a recorded run, and the audit in one pass;
- ``texts``: the audit of a server by its outputs alone.
"""

from otmd.audit.boundary_cases import BoundaryCase
from otmd.audit.claims import Band, Claim, Group
from otmd.audit.drafts import DraftLawAudit, draft_law
from otmd.audit.metrics import Metric, PooledAcceptance
from otmd.audit.recorder import Recorder
from otmd.audit.run_audit import recorded_run
from otmd.audit.run_report import RecordedRunAudit, Statement
from otmd.audit.texts import texts
from otmd.audit.verifiers import (
    Acceptance,
    EnumeratedAudit,
    GuiltyDrafts,
    Losslessness,
    SequentialAudit,
    TokenDeviation,
    enumerated,
    losslessness,
    sampler_of,
    samples_to_detect,
)

__all__ = [
    "Acceptance", "Band", "BoundaryCase", "Claim", "DraftLawAudit", "EnumeratedAudit",
    "Group", "GuiltyDrafts", "Losslessness", "Metric", "PooledAcceptance", "RecordedRunAudit",
    "Recorder", "SequentialAudit", "Statement", "TokenDeviation", "draft_law", "enumerated", "losslessness",
    "recorded_run", "sampler_of", "samples_to_detect", "texts",
]  # fmt: skip
