"""Checks of laws, verifiers, tree verifiers and whole steps in one call; :mod:`otmd.testing` has them all."""

from otmd.conformance.laws import check_law
from otmd.conformance.steps import assert_step_lossless
from otmd.conformance.trees import check_tree_verifier, hostile_trees
from otmd.conformance.verifiers import check_verifier

__all__ = [
    "assert_step_lossless",
    "check_law",
    "check_tree_verifier",
    "check_verifier",
    "hostile_trees",
]
