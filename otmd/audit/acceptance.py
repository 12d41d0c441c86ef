"""How often a draft was accepted, against what no lossless rule exceeds."""

from dataclasses import dataclass

import numpy as np

from otmd.audit.bounds import chance_at_least, chance_at_most
from otmd.drafts import DraftLaw, Joint, ProposalLaw
from otmd.optimum import optimal_acceptance
from otmd.optimum.bounds import draft_probability_bound
from otmd.probabilities import BoolArray, FloatArray, IntArray

# A maximum flow over more tuples would take longer than the audit.
_MOST_TUPLES = 5_000
# What rounding may take from the ceiling.
_SLACK = 1e-9


@dataclass(frozen=True)
class Acceptance:
    """The acceptance rate: how often the output token was among the drafts.

    Attributes
    ----------
    rate : float
        Observed.
    low, high : float
        Exact confidence bounds (Clopper–Pearson).
    ceiling : float
        What no lossless rule exceeds: α*, or :func:`~otmd.optimum.bounds.draft_probability_bound` for a law
        without a closed form and with too many tuples for a maximum flow.
    """

    rate: float
    low: float
    high: float
    ceiling: float

    @property
    def too_high(self) -> bool:
        """Whether the rate is above the ceiling beyond chance, which proves a fault."""
        return self.low > self.ceiling


def observed_acceptance(
    drafts: IntArray, tokens: IntArray, ceiling: float, level: float
) -> Acceptance:
    """The acceptance among drafts (N, n) and output tokens (N,); each bound fails with half the level."""
    hits, trials = int(np.count_nonzero(is_accepted(drafts, tokens))), tokens.size
    low = chance_at_least(hits, trials, level / 2)
    return Acceptance(hits / trials, low, chance_at_most(hits, trials, level / 2), ceiling)


def is_accepted(drafts: IntArray, tokens: IntArray) -> BoolArray:
    """Whether each output token (N,) is among its drafts (N, n)."""
    return (drafts == tokens[:, None]).any(axis=-1)


def acceptance_ceiling(target: FloatArray, law: DraftLaw) -> float:
    """See :attr:`Acceptance.ceiling`; rounded up."""
    if isinstance(law, ProposalLaw) or num_tuples(law) <= _MOST_TUPLES:
        rate = float(optimal_acceptance(target, law).rate)
    else:
        rate = float(draft_probability_bound(target, law))
    return min(1.0, rate + _SLACK)


def num_tuples(law: DraftLaw) -> int:
    """How many tuples of drafts have to be looked at to list a law at a single position."""
    if isinstance(law, Joint):
        return len(law.tuples)
    return int(np.count_nonzero(law.inclusion_probs())) ** law.num_drafts
