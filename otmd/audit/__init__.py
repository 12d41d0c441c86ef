"""Audits: is a rule lossless, and were its drafts drawn from the declared law."""

from otmd.audit.acceptance import Acceptance
from otmd.audit.black_box import Losslessness, losslessness
from otmd.audit.boundary import BoundaryCase
from otmd.audit.controls import Control, negative_controls
from otmd.audit.drawn import DraftLawAudit, Explanation, draft_law
from otmd.audit.dump_audit import dump
from otmd.audit.dump_bands import Band
from otmd.audit.dump_claims import Claim
from otmd.audit.dump_report import DumpAudit, PooledAcceptance
from otmd.audit.enumeration import ExactAudit, GuiltyDrafts, exact
from otmd.audit.metrics import Metric
from otmd.audit.power import samples_to_detect
from otmd.audit.samplers import sampler_of
from otmd.audit.sequential import SequentialAudit
from otmd.audit.words import TokenDeviation

__all__ = [
    "Acceptance",
    "Band",
    "BoundaryCase",
    "Claim",
    "Control",
    "DraftLawAudit",
    "DumpAudit",
    "ExactAudit",
    "Explanation",
    "GuiltyDrafts",
    "Losslessness",
    "Metric",
    "PooledAcceptance",
    "SequentialAudit",
    "TokenDeviation",
    "draft_law",
    "dump",
    "exact",
    "losslessness",
    "negative_controls",
    "sampler_of",
    "samples_to_detect",
]
