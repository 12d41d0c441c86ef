"""Audit of a verifier by a number of samples that is decided in advance."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtri, chndtr, xlogy

from otmd.audit import statistics
from otmd.audit.base import (
    PROOF,
    ConditionalLaw,
    Report,
    Sampler,
    TokenDeviation,
    acceptance_ceiling,
    as_rule,
    derived_rng,
    deviations_table,
    largest_deviations,
    validate_emitted,
    validate_fraction,
    validate_level,
    validate_position,
)
from otmd.laws import DraftLaw
from otmd.laws.base import RngLike, validate_rng
from otmd.laws.drafts import draw_tokens
from otmd.probabilities import FloatArray, IntArray, from_tensor, validate_count, validate_probs, wrong
from otmd.verifiers import Verifier

_NUM_STATEMENTS = 3
_MOST_SAMPLES = 10**12


@dataclass(frozen=True)
class Acceptance:
    """The acceptance rate in a sample, and the most that a lossless verifier could accept.

    Attributes
    ----------
    rate : float
        The share of draws whose output token is one of the drafts.
    low, high : float
        Exact bounds of the acceptance rate (Clopper–Pearson).
    ceiling : float
        α*, or :func:`~otmd.optimum.bounds.draft_probability_bound` for a law without a closed form and with
        too many tuples for a maximum flow.
    """

    rate: float
    low: float
    high: float
    ceiling: float

    @property
    def too_high(self) -> bool:
        """Whether the rate is significantly above the ceiling, which proves a fault."""
        return self.low > self.ceiling


@dataclass(frozen=True)
class Losslessness(Report):
    """The result of an audit by samples.

    All statements hold together with probability 1 − ``false_alarm`` or more: the test of the output, the
    bound of the total variation and the acceptance have a third of ``false_alarm`` each (union bound).

    Attributes
    ----------
    impossible : int
        The number of samples with p = 0. One is proof, without any false alarm.
    p_value, detectable : float
        The p-value of the exact G-test of counts in ``num_cells`` cells, and the total variation on the cells
        that the test finds with probability 0.9; 1 for a single cell, where nothing is random.
    total_variation_bound : float
        Lower bound of the total variation between the distribution of the output and p.
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
        """The false-alarm rate of each statement."""
        return self.false_alarm / _NUM_STATEMENTS

    @property
    def reasons(self) -> tuple[str, ...]:
        """The faults in words; empty if none was found."""
        bound = self.total_variation_bound
        accepted = self.acceptance
        test = f"p-value {self.p_value:.1e} (alarm at {self.share:.1e})"
        rate = f"it accepts {accepted.rate:.4f} (at least {accepted.low:.4f})"
        limit = f"no lossless verifier accepts more than {accepted.ceiling:.4f}"
        faults = {
            f"{self.impossible} {PROOF}": self.impossible,
            f"the output does not follow the target: {test}": self.p_value <= self.share,
            f"the total variation from the target is at least {bound:.4f}": bound > 0,
            f"{rate}, and {limit}": accepted.too_high,
        }
        return tuple(words for words, is_so in faults.items() if is_so)

    @property
    def faulty(self) -> bool:
        """Whether a fault was found."""
        return bool(self.reasons)

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.faulty:
            return "not lossless: " + "; ".join(self.reasons)
        no_fault = f"no fault found in {self.num_samples} samples"
        if self.num_cells == 1:
            return f"{no_fault}; the target is a single token, so there is nothing random to test"
        size = f"a total variation of {self.detectable:.4f} that shows on the cells"
        return f"{no_fault}; {size} would have been found with probability 0.9"

    @property
    def details(self) -> list[str]:
        """The test, the acceptance and the tokens with the largest deviations."""
        accepted = self.acceptance
        cells = "1 cell" if self.num_cells == 1 else f"{self.num_cells} cells"
        test = f"p-value {self.p_value:.1e} over {cells}"
        rates = f"accepted {accepted.rate:.4f}, between {accepted.low:.4f} and {accepted.high:.4f}"
        return [
            f"{test}; false-alarm rate of the whole {self.false_alarm:.0e}",
            f"{rates}; a lossless verifier at most {accepted.ceiling:.4f}",
            *deviations_table(f"largest deviations in {self.num_samples} samples:", self.worst),
        ]


