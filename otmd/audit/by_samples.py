"""Audit whether a verifier is lossless by samples: a number of them decided in advance, or any number."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtri, chndtr, xlogy

from otmd.audit import counts, samples
from otmd.audit.bets import CAUTIONS, NUMBERS_OF_CELLS, STAKES, CellBets, EventBets, mean_wealth
from otmd.laws import DraftLaw
from otmd.laws.base import RngLike
from otmd.probabilities import (
    BoolArray,
    FloatArray,
    IntArray,
    from_tensor,
    validate_count,
    validate_probs,
    wrong,
)
from otmd.verifiers import Verifier

_MOST_SAMPLES = 10**12
_RARE_MASS = 1e-6
NUM_STATEMENTS = 3


@dataclass(frozen=True)
class Losslessness(samples.Report):
    """The result of an audit by samples.

    All statements hold together with probability 1 − ``false_alarm`` or more: the test of the output, the
    bound of the total variation and the acceptance have a third of ``false_alarm`` each (union bound).

    Attributes
    ----------
    impossible : int
        The number of samples with p = 0. One is proof, without any false alarm.
    p_value, detectable : float
        The p-value of the exact G-test of counts in ``num_cells`` cells, and the total variation on the cells
        that the test finds with probability 0.9.
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
    acceptance: samples.Acceptance
    worst: tuple[samples.TokenDeviation, ...]

    @property
    def share(self) -> float:
        """The false-alarm rate of each statement."""
        return self.false_alarm / NUM_STATEMENTS

    @property
    def reasons(self) -> tuple[str, ...]:
        """The faults in words; empty if none was found."""
        bound = self.total_variation_bound
        accepted = self.acceptance
        test = f"p-value {self.p_value:.1e} (alarm at {self.share:.1e})"
        rate = f"it accepts {accepted.rate:.4f} (at least {accepted.low:.4f})"
        limit = f"no lossless verifier accepts more than {accepted.ceiling:.4f}"
        faults = {
            f"{self.impossible} {samples.PROOF}": self.impossible,
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
        size = f"a total variation of {self.detectable:.4f} that shows on the cells"
        no_fault = f"no fault found in {self.num_samples} samples; {size}"
        return f"{no_fault} would have been found with probability 0.9"

    @property
    def details(self) -> list[str]:
        """The test, the acceptance and the tokens with the largest deviations."""
        accepted = self.acceptance
        test = f"p-value {self.p_value:.1e} over {self.num_cells} cells"
        rates = f"accepted {accepted.rate:.4f}, between {accepted.low:.4f} and {accepted.high:.4f}"
        return [
            f"{test}; false-alarm rate of the whole {self.false_alarm:.0e}",
            f"{rates}; a lossless verifier at most {accepted.ceiling:.4f}",
            f"largest deviations in {self.num_samples} samples:",
            samples.deviation_table(self.worst),
        ]


def losslessness(
    verifier: samples.Sampler | Verifier,
    target_probs: ArrayLike,
    law: DraftLaw,
    num_samples: int = 20_000,
    false_alarm: float = 1e-3,
    *,
    batched: bool = False,
    rng: RngLike,
) -> Losslessness:
    """Audit a verifier by what it emits on drafts of a declared law.

    Parameters
    ----------
    verifier : Verifier or callable
        A callable takes drafts (n,) as int64 and returns the output token. Its samples must be independent.
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
        is handed to a Verifier. Equal seeds give equal audits; a callable may use an equal seed.

    Returns
    -------
    Losslessness
        ``print`` shows the verdict, the tests and the tokens with the largest deviations.

    Raises
    ------
    ValueError
        For invalid input, or a callable that does not return tokens of the vocabulary. UnsupportedLaw for a
        law that a Verifier does not serve.
    TypeError
        For a class in place of an instance, or swapped arguments.

    Examples
    --------
    The first draft is emitted unverified:

    >>> import otmd
    >>> law = otmd.WithReplacement([0.2, 0.2, 0.6], 2)
    >>> first = lambda draft_tokens: draft_tokens[0]
    >>> otmd.audit.losslessness(first, [0.6, 0.3, 0.1], law, 1_000, rng=0).faulty
    True
    """
    target = samples.validate_position(target_probs, law)
    number = validate_count("num_samples", num_samples, minimum=2)
    samples.validate_level(false_alarm)
    generator = samples.derived_rng(rng, "losslessness")
    draft_tokens = law.sample(number, rng=generator)
    samples.validate_verifier(verifier)
    if isinstance(verifier, Verifier):
        emitted = verifier.verify(target, law, draft_tokens, rng=generator).token
    else:
        emitted = verifier(draft_tokens) if batched else samples.one_by_one(verifier, draft_tokens)
    output_tokens = samples.validate_emitted(emitted, number, target.size, "verifier")
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
    share = false_alarm / NUM_STATEMENTS
    cells = counts.token_cells(target, counts.ratio_order(target, law.inclusion_probs()), number)
    labels = cells.labels[output_tokens]
    ceiling = samples.acceptance_ceiling(target, law)
    observed = np.bincount(output_tokens, minlength=target.size).astype(np.float64)
    hits = int(np.count_nonzero(samples.is_accepted(draft_tokens, output_tokens)))
    low = counts.lower_bound(hits, number, share / 2)
    high = counts.upper_bound(hits, number, share / 2)
    return Losslessness(
        num_samples=number,
        false_alarm=false_alarm,
        impossible=int(np.count_nonzero(labels == counts.IMPOSSIBLE)),
        p_value=counts.exact_p_value(cells.counts(labels), cells.probs, share, rng=rng),
        num_cells=cells.probs.size,
        total_variation_bound=counts.total_variation_bound(labels, cells.probs, share),
        detectable=counts.detectable_total_variation(number, cells.probs.size, share),
        acceptance=samples.Acceptance(hits / number, low, high, ceiling),
        worst=samples.largest_deviations(observed, target * number),
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

    Parameters
    ----------
    target_probs, law
        As for :func:`losslessness`; the law decides which tokens share a cell.
    output_distribution : array_like, shape (V,), optional
        The distribution of the output token of the faulty verifier.
    total_variation : float, optional
        In place of ``output_distribution``: the least total variation, on the cells, of a deviation to be
        found.
    power : float
        With which probability the deviation must be found.
    false_alarm : float
        The false-alarm rate of the whole audit.

    Returns
    -------
    int or None
        None if more than 10^12 are needed: the deviation does not show on the cells.

    Raises
    ------
    ValueError, TypeError
        As :func:`losslessness`, and unless exactly one of ``output_distribution`` and ``total_variation`` is
        given.

    Notes
    -----
    G is taken as noncentral χ² with noncentrality 2N·KL(output‖p) over the cells (Wald 1943), and KL ≥ 2t²
    for a total variation t (Pinsker). A token with p = 0 is found at its first occurrence.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithReplacement([0.2, 0.2, 0.6], 2)
    >>> otmd.audit.samples_to_detect([0.6, 0.3, 0.1], law, total_variation=0.01)
    66890
    """
    p = samples.validate_position(target_probs, law)
    samples.validate_fraction("power", power)
    level = samples.validate_level(false_alarm) / NUM_STATEMENTS
    order = counts.ratio_order(p, law.inclusion_probs())
    if (output_distribution is None) == (total_variation is None):
        raise wrong(
            "output_distribution", "both or neither of it and total_variation", "exactly one"
        )
    output = p
    if output_distribution is None:
        total_variation = samples.validate_fraction("total_variation", total_variation)
    else:
        output = validate_probs("output_distribution", output_distribution)
    if output.shape != p.shape:
        raise wrong("output_distribution", f"shape {output.shape}", p.shape)

    def power_of(number: int) -> float:
        cells = counts.token_cells(p, order, number)
        pooled = cells.counts(cells.labels, output)
        possible = min(1.0, float(pooled.sum()))
        if possible == 0:
            return 1.0
        if total_variation is None:
            divergence = float(xlogy(pooled, pooled / pooled.sum() / cells.probs).sum())
        else:
            divergence = 2.0 * total_variation**2
        missed = _miss_probability(2.0 * number * divergence, cells.probs.size - 1, level)
        return 1.0 - possible**number * missed

    number = 1 + bisect_left(range(1, _MOST_SAMPLES + 1), power, key=power_of)
    return number if number <= _MOST_SAMPLES else None


def _miss_probability(noncentrality: float, degrees: int, level: float) -> float:
    """The probability that a G-test does not find a deviation."""
    if degrees == 0 or noncentrality <= 0:
        return 1.0 - level
    return float(chndtr(chdtri(degrees, level), degrees, noncentrality))


class SequentialAudit(samples.Report):
    """An audit that may be looked at after every batch, and stopped at any time.

    Half of the stake bets that the tokens do not follow p: on coarse and fine cells, for large and small
    deviations. The rest bets that the acceptance rate is above that of any lossless verifier. For a
    lossless verifier the wealth ever reaches 1/``false_alarm`` with at most that probability (Ville 1939).

    Parameters and errors are those of :func:`losslessness`.

    Attributes
    ----------
    num_samples, impossible : int
        The number of samples, and of those with p = 0.
    log_wealth : float
        Natural logarithm of the wealth. It starts at 0, and is infinite once an impossible token was seen.
    detected_at : int or None
        The sample at which the fault was found.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithReplacement([0.5, 0.5], 1)
    >>> running = otmd.audit.SequentialAudit([0.9, 0.1], law)
    >>> draft_tokens = law.sample(1_000, rng=0)
    >>> running.update(draft_tokens, draft_tokens[:, 0])
    >>> running.faulty
    True
    """

    def __init__(self, target_probs: ArrayLike, law: DraftLaw, false_alarm: float = 1e-3) -> None:
        self._target = samples.validate_position(target_probs, law)
        self.false_alarm = samples.validate_level(false_alarm)
        self._law = law
        self._ceiling = samples.acceptance_ceiling(self._target, law)
        order = counts.ratio_order(self._target, law.inclusion_probs())
        partitions = [counts.make_cells(self._target, order, number) for number in NUMBERS_OF_CELLS]
        # Two cells: the rare tokens, and all others.
        partitions.append(counts.make_cells(self._target, order, 1, rare_mass=_RARE_MASS))
        used = [cells for cells in partitions if cells.probs.size > 1] or partitions[:1]
        self._bets = [(cells, CellBets(cells.probs.size, c)) for cells in used for c in CAUTIONS]
        self._acceptance_bets = [EventBets(stake) for stake in STAKES]
        self._counts = np.zeros(self._target.size)
        self.num_samples = self.impossible = 0
        self.log_wealth = self.largest_log_wealth = 0.0
        self.detected_at: int | None = None

    def update(self, draft_tokens: ArrayLike, output_tokens: ArrayLike) -> None:
        """Look at more drafts (M, n) of the declared law, and at the tokens (M,) that the verifier emitted.

        Raises ValueError for tokens that are not in the vocabulary, or shapes that do not match.
        """
        tuples = self._law.validate_tokens(from_tensor(draft_tokens))
        if tuples.ndim != 2:
            raise wrong("draft_tokens", f"shape {tuples.shape}", "(M, n)")
        size = self._target.size
        out = samples.validate_emitted(output_tokens, len(tuples), size, "output_tokens")
        path = np.append(self.log_wealth, self._bet(out, samples.is_accepted(tuples, out)))
        crossed = np.flatnonzero(path >= -np.log(self.false_alarm))
        if self.detected_at is None and crossed.size:
            self.detected_at = self.num_samples + int(crossed[0])
        self._counts += np.bincount(out, minlength=size)
        self.num_samples += out.size
        self.log_wealth = float(path[-1])
        self.largest_log_wealth = max(self.largest_log_wealth, float(path.max()))

    def _bet(self, tokens: IntArray, accepted: BoolArray) -> FloatArray:
        """Logarithm of the wealth after each of the samples (M,)."""
        impossible = self.impossible + np.cumsum(self._target[tokens] == 0)
        self.impossible = int(impossible.max(initial=self.impossible))
        before = impossible == 0
        on_cells = [
            bet.update(cells.labels[tokens[before]], cells.probs) for cells, bet in self._bets
        ]
        on_acceptance = [
            bet.update(accepted[before], self._ceiling) for bet in self._acceptance_bets
        ]
        path = np.full(tokens.size, np.inf)
        path[before] = mean_wealth([mean_wealth(on_cells), mean_wealth(on_acceptance)])
        return path

    @property
    def p_value(self) -> float:
        """1/(the largest wealth so far): a p-value that is valid at any time."""
        return float(np.exp(-self.largest_log_wealth))

    @property
    def faulty(self) -> bool:
        """Whether a fault was found, now or at an earlier sample."""
        return self.detected_at is not None

    @property
    def worst(self) -> tuple[samples.TokenDeviation, ...]:
        """The tokens with the largest deviations so far."""
        return samples.largest_deviations(self._counts, self._target * self.num_samples)

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.impossible:
            return f"not lossless: {self.impossible} {samples.PROOF}"
        if self.faulty:
            when = f"found after {self.detected_at} samples, p-value {self.p_value:.1e}"
            return f"not lossless: {when} however often one looked"
        return f"no fault found so far, in {self.num_samples} samples"

    @property
    def details(self) -> list[str]:
        """The tokens with the largest deviations."""
        head = f"largest deviations in {self.num_samples} samples:"
        return [head, samples.deviation_table(self.worst)]
