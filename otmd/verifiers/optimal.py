"""The optimal rule: as many drafts accepted as any lossless verifier can."""

from numbers import Real

import numpy as np

from otmd.choice import ChoicePlan, plan_independent, plan_without_replacement
from otmd.drafts import (
    DraftLaw,
    Greedy,
    Hub,
    Stratified,
    TopThen,
    WithoutReplacement,
    WithReplacement,
)
from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers.base import Verifier
from otmd.verifiers.prepared import ChoosingVerifier, PreparedVerifier


class Optimal(Verifier):
    """Choose among the drafts by weights that depend on p/q (on the stratum, too), and attain α*.

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

    serves = (WithReplacement, WithoutReplacement, Stratified, TopThen, Greedy, Hub)

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

    def prepare_position(self, target: FloatArray, law: DraftLaw) -> PreparedVerifier:
        return _OptimalRule(target, law, self.tol)

    def position_bounds(self, target: FloatArray, law: DraftLaw, tol: float) -> tuple[float, float]:
        rule = _OptimalRule(target, law, self.tol)
        return rule.rate, rule.rate + rule.most_by_chance


class _OptimalRule(ChoosingVerifier):
    """The optimal rule, prepared for one position."""

    def __init__(self, target: FloatArray, law: DraftLaw, tol: float) -> None:
        super().__init__(target, law)
        self._plan: ChoicePlan | None = None
        if isinstance(self.rest, WithoutReplacement):
            draft, count = self.rest.draft_probs, self.rest.num_drafts
            self._plan = plan_without_replacement(self.wanted, draft, count, tol)
        elif isinstance(self.rest, WithReplacement | Stratified):
            self._plan = plan_independent(self.wanted, self.rest, tol)

    @property
    def accepted(self) -> FloatArray:
        return self._plan.accepted if self._plan else np.zeros(self.target.size)

    @property
    def chosen_mass(self) -> float:
        return self._plan.rate if self._plan else 0.0

    @property
    def most_by_chance(self) -> float:
        """How much more, at most, is accepted because a residual token happens to be a draft."""
        return self._plan.most_by_chance if self._plan else 0.0

    def chances(self, draft_tokens: IntArray) -> FloatArray:
        assert self._plan is not None
        return self._plan.chances(draft_tokens)
