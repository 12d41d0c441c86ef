"""What inference engines run: rules read in their code, executable, each with its exact acceptance."""

from otmd.engines.catalogue import CATALOGUE, EngineRule, Source, Verdict
from otmd.engines.lossy import Ensemble, LossyRule, RatioTest, RelaxedTopK, Thresholds, Typical

__all__ = [
    "CATALOGUE",
    "EngineRule",
    "Ensemble",
    "LossyRule",
    "RatioTest",
    "RelaxedTopK",
    "Source",
    "Thresholds",
    "Typical",
    "Verdict",
]
