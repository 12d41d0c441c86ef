"""Draft laws, which say how draft tokens are drawn: one law in each file, one small interface."""

from otmd.drafts.base import DraftLaw
from otmd.drafts.conditional_poisson import ConditionalPoisson
from otmd.drafts.independent import Independent
from otmd.drafts.joint import Joint
from otmd.drafts.proposal import ProposalLaw
from otmd.drafts.stratified import Stratified
from otmd.drafts.structure import Race, Slots, Structure, Table
from otmd.drafts.top_then import CertainTop, Greedy, Hub, TopThen
from otmd.drafts.with_replacement import WithReplacement
from otmd.drafts.without_replacement import WithoutReplacement

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
