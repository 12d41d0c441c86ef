"""Sequences and trees: from the acceptance at one position to tokens per step."""

from otmd.trees.base import TableModel, TreeLaw
from otmd.trees.efficiency import (
    BlockEfficiency,
    block_efficiency,
    output_distribution,
    target_distribution,
)
from otmd.trees.laws import IIDPaths, MostLikelyTree, TokenTree, budget_shape
from otmd.trees.optimum import SequenceOptimum, optimal_block_efficiency, sequence_program_size
from otmd.trees.verifiers import BlockVerification, TokenLevel, Traversal, TreeVerifier

__all__ = [
    "BlockEfficiency",
    "BlockVerification",
    "IIDPaths",
    "MostLikelyTree",
    "SequenceOptimum",
    "TableModel",
    "TokenLevel",
    "TokenTree",
    "Traversal",
    "TreeLaw",
    "TreeVerifier",
    "block_efficiency",
    "budget_shape",
    "optimal_block_efficiency",
    "output_distribution",
    "sequence_program_size",
    "target_distribution",
]
