"""Wrong arguments of verifiers: the error and what it names."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import otmd
from otmd.transport import solve_transport
from otmd.verifiers.plan_verifier import PlanVerifier

P, Q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
WITH, WITHOUT = otmd.WithReplacement(Q, 2), otmd.WithoutReplacement(Q, 2)
SOLVED = solve_transport(P, WITH).plan


REFUSALS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: otmd.Optimal(0.0), ValueError, "^tol: got .*, expected a positive number"),
    (lambda: otmd.Optimal(np.nan), ValueError, "^tol: got .*, expected a positive number"),
    (lambda: otmd.Optimal("1e-6"), TypeError, "^tol: got .*, expected a number"),  # type: ignore[arg-type]
    (lambda: otmd.Preference().prepare(P, WITHOUT), otmd.UnsupportedLaw, "Preference"),
    (
        lambda: otmd.Preference().prepare(P, otmd.TopThen(Q, 3, 1)),
        otmd.UnsupportedLaw,
        "Preference",
    ),
    (
        lambda: otmd.Optimal().prepare(P, otmd.ConditionalPoisson(Q, 2)),
        otmd.UnsupportedLaw,
        "Optimal",
    ),
    (
        lambda: otmd.PoissonCoupling().output_token(P, np.ones(2)),
        ValueError,
        r"clocks: got shape \(2,\)",
    ),
    (
        lambda: otmd.PoissonCoupling().output_distribution(P, WITH),
        ValueError,
        "no closed form given the drafts",
    ),
    (lambda: PlanVerifier("plan"), TypeError, "plan: got str"),  # type: ignore[arg-type]
    (
        lambda: otmd.acceptance_rate(PlanVerifier(SOLVED), P, WITHOUT),
        otmd.UnsupportedLaw,
        "PlanVerifier",
    ),
    (
        lambda: otmd.acceptance_rate(PlanVerifier(SOLVED), Q, WITH),
        ValueError,
        "target_probs: got",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSALS)
def test_refusals(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
