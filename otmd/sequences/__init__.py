"""Sequences and trees: from the acceptance at one position to tokens per step."""

from otmd.sequences.efficiency import BlockEfficiency, block_efficiency, output_law, target_law
from otmd.sequences.optimum import SequenceOptimum, optimal_block_efficiency, sequence_program_size
from otmd.sequences.tree_laws import IIDPaths, LikeliestTree, TokenTree, budget_shape
from otmd.sequences.tree_rules import BlockVerification, SequenceRule, TokenLevel, Traversal
from otmd.sequences.trees import TableModel, TreeLaw

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
