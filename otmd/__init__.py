"""Optimal transport for multi-draft speculative decoding.

How well could any verifier do, how well does a given one do, and which one attains the optimum:
exactly, and at a language model's vocabulary. Names are imported when they are first used, so that
``import otmd`` is quick and needs neither torch nor a compiler.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from otmd import audit as audit
    from otmd import harness as harness
    from otmd import measurement as measurement
    from otmd import optimum as optimum
    from otmd import sequences as sequences
    from otmd import tensors as tensors
    from otmd import testing as testing
    from otmd import transport as transport
    from otmd.curve import RatioCurve
    from otmd.drafts import (
        ConditionalPoisson,
        DraftLaw,
        Greedy,
        Hub,
        Independent,
        Joint,
        TopThen,
        WithoutReplacement,
        WithReplacement,
    )
    from otmd.measurement import measure
    from otmd.optimum import OptimalAcceptance, optimal_acceptance
    from otmd.probabilities import Processing, probs_from_logits, validate_probs
    from otmd.transport import (
        SolverError,
        TransportPlan,
        TransportProblem,
        TransportSolution,
        canonical_decomposition,
        solve_path,
        solve_transport,
    )
    from otmd.verifiers import (
        GreedyCoupling,
        KSequential,
        MaximalCoupling,
        Optimal,
        OptimalityCertificate,
        PlanVerifier,
        RecursiveRejection,
        SpecHub,
        TargetOnly,
        UnsupportedLaw,
        Verdict,
        Verifier,
        acceptance_bounds,
        acceptance_rate,
    )

_HOME = {
    "ConditionalPoisson": "drafts",
    "DraftLaw": "drafts",
    "Greedy": "drafts",
    "GreedyCoupling": "verifiers",
    "Hub": "drafts",
    "Independent": "drafts",
    "Joint": "drafts",
    "KSequential": "verifiers",
    "MaximalCoupling": "verifiers",
    "Optimal": "verifiers",
    "OptimalAcceptance": "optimum",
    "OptimalityCertificate": "verifiers",
    "PlanVerifier": "verifiers",
    "Processing": "probabilities",
    "RatioCurve": "curve",
    "RecursiveRejection": "verifiers",
    "SolverError": "transport",
    "SpecHub": "verifiers",
    "TargetOnly": "verifiers",
    "TopThen": "drafts",
    "TransportPlan": "transport",
    "TransportProblem": "transport",
    "TransportSolution": "transport",
    "UnsupportedLaw": "verifiers",
    "Verdict": "verifiers",
    "Verifier": "verifiers",
    "WithReplacement": "drafts",
    "WithoutReplacement": "drafts",
    "acceptance_bounds": "verifiers",
    "acceptance_rate": "verifiers",
    "canonical_decomposition": "transport",
    "measure": "measurement",
    "optimal_acceptance": "optimum",
    "probs_from_logits": "probabilities",
    "solve_path": "transport",
    "solve_transport": "transport",
    "validate_probs": "probabilities",
}

__all__ = [
    "ConditionalPoisson",
    "DraftLaw",
    "Greedy",
    "GreedyCoupling",
    "Hub",
    "Independent",
    "Joint",
    "KSequential",
    "MaximalCoupling",
    "Optimal",
    "OptimalAcceptance",
    "OptimalityCertificate",
    "PlanVerifier",
    "Processing",
    "RatioCurve",
    "RecursiveRejection",
    "SolverError",
    "SpecHub",
    "TargetOnly",
    "TopThen",
    "TransportPlan",
    "TransportProblem",
    "TransportSolution",
    "UnsupportedLaw",
    "Verdict",
    "Verifier",
    "WithReplacement",
    "WithoutReplacement",
    "acceptance_bounds",
    "acceptance_rate",
    "canonical_decomposition",
    "measure",
    "optimal_acceptance",
    "probs_from_logits",
    "solve_path",
    "solve_transport",
    "validate_probs",
]

_PARTS = (
    "audit",
    "harness",
    "measurement",
    "optimum",
    "sequences",
    "tensors",
    "testing",
    "transport",
)


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return import_module(f"otmd.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'otmd' has no attribute {name!r}")
    value = getattr(import_module(f"otmd.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PARTS})
