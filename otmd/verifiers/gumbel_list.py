"""The Gumbel list: n independent drafts, each from its own set of clocks; the target reads all sets."""

from __future__ import annotations

import numpy as np

from otmd.kernel import kernel
from otmd.laws import DraftLaw, Structure
from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers.invariant import (
    InvariantCoupling,
    arrival_times,
    one_distribution,
    sorted_masses,
)
from otmd.verifiers.optimal.choice_plan import clock_quadrature

# The spacing of the quadrature over s, which makes it exact to 1e-11.
_SPACING = 0.3
# Smaller terms of the rate are left out.
_UNSEEN = 1e-13


class GumbelList(InvariantCoupling):
    """Draft the smallest E_y/q_y of each of n sets of clocks, emit the smallest E_y/p_y of all of them.

    The target emits y at a time s, exponential with rate n, by the clock of one set. Let C = p_y/q_y and
    A(C) = Σ_z (C q_z − p_z)₊. The draft of that set is another token with probability 1 − e^{−s A(C)}. The
    draft of any other set is y with probability B(s) = s q_y ∫_C^∞ e^{−s A(c)} dc. So

        1 − α = Σ_y p_y ∫ n e^{−ns} (1 − e^{−s A(C)}) (1 − B(s))^{n−1} ds.

    Rowan, Phan & Khisti (2025, arXiv:2506.05632) prove α ≥ Σ_y n p_y/(A(C) + n), the list matching lemma.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithReplacement([0.25, 0.75], num_drafts=4)
    >>> round(otmd.GumbelList().acceptance_rate([0.5, 0.5], law), 6)
    0.941629
    """

    def serves(self, structure: Structure) -> bool:
        return structure.single is not None

    def position_drafts(self, draft: FloatArray, clocks: FloatArray) -> IntArray:
        return arrival_times(clocks, draft).argmin(axis=1)

    def target_clocks(self, clocks: FloatArray) -> FloatArray:
        return clocks.min(axis=0)

    def clocks_given(
        self, draft: FloatArray, draft_tokens: IntArray, rng: np.random.Generator
    ) -> FloatArray:
        count = draft_tokens.size
        times = rng.exponential(size=count)
        clocks = rng.exponential(size=(count, draft.size))
        clocks[np.arange(count), draft_tokens] = 0.0
        return (clocks + np.outer(times, draft)).min(axis=0)

    def position_bounds(self, target: FloatArray, law: DraftLaw, tol: float) -> tuple[float, float]:
        p, q, _, excess = sorted_masses(target, one_distribution(law))
        after = np.append(p[::-1].cumsum()[::-1], 0.0)
        # Times are in units of the target's mean time 1/n. The target hardly ever emits before 1e-15 of it.
        fastest = 1.0 + excess[np.count_nonzero(after > _UNSEEN) - 1] / law.num_drafts
        nodes, steps = clock_quadrature(1.0, min(fastest, 1e15), _SPACING)
        weights = steps * np.exp(-nodes)
        # e^{−sA} is 1 for tokens before ``first`` and 0 from ``last`` on; ``after`` is p from each token on.
        first = np.searchsorted(excess, _UNSEEN / weights * law.num_drafts / nodes)
        last = np.searchsorted(excess, np.log(weights / _UNSEEN) * law.num_drafts / nodes)
        per_mass = 1.0 / np.maximum(q.cumsum(), 1e-300)
        room = np.empty(p.size)
        missed = np.empty(nodes.size)
        for i, s in enumerate(nodes / law.num_drafts):
            part = slice(first[i], last[i])
            gone = np.exp(np.multiply(excess[part], -s, out=room[part]), out=room[part])
            missed[i] = _missed_before(p[part], q[part], per_mass[part], gone, law.num_drafts)
        rate = 1.0 - float(target.sum() - after[0] + (missed + after[last]) @ weights)
        return rate, rate


@kernel()
def _missed_before(p, q, per_mass, gone, num_drafts):
    """Σ p (1 − e^{−sA}) (1 − B)^{n−1} of tokens (T,) by p/q ascending; ``gone`` is e^{−sA}, 0 beyond them."""
    total = 0.0
    shared = 0.0
    later = 0.0
    for y in range(p.size - 1, -1, -1):
        # Between a ratio and the next, A is linear with the accumulated q as its slope.
        shared += (gone[y] - later) * per_mass[y]
        later = gone[y]
        # p (1 − e^{−sA}) (1 − B)^{n−1} : missed
        missed = p[y] * (1.0 - gone[y])
        for _ in range(num_drafts - 1):
            missed *= 1.0 - q[y] * shared
        total += missed
    return total
