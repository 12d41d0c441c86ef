"""Is a rule lossless, by its output alone: looking after every batch, and stopping at will."""

import numpy as np
from numpy.typing import ArrayLike

from otmd.audit.acceptance import acceptance_ceiling, is_accepted
from otmd.audit.arguments import validate_level, validate_position
from otmd.audit.betting import CellBets, ChanceBets, mean_wealth
from otmd.audit.cells import MOST_CELLS, Cells, make_cells, ratio_order
from otmd.audit.samplers import validate_emitted
from otmd.audit.words import TokenDeviation, deviation_table, largest_deviations
from otmd.drafts import DraftLaw
from otmd.probabilities import BoolArray, FloatArray, IntArray

CAUTIONS = (30.0, 1_000.0, 30_000.0)
"""How many samples' worth of trust in the claim the bets have, see :class:`CellBets`."""
NUMBERS_OF_CELLS = (2, 4, 16, MOST_CELLS)
STAKES = (1 / 256, 1 / 64, 1 / 16, 1 / 4)
"""Of the bets on an acceptance above the ceiling, see :class:`ChanceBets`."""
_RARE_MASS = 1e-6


class SequentialAudit:
    """An audit that may be looked at after every batch, and stopped at any time.

    Half of the stake bets that the tokens do not follow p, on coarse and fine cells of the tokens and for
    large and small deviations, the other half that the acceptance rate is above what a lossless rule can
    have. For a lossless rule the wealth ever reaches 1/``false_alarm`` with at most that probability
    (Ville's inequality), so nothing has to be decided in advance.

    Parameters
    ----------
    target_probs : array_like, shape (V,)
        p.
    drafts : DraftLaw
        The law that the drafts are drawn from, without leading axes.
    false_alarm : float
        Probability, at most, that a lossless rule is ever called faulty.

    Attributes
    ----------
    num_samples : int
        How many were seen.
    impossible : int
        How many of them have p = 0.
    log_wealth : float
        Natural logarithm of the wealth, from 0; infinite once an impossible token was seen.
    detected_at : int or None
        The sample at which the fault was found.

    Raises
    ------
    ValueError
        For invalid input.
    """

    def __init__(self, target_probs: ArrayLike, law: DraftLaw, false_alarm: float = 1e-3) -> None:
        self._target = validate_position(target_probs, law)
        self.false_alarm = validate_level(false_alarm)
        self._drafts = law
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

    def update(self, drafts: ArrayLike, tokens: ArrayLike) -> None:
        """Look at more samples.

        Parameters
        ----------
        drafts : array_like of int, shape (M, n)
            Drafts, drawn from the declared law.
        tokens : array_like of int, shape (M,)
            What the rule made of them.

        Raises
        ------
        ValueError
            For tokens that are not in the vocabulary, or shapes that do not match.
        """
        tuples = self._drafts.validate_tokens(drafts, "drafts")
        if tuples.ndim != 2:
            raise ValueError(f"drafts: got shape {tuples.shape}, wanted (M, n)")
        out = validate_emitted(tokens, len(tuples), self._target.size, "tokens")
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
    # Two parts without a cut between them: what is rare, and everything else.
    every.append(make_cells(target, order, 1, rare_mass=_RARE_MASS))
    return [cells for cells in every if cells.probs.size > 1] or every[:1]
