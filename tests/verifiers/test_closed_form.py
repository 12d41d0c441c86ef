"""Rates by a kernel over rows are the same for a single position, a family of laws and a batch."""

from __future__ import annotations

import numpy as np
import pytest

import otmd
from otmd.verifiers import verifiers_serving
from otmd.verifiers.prepared import PreparedVerifier

P, Q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
PAIRS = [
    (otmd.RecursiveRejection(), otmd.WithReplacement(Q, 3)),
    (otmd.KSequential(), otmd.WithReplacement(Q, 3)),
    (otmd.TargetOnly(), otmd.WithReplacement(Q, 3)),
    (otmd.Preference(), otmd.Greedy(Q, 3)),
]


@pytest.mark.parametrize(("rule", "law"), PAIRS, ids=lambda x: type(x).__name__)
def test_a_family_at_once_is_each_law_alone(rule: otmd.Verifier, law: otmd.DraftLaw) -> None:
    together = np.transpose(rule.family_bounds(P, law, [1, 2, 3], 1e-6))
    alone = [rule.acceptance_bounds(P, law.with_num_drafts(n)) for n in (1, 2, 3)]
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-15)
    bounds = np.array(rule.acceptance_bounds(P[None], law, every_n=True))
    np.testing.assert_array_equal(bounds[:, 0].T, alone)


@pytest.mark.parametrize(("rule", "law"), PAIRS, ids=lambda x: type(x).__name__)
def test_bounds_are_arrays_of_their_own(rule: otmd.Verifier, law: otmd.DraftLaw) -> None:
    low, high = rule.acceptance_bounds(P[None], law)
    before = np.array(high)
    low -= 1.0
    np.testing.assert_array_equal(high, before)


def test_single_drafts_of_every_law_that_is_coupled() -> None:
    """Maximal coupling has the rate Σ min(p, q) for all laws of one draft, with or without a kernel."""
    wanted = np.minimum(P, Q).sum()
    for law in (
        otmd.WithReplacement(Q, 1),
        otmd.WithoutReplacement(Q, 1),
        otmd.Greedy(Q, 1),
        otmd.ConditionalPoisson(Q, 1),
    ):
        assert otmd.acceptance_rate(otmd.Preference(), P, law) == pytest.approx(wanted)
    certain = otmd.TopThen(Q, 1, top=1)
    assert otmd.acceptance_rate(otmd.Preference(), P, certain) == pytest.approx(P[2])


@pytest.mark.parametrize(
    "kind", [otmd.WithReplacement, otmd.WithoutReplacement, otmd.Greedy, otmd.Stratified]
)
def test_a_derived_law_is_served_by_what_it_says_of_itself(kind: type[otmd.DraftLaw]) -> None:
    law, derived = kind(Q, 2), type("Derived", (kind,), {})(Q, 2)
    served = {type(verifier) for verifier in verifiers_serving(law)}
    assert {type(verifier) for verifier in verifiers_serving(derived)} == served
    assert otmd.optimal_acceptance(P, derived).rate == otmd.optimal_acceptance(P, law).rate


@pytest.mark.parametrize(
    "kind", [otmd.WithReplacement, otmd.WithoutReplacement, otmd.Greedy, otmd.Hub, otmd.Stratified]
)
def test_a_derived_law_that_draws_otherwise_has_no_structure(kind: type[otmd.DraftLaw]) -> None:
    """Its drafts are given in reverse order, which some verifiers and audits would take for the other."""

    class Reversed(kind):
        def position_sample(self, rng, count):
            return super().position_sample(rng, count)[:, ::-1]

        def position_tuple_prob(self, draft_tokens):
            return super().position_tuple_prob(draft_tokens[:, ::-1])

        def can_draw(self, draft_tokens):
            return super().can_draw(draft_tokens[::-1])

    law = Reversed(Q, 2)
    assert [type(verifier) for verifier in verifiers_serving(law)] == [otmd.TargetOnly]
    best = otmd.optimal_acceptance(P, law).rate
    assert best == pytest.approx(otmd.optimal_acceptance(P, kind(Q, 2)).rate, abs=1e-12)
    first = law.next_draft_probs(())
    assert first == pytest.approx(law.enumerate()[1] @ np.eye(3)[law.enumerate()[0][:, 0]])
    np.testing.assert_allclose(otmd.TargetOnly().output_distribution(P, law), P, atol=1e-12)


def test_a_verifier_without_bounds_of_its_own_is_enumerated() -> None:
    class Enumerated(otmd.KSequential):
        position_bounds = otmd.Verifier.position_bounds
        family_bounds = otmd.Verifier.family_bounds

    for n in (1, 2, 3):
        law = otmd.WithReplacement(Q, n)
        wanted = otmd.acceptance_rate(otmd.KSequential(), P, law)
        assert otmd.acceptance_rate(Enumerated(), P, law) == pytest.approx(wanted, abs=1e-14)


@pytest.mark.parametrize("wrong", ["chances", "residual"])
def test_a_rule_that_is_no_rule_is_named(wrong: str) -> None:
    class Broken(PreparedVerifier):
        def accept_probs(self, draft_tokens):
            return np.full(draft_tokens.size, 1.7 if wrong == "chances" else 0.5)

        def residual(self, draft_tokens):
            return 2.0 * self.target if wrong == "residual" else self.target

    class Rule(otmd.Verifier):
        def serves(self, structure) -> bool:
            return structure.single is not None

        def prepare_position(self, target, law) -> PreparedVerifier:
            return Broken(target, law)

    law, rng = otmd.WithReplacement(Q, 2), np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"Broken\.(accept_probs|residual): got"):
        Rule().output_distribution(P, law)
    many = np.tile([0, 1], (50, 1))
    with pytest.raises(ValueError, match=r"Broken\.(accept_probs|residual): got"):
        Rule().verify(P, law, many, rng=rng)
