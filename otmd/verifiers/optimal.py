"""The optimal rule: as many drafts accepted as any lossless verifier can."""

from otmd import drafts
from otmd.choice import ChoicePlan, plan_independent, plan_without_replacement
from otmd.probabilities import FloatArray, validate_tol
from otmd.verifiers.base import Verifier, beside_forced
from otmd.verifiers.prepared import ChoosingVerifier


class Optimal(Verifier):
    """Choose among the drafts by weights that depend on p/q (and on the stratum), and attain α*.

    Let H* be the smallest minimiser of p(H) − g(H). If some drafts lie outside H*, one of them is chosen;
    otherwise one of the drafts or none is. Each is chosen with probability proportional to its weight. The
    weights are solved for such that every token of H* is chosen with its p, and no token with more. If the
    weights found choose a token with more than its p, its acceptance is thinned. So the rule is lossless at
    every tolerance.

    Parameters
    ----------
    tol : float
        How far below α* the acceptance rate may stay; positive. Where the search for the weights ends before
        that, as it may without replacement and with many cuts that are equally good, ``status`` of
        :meth:`certificate` says so.
    """

    serves = (
        drafts.WithReplacement,
        drafts.WithoutReplacement,
        drafts.Stratified,
        drafts.TopThen,
        drafts.Greedy,
        drafts.Hub,
    )

    def __init__(self, tol: float = 1e-10) -> None:
        self.tol = validate_tol(tol)

    def __repr__(self) -> str:
        return f"Optimal(tol={self.tol:g})"

    def supports(self, law: drafts.DraftLaw) -> bool:
        served = super().supports(law)
        if served and isinstance(law, drafts.TopThen):
            served = law.top == law.num_drafts or law.rest in self.serves
        return served

    def prepare_position(self, target: FloatArray, law: drafts.DraftLaw) -> ChoosingVerifier:
        always, wanted, rest = beside_forced(target, law)
        choice = None
        if isinstance(rest, drafts.WithoutReplacement):
            choice = plan_without_replacement(wanted, rest.draft_probs, rest.num_drafts, self.tol)
        elif isinstance(rest, drafts.WithReplacement | drafts.Stratified):
            choice = plan_independent(wanted, rest, self.tol)
        return ChoosingVerifier(target, law, always, choice)

    def position_bounds(
        self, target: FloatArray, law: drafts.DraftLaw, tol: float
    ) -> tuple[float, float]:
        rule = self.prepare_position(target, law)
        by_chance = rule.choice.most_by_chance if isinstance(rule.choice, ChoicePlan) else 0.0
        return rule.rate, rule.rate + by_chance
