"""Sequences and trees: from the acceptance at one position to tokens per step."""

from otmd.trees.adaptive import AdaptiveTree, BestFirstTree
from otmd.trees.base import TableModel, TreeLaw
from otmd.trees.efficiency import (
    BlockEfficiency,
    block_efficiency,
    output_distribution,
    target_distribution,
)
from otmd.trees.inclusion import inclusion_bound
from otmd.trees.laws import IIDPaths, MostLikelyTree, TokenTree, budget_shape
from otmd.trees.multipath import GreedyMultiPath
from otmd.trees.optimum import SequenceOptimum, optimal_block_efficiency
from otmd.trees.verifiers import BlockVerification, TokenLevel, Traversal, TreeVerifier
from otmd.trees.whole_tree import LayerVerification, SubtreeVerification

__all__ = [
    "AdaptiveTree",
    "BestFirstTree",
    "BlockEfficiency",
    "BlockVerification",
    "GreedyMultiPath",
    "IIDPaths",
    "LayerVerification",
    "MostLikelyTree",
    "SequenceOptimum",
    "SubtreeVerification",
    "TableModel",
    "TokenLevel",
    "TokenTree",
    "Traversal",
    "TreeLaw",
    "TreeVerifier",
    "block_efficiency",
    "budget_shape",
    "inclusion_bound",
    "optimal_block_efficiency",
    "output_distribution",
    "target_distribution",
]
