"""Audit of a verifier by samples, with no number of samples decided in advance."""

import numpy as np
from numpy.typing import ArrayLike

from otmd.audit import counts, samples
from otmd.audit.bets import CAUTIONS, NUMBERS_OF_CELLS, STAKES, CellBets, EventBets, mean_wealth
from otmd.laws import DraftLaw
from otmd.probabilities import BoolArray, FloatArray, IntArray, from_tensor, wrong

_RARE_MASS = 1e-6


class SequentialAudit:
    """An audit that may be looked at after every batch, and stopped at any time.

    Half of the stake bets that the tokens do not follow p: on coarse and fine cells, for large and small
    deviations. The other half bets that the acceptance rate is above that of any lossless verifier. For a
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

    def __str__(self) -> str:
        head = f"{self.verdict}\nlargest deviations in {self.num_samples} samples:"
        return f"{head}\n{samples.deviation_table(self.worst)}"
