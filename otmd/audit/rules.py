"""Audit whether a rule is lossless: by samples, and how many it takes; or exactly, by enumeration."""

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtri, chndtr, xlogy

from otmd.audit import counts, samples
from otmd.drafts import DraftLaw
from otmd.probabilities import (
    FloatArray,
    IntArray,
    validate_count,
    validate_probs,
    validate_tol,
    wrong,
)
from otmd.verifiers import Verifier

_MOST_SAMPLES = 10**12
NUM_STATEMENTS = 3


@dataclass(frozen=True)
class Losslessness:
    """What an audit by samples found.

    All statements hold together with probability 1 − ``false_alarm`` or more: the test of the law, the bound
    of the total variation and the acceptance have a third of ``false_alarm`` each (union bound).

    Attributes
    ----------
    impossible : int
        How many samples have p = 0. One is proof, without any chance of a false alarm.
    p_value, detectable : float
        The p-value of the exact G-test of counts in ``num_cells`` cells, and the total variation on the cells
        that the test finds with probability 0.9.
    total_variation_bound : float
        Lower bound of the total variation between the output law and p.
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
        """Why the rule is faulty, in words; empty if no fault was found."""
        own, bound = self.acceptance, self.total_variation_bound
        law = f"p-value {self.p_value:.1e} (alarm at {self.share:.1e})"
        accepts = f"it accepts {own.rate:.4f} (at least {own.low:.4f})"
        found = {
            f"{self.impossible} {samples.PROOF}": self.impossible,
            f"the output does not follow the target: {law}": self.p_value <= self.share,
            f"the total variation from the target is at least {bound:.4f}": bound > 0,
            f"{accepts}, and no lossless rule accepts more than {own.ceiling:.4f}": own.too_high,
        }
        return tuple(words for words, is_so in found.items() if is_so)

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
        told = f"no fault found in {self.num_samples} samples; {size}"
        return f"{told} would have been found with probability 0.9"

    def __str__(self) -> str:
        own, test = self.acceptance, f"p-value {self.p_value:.1e} over {self.num_cells} cells"
        rates = f"accepted {own.rate:.4f}, between {own.low:.4f} and {own.high:.4f}"
        return (
            f"{self.verdict}\n{test}; false-alarm rate of the whole {self.false_alarm:.0e}\n"
            f"{rates}; a lossless rule at most {own.ceiling:.4f}\n"
            f"largest deviations in {self.num_samples} samples:\n{samples.deviation_table(self.worst)}"
        )


def losslessness(
    verifier: samples.Sampler | Verifier,
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
    verifier : Verifier or callable
        A callable takes drafts (n,) as int64 and returns the output token. Its samples must be independent.
    target_probs : array_like, shape (V,)
        p, which the output must follow.
    law : DraftLaw
        The law that the drafts are drawn from here, without leading axes.
    num_samples : int
        How many draws of drafts, each with its output; decided before any is seen.
    false_alarm : float
        Probability, at most, that any statement about a lossless rule is wrong.
    batched : bool
        Whether a callable takes all drafts (N, n) in one call and returns tokens (N,).
    rng : numpy.random.Generator
        Seeds the generator that draws the drafts and the outcomes of the exact test, and is handed to a
        Verifier. Equal seeds give equal audits; a callable may use an equal seed.

    Raises
    ------
    ValueError
        For invalid input, or a callable that does not return tokens of the vocabulary. UnsupportedLaw for a
        law that a Verifier does not serve.
    TypeError
        For a class in place of an instance, or swapped arguments.
    """
    target = samples.validate_position(target_probs, law)
    number = validate_count("num_samples", num_samples, minimum=2)
    samples.validate_level(false_alarm)
    rng = samples.derived_rng(rng, "losslessness")
    draft_tokens = law.sample(rng, number)
    samples.validate_verifier(verifier)
    if isinstance(verifier, Verifier):
        emitted = verifier.verify(target, law, draft_tokens, rng=rng).token
    else:
        emitted = verifier(draft_tokens) if batched else samples.one_by_one(verifier, draft_tokens)
    output_tokens = samples.validate_emitted(emitted, number, target.size, "verifier")
    return judge_tokens(target, law, draft_tokens, output_tokens, false_alarm, rng=rng)


