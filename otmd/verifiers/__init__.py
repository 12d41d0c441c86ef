"""Verifiers, which pick the output token: one algorithm a file, one small interface."""

from __future__ import annotations

from numpy.typing import ArrayLike

from otmd import registry
from otmd.laws import DraftLaw
from otmd.laws.base import takes_law
from otmd.probabilities import FloatArray
from otmd.verifiers.base import UnsupportedLaw, Verifier, as_verifier
from otmd.verifiers.k_sequential import KSequential
from otmd.verifiers.optimal.verifier import Optimal
from otmd.verifiers.plan_verifier import PlanVerifier
from otmd.verifiers.poisson_coupling import PoissonCoupling
from otmd.verifiers.preference import Preference
from otmd.verifiers.prepared import Choice, ChoosingVerifier, PreparedVerifier, Verdict
from otmd.verifiers.recursive_rejection import RecursiveRejection
from otmd.verifiers.spechub import SpecHub
from otmd.verifiers.target_only import TargetOnly

__all__ = [
    "Choice",
    "ChoosingVerifier",
    "KSequential",
    "Optimal",
    "PlanVerifier",
    "PoissonCoupling",
    "Preference",
    "PreparedVerifier",
    "RecursiveRejection",
    "SpecHub",
    "TargetOnly",
    "UnsupportedLaw",
    "Verdict",
    "Verifier",
    "acceptance_bounds",
    "acceptance_rate",
    "verifiers_serving",
]


@takes_law
def acceptance_rate(
    verifier: Verifier | type[Verifier] | str, target_probs: ArrayLike, law: DraftLaw
) -> FloatArray | float:
    """Exact acceptance rate (…) of a verifier; the middle of guaranteed bounds where only these are known.

    Parameters
    ----------
    verifier, target_probs, law
        See :func:`acceptance_bounds`, for errors as well.

    Returns
    -------
    float or ndarray of float64, shape (…)
        P(the output token is one of the drafts), a fraction.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithReplacement([0.25, 0.25, 0.5], num_drafts=2)
    >>> otmd.acceptance_rate(otmd.RecursiveRejection(), [0.5, 0.25, 0.25], law)
    0.8125
    """
    return as_verifier(verifier).acceptance_rate(target_probs, law)


@takes_law
def acceptance_bounds(
    verifier: Verifier | type[Verifier] | str,
    target_probs: ArrayLike,
    law: DraftLaw,
    tol: float = 1e-6,
) -> tuple[FloatArray | float, FloatArray | float]:
    """Guaranteed bounds of a verifier's acceptance rate; they are equal where the rate has a closed form.

    Parameters
    ----------
    verifier : Verifier or str
        A verifier, or the name of one, such as ``"k-sequential"``.
    target_probs : array_like, shape (…, V)
        p.
    law : DraftLaw
        The law of the drafts.
    tol : float
        The largest distance between the bounds. They are farther apart, and still hold, where this would take
        too much work.

    Returns
    -------
    low, high : float or ndarray of float64, shape (…)
        The bounds, fractions.

    Raises
    ------
    ValueError
        For invalid input; UnsupportedLaw for a law that the verifier does not serve.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithReplacement([0.25, 0.25, 0.5], num_drafts=2)
    >>> low, high = otmd.acceptance_bounds(otmd.KSequential(), [0.5, 0.25, 0.25], law)
    >>> round(low, 6), low == high
    (0.847597, True)
    """
    return as_verifier(verifier).acceptance_bounds(target_probs, law, tol)


def verifiers_serving(law: DraftLaw) -> list[Verifier]:
    """The verifiers of this package, without couplings, that are lossless for a law of drafts.

    Parameters
    ----------
    law : DraftLaw
        The law of the drafts.

    Returns
    -------
    list of Verifier
        New instances with default parameters.

    Examples
    --------
    >>> import otmd
    >>> otmd.verifiers.verifiers_serving(otmd.Hub([0.25, 0.25, 0.5]))
    [SpecHub(), Preference(), TargetOnly(), Optimal(tol=1e-10)]
    """
    listed = (entry.load()() for entry in registry.VERIFIERS.values() if not entry.coupling)
    return [verifier for verifier in listed if verifier.supports(law)]
