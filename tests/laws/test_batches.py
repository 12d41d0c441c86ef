"""Leading axes of the laws: broadcast, indexed and enumerated without surprises."""

import numpy as np
import pytest

import otmd

Q = np.array([0.5, 0.3, 0.2])
R = np.array([0.1, 0.2, 0.7])
PAIRS = np.array([[0, 1], [1, 2], [2, 0]])


def test_tuple_prob_broadcasts_an_axis_of_one() -> None:
    alone = otmd.WithoutReplacement(Q, 2).tuple_prob(PAIRS)
    np.testing.assert_array_equal(otmd.WithoutReplacement(Q[None], 2).tuple_prob(PAIRS), alone)
    both = otmd.WithoutReplacement(np.stack([[Q], [R]]), 2).tuple_prob(PAIRS)
    other = otmd.WithoutReplacement(R, 2).tuple_prob(PAIRS)
    np.testing.assert_array_equal(both, [alone, other])


@pytest.mark.parametrize("law", [otmd.WithReplacement(Q, 2), otmd.Independent([Q, R])])
def test_an_index_does_not_reach_into_the_vocabulary(law: otmd.DraftLaw) -> None:
    with pytest.raises(IndexError):
        law[(0,)]


def test_index_with_an_ellipsis_chooses_positions() -> None:
    batch = otmd.WithReplacement(np.stack([Q, R]), 2)
    assert batch[..., 1].tuple_prob([2, 2]) == pytest.approx(0.49)


@pytest.mark.parametrize("shape", [(0,), (2, 0), (1,), (2, 1)])
def test_empty_and_single_axes(shape: tuple[int, ...]) -> None:
    drafts = otmd.WithoutReplacement(np.broadcast_to(Q, (*shape, 3)), 2)
    rng = np.random.default_rng(0)
    assert drafts.sample(rng=rng).shape == (*shape, 2)
    assert drafts.tuple_prob([0, 1]).shape == shape
    assert np.shape(drafts.containment([True, True, False])) == shape
    assert drafts.inclusion_probs().shape == (*shape, 3)
    assert np.shape(otmd.optimal_acceptance(R, drafts).rate) == shape
    assert np.shape(otmd.acceptance_rate(otmd.RecursiveRejection(), R, drafts)) == shape


@pytest.mark.parametrize("size", [-1, 2.5, (2, -1), True])
def test_size_is_named_where_it_is_wrong(size: object) -> None:
    with pytest.raises(ValueError, match=r"^size: "):
        otmd.WithReplacement(Q, 2).sample(rng=np.random.default_rng(0), size=size)  # type: ignore[arg-type]


def test_enumeration_of_more_drafts_than_an_array_has_axes() -> None:
    tokens, probs = otmd.WithReplacement([0.0, 1.0], 100).enumerate()
    assert tokens.shape == (1, 100)
    np.testing.assert_array_equal(probs, [1.0])
    assert otmd.WithReplacement(Q, 3).enumerate()[0][:4].tolist() == [
        [0, 0, 0],
        [0, 0, 1],
        [0, 0, 2],
        [0, 1, 0],
    ]


IMPOSSIBLE = {
    "with replacement": (otmd.WithReplacement([0.5, 0.5, 0.0], 2), [0, 2]),
    "without replacement": (otmd.WithoutReplacement(Q, 2), [0, 0]),
    "conditional poisson": (otmd.ConditionalPoisson(Q, 2), [1, 1]),
    "greedy": (otmd.Greedy(Q, 2), [1, 0]),
    "top then": (otmd.TopThen([0.4, 0.3, 0.2, 0.1], 3, top=1), [0, 2, 2]),
    "hub, twice": (otmd.Hub(Q), [0, 0]),
    "hub, absent": (otmd.Hub(Q), [1, 2]),
    "independent": (otmd.Independent([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]), [1, 0]),
    "joint": (otmd.Joint([[0, 1], [1, 2]], [0.5, 0.5], 3), [1, 0]),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_drafts_that_the_law_never_draws_are_refused(name: str) -> None:
    drafts, tokens = IMPOSSIBLE[name]
    target = np.full(drafts.vocab_size, 1 / drafts.vocab_size)
    with pytest.raises(ValueError, match="never draws"):
        otmd.TargetOnly().verify(target, drafts, tokens, rng=np.random.default_rng(0))


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_is_sampled_can_be_drawn(name: str) -> None:
    drafts, _ = IMPOSSIBLE[name]
    for tokens in drafts.sample(rng=np.random.default_rng(3), size=200):
        drafts.validate_drawable(tokens)