def judge_tokens(
    target: FloatArray,
    law: DraftLaw,
    draft_tokens: IntArray,
    output_tokens: IntArray,
    false_alarm: float,
    *,
    rng: np.random.Generator,
) -> Losslessness:
    """What :func:`losslessness` says of drafts (N, n) and output tokens (N,). The input is not checked."""
    number, share = output_tokens.size, false_alarm / NUM_STATEMENTS
    cells = counts.token_cells(target, counts.ratio_order(target, law.inclusion_probs()), number)
    labels, ceiling = cells.labels[output_tokens], samples.acceptance_ceiling(target, law)
    seen = np.bincount(output_tokens, minlength=target.size).astype(np.float64)
    hits = int(np.count_nonzero(samples.is_accepted(draft_tokens, output_tokens)))
    low = counts.chance_at_least(hits, number, share / 2)
    high = counts.chance_at_most(hits, number, share / 2)
    return Losslessness(
        num_samples=number,
        false_alarm=false_alarm,
        impossible=int(np.count_nonzero(labels == counts.IMPOSSIBLE)),
        p_value=counts.exact_p_value(cells.counts(labels), cells.probs, share, rng=rng),
        num_cells=cells.probs.size,
        total_variation_bound=counts.total_variation_bound(labels, cells.probs, share),
        detectable=counts.detectable_total_variation(number, cells.probs.size, share),
        acceptance=samples.Acceptance(hits / number, low, high, ceiling),
        worst=samples.largest_deviations(seen, target * number),
    )


def samples_to_detect(
    target_probs: ArrayLike,
    law: DraftLaw,
    output_law: ArrayLike | None = None,
    *,
    total_variation: float | None = None,
    power: float = 0.9,
    false_alarm: float = 1e-3,
) -> int | None:
    """How many samples :func:`losslessness` needs to find a deviation by its test of the law.

    Parameters
    ----------
    target_probs, law
        As for :func:`losslessness`; the law decides which tokens share a cell.
    output_law : array_like, shape (V,), optional
        The law of the output token under the faulty rule.
    total_variation : float, optional
        In place of ``output_law``: the least total variation, on the cells, of a deviation to be found.
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
        As :func:`losslessness`, and unless one of ``output_law`` and ``total_variation`` is given, not both.

    Notes
    -----
    G is taken as noncentral χ² with noncentrality 2N·KL(output‖p) over the cells (Wald 1943), and KL ≥ 2t²
    for a total variation t (Pinsker). A token with p = 0 is found at its first occurrence.
    """
    p = samples.validate_position(target_probs, law)
    samples.validate_fraction("power", power)
    level = samples.validate_level(false_alarm) / NUM_STATEMENTS
    order = counts.ratio_order(p, law.inclusion_probs())
    if (output_law is None) == (total_variation is None):
        raise wrong("output_law", "both or neither of it and total_variation", "exactly one")
    output, apart = p, 0.0
    if output_law is None:
        apart = samples.validate_fraction("total_variation", total_variation)
    else:
        output = validate_probs("output_law", output_law)
    if output.shape != p.shape:
        raise wrong("output_law", f"shape {output.shape}", p.shape)

    def chance_to_find(number: int) -> float:
        cells = counts.token_cells(p, order, number)
        pooled = cells.counts(cells.labels, output)
        possible = min(1.0, float(pooled.sum()))
        if possible == 0:
            return 1.0
        divergence = 2.0 * apart**2
        if not apart:
            divergence = float(xlogy(pooled, pooled / pooled.sum() / cells.probs).sum())
        degrees, missed = cells.probs.size - 1, 1.0 - level
        if degrees and divergence > 0:
            missed = float(chndtr(chdtri(degrees, level), degrees, 2.0 * number * divergence))
        return 1.0 - possible**number * missed

    number = 1 + bisect_left(range(1, _MOST_SAMPLES + 1), power, key=chance_to_find)
    return number if number <= _MOST_SAMPLES else None


