"""The optimal plan at full vocabulary: classes of tokens, and the weights that choose among drafts."""

from otmd.choice.independent import plan_independent
from otmd.choice.plan import ChoicePlan
from otmd.choice.without_replacement import plan_without_replacement

__all__ = ["ChoicePlan", "plan_independent", "plan_without_replacement"]
