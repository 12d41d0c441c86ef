"""Acceptance rates of recursive rejection as fractions."""

from collections.abc import Iterable
from fractions import Fraction
from functools import cache
from math import perm, prod

from otmd.drafts import DraftLaw, Independent, WithoutReplacement, WithReplacement
from otmd.optimum.exact.reading import rational_probs, require_same_vocabulary, sequence
from otmd.probabilities import validate_count

Probs = list[Fraction]
_MOST_PATHS = 100_000


def recursive_rejection_rate(
    target_probs: Iterable[object],
    draft_probs: Iterable[object],
    num_drafts: int | None = None,
    law: type[DraftLaw] = WithReplacement,
) -> Fraction:
    """The acceptance rate of recursive rejection (RRS, RRSw), without rounding.

    With replacement it is 1 − W(C_{n+1}), with C_1 = 0, C_{k+1} = C_k + W(C_k) and the hockey-stick
    divergence W (SpecInfer, Miao et al. 2024); without (Sequoia, Chen et al. 2024), a sum over the paths of
    rejected tokens; for independent drafts each is held against what the ones before it left of p.

    Parameters
    ----------
    target_probs : iterable of numbers, length V
        p, the numbers as in :func:`optimal_acceptance`.
    draft_probs : iterable of numbers, length V
        q, or n such distributions for ``Independent``.
    num_drafts : int, optional
        n; may be left out for ``Independent``.
    law : type
        WithReplacement, WithoutReplacement or Independent.

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
    if law is Independent:
        return _independent(p, sequence("draft_probs", draft_probs), num_drafts)
    q = rational_probs("draft_probs", draft_probs)
    require_same_vocabulary(p, len(q))
    count = validate_count("num_drafts", num_drafts)
    if law is WithReplacement:
        return _with_replacement(p, q, count)
    if law is WithoutReplacement:
        return 1 - _all_rejected(p, q, count)
    raise ValueError(f"law: got {law!r}, wanted WithReplacement, WithoutReplacement or Independent")


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


def _independent(p: Probs, rows: list[object], num_drafts: int | None) -> Fraction:
    if num_drafts is not None and validate_count("num_drafts", num_drafts) != len(rows):
        raise ValueError(
            f"num_drafts: got {num_drafts}, wanted {len(rows)}, the distributions given"
        )
    rejected = []
    for i, row in enumerate(rows):
        q = rational_probs(f"draft_probs[{i}]", row)
        require_same_vocabulary(p, len(q))
        left = excess(p, q)
        rejected.append(sum(left))
        if rejected[-1]:
            p = [mass / rejected[-1] for mass in left]
    return 1 - Fraction(prod(rejected))


def _all_rejected(p: Probs, q: Probs, num_drafts: int) -> Fraction:
    """P(every draft is rejected), over the paths of tokens that can be rejected one after another.

    After the rejections p is (p − C q)₊/W(C): a path is known by C and the tokens removed from q.
    """
    support = sum(mass > 0 for mass in q)
    if num_drafts > support:
        raise ValueError(
            f"num_drafts: got {num_drafts} distinct drafts, wanted at most {support}, the number of "
            "tokens with mass in draft_probs"
        )
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
