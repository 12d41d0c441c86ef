"""The optimal acceptance rate: the best that any lossless verifier could do."""

from otmd.optimum import bounds
from otmd.optimum.acceptance import OptimalAcceptance, optimal_acceptance

__all__ = ["OptimalAcceptance", "bounds", "optimal_acceptance"]
