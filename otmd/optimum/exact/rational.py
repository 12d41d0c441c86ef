"""The optimal acceptance rate as a fraction, by trying every subset."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from otmd.optimum.exact.laws import ExactLaw, mass_of_all, require_law
from otmd.optimum.exact.reading import rational_probs, require_small

_MOST_TOKENS = 12


@dataclass(frozen=True)
class ExactOptimum:
    """The optimal acceptance rate and the cut that attains it, without rounding.

    Attributes
    ----------
    rate : Fraction
        α*.
    subset : tuple of int
        The smallest minimiser H*, its tokens ascending; empty where α* = 1.
    """

    rate: Fraction
    subset: tuple[int, ...]


def optimal_acceptance(target_probs: Iterable[object], law: ExactLaw) -> ExactOptimum:
    """α* = 1 + min over all subsets H of p(H) − g(H) (Hu et al. 2025, eq. 8), as a fraction.

    Every number is an int, a Fraction, a string (``"1/3"``, ``"0.1"``) or a float, which counts as the
    binary fraction that it is: 0.5 is 1/2, but 0.1 is not 1/10.

    Parameters
    ----------
    target_probs : iterable of numbers, length V ≤ 12
        p; the sum must be exactly 1.
    law : ExactLaw
        A law of this package, such as ``exact.WithReplacement(draft_probs, num_drafts)``.

    Returns
    -------
    ExactOptimum

    Raises
    ------
    ValueError
        For an invalid distribution, one that does not sum to exactly 1, more than 12 tokens (all 2^V
        subsets are tried), another law, or more distinct drafts than tokens with mass.

    Examples
    --------
    >>> from otmd.optimum import exact
    >>> law = exact.WithReplacement(["1/4", "1/4", "1/2"], 2)
    >>> exact.optimal_acceptance(["1/2", "1/4", "1/4"], law)
    ExactOptimum(rate=Fraction(15, 16), subset=(1, 2))
    """
    p = rational_probs("target_probs", target_probs)
    require_small(p, _MOST_TOKENS, "all 2^V subsets are tried")
    require_law(law, (ExactLaw,))
    contained = law.containment(len(p), rational_probs)
    values = [mass - inside for mass, inside in zip(mass_of_all(p), contained, strict=True)]
    cut = smallest_minimiser(values)
    return ExactOptimum(1 + values[cut], tokens_of(cut))


def smallest_minimiser(values: list[Fraction]) -> int:
    """Return the smallest subset (a bit mask) with the least value.

    p − g is submodular, so the minimisers are closed under intersection and one lies in all others.
    """
    least = min(values)
    return min((mask for mask, value in enumerate(values) if value == least), key=int.bit_count)


def tokens_of(mask: int) -> tuple[int, ...]:
    """Tokens of a bit mask, ascending."""
    return tuple(token for token in range(mask.bit_length()) if mask >> token & 1)
