"""Sequences and trees: from the acceptance at one position to tokens per step."""

from otmd.sequences.block_verification import BlockVerification
from otmd.sequences.efficiency import BlockEfficiency, block_efficiency, output_law, target_law
from otmd.sequences.iid_paths import IIDPaths
from otmd.sequences.likeliest_tree import LikeliestTree
from otmd.sequences.models import TableModel
from otmd.sequences.optimum import (
    SequenceOptimum,
    optimal_block_efficiency,
    sequence_program_size,
)
from otmd.sequences.rule import SequenceRule
from otmd.sequences.token_level import TokenLevel
from otmd.sequences.token_tree import TokenTree, budget_shape
from otmd.sequences.traversal import Traversal
from otmd.sequences.trees import TreeLaw

__all__ = [
    "BlockEfficiency",
    "BlockVerification",
    "IIDPaths",
    "LikeliestTree",
    "SequenceOptimum",
    "SequenceRule",
    "TableModel",
    "TokenLevel",
    "TokenTree",
    "Traversal",
    "TreeLaw",
    "block_efficiency",
    "budget_shape",
    "optimal_block_efficiency",
    "output_law",
    "sequence_program_size",
    "target_law",
]
