"""What a rule for whole trees is: from a drafted tree to the tokens that are emitted."""

from abc import ABC, abstractmethod

import numpy as np

from otmd.drafts.base import validate_rng
from otmd.sequences.chance import Chance, Sampled
from otmd.sequences.models import Model, Prefix
from otmd.sequences.trees import Context, DraftTree, TreeLaw


class SequenceRule(ABC):
    """A lossless rule from a draft tree to an accepted path of it and one token more."""

    @abstractmethod
    def emit(self, context: Context, tree: DraftTree, chance: Chance) -> Prefix:
        """Decide on a tree: the accepted path, and the token after it.

        Parameters
        ----------
        context : Context
            The models.
        tree : DraftTree
            What was drafted.
        chance : Chance
            Makes every random choice.

        Returns
        -------
        tuple of int
            1 to depth + 1 tokens.
        """

    def step(self, target_model: Model, law: TreeLaw, *, rng: np.random.Generator) -> Prefix:
        """Draft a tree and decide on it.

        Parameters
        ----------
        target_model : callable
            From a prefix to the target distribution (V,).
        law : TreeLaw
            The law of the tree.
        rng : numpy.random.Generator
            Equal seeds give equal steps.

        Returns
        -------
        tuple of int
            The emitted tokens.

        Raises
        ------
        ValueError
            For models that give no distributions; UnsupportedLaw for a law not served.
        """
        validate_rng(rng)
        return self.run(Context(target_model, law), Sampled(rng))

    def run(self, context: Context, chance: Chance) -> Prefix:
        """Draft a tree and decide on it, see :meth:`step` and :meth:`emit`."""
        return self.emit(context, DraftTree(context, chance), chance)
