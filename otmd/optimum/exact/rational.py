"""The optimal acceptance rate as a fraction, by trying every subset."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral

from otmd.drafts import DraftLaw, Joint, WithReplacement
from otmd.optimum.exact.containment import mass_of_all, read_law, sum_over_subsets
from otmd.optimum.exact.reading import (
    rational_probs,
    require_same_vocabulary,
    require_small,
)
from otmd.probabilities import validate_count

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


def optimal_acceptance(
    target_probs: Iterable[object],
    draft_probs: Iterable[object] | Mapping[tuple[int, ...], object],
    num_drafts: int | None = None,
    law: type[DraftLaw] = WithReplacement,
) -> ExactOptimum:
    """α* = 1 + min over all subsets H of p(H) − g(H) (Hu et al. 2025, eq. 8), as a fraction.

    Every number is an int, a Fraction, a string (``"1/3"``, ``"0.1"``) or a float, which counts as the
    binary fraction that it is: 0.5 is 1/2, but 0.1 is not 1/10.

    Parameters
    ----------
    target_probs : iterable of numbers, length V ≤ 12
        p; the sum must be exactly 1.
    draft_probs : iterable of numbers, length V
        q. For ``Independent`` n such distributions; for ``Joint`` a mapping from the tuples of n tokens
        to their probabilities.
    num_drafts : int, optional
        n; may be left out for ``Hub``, ``Independent`` and ``Joint``, which fix it.
    law : type
        WithReplacement, WithoutReplacement, ConditionalPoisson, Greedy, Hub, Independent or Joint.

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
    >>> exact.optimal_acceptance(["1/2", "1/4", "1/4"], ["1/4", "1/4", "1/2"], num_drafts=2)
    ExactOptimum(rate=Fraction(15, 16), subset=(1, 2))
    """
    p = rational_probs("target_probs", target_probs)
    require_small(p, _MOST_TOKENS, "all 2^V subsets are tried")
    if law is Joint:
        contained = _table(draft_probs, num_drafts, len(p))
    else:
        contained = read_law(draft_probs, num_drafts, law, _same_vocabulary_as(p))
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


def _same_vocabulary_as(target: list[Fraction]) -> Callable[[str, object], list[Fraction]]:
    """Return a reader of distributions that refuses other vocabularies before they cost 2^V."""

    def read(name: str, value: object) -> list[Fraction]:
        probs = rational_probs(name, value)
        require_same_vocabulary(target, len(probs))
        return probs

    return read


def _table(table: object, num_drafts: int | None, vocab_size: int) -> list[Fraction]:
    """Containment of every subset under a table of draft tuples."""
    if not isinstance(table, Mapping) or not table:
        raise ValueError(
            f"draft_probs: got {table!r}, wanted for Joint a mapping from tuples of tokens to their "
            "probabilities"
        )
    probs = rational_probs("draft_probs", list(table.values()))
    count = num_drafts
    drawn = [Fraction(0)] * (1 << vocab_size)
    for tokens, prob in zip(table, probs, strict=True):
        if not isinstance(tokens, tuple) or not all(_is_token(y, vocab_size) for y in tokens):
            raise ValueError(
                f"draft_probs: got the key {tokens!r}, wanted a tuple of tokens in [0, {vocab_size})"
            )
        count = validate_count("num_drafts", len(tokens) if count is None else count)
        if len(tokens) != count:
            raise ValueError(f"draft_probs: got the key {tokens!r}, wanted {count} tokens")
        drawn[sum(1 << int(token) for token in set(tokens))] += prob
    return sum_over_subsets(drawn, vocab_size)


def _is_token(token: object, vocab_size: int) -> bool:
    return (
        isinstance(token, Integral) and not isinstance(token, bool) and 0 <= int(token) < vocab_size
    )
