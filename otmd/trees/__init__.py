"""Sequences and trees: from the acceptance at one position to tokens per step."""

from otmd.trees.adaptive import AdaptiveTree
from otmd.trees.base import TableModel, TreeLaw
from otmd.trees.inclusion import InclusionBound
from otmd.trees.laws import IIDPaths, MostLikelyTree, TokenTree, budget_shape
from otmd.trees.multipath import GreedyMultiPath
from otmd.trees.optimum import SequenceOptimum, optimal_block_efficiency
from otmd.trees.steps import (
    TokensPerStep,
    output_distribution,
    target_distribution,
    tokens_per_step,
)
from otmd.trees.verifiers import BlockVerification, TokenLevel, Traversal, TreeVerifier
from otmd.trees.whole_tree import LayerVerification, SubtreeVerification

__all__ = [
    "AdaptiveTree",
    "BlockVerification",
    "GreedyMultiPath",
    "IIDPaths",
    "InclusionBound",
    "LayerVerification",
    "MostLikelyTree",
    "SequenceOptimum",
    "SubtreeVerification",
    "TableModel",
    "TokenLevel",
    "TokenTree",
    "TokensPerStep",
    "Traversal",
    "TreeLaw",
    "TreeVerifier",
    "budget_shape",
    "optimal_block_efficiency",
    "output_distribution",
    "target_distribution",
    "tokens_per_step",
]
