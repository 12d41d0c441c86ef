"""The Gumbel top n: drafts without replacement by the clocks that the target reads."""

from heapq import heappop, heappush

import numpy as np

from otmd.drafts import DraftLaw, WithoutReplacement
from otmd.drafts.proposal import ProposalLaw
from otmd.probabilities import FloatArray, IntArray
from otmd.race.containment import ExponentialRace
from otmd.verifiers.invariant import InvariantCoupling, arrival_times, sorted_masses

# Races that are run for one rate at most; what is left open then stays within certain bounds.
_MOST_RACES = 400


class GumbelTop(InvariantCoupling):
    """Draft the n smallest E_y/q_y, emit the smallest E_y/p_y: n drafts without replacement.

    Where the target emits y, with C = p_y/q_y, y is drafted unless n other tokens come first, and these race
    with it at rates (C q_z − p_z)₊ against 1. So P(y is drafted | y) = 1 − g(all others) for that race, which
    falls as C grows. α = Σ p_y P(y is drafted | y); races are run until the tokens between them, whose
    chance lies between theirs, leave α open by ``tol`` or less.

    With one draft this is Daliri et al. (2024, arXiv:2408.07978).
    """

    serves = (WithoutReplacement,)

    def position_drafts(self, draft: FloatArray, clocks: FloatArray) -> IntArray:
        if np.count_nonzero(draft) < len(clocks):
            raise ValueError(
                f"draft_probs: got {np.count_nonzero(draft)} tokens with mass, wanted {len(clocks)} or more"
            )
        return np.argsort(arrival_times(clocks[0], draft))[: len(clocks)]

    def clocks_given(
        self, law: ProposalLaw, draft_tokens: IntArray, rng: np.random.Generator
    ) -> FloatArray:
        mass = law.draft_probs[draft_tokens]
        others = law.draft_probs.copy()
        others[draft_tokens] = 0.0
        left = others.sum() + mass[::-1].cumsum()[::-1]
        times = (rng.exponential(size=mass.size) / left).cumsum()
        clocks = rng.exponential(size=law.vocab_size) + others * times[-1]
        clocks[draft_tokens] = mass * times
        return clocks

    def position_bounds(self, target: FloatArray, law: DraftLaw, tol: float) -> tuple[float, float]:
        assert isinstance(law, WithoutReplacement)
        p, q, ratio, _ = sorted_masses(target, law.draft_probs)
        before = np.concatenate([[0.0], p.cumsum()])
        chance: dict[int, float] = {}
        # Tokens strictly between two races: −(what they leave open), and the places of the races.
        between: list[tuple[float, int, int]] = []

        def race(k: int) -> None:
            chance[k] = drafted_chance(p, q, ratio[k], k, law.num_drafts)

        def leave(i: int, j: int) -> None:
            if j > i + 1:
                inside = before[j] - before[i + 1]
                heappush(between, (-inside * (chance[i] - chance[j]), i, j))

        race(0)
        race(p.size - 1)
        leave(0, p.size - 1)
        while -sum(part[0] for part in between) > tol and len(chance) < _MOST_RACES:
            _, i, j = heappop(between)
            half = 0.5 * (before[i + 1] + before[j])
            k = min(max(int(np.searchsorted(before, half)) - 1, i + 1), j - 1)
            race(k)
            leave(i, k)
            leave(k, j)
        low = sum(p[k] * each for k, each in chance.items())
        low += sum((before[j] - before[i + 1]) * chance[j] for _, i, j in between)
        return float(low), float(low - sum(part[0] for part in between))


def drafted_chance(
    p: FloatArray, q: FloatArray, ratio: float, count: int, num_drafts: int
) -> float:
    """P(a token of this p/q is drafted | the target emits it). The first ``count`` have a lower p/q."""
    rates = np.maximum(ratio * q[:count] - p[:count], 0.0)
    rates = rates[rates > 0.0]
    if rates.size < num_drafts:
        return 1.0
    race = np.append(rates, 1.0)
    race /= race.sum()
    others = np.ones(race.size, dtype=bool)
    others[-1] = False
    return 1.0 - ExponentialRace(race, num_drafts).containment(others, num_drafts)
