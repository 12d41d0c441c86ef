"""Draws by inversion of the cumulative probabilities: the token for each uniform number."""

import numpy as np
from reference import likeliest as naive_likeliest

from otmd.curve._kernels import largest_entries
from otmd.laws.base import invert
from otmd.laws.without_replacement import draw_distinct

MASS = np.array([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])


def _drawn(uniforms: list[float]) -> list[int]:
    return invert(MASS.cumsum(), np.array(uniforms)).tolist()


def test_each_token_owns_its_interval() -> None:
    assert _drawn([0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-53]) == [1, 1, 3, 3, 4, 4]


def test_a_token_without_mass_is_never_drawn() -> None:
    assert set(_drawn(np.linspace(0, 1, 10_001)[:-1].tolist())) == {1, 3, 4}


def test_a_total_that_rounds_up_ends_at_the_last_token_with_mass() -> None:
    cumulative = np.array([0.3, 0.1, 0.0]).cumsum()
    assert invert(cumulative, np.array([1.0]))[0] == 1


def test_distinct_draws_take_from_what_is_left() -> None:
    cumulative = np.array([0.2, 0.3, 0.5]).cumsum()
    uniforms = np.array([[0.1, 0.1, 0.9], [0.6, 0.5, 0.5], [0.3, 0.9, 0.2]])
    out = draw_distinct(cumulative, uniforms)
    # Row 2: token 2 first; of the 0.2 and 0.3 left, half of 0.5 falls to token 1. Row 3: 1, then 2 of 0.7.
    assert out.tolist() == [[0, 1, 2], [2, 1, 0], [1, 2, 0]]


def test_distinct_draws_stay_exact_however_little_mass_is_left() -> None:
    cumulative = np.array([1e-30, 3e-30, 1.0]).cumsum()
    uniforms = np.array([[0.5, 0.2], [0.5, 0.26], [0.5, 0.99]])
    out = draw_distinct(cumulative, uniforms)
    assert out.tolist() == [[2, 0], [2, 1], [2, 1]]


def test_largest_entries_break_ties_to_the_lowest_token() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        probs = rng.integers(0, 4, rng.integers(1, 9)).astype(float)
        count = int(rng.integers(0, probs.size + 1))
        assert tuple(largest_entries(probs, count)) == tuple(naive_likeliest(probs.tolist(), count))


def test_largest_entries_of_more_than_are_looked_at_at_once() -> None:
    rng = np.random.default_rng(1)
    for size in (1023, 1024, 1025, 3000):
        for probs in (rng.random(size), rng.integers(0, 50, size) / 50, np.sort(rng.random(size))):
            for count in (0, 1, 5):
                wanted = naive_likeliest(probs.tolist(), count)
                assert tuple(largest_entries(probs, count)) == tuple(wanted)
