"""The optimal plan at full vocabulary: classes of tokens, and the weights that choose among drafts."""

from otmd.choice.plan import ChoicePlan
from otmd.choice.with_replacement import plan_with_replacement
from otmd.choice.without_replacement import plan_without_replacement

__all__ = ["ChoicePlan", "plan_with_replacement", "plan_without_replacement"]
