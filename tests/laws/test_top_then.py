"""Top tokens, then another law: the case of no top tokens, and laws that cannot be the other law."""

import numpy as np
import pytest

import otmd

P, Q = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.4, 0.3, 0.2, 0.1])


@pytest.mark.parametrize(
    "rest", [otmd.WithReplacement, otmd.WithoutReplacement, otmd.ConditionalPoisson]
)
def test_without_a_top_it_is_the_rest(rest: type) -> None:
    got = otmd.optimal_acceptance(P, otmd.TopThen(Q, 3, top=0, rest=rest), every_n=True)
    want = otmd.optimal_acceptance(P, rest(Q, 3), every_n=True)
    np.testing.assert_allclose(got.rate, want.rate, rtol=0, atol=1e-14)


@pytest.mark.parametrize("rest", [otmd.Hub, otmd.Greedy, otmd.TopThen, otmd.Joint, "greedy"])
def test_rest_is_one_of_three(rest: object) -> None:
    with pytest.raises(ValueError, match=r"^rest: "):
        otmd.TopThen(Q, 3, top=1, rest=rest)  # type: ignore[arg-type]


@pytest.mark.parametrize("drafts", [otmd.TopThen(Q, 3, top=2), otmd.Hub(Q)])
def test_every_n_of_a_law_without_smaller_members_is_named(drafts: otmd.DraftLaw) -> None:
    with pytest.raises(ValueError, match=r"^every_n: "):
        otmd.optimal_acceptance(P, drafts, every_n=True)
