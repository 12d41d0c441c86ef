"""Is a rule lossless, by its output: a fixed number of samples, how many it takes, or stopped at will."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtri, chndtr, xlogy

from otmd.audit.counts import (
    IMPOSSIBLE,
    chance_at_least,
    chance_at_most,
    detectable_total_variation,
    exact_p_value,
    fewest,
    make_cells,
    ratio_order,
    token_cells,
    total_variation_bound,
)
from otmd.audit.evidence import (
    CAUTIONS,
    NUMBERS_OF_CELLS,
    STAKES,
    CellBets,
    ChanceBets,
    mean_wealth,
)
from otmd.audit.samples import (
    Acceptance,
    Sampler,
    TokenDeviation,
    acceptance_ceiling,
    as_array,
    deviation_table,
    emitted_tokens,
    is_accepted,
    largest_deviations,
    validate_emitted,
    validate_fraction,
    validate_level,
    validate_position,
    wrong,
)
from otmd.drafts import DraftLaw
from otmd.drafts.base import validate_rng
from otmd.probabilities import BoolArray, FloatArray, IntArray, validate_count, validate_probs
from otmd.verifiers import Verifier

NUM_STATEMENTS = 3
"""The test of the law, the bound and the acceptance share the false-alarm rate."""
_RARE_MASS = 1e-6
_PROOF = "of the tokens have target probability zero: proof"


@dataclass(frozen=True)
class Losslessness:
    """What an audit by samples found.

    All statements hold together with probability 1 − ``false_alarm`` or more: the test of the law, the bound
    of the total variation and the acceptance have a third of it each (union bound).

    Attributes
    ----------
    num_samples, num_cells : int
        Of the tokens drawn, and of the cells in which they were counted.
    false_alarm : float
    impossible : int
        Samples with p = 0. One is proof, without any chance of a false alarm.
    p_value : float
        Of the exact G-test of the counts.
    total_variation_bound : float
        The output is at least this far from p.
    detectable : float
        The total variation on the cells that the test finds with probability 0.9.
    acceptance : Acceptance
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
        own, bound = self.acceptance, self.total_variation_bound
        law = f"p-value {self.p_value:.1e} (alarm at {self.share:.1e})"
        accepts = f"it accepts {own.rate:.4f} (at least {own.low:.4f})"
        found = {
            f"{self.impossible} {_PROOF}": self.impossible,
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
    verifier: Sampler | Verifier,
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
        A callable takes all drafts (N, n) in one call and returns tokens (N,).
    rng : numpy.random.Generator
        Draws the drafts and the outcomes of the exact test, and is handed to a Verifier.

    Raises
    ------
    ValueError
        For invalid input, or a callable that returns no tokens of the vocabulary; UnsupportedLaw for a
        Verifier that does not serve the law.
    TypeError
        For a class in place of an instance, or swapped arguments.
    """
    target = validate_position(target_probs, law)
    number = validate_count("num_samples", num_samples, minimum=2)
    validate_level(false_alarm)
    validate_rng(rng)
    draft_tokens = law.sample(rng, number)
    output_tokens = emitted_tokens(verifier, target, law, draft_tokens, batched, rng)
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
    """What :func:`losslessness` says of drafts (N, n) and the tokens (N,) that came out, input unchecked."""
    number, share = output_tokens.size, false_alarm / NUM_STATEMENTS
    cells = token_cells(target, ratio_order(target, law.inclusion_probs()), number)
    labels, ceiling = cells.labels[output_tokens], acceptance_ceiling(target, law)
    counts = np.bincount(output_tokens, minlength=target.size).astype(np.float64)
    hits = int(np.count_nonzero(is_accepted(draft_tokens, output_tokens)))
    low, high = (bound(hits, number, share / 2) for bound in (chance_at_least, chance_at_most))
    return Losslessness(
        num_samples=number,
        false_alarm=false_alarm,
        impossible=int(np.count_nonzero(labels == IMPOSSIBLE)),
        p_value=exact_p_value(cells.counts(labels), cells.probs, share, rng=rng),
        num_cells=cells.probs.size,
        total_variation_bound=total_variation_bound(labels, cells.probs, share),
        detectable=detectable_total_variation(number, cells.probs.size, share),
        acceptance=Acceptance(hits / number, low, high, ceiling),
        worst=largest_deviations(counts, target * number),
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
    target_probs : array_like, shape (V,)
    law : DraftLaw
        The law of the drafts, without leading axes; it decides which tokens are pooled.
    output_law : array_like, shape (V,), optional
        The law that the faulty rule gives the output token.
    total_variation : float, optional
        In its place: any deviation of the cells' laws with this total variation or more.
    power : float
        With which probability it must be found.
    false_alarm : float
        Of the whole audit.

    Returns
    -------
    int or None
        None where more than 10^12 are needed: the deviation does not show on the cells.

    Raises
    ------
    ValueError, TypeError
        As :func:`losslessness`, and unless exactly one of ``output_law`` and ``total_variation`` is given.

    Notes
    -----
    G is taken as noncentral χ² with noncentrality 2N·KL(output‖p) over the cells (Wald 1943), and KL ≥ 2t²
    for a total variation t (Pinsker). A token with p = 0 is found at its first occurrence.
    """
    p = validate_position(target_probs, law)
    validate_fraction("power", power)
    level = validate_level(false_alarm) / NUM_STATEMENTS
    order = ratio_order(p, law.inclusion_probs())
    if (output_law is None) == (total_variation is None):
        raise wrong("output_law", "both or neither of it and total_variation", "exactly one")
    if total_variation is not None:
        validate_fraction("total_variation", total_variation)
    output = None if output_law is None else validate_probs("output_law", output_law)
    if output is not None and output.shape != p.shape:
        raise wrong("output_law", f"shape {output.shape}", p.shape)

    def chance_to_find(number: int) -> float:
        cells, possible = token_cells(p, order, number), 1.0
        if output is not None:
            pooled = cells.counts(cells.labels, output)
            possible = min(1.0, float(pooled.sum()))
            if possible == 0:
                return 1.0
            divergence = float(xlogy(pooled, pooled / pooled.sum() / cells.probs).sum())
        else:
            divergence = 2.0 * (total_variation or 0.0) ** 2
        degrees, missed = cells.probs.size - 1, 1.0 - level
        if degrees and divergence > 0:
            missed = float(chndtr(chdtri(degrees, level), degrees, 2.0 * number * divergence))
        return 1.0 - possible**number * missed

    return fewest(chance_to_find, power)


class SequentialAudit:
    """An audit that may be looked at after every batch, and stopped at any time.

    Half of the stake bets that the tokens do not follow p: on coarse and fine cells, for large and small
    deviations. The other half bets that the acceptance rate is above that of any lossless rule. For a
    lossless rule the wealth ever reaches 1/``false_alarm`` with at most that probability (Ville 1939).

    Parameters
    ----------
    target_probs : array_like, shape (V,)
    law : DraftLaw
        The law that the drafts are drawn from, without leading axes.
    false_alarm : float
        Probability, at most, that a lossless rule is ever called faulty.

    Attributes
    ----------
    num_samples, impossible : int
        How many samples were seen, and how many of them have p = 0.
    log_wealth : float
        Natural logarithm of the wealth, from 0; infinite once an impossible token was seen.
    detected_at : int or None
        The sample at which the fault was found.

    Raises
    ------
    ValueError, TypeError
        For invalid input; for a class in place of an instance, or swapped arguments.
    """

    def __init__(self, target_probs: ArrayLike, law: DraftLaw, false_alarm: float = 1e-3) -> None:
        self._target = validate_position(target_probs, law)
        self.false_alarm = validate_level(false_alarm)
        self._law = law
        self._ceiling = acceptance_ceiling(self._target, law)
        order = ratio_order(self._target, law.inclusion_probs())
        every = [make_cells(self._target, order, number) for number in NUMBERS_OF_CELLS]
        # Two parts without a cut between them: the rare tokens, and everything else.
        every.append(make_cells(self._target, order, 1, rare_mass=_RARE_MASS))
        used = [cells for cells in every if cells.probs.size > 1] or every[:1]
        self._bets = [(own, CellBets(own.probs.size, c)) for own in used for c in CAUTIONS]
        self._chances = [ChanceBets(stake) for stake in STAKES]
        self._counts = np.zeros(self._target.size, np.int64)
        self.num_samples = self.impossible = 0
        self.log_wealth = self.largest_log_wealth = 0.0
        self.detected_at: int | None = None

    def update(self, draft_tokens: ArrayLike, output_tokens: ArrayLike) -> None:
        """Look at more drafts (M, n) of the declared law, and at what the rule made of them (M,).

        Raises ValueError for tokens that are not in the vocabulary, or shapes that do not match.
        """
        tuples = self._law.validate_tokens(as_array(draft_tokens))
        if tuples.ndim != 2:
            raise wrong("draft_tokens", f"shape {tuples.shape}", "(M, n)")
        out = validate_emitted(output_tokens, len(tuples), self._target.size, "output_tokens")
        if not out.size:
            return
        path = self._bet(out, is_accepted(tuples, out))
        crossed = np.flatnonzero(path >= -np.log(self.false_alarm))
        if self.detected_at is None and crossed.size:
            self.detected_at = self.num_samples + int(crossed[0]) + 1
        self._counts += np.bincount(out, minlength=self._target.size)
        self.num_samples += out.size
        self.log_wealth = float(path[-1])
        self.largest_log_wealth = max(self.largest_log_wealth, float(path.max()))

    def _bet(self, tokens: IntArray, accepted: BoolArray) -> FloatArray:
        """Logarithm of the wealth after each of the samples (M,)."""
        impossible = self._target[tokens] == 0
        possible = tokens[~impossible]
        on_cells = [bet.update(own.labels[possible], own.probs) for own, bet in self._bets]
        on_chance = [bet.update(accepted[~impossible], self._ceiling) for bet in self._chances]
        path = np.full(tokens.size, np.inf)
        if self.impossible == 0:
            before = np.cumsum(impossible) == 0
            whole = mean_wealth([mean_wealth(on_cells), mean_wealth(on_chance)])
            path[before] = whole[: np.count_nonzero(before)]
        self.impossible += int(np.count_nonzero(impossible))
        return path

    @property
    def p_value(self) -> float:
        """Valid at any time: 1/(the largest wealth so far), at most x with probability at most x."""
        return float(np.exp(-self.largest_log_wealth))

    @property
    def faulty(self) -> bool:
        """Whether a fault was found, now or at an earlier sample."""
        return self.detected_at is not None

    @property
    def worst(self) -> tuple[TokenDeviation, ...]:
        """The tokens with the largest deviations so far."""
        return largest_deviations(self._counts.astype(np.float64), self._target * self.num_samples)

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.impossible:
            return f"not lossless: {self.impossible} {_PROOF}"
        if self.faulty:
            told = f"found after {self.detected_at} samples, p-value {self.p_value:.1e}"
            return f"not lossless: {told} however often one looked"
        return f"no fault found so far, in {self.num_samples} samples"

    def __str__(self) -> str:
        head = f"{self.verdict}\nlargest deviations in {self.num_samples} samples:"
        return f"{head}\n{deviation_table(self.worst)}"
