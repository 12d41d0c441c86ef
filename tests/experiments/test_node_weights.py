"""The fitted reach, on small models: what β = 0 and the oracle do, and that a fit recovers β."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from experiments.trees.node_weights import (
    FEATURES,
    RIDGES,
    FittedTree,
    Nodes,
    Place,
    ScoredTree,
    deviance,
    fit_nodes,
    fitted,
)
from otmd.trees import AdaptiveTree, LayerVerification, TableModel
from otmd.trees.adaptive import Leaf
from otmd.trees.base import Context
from otmd.trees.random_choices import Sampled

QUOTAS = (2, 2, 2)
ZERO = np.zeros(len(FEATURES))
BETA = np.random.default_rng(1).normal(size=len(FEATURES)) / 5


class Table(TableModel):
    """A table in place of a reader of a language model, which has read everything."""

    def read(self, prefixes) -> None:
        """Nothing is left to read."""


def place() -> Any:
    models: list[Any] = [Table.random(5, 2, rng=seed) for seed in range(3)]
    return Place(
        models[0],
        models[1],
        models[2],
        0,
        lambda prefixes: [np.log(models[1](p)) for p in prefixes],
    )


def drawn(law, target, seed: int) -> list[tuple[int, ...]]:
    return law.draft_tree(Context(target, law), Sampled(np.random.default_rng(seed))).prefixes()


def test_without_beta_it_is_the_adaptive_tree() -> None:
    at = place()
    for seed in range(5):
        law = FittedTree(at, QUOTAS, ZERO)
        assert drawn(law, at.target, seed) == drawn(AdaptiveTree(at.draft, QUOTAS), at.target, seed)


def test_the_direction_adds_its_product_with_the_logits() -> None:
    at = place()
    direction = np.arange(5.0)
    law = FittedTree(at, QUOTAS, ZERO, direction)
    expected = np.exp(direction @ np.log(at.draft((1, 2))))
    leaf = Leaf(at.draft((1, 2)), 0.5)
    assert law.correction((1, 2), leaf) == pytest.approx(expected)
    drawn_trees = [drawn(law, at.target, seed) for seed in range(20)]
    formula = [drawn(AdaptiveTree(at.draft, QUOTAS), at.target, seed) for seed in range(20)]
    assert drawn_trees != formula


def test_the_scores_are_those_of_the_layer_rule() -> None:
    law = ScoredTree(place(), QUOTAS, oracle=False)
    context = Context(law.place.target, law)
    tree = law.draft_tree(context, Sampled(np.random.default_rng(0)))
    tree.prefixes()
    layers = LayerVerification().layers(context, tree)
    # A node that cannot be accepted has no score in a layer.
    kept = [row[-1] for row in law.rows.values() if row[-1] > 0]
    expected = [score for layer in layers[1:-1] for score in layer.scores.tolist()]
    assert sorted(kept) == pytest.approx(sorted(expected))


def test_the_oracle_yields_more_on_average() -> None:
    means = []
    for oracle in (False, True):
        tokens = []
        for seed in range(300):
            law = ScoredTree(place(), QUOTAS, oracle)
            context = Context(law.place.target, law)
            choices = Sampled(np.random.default_rng(seed))
            tree = law.draft_tree(context, choices)
            tokens.append(LayerVerification().tokens_per_step(context, tree, choices))
        means.append(np.mean(tokens))
    assert means[1] > means[0] + 0.02


def simulated(number: int, states: int, strength: float) -> Nodes:
    """Nodes whose scores depend on the first coordinate of their hidden states."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(number, len(FEATURES)))
    features[:, 0] = 1.0
    offset = features[:, FEATURES.index("log reach")] = -rng.exponential(size=number)
    hidden = rng.normal(size=(number, states)) + 0.5
    means = np.exp(offset + features @ BETA + strength * hidden[:, 0])
    scores = means * rng.gamma(4.0, 0.25, number)
    return Nodes(features, scores, hidden, rng.integers(12, size=number).astype(float))


def test_a_fit_recovers_beta() -> None:
    nodes = simulated(20_000, 1, 0.0)
    np.testing.assert_allclose(fitted(nodes.features, nodes.scores), BETA, atol=0.05)


def test_a_fit_finds_the_hidden_state_that_matters() -> None:
    nodes = simulated(20_000, 6, 0.4)
    fits, deviances = fit_nodes(nodes)
    np.testing.assert_allclose(fits.hidden, [0.4, 0, 0, 0, 0, 0], atol=0.03)
    np.testing.assert_allclose(fits.beta, BETA, atol=0.06)
    assert min(deviances[f"ridge {of:g}"] for of in RIDGES) < deviances["nine"] - 0.05
    both = np.hstack([nodes.features, nodes.hidden])
    beta = np.concatenate([fits.beta, fits.hidden])
    assert deviance(both, nodes.scores, beta) < deviance(nodes.features, nodes.scores, fits.nine)


def test_hidden_states_that_do_not_matter_are_not_believed() -> None:
    _, deviances = fit_nodes(simulated(300, 40, 0.0))
    by_ridge = [deviances[f"ridge {of:g}"] for of in RIDGES]
    # The largest penalty leaves the nine features alone; the smallest fits noise.
    assert by_ridge[-1] == pytest.approx(deviances["nine"], abs=0.02)
    assert by_ridge[0] > by_ridge[-1] + 0.01
