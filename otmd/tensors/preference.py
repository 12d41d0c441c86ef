"""The preference rule on a device, for stratified drafts and drafts with replacement.

:mod:`otmd.verifiers.preference` has the rule, its proof, and what a, c and s_j are. No step loops over the
vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from otmd.probabilities import validate_count, wrong
from otmd.tensors.probabilities import (
    check_tensors,
    checked_pair,
    checked_probs,
    draw_tokens,
)
from otmd.tensors.strata import TensorStrata

# The lower ends of classes of p/q_j, for two orders, as otmd.Preference has classes of p/Σ q.
_LIKED = (1.0,)
_FINE = (1.0, *(2.0 ** -(0.25 + 0.5 * k) for k in range(9)))
# Quotients of smaller numbers are constants: their gradient could overflow.
_FAINT = 1e-290
# With replacement, the acceptance of so many runs of tokens is exact.
_MOST_RUNS = 8


class TensorVerdict(NamedTuple):
    """The decision at every position.

    Attributes
    ----------
    token : torch.Tensor of int64, shape (…)
        The output token; −1 where the rate is NaN or, without validation, the drafts are impossible.
    draft_index : torch.Tensor of int64, shape (…)
        The index of the output token among the drafts; −1 where it is none of them.
    """

    token: Tensor
    draft_index: Tensor


class _Drafts(NamedTuple):
    """The drafts' distributions: q_j of each token (…, V), and its stratum, None with replacement."""

    probs: Tensor
    number: Tensor | None
    num_drafts: int

    def can_draw(self, tokens: Tensor) -> Tensor:
        """A mask (…) of the positions whose drafts (…, n) are possible; ids that are no tokens are not."""
        size = self.probs.shape[-1]
        ids = tokens.clamp(0, size - 1)
        possible = (ids == tokens) & (self.probs.gather(-1, ids) > 0)
        if self.number is not None:
            slot = torch.arange(self.num_drafts, device=tokens.device)
            possible &= self.number.gather(-1, ids) == slot
        return possible.all(dim=-1)


class _Acceptance(NamedTuple):
    """a(y), c(y) and the rank in the order of preference of each token (…, V), and Π_j s_j at the end (…)."""

    accepted: Tensor
    accept_prob: Tensor
    rank: Tensor
    left: Tensor


