"""The rules that inference engines run, read in their code, with exact acceptance and bias; their options."""

from otmd.engines import lossy
from otmd.engines.catalogue import CATALOGUE, SOURCES, EngineRule, EngineVerdict
from otmd.engines.configurations import ENGINES, Engine, PlannedDrafts
from otmd.engines.counters import AcceptanceCounts, read_counts
from otmd.engines.lossy import LossyRule

__all__ = [
    "CATALOGUE", "ENGINES", "SOURCES", "AcceptanceCounts", "Engine", "EngineRule", "EngineVerdict",
    "LossyRule", "PlannedDrafts", "lossy", "read_counts",
]  # fmt: skip
