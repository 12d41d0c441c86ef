"""The optimal plan at full vocabulary: tokens are grouped into classes, whose weights choose a draft."""

from otmd.verifiers.optimal.choice_plan import ChoicePlan
from otmd.verifiers.optimal.independent_plan import plan_independent
from otmd.verifiers.optimal.overlap_plan import MOST_DISTRIBUTIONS, plan_overlapping
from otmd.verifiers.optimal.race_plan import plan_without_replacement

__all__ = [
    "MOST_DISTRIBUTIONS",
    "ChoicePlan",
    "plan_independent",
    "plan_overlapping",
    "plan_without_replacement",
]
