"""The optimal plan at full vocabulary: tokens are grouped into classes, whose weights choose a draft."""

from otmd.verifiers.optimal.choice_plan import ChoicePlan
from otmd.verifiers.optimal.race_plan import plan_without_replacement
from otmd.verifiers.optimal.slots_plan import MOST_DISTRIBUTIONS, plan_slots

__all__ = ["MOST_DISTRIBUTIONS", "ChoicePlan", "plan_slots", "plan_without_replacement"]
