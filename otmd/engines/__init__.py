"""The rules that inference engines run, read in their code, each with its exact acceptance and bias."""

from otmd.engines import lossy
from otmd.engines.catalogue import CATALOGUE, SOURCES, EngineRule, EngineVerdict
from otmd.engines.counters import AcceptanceCounts, read_counts
from otmd.engines.lossy import LossyRule

__all__ = [
    "CATALOGUE", "SOURCES", "AcceptanceCounts", "EngineRule", "EngineVerdict", "LossyRule", "lossy",
    "read_counts",
]  # fmt: skip
