"""The rules that inference engines run, read in their code, with exact acceptance and bias."""

from otmd.engines import lossy
from otmd.engines.catalogue import CATALOGUE, SOURCES, EngineRule, EngineVerdict
from otmd.engines.lossy import LossyRule

__all__ = ["CATALOGUE", "SOURCES", "EngineRule", "EngineVerdict", "LossyRule", "lossy"]
