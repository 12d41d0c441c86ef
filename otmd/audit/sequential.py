"""Audit of a verifier that may be looked at after every batch, and stopped at any time."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from otmd.audit import statistics
from otmd.audit.base import (
    PROOF,
    Report,
    TokenDeviation,
    acceptance_ceiling,
    deviations_table,
    largest_deviations,
    validate_emitted,
    validate_level,
    validate_position,
)
from otmd.audit.statistics import CAUTIONS, NUMBERS_OF_CELLS, STAKES, CellBets, EventBets
from otmd.laws import DraftLaw
from otmd.probabilities import from_tensor, wrong

_RARE_MASS = 1e-6


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
        tokens = validate_emitted(output_tokens, len(drafts), size, "output_tokens")
        impossible = self.impossible + np.cumsum(self._target[tokens] == 0)
        before = impossible == 0
        accepted = (drafts == tokens[:, None]).any(axis=1)[before]
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
        return largest_deviations(self._counts, self._target * self.num_samples)

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.impossible:
            return f"not lossless: {self.impossible} {PROOF}"
        if self.faulty:
            when = f"found after {self.detected_at} samples, p-value {self.p_value:.1e}"
            return f"not lossless: {when} however often one looked"
        return f"no fault found so far, in {self.num_samples} samples"

    @property
    def details(self) -> list[str]:
        """The tokens with the largest deviations."""
        return deviations_table(f"largest deviations in {self.num_samples} samples:", self.worst)
