"""The verifier of a transport plan: it accepts each draft with the probability in the plan."""

from __future__ import annotations

import numpy as np

from otmd.laws import DraftLaw, Structure
from otmd.probabilities import FloatArray, IntArray, wrong_type
from otmd.transport import TransportPlan
from otmd.verifiers.base import Verifier
from otmd.verifiers.prepared import PreparedVerifier

_SAME = 1e-12


class PlanVerifier(Verifier):
    """Sample the output token from a transport plan.

    It is lossless for the target distribution and the draft law that the plan was made for, and serves
    no others. The plan need not be optimal: the output is drawn from the residual ∝ (p − accepted)₊ where the
    plan accepts nothing. So the tolerance of a solver costs acceptance, never correctness.

    Parameters
    ----------
    plan : TransportPlan
        ``solve_transport(...).plan``, the plan of ``canonical_decomposition``, or any other. Anything but a
        plan is a TypeError.

    Examples
    --------
    >>> import otmd
    >>> target_probs, law = [0.5, 0.25, 0.25], otmd.WithReplacement([0.25, 0.25, 0.5], num_drafts=2)
    >>> verifier = otmd.PlanVerifier(otmd.solve_transport(target_probs, law).plan)
    >>> round(verifier.acceptance_rate(target_probs, law), 9)  # α* = 15/16
    0.9375
    """

    def __init__(self, plan: TransportPlan) -> None:
        if not isinstance(plan, TransportPlan):
            raise wrong_type("plan", plan, "a TransportPlan")
        self.plan = plan

    def __repr__(self) -> str:
        return f"PlanVerifier({self.plan!r})"

    def serves(self, structure: Structure) -> bool:
        # A plan is for one law, and not for all laws of its structure.
        return False

    def supports(self, law: DraftLaw) -> bool:
        return _same_value(law, self.plan.problem.law)

    def prepare_position(self, target: FloatArray, law: DraftLaw) -> PreparedVerifier:
        self._validate_target(target)
        return _PreparedPlan(self.plan, law)

    def position_bounds(self, target: FloatArray, law: DraftLaw, tol: float) -> tuple[float, float]:
        self._validate_target(target)
        problem = self.plan.problem
        # A residual token that happens to be among the drafts counts as accepted.
        rejected = np.maximum(problem.supply - problem.by_set(self.plan.accepted), 0.0)
        drafted = problem.by_set(self.plan.residual[problem.tokens])
        rate = self.plan.rate + float(rejected @ drafted)
        return rate, rate

    def _validate_target(self, target: FloatArray) -> None:
        if not _same_value(target, self.plan.problem.target):
            apart = 0.5 * np.abs(target - self.plan.problem.target).sum()
            raise ValueError(
                "target_probs: got another distribution than the plan was made for, at total "
                f"variation {apart:.3g}; solve_transport makes a plan for this one"
            )


class _PreparedPlan(PreparedVerifier):
    def __init__(self, plan: TransportPlan, law: DraftLaw) -> None:
        super().__init__(plan.problem.target, law)
        self.plan = plan

    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        left = self.plan.accept_probs(draft_tokens)
        undecided = 1.0
        probs = np.zeros(draft_tokens.size)
        for i, token in enumerate(draft_tokens):
            # A token that is drafted twice is only accepted at its first index.
            probs[i] = min(1.0, left[token] / undecided) if undecided > 0 else 0.0
            undecided -= left[token]
            left[token] = 0.0
        return probs

    def residual(self, draft_tokens: IntArray) -> FloatArray:
        return self.plan.residual


def _same_value(a: object, b: object) -> bool:
    """Whether two attributes of laws are the same; arrays may differ by the rounding of normalisation."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same_value(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.shape == b.shape and np.allclose(a, b, rtol=_SAME, atol=0.0)
    if isinstance(a, DraftLaw) and isinstance(b, DraftLaw):
        return type(a) is type(b) and _same_value(a.definition(), b.definition())
    return a == b
