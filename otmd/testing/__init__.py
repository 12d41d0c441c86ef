"""Assertions and hostile inputs for tests of your own laws, verifiers, tree verifiers and whole steps."""

from otmd.testing.assertions import assert_lossless, assert_rate, hostile_names, hostile_pairs
from otmd.testing.laws import check_law
from otmd.testing.steps import assert_step_lossless
from otmd.testing.trees import check_tree_verifier, hostile_trees
from otmd.testing.verifiers import check_verifier
from otmd.trees import TableModel

__all__ = [
    "TableModel",
    "assert_lossless",
    "assert_rate",
    "assert_step_lossless",
    "check_law",
    "check_tree_verifier",
    "check_verifier",
    "hostile_names",
    "hostile_pairs",
    "hostile_trees",
]
