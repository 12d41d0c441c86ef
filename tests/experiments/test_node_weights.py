"""The fitted reach, on small models: what β = 0 and the oracle do, and that a fit recovers β."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.trees.node_weights import FEATURES, FittedTree, ScoredTree, fitted
from otmd.trees import AdaptiveTree, LayerVerification, TableModel
from otmd.trees.base import Context
from otmd.trees.random_choices import Sampled

QUOTAS = (2, 2, 2)
ZERO = np.zeros(len(FEATURES))


class Table(TableModel):
    """A table in place of a reader of a language model, which has read everything."""

    def read(self, prefixes) -> None:
        """Nothing is left to read."""


def models() -> list[Table]:
    return [Table.random(5, 2, rng=seed) for seed in range(3)]


def drawn(law, target, seed: int) -> list[tuple[int, ...]]:
    return law.draft_tree(Context(target, law), Sampled(np.random.default_rng(seed))).prefixes()


def test_without_beta_it_is_the_adaptive_tree() -> None:
    target, draft, ngram = models()
    for seed in range(5):
        law = FittedTree(draft, ngram, 0, QUOTAS, ZERO)
        assert drawn(law, target, seed) == drawn(AdaptiveTree(draft, QUOTAS), target, seed)


def test_the_scores_are_those_of_the_layer_rule() -> None:
    target, draft, ngram = models()
    law = ScoredTree(target, False, draft, ngram, 0, QUOTAS)
    context = Context(target, law)
    tree = law.draft_tree(context, Sampled(np.random.default_rng(0)))
    tree.prefixes()
    layers = LayerVerification().layers(context, tree)
    # A node that cannot be accepted has no score in a layer.
    kept = [row[-1] for row in law.rows if row[-1] > 0]
    expected = [score for layer in layers[1:-1] for score in layer.scores.tolist()]
    assert sorted(kept) == pytest.approx(sorted(expected))


def test_the_oracle_yields_more_on_average() -> None:
    target, draft, ngram = models()
    means = []
    for oracle in (False, True):
        tokens = []
        for seed in range(300):
            law = ScoredTree(target, oracle, draft, ngram, 0, QUOTAS)
            context = Context(target, law)
            choices = Sampled(np.random.default_rng(seed))
            tree = law.draft_tree(context, choices)
            tokens.append(LayerVerification().tokens_per_step(context, tree, choices))
        means.append(np.mean(tokens))
    assert means[1] > means[0] + 0.02


def test_a_fit_recovers_beta() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(20_000, len(FEATURES)))
    features[:, 0] = 1.0
    beta = rng.normal(size=len(FEATURES)) / 5
    offset = features[:, FEATURES.index("log reach")]
    scores = np.exp(offset + features @ beta) * rng.gamma(4.0, 0.25, len(features))
    estimate = fitted(np.column_stack([features, scores]))
    np.testing.assert_allclose(estimate, beta, atol=0.05)
