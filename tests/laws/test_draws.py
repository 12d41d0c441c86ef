"""Draws by inversion of the cumulative probabilities, and what is refused because it is never drawn."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from conformance import VARIANTS

from otmd.laws.distinct import draw_distinct
from otmd.laws.drafts import invert

MASS = np.array([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])


def drawn(uniforms: list[float]) -> list[int]:
    return invert(MASS.cumsum(), np.array(uniforms)).tolist()


def test_a_token_with_mass_owns_its_interval_and_no_other_is_drawn() -> None:
    assert drawn([0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-53]) == [1, 1, 3, 3, 4, 4]
    assert set(drawn(np.linspace(0, 1, 10_001)[:-1].tolist())) == {1, 3, 4}
    # A total that rounds up ends at the last token with mass.
    assert invert(np.array([0.3, 0.1, 0.0]).cumsum(), np.array([1.0]))[0] == 1


def test_distinct_draws_take_from_the_mass_that_is_left() -> None:
    cumulative = np.array([0.2, 0.3, 0.5]).cumsum()
    uniforms = np.array([[0.1, 0.1, 0.9], [0.6, 0.5, 0.5], [0.3, 0.9, 0.2]])
    # Row 2: token 2 first; of the 0.2 and 0.3 left, half of 0.5 falls to token 1. Row 3: 1, then 2 of 0.7.
    assert draw_distinct(cumulative, uniforms).tolist() == [[0, 1, 2], [2, 1, 0], [1, 2, 0]]
    cumulative = np.array([1e-30, 3e-30, 1.0]).cumsum()
    uniforms = np.array([[0.5, 0.2], [0.5, 0.26], [0.5, 0.99]])
    assert draw_distinct(cumulative, uniforms).tolist() == [[2, 0], [2, 1], [2, 1]]


@pytest.mark.parametrize("name", VARIANTS)
def test_next_drafts_at_a_large_vocabulary_need_no_enumeration(name: str) -> None:
    q = np.random.default_rng(0).dirichlet(np.full(20_000, 0.1))
    law = VARIANTS[name](q, 4)
    tokens = law.sample(rng=np.random.default_rng(1)).tolist()
    for k in range(law.num_drafts):
        probs = law.next_draft_probs(tokens[:k])
        assert probs[tokens[k]] > 0.0
        assert probs.sum() == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("n", [5, 400])
@pytest.mark.parametrize("name", ["without-replacement", "top-then", "stratified", "greedy"])
def test_inclusion_of_distinct_drafts_from_a_large_vocabulary_is_n_in_all(name: str, n: int) -> None:
    """Hundreds of drafts need no memory for each pair of a draft and a token."""
    law = VARIANTS[name](np.random.default_rng(0).dirichlet(np.full(1500, 0.5)), n)
    tracemalloc.start()
    drafted = law.inclusion_probs()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert ((drafted >= 0) & (drafted <= 1)).all()
    assert drafted.sum() <= n * (1 + 1e-9)
    if name != "top-then":
        assert drafted.sum() == pytest.approx(n, rel=1e-9)
    assert peak < 2e8
