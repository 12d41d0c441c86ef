"""Bets against a claim, and an audit of a rule by them that may be stopped at any time.

A bet pays a factor whose expectation is at most 1 under the claim, given what came before. By Ville's
inequality (1939) the product of the factors ever reaches 1/a with probability at most a. So one may look
after every sample and stop at will (Shafer & Vovk 2019; Waudby-Smith & Ramdas 2024).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from otmd.audit.counts import MOST_CELLS, Cells, make_cells, ratio_order
from otmd.audit.samples import (
    TokenDeviation,
    acceptance_ceiling,
    as_array,
    deviation_table,
    is_accepted,
    largest_deviations,
    validate_emitted,
    validate_level,
    validate_position,
    wrong,
)
from otmd.drafts import DraftLaw
from otmd.probabilities import BoolArray, FloatArray, IntArray

CAUTIONS = (30.0, 1_000.0, 30_000.0)
"""How many samples' worth of trust in the claim the bets have, see :class:`CellBets`."""
NUMBERS_OF_CELLS = (2, 4, 16, MOST_CELLS)
STAKES = (1 / 256, 1 / 64, 1 / 16, 1 / 4)
"""Of the bets on an acceptance above the ceiling, see :class:`ChanceBets`."""
_RARE_MASS = 1e-6
_ROWS_AT_ONCE = 4096


class CellBets:
    """Bets that the cells occur as often as they did before, not as the claim expects.

    The factor for a sample in cell k is r(k)/π(k) with the predicted r(k) ∝ π(k)·(O_k + cπ(k))/(E_k + cπ(k)),
    O_k how often k occurred before and E_k how often it was expected. With one π for all samples this is the
    likelihood ratio of a Dirichlet mixture with parameters cπ against π. The caution c > 0 says how many
    samples' worth of trust in the claim there is: the larger, the smaller the deviations sought.
    """

    def __init__(self, num_cells: int, caution: float) -> None:
        self.caution = caution
        self.log_wealth = 0.0
        self._observed = np.zeros(num_cells)
        self._expected = np.zeros(num_cells)

    def update(self, labels: IntArray, probs: FloatArray) -> FloatArray:
        """Bet on samples in turn, and return the logarithm of the wealth (M,) after each.

        ``labels`` (M,) are their cells, ``probs`` (K,) or (M, K) is π, which may depend on those before.
        """
        expected = np.broadcast_to(probs, (labels.size, probs.shape[-1]))
        path = np.empty(labels.size)
        for start in range(0, labels.size, _ROWS_AT_ONCE):
            own = slice(start, start + _ROWS_AT_ONCE)
            path[own] = self._bet(labels[own], expected[own])
        return path

    def _bet(self, labels: IntArray, probs: FloatArray) -> FloatArray:
        happened = np.zeros(probs.shape)
        happened[np.arange(labels.size), labels] = 1.0
        observed, expected = _before(self._observed, happened), _before(self._expected, probs)
        trust = self.caution * probs
        factor = (observed[:-1] + trust) / np.where(probs > 0, expected[:-1] + trust, 1.0)
        own = factor[np.arange(labels.size), labels]
        with np.errstate(divide="ignore"):
            gains = np.log(own) - np.log((probs * factor).sum(axis=-1))
        self._observed, self._expected = observed[-1], expected[-1]
        path = self.log_wealth + np.cumsum(gains)
        self.log_wealth = float(path[-1])
        return path


class ChanceBets:
    """Bets that something happens more often than a largest chance allows.

    The factor is 1 + s(X/a − 1) for a chance of at most a, with the stake s in (0, 1).
    """

    def __init__(self, stake: float) -> None:
        self.stake = stake
        self.log_wealth = 0.0

    def update(self, happened: BoolArray, largest: FloatArray | float) -> FloatArray:
        """Bet on events (M,) in turn, each with its largest chance; logarithms of wealth (M,)."""
        with np.errstate(divide="ignore"):
            paid = np.where(happened, 1.0 / np.asarray(largest), 0.0)
        path = self.log_wealth + np.cumsum(np.log1p(self.stake * (paid - 1.0)))
        self.log_wealth = float(path[-1]) if path.size else self.log_wealth
        return path


def mean_wealth(paths: Sequence[FloatArray]) -> FloatArray:
    """Logarithm of the mean of wealths: the stake is shared, so it is a bet as well."""
    return logsumexp(np.stack(paths), axis=0) - np.log(len(paths))


def _before(start: FloatArray, steps: FloatArray) -> FloatArray:
    """Running sums (M + 1, K) that begin with ``start``."""
    return start + np.concatenate([np.zeros((1, start.size)), np.cumsum(steps, axis=0)])


class SequentialAudit:
    """An audit that may be looked at after every batch, and stopped at any time.

    Half of the stake bets that the tokens do not follow p, on coarse and fine cells of the tokens and for
    large and small deviations. The other half bets that the acceptance rate is above what a lossless rule can
    have. For a lossless rule the wealth ever reaches 1/``false_alarm`` with at most that probability
    (Ville's inequality), so nothing has to be decided in advance.

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
        self._cells = _partitions(self._target, law)
        self._bets = [
            [CellBets(cells.probs.size, caution) for caution in CAUTIONS] for cells in self._cells
        ]
        self._chances = [ChanceBets(stake) for stake in STAKES]
        self._counts = np.zeros(self._target.size, np.int64)
        self.num_samples = self.impossible = 0
        self.log_wealth = self.largest_log_wealth = 0.0
        self.detected_at: int | None = None

    def update(self, draft_tokens: ArrayLike, output_tokens: ArrayLike) -> None:
        """Look at more drafts (M, n) of the declared law, and at what the rule made of them (M,).

        Raises ValueError for tokens that are not in the vocabulary, or shapes that do not match.
        """
        tuples = self._law.validate_tokens(as_array("draft_tokens", draft_tokens))
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
        on_cells = [
            bet.update(cells.labels[possible], cells.probs)
            for cells, bets in zip(self._cells, self._bets, strict=True)
            for bet in bets
        ]
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
            return (
                f"not lossless: {self.impossible} of the tokens have target probability zero: proof"
            )
        if self.faulty:
            return (
                f"not lossless: found after {self.detected_at} samples, p-value {self.p_value:.1e} however "
                "often one looked"
            )
        return f"no fault found so far, in {self.num_samples} samples"

    def __str__(self) -> str:
        return (
            f"{self.verdict}\nlargest deviations in {self.num_samples} samples:\n"
            f"{deviation_table(self.worst)}"
        )


def _partitions(target: FloatArray, law: DraftLaw) -> list[Cells]:
    order = ratio_order(target, law.inclusion_probs())
    every = [make_cells(target, order, number) for number in NUMBERS_OF_CELLS]
    # Two parts without a cut between them: the rare tokens, and everything else.
    every.append(make_cells(target, order, 1, rare_mass=_RARE_MASS))
    return [cells for cells in every if cells.probs.size > 1] or every[:1]
