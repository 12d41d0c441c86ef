"""What inference engines run: rules read in their code, executable, each with its exact acceptance."""

from otmd.engines import lossy
from otmd.engines.catalogue import CATALOGUE, SOURCES, EngineRule, Verdict
from otmd.engines.lossy import LossyRule

__all__ = ["CATALOGUE", "SOURCES", "EngineRule", "LossyRule", "Verdict", "lossy"]
