"""Audits: is a verifier lossless, were its drafts drawn from the declared law, is an engine lossless.

Modules, each of which uses only those above it:

- ``statistics``: exact tests of counts in cells, and bets that are valid whenever one looks;
- ``base``: reports, checked arguments, random numbers, the ceiling of the acceptance;
- ``samples``, ``sequential``, ``enumeration``, ``drafts``: audits of a verifier, and of draft samples;
- ``claims``: what is claimed of a recorded run, and events that no sound engine records;
- ``declared``, ``source``, ``rows``, ``table``: rows are read and become lines of the table, whose columns
  are the claims;
- ``recorder``: the table written by an engine, and read;
- ``judge``, ``bands``: statistics of columns, and the tokens that deviate;
- ``listings``, ``report``: tables, and the verdict;
- ``run``, ``texts``: audits of a recorded run, and of a server by its outputs alone.
"""

from otmd.audit.bands import Band, Example
from otmd.audit.base import TokenDeviation
from otmd.audit.drafts import DraftLawAudit, draft_law
from otmd.audit.enumeration import EnumeratedAudit, GuiltyDrafts, enumerated
from otmd.audit.judge import Claim, Group, Rate
from otmd.audit.recorder import Recorder
from otmd.audit.report import Event, RecordedRunAudit, Statement
from otmd.audit.run import recorded_run
from otmd.audit.samples import Acceptance, Losslessness, losslessness, sampler_of, samples_to_detect
from otmd.audit.sequential import SequentialAudit
from otmd.audit.texts import texts

__all__ = [
    "Acceptance", "Band", "Claim", "DraftLawAudit", "EnumeratedAudit", "Event", "Example",
    "Group", "GuiltyDrafts", "Losslessness", "Rate", "RecordedRunAudit", "Recorder",
    "SequentialAudit", "Statement", "TokenDeviation", "draft_law", "enumerated",
    "losslessness", "recorded_run", "sampler_of", "samples_to_detect", "texts",
]  # fmt: skip
