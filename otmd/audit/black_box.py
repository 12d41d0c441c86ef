"""Is a rule lossless, by its output alone: a fixed number of samples."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from otmd.audit.acceptance import Acceptance, acceptance_ceiling, observed_acceptance
from otmd.audit.arguments import validate_level, validate_position
from otmd.audit.bounds import total_variation_bound
from otmd.audit.cells import IMPOSSIBLE, ratio_order, token_cells
from otmd.audit.goodness import exact_p_value
from otmd.audit.power import NUM_STATEMENTS, detectable_total_variation
from otmd.audit.samplers import Sampler, emitted_tokens
from otmd.audit.words import TokenDeviation, deviation_table, largest_deviations
from otmd.drafts import DraftLaw
from otmd.drafts.base import validate_rng
from otmd.probabilities import FloatArray, IntArray, validate_count
from otmd.verifiers import Verifier


@dataclass(frozen=True)
class Losslessness:
    """What an audit by samples found.

    Every statement in it holds at once with probability 1 − ``false_alarm`` or more. No number of samples
    proves a rule lossless.

    Attributes
    ----------
    num_samples : int
        N.
    false_alarm : float
        Shared equally by the test of the law, the bound of the total variation and the acceptance (union
        bound).
    impossible : int
        Samples with p = 0. One is proof, without any chance of a false alarm.
    p_value : float
        Of the exact G-test of the counts.
    num_cells : int
        In how many cells the tokens were counted.
    total_variation_bound : float
        The output is at least this far from p.
    detectable : float
        A total variation between the laws of the cells that the test would have found with probability 0.9.
    acceptance : Acceptance
        The acceptance rate and its ceiling.
    worst : tuple of TokenDeviation
        The tokens with the largest deviations.
    """

    num_samples: int
    false_alarm: float
    impossible: int
    p_value: float
    num_cells: int
    total_variation_bound: float
    detectable: float
    acceptance: Acceptance
    worst: tuple[TokenDeviation, ...]

    @property
    def share(self) -> float:
        """The part of ``false_alarm`` that each statement has."""
        return self.false_alarm / NUM_STATEMENTS

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the rule is faulty, in words; empty if no fault was found."""
        found = []
        if self.impossible:
            found.append(f"{self.impossible} of the tokens have target probability zero: proof")
        if self.p_value <= self.share:
            found.append(
                f"the output does not follow the target: p-value {self.p_value:.1e} (alarm at "
                f"{self.share:.1e})"
            )
        if self.total_variation_bound > 0:
            found.append(
                f"the total variation from the target is at least {self.total_variation_bound:.4f}"
            )
        own = self.acceptance
        if own.too_high:
            found.append(
                f"it accepts {own.rate:.4f} (at least {own.low:.4f}), and no lossless rule accepts more than "
                f"{own.ceiling:.4f}"
            )
        return tuple(found)

    @property
    def faulty(self) -> bool:
        """Whether a fault was found."""
        return bool(self.reasons)

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.faulty:
            return "not lossless: " + "; ".join(self.reasons)
        return (
            f"no fault found in {self.num_samples} samples; a total variation of {self.detectable:.4f} that "
            "shows on the cells would have been found with probability 0.9"
        )

    def __str__(self) -> str:
        own = self.acceptance
        return (
            f"{self.verdict}\n"
            f"p-value {self.p_value:.1e} over {self.num_cells} cells; false-alarm rate of the whole "
            f"{self.false_alarm:.0e}\n"
            f"accepted {own.rate:.4f}, between {own.low:.4f} and {own.high:.4f}; a lossless rule at most "
            f"{own.ceiling:.4f}\n"
            f"largest deviations in {self.num_samples} samples:\n{deviation_table(self.worst)}"
        )


def losslessness(
    sampler: Sampler | Verifier,
    target_probs: ArrayLike,
    law: DraftLaw,
    num_samples: int = 20_000,
    false_alarm: float = 1e-3,
    *,
    batched: bool = False,
    rng: np.random.Generator,
) -> Losslessness:
    """Audit a rule by what it emits on drafts of a declared law.

    Parameters
    ----------
    sampler : callable or Verifier
        The rule: from drafts (n,), an array of int64, to the output token. Its samples must be independent.
    target_probs : array_like, shape (V,)
        p, which the output must follow.
    law : DraftLaw
        The law that the drafts are drawn from here, without leading axes.
    num_samples : int
        How many draws of drafts, each with its output; decided before looking.
    false_alarm : float
        Probability, at most, that anything said of a lossless rule is wrong.
    batched : bool
        ``sampler`` takes all drafts (N, n) in one call and returns tokens (N,).
    rng : numpy.random.Generator
        Draws the drafts and the outcomes of the exact test, and is handed to a Verifier.

    Returns
    -------
    Losslessness

    Raises
    ------
    ValueError
        For invalid input, or a sampler that returns no tokens of the vocabulary; UnsupportedLaw for a
        Verifier that does not serve the law.
    """
    target = validate_position(target_probs, law)
    number = validate_count("num_samples", num_samples, minimum=2)
    validate_level(false_alarm)
    validate_rng(rng)
    tuples = law.sample(rng, number)
    tokens = emitted_tokens(sampler, target, law, tuples, batched, rng)
    return judge_tokens(target, law, tuples, tokens, false_alarm, rng=rng)


def judge_tokens(
    target: FloatArray,
    law: DraftLaw,
    tuples: IntArray,
    tokens: IntArray,
    false_alarm: float,
    *,
    rng: np.random.Generator,
) -> Losslessness:
    """What :func:`losslessness` says of drafts (N, n) and the tokens (N,) that came out, input unchecked."""
    cells = token_cells(target, ratio_order(target, law.inclusion_probs()), tokens.size)
    labels, share = cells.labels[tokens], false_alarm / NUM_STATEMENTS
    counts = np.bincount(tokens, minlength=target.size).astype(np.float64)
    return Losslessness(
        num_samples=tokens.size,
        false_alarm=false_alarm,
        impossible=int(np.count_nonzero(labels == IMPOSSIBLE)),
        p_value=exact_p_value(cells.counts(labels), cells.probs, share, rng=rng),
        num_cells=cells.probs.size,
        total_variation_bound=total_variation_bound(labels, cells.probs, share),
        detectable=detectable_total_variation(tokens.size, cells.probs.size, share),
        acceptance=observed_acceptance(tuples, tokens, acceptance_ceiling(target, law), share),
        worst=largest_deviations(counts, target * tokens.size),
    )
