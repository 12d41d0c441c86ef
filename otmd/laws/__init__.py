"""Draft laws, which say how draft tokens are drawn: functions from q to a structure."""

from otmd.laws.base import DraftLaw
from otmd.laws.conditional_poisson import ConditionalPoisson
from otmd.laws.distinct import Race
from otmd.laws.drafts import Table
from otmd.laws.slots import Slots
from otmd.laws.standard import (
    Greedy,
    Hub,
    HubPairs,
    Independent,
    Joint,
    TopK,
    TopThen,
    WithoutReplacement,
    WithReplacement,
)
from otmd.laws.stratified import Stratified
from otmd.laws.structure import Structure

__all__ = [
    "ConditionalPoisson",
    "DraftLaw",
    "Greedy",
    "Hub",
    "HubPairs",
    "Independent",
    "Joint",
    "Race",
    "Slots",
    "Stratified",
    "Structure",
    "Table",
    "TopK",
    "TopThen",
    "WithReplacement",
    "WithoutReplacement",
]
