"""The preference rule: accept the most preferred draft, thinned so that no token exceeds its p.

Drafts are drawn independently, slot j from q_j. Tokens are taken in an order that depends on p and the q_j
alone. Let s_j be the probability that slot j was not accepted at one of the tokens taken so far; it is 1 at
first. At token y, each slot that holds y is accepted with probability c, the largest c ≤ 1 for which

    a(y) = Π_j s_j − Π_j (s_j − c q_j(y)) ≤ p(y);    then s_j ← s_j − c q_j(y).

The rule is lossless for every order: a(y) is the probability that y is accepted, and the residual is
∝ (p − a)₊. A rejected draft y has a(y) = p(y), so no token of the residual is a random draft, and their rate
is 1 − Π_j s_j at the end.

The rule is optimal where all tokens that are accepted whole (c = 1) come before all others. Let H be the set
of the others. Then Π_j s_j = g(H) when the first token of H is reached, and each token of H takes p(y) of it.
So the rate is 1 − g(H) + p(H), which no lossless rule exceeds.
"""

import numpy as np

from otmd.curve._kernels import hockey_stick
from otmd.laws import DraftLaw, Slots, Structure
from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers.base import Verifier
from otmd.verifiers.prepared import ChoosingVerifier, copies_of_slots
from otmd.verifiers.taking import Order, Taken, take_tokens


class Preference(Verifier):
    """Accept the most preferred draft, thinned so that no token is emitted more often than p says.

    The default order for drafts with replacement is p/q descending. (Within a group of similar p/q it is by
    id where this does not change the rate.) For different drafters it is p/Σ_j q_j descending. For strata,
    the better of two orders is used at each position; the choice depends on p and q alone. One takes the
    tokens with p(y) ≥ q_j(y) first and then the others, both stratum by stratum from the tail to the head.
    The other divides the others by half octaves of p/q_j, and takes these in turn in the same way.
    Deterministic tokens come last.

    With one draft the rule is maximal coupling: it accepts x with probability min(1, p(x)/q(x)), and
    α = Σ min(p, q) (Leviathan et al. 2023; Chen et al. 2023). On greedy drafts it is greedy coupling, the
    maximal coupling of p with the distribution of the last draft, where a deterministic token of the residual
    counts as accepted: α = p(Top) + Σ_{y∉Top} min(p(y), q(y)/(1 − q(Top))) (Hu et al. 2025, Section 5). On
    SpecHub's pairs it accepts as often as SpecHub. These three are optimal. With replacement it is optimal
    wherever the tokens that are accepted whole (c = 1) come before all others; :meth:`certificate` tells its
    gap.

    Parameters
    ----------
    order : callable, optional
        A function of p (V,) and the :class:`~otmd.laws.Slots` of one position. It returns a permutation
        of the tokens, the most preferred first. The rule is lossless for every order. Deterministic tokens
        have p = 0 here.
    """

    def __init__(self, order: Order | None = None) -> None:
        if order is not None and not callable(order):
            raise TypeError(
                f"order: got {type(order).__name__}, expected a function of p and the slots"
            )
        self.order = order

    def serves(self, structure: Structure) -> bool:
        return structure.random is None or isinstance(structure.random, Slots)

    def reported_name(self, structure: Structure) -> str:
        """MaximalCoupling, GreedyCoupling or TargetOnly, where the rule is one of these; else Preference."""
        if structure.random is None:
            return "TargetOnly"
        if not isinstance(structure.random, Slots) or structure.random.num_drafts > 1:
            return "Preference"
        return "GreedyCoupling" if structure.deterministic.size else "MaximalCoupling"

    def prepare_position(self, target: FloatArray, law: DraftLaw) -> ChoosingVerifier:
        structure, taken = law.position_structure(), None
        if structure.random is not None:
            assert isinstance(structure.random, Slots)
            taken = take_tokens(structure.random_target(target), structure.random, self.order)
        return _PreferenceRule(target, law, structure.deterministic, taken)

    def position_bounds(self, target: FloatArray, law: DraftLaw, tol: float) -> tuple[float, float]:
        structure = law.position_structure()
        rate = _single_rate(target, structure) if self.order is None else None
        if rate is None:
            rate = self.prepare_position(target, law).rate
        return rate, rate


class _PreferenceRule(ChoosingVerifier):
    def __init__(
        self, target: FloatArray, law: DraftLaw, deterministic: IntArray, taken: Taken | None
    ) -> None:
        super().__init__(target, law, deterministic, taken)
        self.taken = taken

    def _copies(self, token: int, slots: Slots) -> FloatArray:
        count, drawn = slots.num_drafts, float(slots.probs[token])
        if drawn == 0.0 or self.taken is None:
            return np.zeros((count, count))
        # No draft, before or after, may be another token that is preferred and accepted.
        tokens = np.flatnonzero(slots.probs)
        rank, accept = self.taken.preferred(tokens)
        index = np.searchsorted(tokens, token)
        preferred = self.taken.accepted[tokens][rank < rank[index]]
        remaining = max(1.0 - float(preferred.sum()), 0.0)
        other = np.full(count, max(remaining ** (1.0 / count) - drawn, 0.0))
        accepted = np.full(count, drawn * accept[index])
        return copies_of_slots(np.full(count, drawn), accepted, other, other)


def _single_rate(target: FloatArray, structure: Structure) -> float | None:
    """The rate where one draft is random, which needs no order; otherwise None.

    The rejected mass is Σ (p − q)₊ over the tokens that are not deterministic, q being the draft's own.
    """
    drawn = structure.random
    if not isinstance(drawn, Slots) or drawn.num_drafts > 1:
        return None
    deterministic = structure.deterministic
    rejected = hockey_stick(target, drawn.probs, 1.0) - target[deterministic].sum()
    return 1.0 - max(float(rejected), 0.0)