class TensorPreference:
    """The preference rule in an order of the tokens, prepared for every position of a batch.

    Use :meth:`for_strata` or :meth:`with_replacement` to make one. A token is accepted in all slots that hold
    it with the same probability c, and the tokens are taken by p/q. :class:`otmd.Preference` takes pairs of a
    slot and a token, and is nearer the optimum.

    Attributes
    ----------
    rate : torch.Tensor of float64, shape (…)
        The acceptance rate; NaN where p or q is no distribution.
    accepted : torch.Tensor of float64, shape (…, V)
        The probability that each token is accepted, at most p.
    """

    def __init__(
        self, target: Tensor, drafts: _Drafts, acceptance: _Acceptance, validate: bool
    ) -> None:
        self._target = target
        self._drafts = drafts
        self._validate = validate
        self.accepted = acceptance.accepted
        # Drafts are tried in ascending order of rank, and each is accepted with probability c.
        self._accept_prob = acceptance.accept_prob
        self._rank = acceptance.rank
        self.rate = (1.0 - acceptance.left).clamp(0.0, 1.0)

    def __repr__(self) -> str:
        return f"TensorPreference(shape={tuple(self._target.shape)})"

    @classmethod
    def for_strata(cls, target_probs: Any, strata: TensorStrata, validate: bool = True) -> Self:
        """Prepare the rule for stratified drafts.

        Parameters
        ----------
        target_probs : torch.Tensor, shape (…, V)
            p, on the device of the strata; leading axes are broadcast.
        strata : TensorStrata
            The result of :func:`otmd.tensors.stratify`.
        validate : bool
            As for :class:`TensorRatioCurve`, for errors as well. It also holds for the drafts that
            :meth:`verify` is given.
        """
        check_tensors(target_probs, strata.inclusion)
        p = checked_probs("target_probs", target_probs, validate)
        p, draft, number = torch.broadcast_tensors(p, strata.inclusion, strata.number)
        count = strata.num_drafts
        drafts = _Drafts(draft, number, count)
        return cls(p, drafts, accept_from_strata(p, draft, number, count), validate)

    @classmethod
    def with_replacement(
        cls, target_probs: Any, draft_probs: Any, num_drafts: int, validate: bool = True
    ) -> Self:
        """Prepare the rule for drafts with replacement.

        Tokens are sorted by p/q. Runs of tokens with c = 1 alternate with runs of tokens with c < 1. Most
        positions have two to six runs. Tokens after the eighth run get a smaller c, with which no sum need be
        known before: the rule stays lossless, and the rate may be lower.

        Parameters
        ----------
        target_probs, draft_probs : torch.Tensor, shape (…, V)
            p and q on one device; leading axes are broadcast.
        num_drafts : int
            n ≥ 1, else ValueError.
        validate : bool
            As for :meth:`for_strata`.
        """
        count = validate_count("num_drafts", num_drafts)
        p, q = checked_pair(target_probs, draft_probs, validate)
        # The ratio of the numbers as given: dividing them by their sums could break ties.
        ratio = target_probs.detach().double() / draft_probs.detach().double()
        ratio = torch.where(q > 0, ratio, -1.0)
        # The sort is stable: ties go by id.
        order = ratio.argsort(dim=-1, descending=True, stable=True)
        accepted_by_ratio, left_by_ratio, left = accept_by_runs(
            p.gather(-1, order), q.gather(-1, order), count
        )
        accepted = torch.empty_like(p).scatter_(-1, order, accepted_by_ratio)
        left_before = torch.empty_like(p).scatter_(-1, order, left_by_ratio)
        # The c with a = s^n − (s − c q)^n, where s^n is ``left_before``.
        share = torch.where(left_before > 0, accepted / left_before, 0.0).clamp(max=1.0)
        step = -torch.expm1(torch.log1p(-share) / count)
        accept_prob = (left_before ** (1.0 / count) * step / q).clamp(max=1.0)
        # s^n falls along the order, so its negative is a rank.
        drafts = _Drafts(q, None, count)
        rule = _Acceptance(accepted, accept_prob, -left_before, left)
        return cls(p, drafts, rule, validate)

    def verify(
        self, draft_tokens: Tensor, generator: torch.Generator | None = None
    ) -> TensorVerdict:
        """Decide at every position. The output tokens are distributed exactly as p.

        Parameters
        ----------
        draft_tokens : torch.Tensor of int64, shape (…, n)
            The drafts of each position; the leading axes are those of p and q, broadcast.
        generator : torch.Generator, optional
            A generator of the tensors' device; without it the device's default generator.

        Raises
        ------
        ValueError
            For another shape, dtype or device; with ``validate`` for drafts that the law never draws. If the
            rule was prepared without it, the output token of such a position is −1.
        """
        possible = self._check_drafts(draft_tokens)
        draft_tokens = draft_tokens.clamp(0, self._target.shape[-1] - 1)
        by_rank = self._rank.gather(-1, draft_tokens).argsort(dim=-1, stable=True)
        accept_prob = self._accept_prob.gather(-1, draft_tokens).gather(-1, by_rank)
        shape = accept_prob.shape
        options = {"dtype": torch.float64, "device": accept_prob.device}
        kept = torch.rand(shape, generator=generator, **options) < accept_prob
        # The first draft that is kept; where none is, a draw from the residual.
        any_kept, first = kept.max(dim=-1, keepdim=True)
        index = by_rank.gather(-1, first)
        missing = (self._target - self.accepted).clamp(min=0.0)
        empty = missing.sum(dim=-1, keepdim=True) <= 0
        drawn = draw_tokens(torch.where(empty, self._target, missing), generator)[..., None]
        token = torch.where(any_kept, draft_tokens.gather(-1, index), drawn)
        drafted, first_index = (draft_tokens == token).max(dim=-1, keepdim=True)
        index = torch.where(any_kept, index, torch.where(drafted, first_index, -1))
        valid = possible & ~self.rate.isnan()
        return TensorVerdict(
            torch.where(valid, token[..., 0], -1), torch.where(valid, index[..., 0], -1)
        )

    def _check_drafts(self, draft_tokens: Tensor) -> Tensor:
        """A mask (…) of the positions whose drafts are possible; see :meth:`verify` for errors."""
        shape = (*self._target.shape[:-1], self._drafts.num_drafts)
        device = self._target.device
        if draft_tokens.shape != shape or draft_tokens.dtype != torch.int64:
            given = f"{draft_tokens.dtype} of shape {tuple(draft_tokens.shape)}"
            raise wrong("draft_tokens", given, f"torch.int64 of shape {shape}")
        if draft_tokens.device != device:
            raise wrong("draft_tokens", f"device {draft_tokens.device}", f"{device}, that of p")
        possible = self._drafts.can_draw(draft_tokens)
        if self._validate and len(broken := (~possible).nonzero()):
            index = tuple(broken[0].tolist())
            where = f" at index {index}" if index else ""
            expected = "a token with mass for each draft" + (
                "" if self._drafts.number is None else ", draft j from stratum j"
            )
            raise wrong("draft_tokens", f"{draft_tokens[index].tolist()}{where}", expected)
        return possible