@dataclass(frozen=True)
class GuiltyDrafts:
    """Drafts x, drawn with probability Q(x), on which a faulty rule emits tokens that it emits too often.

    The ``excess`` is their part of the total variation: Q(x) Σ_y r(y|x) (r(y) − p(y))₊/r(y), where r is the
    law of the output token.
    """

    tokens: tuple[int, ...]
    prob: float
    excess: float


@dataclass(frozen=True, eq=False)
class EnumeratedAudit:
    """The output law r of a rule, compared with the target p. At each token they may differ by ``tol``.

    Attributes
    ----------
    acceptance, ceiling : float
        P(the output token is among the drafts), and its largest value for a lossless rule.
    worst, worst_drafts : tuple of TokenDeviation, tuple of GuiltyDrafts
        The tokens with the largest deviations; the drafts with the largest parts of the total variation,
        none if the rule is not faulty.
    """

    target_probs: FloatArray
    output_law: FloatArray
    tol: float
    acceptance: float
    ceiling: float
    worst: tuple[samples.TokenDeviation, ...]
    worst_drafts: tuple[GuiltyDrafts, ...]

    @property
    def deviation(self) -> FloatArray:
        """``output_law − target_probs``, shape (V,)."""
        return self.output_law - self.target_probs

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
        apart = f"total variation {self.total_variation:.3g} from the target"
        accepts = f"accepts {self.acceptance:.4f}, a lossless rule at most {self.ceiling:.4f}"
        return f"not lossless: {apart}, a token off by up to {largest:.3g}; {accepts}"

    def __str__(self) -> str:
        if not self.faulty:
            return self.verdict
        guilty = [
            f"  {x.tokens}: drafted with probability {x.prob:.4g}, part of the total variation {x.excess:.4g}"
            for x in self.worst_drafts
        ]
        table = "largest deviations of the output law:", samples.deviation_table(self.worst, ".6f")
        return "\n".join([self.verdict, *table, "drafts on which the excess is emitted:", *guilty])


def enumerated(
    verifier: Verifier | samples.ConditionalLaw,
    target_probs: ArrayLike,
    law: DraftLaw,
    tol: float = 1e-12,
) -> EnumeratedAudit:
    """Audit a rule whose law given the drafts is known. All tuples of drafts are enumerated.

    Parameters
    ----------
    verifier : Verifier or callable
        A callable takes drafts (n,) and returns the law of the output token (V,).
    target_probs, law
        As for :func:`losslessness`.
    tol : float
        The largest difference allowed at a token.

    Raises
    ------
    ValueError, TypeError
        As :func:`losslessness`, and for too many tuples or a callable that returns no distribution.
    """
    samples.validate_verifier(verifier)
    p = samples.validate_position(target_probs, law)
    tol = validate_tol(tol)
    rule = verifier.prepare(p, law).conditional_law if isinstance(verifier, Verifier) else verifier
    output, accepted = np.zeros(p.size), 0.0
    tuples, probs = law.enumerate()
    for tokens, prob in zip(tuples, probs, strict=True):
        given = validate_probs("verifier", rule(tokens))
        if given.shape != p.shape:
            raise wrong("verifier", f"a law of shape {given.shape}", p.shape)
        output += prob * given
        accepted += prob * float(given[np.unique(tokens)].sum())
    guilty: list[GuiltyDrafts] = []
    if np.abs(output - p).max() > tol:
        excess = np.maximum(output - p, 0.0)
        share = np.divide(excess, output, out=np.zeros(p.size), where=excess > 0)
        for tokens, prob in zip(tuples, probs, strict=True):
            part = float(prob * (validate_probs("verifier", rule(tokens)) @ share))
            guilty.append(GuiltyDrafts(tuple(tokens.tolist()), float(prob), part))
    worst = tuple(sorted(guilty, key=lambda own: -own.excess)[:5])
    ceiling, deviations = samples.acceptance_ceiling(p, law), samples.largest_deviations(output, p)
    return EnumeratedAudit(p, output, tol, accepted, ceiling, deviations, worst)