def losslessness(
    verifier: Sampler | Verifier | str,
    target_probs: ArrayLike,
    law: DraftLaw,
    num_samples: int = 20_000,
    false_alarm: float = 1e-3,
    *,
    batched: bool = False,
    rng: RngLike = 0,
) -> Losslessness:
    """Audit a verifier by what it emits on drafts of a declared law.

    Parameters
    ----------
    verifier : Verifier, str or callable
        A verifier, the name of one, or a callable, which takes drafts (n,) as int64 and returns the output
        token. Its samples must be independent.
    target_probs : array_like, shape (V,)
        p, which the output must follow.
    law : DraftLaw
        The law that the drafts are drawn from here, without leading axes.
    num_samples : int
        Number of draws of drafts, each with its output; decided before any is seen.
    false_alarm : float
        Probability, at most, that any statement about a lossless verifier is wrong.
    batched : bool
        Whether a callable takes all drafts (N, n) in one call and returns tokens (N,).
    rng : int, sequence of int, numpy.random.Generator or None
        A seed or a generator. It seeds the one that draws the drafts and the outcomes of the exact test, and
        is handed to a Verifier. Equal seeds give equal audits, and so do calls that give none; a callable
        may use an equal seed.

    Returns
    -------
    Losslessness
        ``print`` shows the verdict, the tests and the tokens with the largest deviations.

    Raises
    ------
    ValueError, TypeError
        For invalid input, such as a class in place of an instance, or a callable that does not return tokens
        of the vocabulary. UnsupportedLaw for a law that a Verifier does not serve.

    Examples
    --------
    The first draft is emitted unverified:

    >>> import otmd
    >>> law = otmd.WithReplacement([0.2, 0.2, 0.6], 2)
    >>> first = lambda draft_tokens: draft_tokens[0]
    >>> otmd.audit.losslessness(first, [0.6, 0.3, 0.1], law, 1_000, rng=0).faulty
    True
    """
    target = validate_position(target_probs, law)
    number = validate_count("num_samples", num_samples, minimum=2)
    validate_level(false_alarm)
    rule = as_rule(verifier)
    generator = derived_rng(rng, "losslessness")
    draft_tokens = law.sample(number, rng=generator)
    if isinstance(rule, Verifier):
        emitted = rule.verify(target, law, draft_tokens, rng=generator).token
    elif batched:
        emitted = rule(draft_tokens)
    else:
        tokens = [np.asarray(from_tensor(rule(drafts))) for drafts in draft_tokens]
        for token in tokens:
            if token.ndim:
                received = f"an array of shape {token.shape} for one draw of drafts"
                raise wrong("verifier", received, "a token; batched=True takes all draws in one call")
        emitted = np.stack(tokens)
    output_tokens = validate_emitted(emitted, number, target.size, "verifier")
    return judge_tokens(target, law, draft_tokens, output_tokens, false_alarm, rng=generator)


def judge_tokens(
    target: FloatArray,
    law: DraftLaw,
    draft_tokens: IntArray,
    output_tokens: IntArray,
    false_alarm: float,
    *,
    rng: np.random.Generator,
) -> Losslessness:
    """The result of :func:`losslessness` on drafts (N, n) and output tokens (N,), which are not checked."""
    number = output_tokens.size
    share = false_alarm / _NUM_STATEMENTS
    order = statistics.ratio_order(target, law.inclusion_probs())
    cells = statistics.token_cells(target, order, number)
    labels = cells.labels[output_tokens]
    observed = np.bincount(output_tokens, minlength=target.size).astype(np.float64)
    hits = int((draft_tokens == output_tokens[:, None]).any(axis=1).sum())
    return Losslessness(
        num_samples=number,
        false_alarm=false_alarm,
        impossible=int(np.count_nonzero(labels == statistics.IMPOSSIBLE)),
        p_value=statistics.exact_p_value(cells.counts(labels), cells.probs, share, rng=rng),
        num_cells=cells.probs.size,
        total_variation_bound=statistics.total_variation_bound(labels, cells.probs, share),
        detectable=statistics.detectable_total_variation(number, cells.probs.size, share),
        acceptance=Acceptance(
            rate=hits / number,
            low=statistics.lower_bound(hits, number, share / 2),
            high=statistics.upper_bound(hits, number, share / 2),
            ceiling=acceptance_ceiling(target, law),
        ),
        worst=largest_deviations(observed, target * number),
    )


