"""A law that defines only the two required methods, and wrong arguments."""

import numpy as np
import pytest

import otmd

Q = np.array([0.5, 0.3, 0.2])


class Least(otmd.DraftLaw):
    """Drafts without replacement, by the two required methods alone."""

    num_drafts, vocab_size = 2, 3

    def position_sample(self, rng, count):
        return otmd.WithoutReplacement(Q, 2).position_sample(rng, count)

    def position_tuple_prob(self, draft_tokens):
        return otmd.WithoutReplacement(Q, 2).position_tuple_prob(draft_tokens)


class ByEnumeration(Least):
    def position_inclusion_probs(self):
        tokens, probs = self.enumerate()
        return np.array([probs[(tokens == y).any(axis=1)].sum() for y in range(3)])


@pytest.mark.parametrize("law", [Least(), ByEnumeration()])
def test_what_is_not_written_is_enumerated(law: otmd.DraftLaw) -> None:
    same, p = otmd.WithoutReplacement(Q, 2), np.array([0.1, 0.2, 0.7])
    np.testing.assert_allclose(law.inclusion_probs(), same.inclusion_probs(), rtol=1e-12)
    for subset in ([True, True, False], [False, True, True], [True, False, False]):
        assert law.containment(subset) == pytest.approx(same.containment(subset), abs=1e-13)
    assert law.hit_rates(p, [2]) == pytest.approx([same.position_hit_rate(p)], rel=1e-12)
    best = otmd.optimal_acceptance(p, law).rate
    assert best == pytest.approx(otmd.optimal_acceptance(p, same).rate, abs=1e-9)
    assert law.can_draw(np.array([0, 2]))
    assert not law.can_draw(np.array([1, 1]))
    with pytest.raises(ValueError, match=r"^num_drafts: got 3, expected 2"):
        law.with_num_drafts(3)
    with pytest.raises(IndexError, match="no leading axes"):
        law[(0,)]


@pytest.mark.parametrize("law", [otmd.WithReplacement, "greedy", Q])
def test_what_is_no_law_is_named(law: object) -> None:
    with pytest.raises(TypeError, match=r"^law: got "):
        otmd.optimal_acceptance(Q, law)  # type: ignore[arg-type]


@pytest.mark.parametrize("tuples", [[[0, 1], [2]], [0, 1], [[0.5, 1.0]], [[0, 3]], [[[0, 1]]]])
def test_tuples_of_a_wrong_shape_are_named(tuples: object) -> None:
    with pytest.raises(ValueError, match=r"^tuples: got "):
        otmd.Joint(tuples, [1.0], 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("table", [Q, [[0.5, 0.5], [1.0]], np.empty((0, 3)), otmd.Joint])
def test_distributions_of_a_wrong_shape_are_named(table: object) -> None:
    with pytest.raises(ValueError, match=r"^draft_probs: got "):
        otmd.Independent(table)  # type: ignore[arg-type]
