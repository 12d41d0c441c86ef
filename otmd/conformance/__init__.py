"""Checks of laws, verifiers and tree verifiers in one call, as :mod:`otmd.testing` gives them."""

from otmd.conformance.laws import check_law
from otmd.conformance.trees import check_tree_verifier, hostile_trees
from otmd.conformance.verifiers import check_verifier

__all__ = ["check_law", "check_tree_verifier", "check_verifier", "hostile_trees"]
