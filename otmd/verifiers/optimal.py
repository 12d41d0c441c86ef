"""The optimal rule: as many drafts accepted as any lossless verifier can."""

from dataclasses import dataclass
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike

from otmd.choice import (
    ChoicePlan,
    plan_with_replacement,
    plan_without_replacement,
)
from otmd.drafts import DraftLaw, Greedy, Hub, TopThen, WithoutReplacement, WithReplacement
from otmd.drafts.proposal import ProposalLaw
from otmd.optimum.acceptance import optimal_acceptance
from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers.base import Verifier
from otmd.verifiers.prepared import PreparedVerifier, normalised


@dataclass(frozen=True)
class OptimalityCertificate:
    """Proof of how close a rule comes to the optimum.

    Attributes
    ----------
    upper_bound : float
        α* = 1 + p(H*) − g(H*): no lossless verifier accepts more.
    attained : float
        What the rule accepts with the weights that it has, its thinning counted.
    gap : float
        Their difference.
    """

    upper_bound: float
    attained: float
    gap: float


class Optimal(Verifier):
    """Choose among the drafts by weights that depend on p/q, and attain α*.

    With H* the smallest minimiser of p(H) − g(H): if some draft lies outside H*, one of those is
    accepted, each with probability in proportion to its weight; otherwise one of the drafts or
    none is. The weights are solved for so that every token in H* is accepted with probability p, and no
    token with more. Whatever they are, a draft's acceptance is thinned by what it exceeds its p, so
    that the rule is lossless at every tolerance.

    Parameters
    ----------
    tol : float
        How far below α* the acceptance rate may stay.

    Raises
    ------
    ValueError
        If ``tol`` is not a positive number.
    """

    serves = (WithReplacement, WithoutReplacement, TopThen, Greedy, Hub)

    def __init__(self, tol: float = 1e-10) -> None:
        if isinstance(tol, bool) or not isinstance(tol, Real) or not tol > 0:
            raise ValueError(f"tol: got {tol!r}, wanted a positive number")
        self.tol = float(tol)

    def __repr__(self) -> str:
        return f"Optimal(tol={self.tol:g})"

    def supports(self, law: DraftLaw) -> bool:
        """Whether the rule is known for this law: for top tokens, whether it is for the rest."""
        if isinstance(law, TopThen):
            return law.top == law.num_drafts or law.rest in self.serves
        return type(law) in self.serves

    def certificate(self, target_probs: ArrayLike, law: DraftLaw) -> OptimalityCertificate:
        """Compare what the rule attains at one position with the optimum, recomputed from a cut.

        Parameters
        ----------
        target_probs : array_like, shape (V,)
            p.
        law : DraftLaw
            A law without leading axes.

        Returns
        -------
        OptimalityCertificate

        Raises
        ------
        ValueError
            For invalid input; UnsupportedLaw for a law not served.
        """
        rule = self.prepare(target_probs, law)
        assert isinstance(rule, _OptimalRule)
        upper = float(optimal_acceptance(target_probs, law).rate)
        return OptimalityCertificate(upper, rule.rate, upper - rule.rate)

    def prepare_position(self, target: FloatArray, law: DraftLaw) -> PreparedVerifier:
        assert isinstance(law, ProposalLaw)
        return _OptimalRule(target, law, self.tol)

    def position_bounds(self, target: FloatArray, law: DraftLaw, tol: float) -> tuple[float, float]:
        assert isinstance(law, ProposalLaw)
        rule = _OptimalRule(target, law, self.tol)
        return rule.rate, rule.rate + rule.most_by_chance


class _OptimalRule(PreparedVerifier):
    """The optimal rule, prepared for one position."""

    def __init__(self, target: FloatArray, law: ProposalLaw, tol: float) -> None:
        super().__init__(target, law)
        self._always = law.forced_tokens()
        self._plan = _plan_of_rest(target, law, self._always, tol)

    @property
    def rate(self) -> float:
        """The acceptance rate that the rule attains by its choices."""
        # What is not chosen comes from the residual, and is a draft where it is one of these tokens.
        certain = float(self.target[self._always].sum())
        return certain + (self._plan.rate if self._plan else 0.0)

    @property
    def most_by_chance(self) -> float:
        """How much more, at most, is accepted because a residual token happens to be a draft."""
        return self._plan.most_by_chance if self._plan else 0.0

    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        chances = np.zeros(draft_tokens.size)
        if self._plan is None:
            return chances
        able = ~np.isin(draft_tokens, self._always)
        chances[able] = self._plan.chances(draft_tokens[able])
        # As asked for: draft by draft, each given that those before it were not chosen.
        left = 1.0 - np.concatenate([[0.0], chances[:-1].cumsum()])
        return np.minimum(
            1.0, np.divide(chances, left, out=np.zeros(draft_tokens.size), where=left > 0)
        )

    def residual(self, draft_tokens: IntArray) -> FloatArray:
        accepted = self._plan.accepted if self._plan else 0.0
        return normalised(np.maximum(self.target - accepted, 0.0), self.target)


def _plan_of_rest(
    target: FloatArray, law: ProposalLaw, always: IntArray, tol: float
) -> ChoicePlan | None:
    """The plan for the drafts beside those that are always drafted; None where there are none."""
    count = law.num_drafts - always.size
    if count == 0:
        return None
    wanted, others = target, law.mass_beside_forced()
    if always.size:
        wanted = wanted.copy()
        wanted[always] = 0.0
    rest = law.rest if isinstance(law, TopThen) else type(law)
    if count > 1 and rest is WithoutReplacement:
        return plan_without_replacement(wanted, others, count, tol)
    return plan_with_replacement(wanted, others, count, tol)
