"""Acceptance rates of recursive rejection as fractions."""

from collections.abc import Iterable
from fractions import Fraction
from functools import cache
from math import perm

from otmd.optimum.exact.laws import (
    ExactLaw,
    Independent,
    WithoutReplacement,
    WithReplacement,
    require_law,
)
from otmd.optimum.exact.reading import rational_probs

Probs = list[Fraction]
_MOST_PATHS = 100_000


def recursive_rejection_rate(target_probs: Iterable[object], law: ExactLaw) -> Fraction:
    """The acceptance rate of recursive rejection (RRS, RRSw), without rounding.

    With replacement it is 1 − W(C_{n+1}), with C_1 = 0, C_{k+1} = C_k + W(C_k) and the hockey-stick
    divergence W (SpecInfer, Miao et al. 2024). Without (Sequoia, Chen et al. 2024) it is a sum over the paths
    of rejected tokens. Each independent draft is compared with what the drafts before it left of p.

    Parameters
    ----------
    target_probs : iterable of numbers, length V
        p, the numbers as in :func:`optimal_acceptance`.
    law : exact.WithReplacement, exact.WithoutReplacement or exact.Independent
        The law of the drafts.

    Returns
    -------
    Fraction

    Raises
    ------
    ValueError
        For an invalid distribution, one that does not sum to exactly 1, another law, more distinct
        drafts than tokens with mass, or more than 100,000 paths of rejected tokens.
    """
    p = rational_probs("target_probs", target_probs)
    require_law(law, (WithReplacement, WithoutReplacement, Independent))
    if isinstance(law, Independent):
        return _independent(p, law.read_rows(len(p), rational_probs))
    assert isinstance(law, WithReplacement | WithoutReplacement)
    q = law.read_probs(len(p), rational_probs)
    if isinstance(law, WithReplacement):
        return _with_replacement(p, q, law.num_drafts)
    return 1 - _all_rejected(p, q, law.num_drafts)


def hockey_stick(target: Probs, draft: Probs, scale: Fraction) -> Fraction:
    """W(C) = Σ (p − C q)₊."""
    return sum(excess(target, draft, scale), Fraction(0))


def excess(target: Probs, draft: Probs, scale: Fraction | int = 1) -> Probs:
    """(p − C q)₊, token by token."""
    return [max(a - scale * b, Fraction(0)) for a, b in zip(target, draft, strict=True)]


def _with_replacement(p: Probs, q: Probs, num_drafts: int) -> Fraction:
    scale = Fraction(0)
    for _ in range(num_drafts):
        scale += hockey_stick(p, q, scale)
    return 1 - hockey_stick(p, q, scale)


def _independent(p: Probs, rows: list[Probs]) -> Fraction:
    rejected = Fraction(1)
    for q in rows:
        left = excess(p, q)
        mass = sum(left, Fraction(0))
        rejected *= mass
        if mass:
            p = [each / mass for each in left]
    return 1 - rejected


def _all_rejected(p: Probs, q: Probs, num_drafts: int) -> Fraction:
    """P(every draft is rejected), over the paths of tokens that can be rejected one after another.

    After the rejections p is (p − C q)₊/W(C): a path is known by C and the tokens removed from q.
    """
    support = sum(mass > 0 for mass in q)
    if perm(support, num_drafts - 1) > _MOST_PATHS:
        raise ValueError(
            f"num_drafts: got {num_drafts} of {support} tokens with mass, wanted at most {_MOST_PATHS} "
            f"paths of rejected tokens, and there are {perm(support, num_drafts - 1)}"
        )

    @cache
    def onwards(scale: Fraction, removed: frozenset[int], drafts: int) -> Fraction:
        left = [Fraction(0) if y in removed else mass for y, mass in enumerate(q)]
        present = sum(left, Fraction(0))
        target = excess(p, q, scale)
        wanted = sum(target, Fraction(0))
        rejected = excess([mass / present for mass in left], [mass / wanted for mass in target])
        if drafts == 1:
            return sum(rejected, Fraction(0))
        return sum(
            (
                mass * onwards(scale + wanted / present, removed | {token}, drafts - 1)
                for token, mass in enumerate(rejected)
                if mass
            ),
            Fraction(0),
        )

    return onwards(Fraction(0), frozenset(), num_drafts)
