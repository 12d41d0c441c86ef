"""The preference rule: accept the most preferred draft, thinned so that no token exceeds its p.

The algorithm, the pair sweep, and why it is lossless are in :mod:`otmd.verifiers.pair_sweep`.
"""

from __future__ import annotations

from otmd.curve._kernels import hockey_stick
from otmd.laws import DraftLaw, Slots, Structure
from otmd.probabilities import FloatArray
from otmd.verifiers.base import Verifier
from otmd.verifiers.pair_sweep import sweep_pairs
from otmd.verifiers.prepared import ChoosingVerifier


class Preference(Verifier):
    """Accept the most preferred draft, thinned so that no token is emitted more often than p says.

    The rule serves drafts that are drawn independently: slot j from q_j. It takes the pairs of a slot and a
    token in an order that depends on p and the q_j alone. A pair is accepted, if the slot holds the token and
    nothing was accepted before, with the largest probability that keeps the token within its p.

    By default tokens are grouped into classes by p/Σ_j q_j, in steps of a factor √2, the largest first. In
    each class the distributions are taken from the last to the first, and the slots of one distribution from
    the first to the last. The order is then improved, up to five times: tokens that reached their p go behind
    all others. If in the end they all come after the others, the rule attains α*; :meth:`certificate` gives
    the gap.

    With one draft the rule is maximal coupling: it accepts x with probability min(1, p(x)/q(x)), and
    α = Σ min(p, q) (Leviathan et al. 2023; Chen et al. 2023). On greedy drafts it is greedy coupling, the
    maximal coupling of p with the distribution of the last draft, where a deterministic token of the residual
    counts as accepted: α = p(Top) + Σ_{y∉Top} min(p(y), q(y)/(1 − q(Top))) (Hu et al. 2025, Section 5). On
    SpecHub's pairs it accepts as often as SpecHub. Slot by slot it is recursive rejection. If p = q, it
    accepts always: with replacement, on greedy drafts, and from strata of sharpness 1.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.Stratified([0.4, 0.3, 0.2, 0.1], num_drafts=2)
    >>> round(otmd.acceptance_rate(otmd.Preference(), [0.25, 0.25, 0.25, 0.25], law), 6)
    0.972222
    """

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
        structure = law.position_structure
        sweep = None
        if structure.random is not None:
            assert isinstance(structure.random, Slots)
            sweep = sweep_pairs(structure.random_target(target), structure.random)
        return ChoosingVerifier(target, law, sweep)

    def position_bounds(self, target: FloatArray, law: DraftLaw, tol: float) -> tuple[float, float]:
        structure = law.position_structure
        rate = _single_rate(target, structure)
        if rate is None:
            rate = self.prepare_position(target, law).rate
        return rate, rate


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
