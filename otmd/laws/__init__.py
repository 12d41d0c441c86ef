"""Draft laws, which say how draft tokens are drawn: one law in each file, one small interface."""

from otmd.laws.base import DraftLaw
from otmd.laws.conditional_poisson import ConditionalPoisson
from otmd.laws.independent import Independent
from otmd.laws.joint import Joint
from otmd.laws.proposal import ProposalLaw
from otmd.laws.stratified import Stratified
from otmd.laws.structure import Race, Slots, Structure, Table
from otmd.laws.top_then import CertainTop, Greedy, Hub, TopThen
from otmd.laws.with_replacement import WithReplacement
from otmd.laws.without_replacement import WithoutReplacement

__all__ = [
    "CertainTop",
    "ConditionalPoisson",
    "DraftLaw",
    "Greedy",
    "Hub",
    "Independent",
    "Joint",
    "ProposalLaw",
    "Race",
    "Slots",
    "Stratified",
    "Structure",
    "Table",
    "TopThen",
    "WithReplacement",
    "WithoutReplacement",
]