def samples_to_detect(
    target_probs: ArrayLike,
    law: DraftLaw,
    output_distribution: ArrayLike | None = None,
    *,
    total_variation: float | None = None,
    power: float = 0.9,
    false_alarm: float = 1e-3,
) -> int | None:
    """The number of samples that :func:`losslessness` needs to find a deviation by its test of the output.

    G is taken as noncentral χ² with noncentrality 2N·KL(output‖p) over the cells (Wald 1943), and KL ≥ 2t²
    for a total variation t (Pinsker). A token with p = 0 is found at its first occurrence.

    Parameters
    ----------
    target_probs, law
        As for :func:`losslessness`; the law decides which tokens share a cell.
    output_distribution : array_like, shape (V,), optional
        The distribution of the output token of the faulty verifier.
    total_variation : float, optional
        In its place: the least total variation, on the cells, of a deviation to be found.
    power : float
        With which probability the deviation must be found.
    false_alarm : float
        The false-alarm rate of the whole audit.

    Returns
    -------
    int or None
        None if more than 10^12 are needed: the deviation does not show on the cells.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithReplacement([0.2, 0.2, 0.6], 2)
    >>> otmd.audit.samples_to_detect([0.6, 0.3, 0.1], law, total_variation=0.01)
    66890
    """
    p = validate_position(target_probs, law)
    validate_fraction("power", power)
    level = validate_level(false_alarm) / _NUM_STATEMENTS
    output = p
    if (output_distribution is None) == (total_variation is None):
        received = "both or neither of it and total_variation"
        raise wrong("output_distribution", received, "exactly one")
    if output_distribution is None:
        total_variation = validate_fraction("total_variation", total_variation)
    else:
        output = validate_probs("output_distribution", output_distribution)
    if output.shape != p.shape:
        raise wrong("output_distribution", f"shape {output.shape}", p.shape)
    order = statistics.ratio_order(p, law.inclusion_probs())

    def power_of(number: int) -> float:
        cells = statistics.token_cells(p, order, number)
        pooled = cells.counts(cells.labels, output)
        possible = min(1.0, float(pooled.sum()))
        if possible == 0:
            return 1.0
        if total_variation is None:
            divergence = float(xlogy(pooled, pooled / pooled.sum() / cells.probs).sum())
        else:
            divergence = 2.0 * total_variation**2
        degrees = cells.probs.size - 1
        missed = 1.0 - level
        if degrees and divergence > 0:
            missed = float(chndtr(chdtri(degrees, level), degrees, 2.0 * number * divergence))
        return 1.0 - possible**number * missed

    number = 1 + bisect_left(range(1, _MOST_SAMPLES + 1), power, key=power_of)
    return number if number <= _MOST_SAMPLES else None


def sampler_of(verifier: ConditionalLaw, *, rng: RngLike = None) -> Callable[[IntArray], IntArray]:
    """A batched sampler, from drafts (N, n) to tokens (N,), of a verifier given by its conditional law.

    Parameters
    ----------
    verifier : callable
        Takes drafts (n,) and returns the distribution of the output token (V,). It is called once for each
        tuple of drafts.
    rng : int, sequence of int, numpy.random.Generator or None
        A seed or a generator, which draws the tokens.

    Returns
    -------
    callable
        It raises ValueError if the verifier does not return a distribution.

    Examples
    --------
    >>> import numpy as np, otmd
    >>> verifier = otmd.TargetOnly().prepare([0.0, 1.0], otmd.WithReplacement([0.5, 0.5], 2))
    >>> sampler = otmd.audit.sampler_of(verifier.conditional_law, rng=0)
    >>> sampler(np.array([[0, 0], [0, 1], [1, 1]])).tolist()
    [1, 1, 1]
    """
    generator = validate_rng(rng)

    @cache
    def output_probs(draft_tokens: tuple[int, ...]) -> FloatArray:
        return validate_probs("verifier", verifier(np.array(draft_tokens)))

    def sample(draft_tokens: IntArray) -> IntArray:
        tuples, indices, counts = np.unique(draft_tokens, axis=0, return_inverse=True, return_counts=True)
        rows = np.split(np.argsort(indices.ravel(), kind="stable"), np.cumsum(counts))
        tokens = np.empty(len(draft_tokens), np.int64)
        for drafts, equal in zip(tuples.tolist(), rows, strict=False):
            tokens[equal] = draw_tokens(output_probs(tuple(drafts)), generator, equal.size)
        return tokens

    return sample