def accept_from_strata(p: Tensor, draft: Tensor, number: Tensor, count: int) -> _Acceptance:
    """Accept drafts of strata by the better of two orders; the sum of p (…, V) may be below 1.

    Gradients hold the order and the classes fixed.
    """
    liked, fine = (_accept_by_cells(p, draft, number, count, edges) for edges in (_LIKED, _FINE))
    better = fine[2] < liked[2]
    most, rank, left = (torch.where(better, b, a) for a, b in zip(liked, fine, strict=True))
    accepted = torch.minimum(p, most)
    # No quotient may be 0/0, not even one that is not used: its gradient would be NaN.
    kept = quotient(accepted, torch.where(most > 0, most, 1.0))
    accept_prob = torch.where(most > accepted, kept, 1.0)
    return _Acceptance(accepted, accept_prob, rank, left[..., 0])


def quotient(mass: Tensor, total: Tensor) -> Tensor:
    """The quotient of two masses; where the second is faint, without a gradient."""
    faint = total < _FAINT
    return torch.where(faint, mass.detach(), mass) / torch.where(faint, total.detach(), total)


def _accept_by_cells(
    p: Tensor, draft: Tensor, number: Tensor, count: int, edges: tuple[float, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Accept tokens cell by cell. A cell is the tokens of one stratum and one class of p/q_j.

    Returns a(y) if c were 1 (…, V), the cell of each token (…, V), and Π_j s_j at the end (…, 1).
    """
    below = torch.stack([p < edge * draft for edge in edges]).sum(dim=0)
    cell = below * count + (count - 1 - number)
    s = p.new_ones((*p.shape[:-1], count))
    others_by_cell = []
    for c in range(count * (len(edges) + 1)):
        stratum = count - 1 - c % count
        others = torch.cat([s[..., :stratum], s[..., stratum + 1 :]], dim=-1).prod(
            dim=-1, keepdim=True
        )
        mass = torch.where(cell == c, torch.minimum(p, others * draft), 0.0).sum(dim=-1)
        # Where A is 0, the mass is 0.
        share = mass / torch.where(others > 0, others, 1.0)[..., 0]
        s[..., stratum] = (s[..., stratum] - share).clamp(min=0.0)
        others_by_cell.append(others)
    most = torch.cat(others_by_cell, dim=-1).gather(-1, cell) * draft
    bad = (p + draft).sum(dim=-1, keepdim=True).isnan()
    return most, cell, torch.where(bad, torch.nan, s.prod(dim=-1, keepdim=True))


def accept_by_runs(p: Tensor, q: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Accept tokens in their order; return a and the s^n before it of each (…, V), and s^n at the end (…).

    Gradients hold the runs fixed.
    """
    size = p.shape[-1]
    index = torch.arange(size, device=p.device)
    # Masses of the tokens before each one.
    p_before, q_before = p.cumsum(dim=-1) - p, q.cumsum(dim=-1) - q
    accepted = torch.zeros_like(p)
    before = torch.zeros_like(p)
    start = torch.zeros((*p.shape[:-1], 1), dtype=torch.int64, device=p.device)
    left = s = torch.ones_like(p[..., :1])
    is_full = left > 0
    for _ in range(_MOST_RUNS):
        at = start.clamp(max=size - 1)
        p_run, q_run = p_before - p_before.gather(-1, at), q_before - q_before.gather(-1, at)
        s_full = (s - q_run).clamp(min=0.0)
        left_thinned = (left - p_run).clamp(min=0.0)
        s_before = torch.where(is_full, s_full, _root(left_thinned, count))
        most = accepted_fully(s_before, q, count)
        # A token that is never drafted stays in the run, and is never accepted.
        breaks = torch.where(is_full, most > p, most <= p) & (q > 0) & (index >= start)
        # The first break; max returns the index of the first of equals.
        has_break, first = breaks.max(dim=-1, keepdim=True)
        end = torch.where(has_break, first, size)
        in_run = (index >= start) & (index < end) & (q > 0)
        accepted = torch.where(in_run, torch.where(is_full, most, p), accepted)
        before = torch.where(in_run, torch.where(is_full, s_before**count, left_thinned), before)
        run_accepted = torch.where(in_run, accepted, 0.0).sum(dim=-1, keepdim=True)
        drafted = torch.where(in_run, q, 0.0).sum(dim=-1, keepdim=True)
        s_after = (s - drafted).clamp(min=0.0)
        left = torch.where(is_full, s_after**count, (left - run_accepted).clamp(min=0.0))
        s = torch.where(is_full, s_after, _root(left, count))
        start = end
        is_full = ~is_full
    in_run = (index >= start) & (q > 0)
    offered, most, s_before = _accept_rest(p, torch.where(in_run, q, 0.0), s, count)
    accepted = torch.where(in_run, most, accepted)
    before = torch.where(in_run, s_before**count, before)
    s = (s - offered.sum(dim=-1, keepdim=True)).clamp(min=0.0)
    left = torch.where(start < size, s**count, left)
    bad = (p + q).sum(dim=-1).isnan()
    return accepted, before, torch.where(bad, torch.nan, left[..., 0])


def _accept_rest(p: Tensor, q: Tensor, s: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Accept tokens in their order with c = min(1, p/(n s^{n−1} q)), which needs no sum over earlier tokens.

    Then a ≤ n s^{n−1} c q ≤ p, where s (…, 1) is that before all of them. Returns c q, a, and s before each.
    """
    bound = count * s ** (count - 1)
    offered = torch.where(bound * q > p, p / torch.where(bound > 0, bound, 1.0), q)
    s_before = (s - (offered.cumsum(dim=-1) - offered)).clamp(min=0.0)
    return offered, torch.minimum(accepted_fully(s_before, offered, count), p), s_before


def _root(left: Tensor, count: int) -> Tensor:
    """The n-th root; at 0 its gradient is taken to be 0."""
    return torch.where(left == 0, 0.0, torch.where(left == 0, 1.0, left) ** (1.0 / count))


def accepted_fully(s: Tensor, q: Tensor, count: int) -> Tensor:
    """s^n − (s − q)^n as a sum of positive terms."""
    rest = (s - q).clamp(min=0.0)
    total = torch.zeros_like(q)
    high = torch.ones_like(s)
    for _ in range(count):
        total = total * rest + high
        high = high * s
    return total * torch.minimum(q, s)
