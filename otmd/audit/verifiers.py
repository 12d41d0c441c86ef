"""Audits of a verifier: by a number of samples decided in advance, by any number, or by enumeration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtri, chndtr, xlogy

from otmd.audit import statistics
from otmd.audit.statistics import CAUTIONS, NUMBERS_OF_CELLS, STAKES, CellBets, EventBets
from otmd.laws import DraftLaw, Table
from otmd.laws.base import RngLike, validate_one_position, validate_rng, validate_target
from otmd.laws.drafts import draw_tokens
from otmd.optimum import optimal_acceptance
from otmd.optimum.bounds import draft_probability_bound
from otmd.probabilities import (
    BoolArray,
    FloatArray,
    IntArray,
    from_tensor,
    validate_count,
    validate_probs,
    validate_real,
    validate_tol,
    wrong,
)
from otmd.verifiers import Verifier
from otmd.verifiers.base import as_verifier

Sampler = Callable[[IntArray], ArrayLike]
"""From drafts (n,) to a token, or from drafts (N, n) to tokens (N,)."""
ConditionalLaw = Callable[[IntArray], ArrayLike]
"""From drafts (n,) to the distribution of the output token (V,)."""
# A maximum flow over more tuples would take longer than the audit.
_MOST_TUPLES = 5_000
# Added to ceilings, which rounding may make too low.
SLACK = 1e-9
_MOST_SAMPLES = 10**12
_RARE_MASS = 1e-6
_NUM_STATEMENTS = 3
_PROOF = "of the tokens have target probability zero: proof"


class Report(ABC):
    """The result of an audit: ``faulty``, the ``verdict`` in a sentence, and the ``details`` below it."""

    @property
    @abstractmethod
    def faulty(self) -> bool:
        """Whether a fault was found."""

    @property
    @abstractmethod
    def verdict(self) -> str:
        """One sentence."""

    @property
    @abstractmethod
    def details(self) -> list[str]:
        """The numbers behind the verdict, in lines."""

    def __str__(self) -> str:
        return "\n".join([self.verdict, *self.details])


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
class TokenDeviation:
    """A token that is emitted too often or too seldom: its counts, or its exact probabilities."""

    token: int
    observed: float
    expected: float


def validate_position(target_probs: ArrayLike, law: object) -> FloatArray:
    """Return the target of a single position, or raise for it or for the law."""
    p = validate_target(target_probs, validate_one_position(law, target_probs))
    if p.ndim != 1:
        raise wrong("target_probs", f"leading axes {p.shape[:-1]}", "one position")
    return p


def as_rule(verifier: Any) -> Any:
    """Return a callable, or a verifier as :func:`as_verifier` does; TypeError for anything else."""
    is_call = callable(verifier) and not isinstance(verifier, type)
    return verifier if is_call else as_verifier(verifier)


def validate_level(false_alarm: object) -> float:
    """Return the rate of false alarms, or raise ValueError unless it is in (0, 1/4]."""
    level = validate_fraction("false_alarm", false_alarm)
    if level > 0.25:
        raise wrong("false_alarm", repr(false_alarm), "at most 0.25")
    return level


def validate_fraction(name: str, value: object) -> float:
    """Return a number strictly between 0 and 1; TypeError for what is no number, else ValueError."""
    number = validate_real(name, value)
    if not 0 < number < 1:
        raise wrong(name, repr(value), "a number between 0 and 1")
    return number


def _validate_emitted(tokens: ArrayLike, count: int, vocab_size: int, name: str) -> IntArray:
    """Return tokens as int64 of shape (count,), or raise ValueError under that name."""
    array = np.asarray(from_tensor(tokens))
    if array.dtype.kind not in "iu" or array.shape != (count,):
        raise wrong(name, f"{array.dtype} of shape {array.shape}", f"integers of shape ({count},)")
    if count and (array.min() < 0 or array.max() >= vocab_size):
        raise wrong(name, f"ids from {array.min()} to {array.max()}", f"ids in [0, {vocab_size})")
    return array.astype(np.int64)


def derived_rng(rng: RngLike, audit: str) -> np.random.Generator:
    """Return a generator for an audit, independent of all other random numbers from the seed of ``rng``.

    The engine under audit may use an equal seed. Its random numbers would then be those of the audit, and a
    sound engine would be called faulty. A generator is advanced.
    """
    words = validate_rng(rng).integers(2**32, size=4)
    return np.random.default_rng([*f"otmd.audit.{audit}".encode(), *words.tolist()])


def is_accepted(draft_tokens: IntArray, output_tokens: IntArray) -> BoolArray:
    """Whether each output token (N,) is among its drafts (N, n)."""
    return (draft_tokens == output_tokens[:, None]).any(axis=-1)


def acceptance_ceiling(target: FloatArray, law: DraftLaw) -> float:
    """The ceiling of an :class:`Acceptance`, rounded up."""
    needs_flow = isinstance(law.position_structure.random, Table)
    if not needs_flow or law.position_structure.num_tuples <= _MOST_TUPLES:
        rate = float(optimal_acceptance(target, law).rate)
    else:
        rate = float(draft_probability_bound(target, law))
    return min(1.0, rate + SLACK)


def _largest_deviations(observed: FloatArray, expected: FloatArray) -> tuple[TokenDeviation, ...]:
    """The five tokens with the largest |O − E|/√E, impossible ones first; those with O = E are left out."""
    off = observed - expected
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.where(off == 0, 0.0, np.abs(off) / np.sqrt(expected))
    by_size = np.lexsort((-np.abs(off), -size))[:5]
    return tuple(TokenDeviation(int(y), float(observed[y]), float(expected[y])) for y in by_size if off[y])


def _table(heading: str, worst: tuple[TokenDeviation, ...], number: str = ".1f") -> list[str]:
    columns = f"  {'token':>8} {'observed':>12} {'expected':>12} {'difference':>12} {'ratio':>8}"
    lines = [heading, columns]
    for x in worst:
        cells = (x.observed, x.expected, x.observed - x.expected)
        numbers = " ".join(f"{value:>12{number}}" for value in cells)
        ratio = f"{x.observed / x.expected:.3f}" if x.expected > 0 else "∞"
        lines.append(f"  {x.token:>8} {numbers} {ratio:>8}")
    return lines


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
            f"{self.impossible} {_PROOF}": self.impossible,
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
            *_table(f"largest deviations in {self.num_samples} samples:", self.worst),
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
    output_tokens = _validate_emitted(emitted, number, target.size, "verifier")
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
    hits = int(np.count_nonzero(is_accepted(draft_tokens, output_tokens)))
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
        worst=_largest_deviations(observed, target * number),
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


class SequentialAudit(Report):
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
    p_value : float
        1/(the largest wealth so far): a p-value that is valid at any time.
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
        self._target = validate_position(target_probs, law)
        self.false_alarm = validate_level(false_alarm)
        self._law = law
        self._ceiling = acceptance_ceiling(self._target, law)
        order = statistics.ratio_order(self._target, law.inclusion_probs())
        partitions = [statistics.make_cells(self._target, order, k) for k in NUMBERS_OF_CELLS]
        # Two cells: the rare tokens, and all others.
        partitions.append(statistics.make_cells(self._target, order, 1, rare_mass=_RARE_MASS))
        used = [cells for cells in partitions if cells.probs.size > 1] or partitions[:1]
        self._cell_bets = [(cells, CellBets(cells.probs.size, CAUTIONS)) for cells in used]
        self._acceptance_bets = [EventBets(stake) for stake in STAKES]
        self._counts = np.zeros(self._target.size)
        self.num_samples = self.impossible = 0
        self.log_wealth = 0.0
        self.p_value = 1.0
        self.detected_at: int | None = None

    def update(self, draft_tokens: ArrayLike, output_tokens: ArrayLike) -> None:
        """Look at more drafts (M, n) of the declared law, and at the tokens (M,) that the verifier emitted.

        Raises ValueError for tokens that are not in the vocabulary, or shapes that do not match.
        """
        drafts = self._law.validate_tokens(from_tensor(draft_tokens))
        if drafts.ndim != 2:
            raise wrong("draft_tokens", f"shape {drafts.shape}", "(M, n)")
        size = self._target.size
        tokens = _validate_emitted(output_tokens, len(drafts), size, "output_tokens")
        impossible = self.impossible + np.cumsum(self._target[tokens] == 0)
        before = impossible == 0
        accepted = is_accepted(drafts, tokens)[before]
        on_cells = np.concatenate(
            [bet.update(cells.labels[tokens[before]], cells.probs) for cells, bet in self._cell_bets]
        )
        on_acceptance = [bet.update(accepted, self._ceiling) for bet in self._acceptance_bets]
        wealth = [statistics.mean_wealth(on_cells), statistics.mean_wealth(on_acceptance)]
        path = np.append(self.log_wealth, np.full(tokens.size, np.inf))
        path[1:][before] = statistics.mean_wealth(wealth)
        crossed = np.flatnonzero(path >= -np.log(self.false_alarm))
        if self.detected_at is None and crossed.size:
            self.detected_at = self.num_samples + int(crossed[0])
        self.impossible = int(impossible.max(initial=self.impossible))
        self._counts += np.bincount(tokens, minlength=size)
        self.num_samples += tokens.size
        self.log_wealth = float(path[-1])
        self.p_value = min(self.p_value, statistics.anytime_p_value(path))

    @property
    def faulty(self) -> bool:
        """Whether a fault was found, now or at an earlier sample."""
        return self.detected_at is not None

    @property
    def worst(self) -> tuple[TokenDeviation, ...]:
        """The tokens with the largest deviations so far."""
        return _largest_deviations(self._counts, self._target * self.num_samples)

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.impossible:
            return f"not lossless: {self.impossible} {_PROOF}"
        if self.faulty:
            when = f"found after {self.detected_at} samples, p-value {self.p_value:.1e}"
            return f"not lossless: {when} however often one looked"
        return f"no fault found so far, in {self.num_samples} samples"

    @property
    def details(self) -> list[str]:
        """The tokens with the largest deviations."""
        return _table(f"largest deviations in {self.num_samples} samples:", self.worst)


@dataclass(frozen=True)
class GuiltyDrafts:
    """Drafts x on which a faulty verifier emits tokens that it emits too often, drawn with probability Q(x).

    Their part of the total variation, the ``excess``, is Q(x) Σ_y r(y|x) (r(y) − p(y))₊/r(y), where r is the
    distribution of the output token.
    """

    tokens: tuple[int, ...]
    prob: float
    excess: float


@dataclass(frozen=True, eq=False)
class EnumeratedAudit(Report):
    """The distribution r of a verifier's output, compared with the target p.

    At each token they may differ by ``tol``.

    Attributes
    ----------
    acceptance, ceiling : float
        P(the output token is among the drafts), and its largest value for a lossless verifier.
    worst, worst_drafts : tuple of TokenDeviation, tuple of GuiltyDrafts
        The tokens with the largest deviations; the drafts with the largest parts of the total variation,
        none if the verifier is not faulty.
    """

    target_probs: FloatArray
    output_distribution: FloatArray
    tol: float
    acceptance: float
    ceiling: float
    worst: tuple[TokenDeviation, ...]
    worst_drafts: tuple[GuiltyDrafts, ...]

    @property
    def deviation(self) -> FloatArray:
        """``output_distribution − target_probs``, shape (V,)."""
        return self.output_distribution - self.target_probs

    @property
    def total_variation(self) -> float:
        """½ Σ|r − p|."""
        return 0.5 * float(np.abs(self.deviation).sum())

    @property
    def faulty(self) -> bool:
        """Whether r and p differ by more than ``tol`` at a token."""
        return bool(np.abs(self.deviation).max() > self.tol)

    @property
    def verdict(self) -> str:
        """One sentence."""
        largest = float(np.abs(self.deviation).max())
        if not self.faulty:
            return f"lossless to {self.tol:.0e}: no token is off by more than {largest:.1e}"
        distance = f"total variation {self.total_variation:.3g} from the target"
        accepts = f"accepts {self.acceptance:.4f}, a lossless verifier at most {self.ceiling:.4f}"
        return f"not lossless: {distance}, a token off by up to {largest:.3g}; {accepts}"

    @property
    def details(self) -> list[str]:
        """The tokens with the largest deviations, and the drafts that they come from."""
        if not self.faulty:
            return []
        return [
            *_table("largest deviations of the output's distribution:", self.worst, ".6f"),
            "drafts on which the excess is emitted:",
            *(
                f"  {x.tokens}: drafted with probability {x.prob:.4g}, "
                f"part of the total variation {x.excess:.4g}"
                for x in self.worst_drafts
            ),
        ]


def enumerated(
    verifier: Verifier | ConditionalLaw | str,
    target_probs: ArrayLike,
    law: DraftLaw,
    tol: float = 1e-12,
) -> EnumeratedAudit:
    """Audit a verifier whose output has a known distribution given the drafts, by enumerating all tuples.

    Errors are those of :func:`losslessness`; too many tuples are a ValueError as well.

    Parameters
    ----------
    verifier : Verifier, str or callable
        A verifier, the name of one, or a callable, which takes drafts (n,) and returns the distribution of
        the output token (V,).
    target_probs, law
        As for :func:`losslessness`.
    tol : float
        The largest difference allowed at a token.

    Returns
    -------
    EnumeratedAudit
        ``print`` shows the deviations, and the drafts that they come from.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithoutReplacement([0.2, 0.2, 0.6], 2)
    >>> print(otmd.audit.enumerated(otmd.RecursiveRejection(), [0.6, 0.3, 0.1], law).faulty)
    False
    """
    rule = as_rule(verifier)
    p = validate_position(target_probs, law)
    tol = validate_tol(tol)
    if isinstance(rule, Verifier):
        rule = rule.prepare(p, law).conditional_law
    output = np.zeros(p.size)
    accepted = 0.0
    tuples, probs = law.enumerate()
    for tokens, prob in zip(tuples, probs, strict=True):
        given_drafts = validate_probs("verifier", rule(tokens))
        if given_drafts.shape != p.shape:
            raise wrong("verifier", f"a distribution of shape {given_drafts.shape}", p.shape)
        output += prob * given_drafts
        accepted += prob * float(given_drafts[np.unique(tokens)].sum())
    guilty: list[GuiltyDrafts] = []
    if np.abs(output - p).max() > tol:
        excess = np.maximum(output - p, 0.0)
        share = np.divide(excess, output, out=np.zeros(p.size), where=excess > 0)
        for tokens, prob in zip(tuples, probs.tolist(), strict=True):
            part = prob * float(validate_probs("verifier", rule(tokens)) @ share)
            guilty.append(GuiltyDrafts(tuple(tokens.tolist()), prob, part))
    return EnumeratedAudit(
        target_probs=p,
        output_distribution=output,
        tol=tol,
        acceptance=accepted,
        ceiling=acceptance_ceiling(p, law),
        worst=_largest_deviations(output, p),
        worst_drafts=tuple(sorted(guilty, key=lambda drafts: -drafts.excess)[:5]),
    )
