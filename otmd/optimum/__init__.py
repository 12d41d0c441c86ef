"""The optimal acceptance rate: the best that any lossless verifier could do."""

from otmd.optimum import bounds
from otmd.optimum.acceptance import OptimalAcceptance, optimal_acceptance
from otmd.optimum.certificate import OptimalityCertificate
from otmd.optimum.lossy import LossyFrontier, lossy_frontier

__all__ = [
    "LossyFrontier",
    "OptimalAcceptance",
    "OptimalityCertificate",
    "bounds",
    "lossy_frontier",
    "optimal_acceptance",
]
