"""The optimal rule: as many drafts accepted as any lossless verifier can."""

from otmd.choice import ChoicePlan, plan_independent, plan_without_replacement
from otmd.drafts import DraftLaw, Race, Slots, Structure
from otmd.probabilities import FloatArray, validate_tol
from otmd.verifiers.base import Verifier
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

    def __init__(self, tol: float = 1e-10) -> None:
        self.tol = validate_tol(tol)

    def __repr__(self) -> str:
        return f"Optimal(tol={self.tol:g})"

    def serves(self, structure: Structure) -> bool:
        random = structure.random
        independent = isinstance(random, Slots) and random.disjoint
        return random is None or independent or isinstance(random, Race)

    def prepare_position(self, target: FloatArray, law: DraftLaw) -> ChoosingVerifier:
        structure, choice = law.position_structure(), None
        remaining, random = structure.random_target(target), structure.random
        if isinstance(random, Race):
            choice = plan_without_replacement(remaining, random, self.tol)
        elif isinstance(random, Slots):
            choice = plan_independent(remaining, random, self.tol)
        return ChoosingVerifier(target, law, structure.deterministic, choice)

    def position_bounds(self, target: FloatArray, law: DraftLaw, tol: float) -> tuple[float, float]:
        rule = self.prepare_position(target, law)
        by_chance = rule.choice.residual_hit_bound if isinstance(rule.choice, ChoicePlan) else 0.0
        return rule.rate, rule.rate + by_chance
