"""Claims about many positions, each of them a number that is uniform on [0, 1) if the claim holds.

The numbers are uniform given everything before, so they are independent, whatever depends on what: counts in
equal cells have a known law, bets are fair, and a set of cells that the first half picks can be judged by
the second.
"""

from dataclasses import dataclass

import numpy as np

from otmd.audit.betting import CellBets, mean_wealth
from otmd.audit.cells import IMPOSSIBLE
from otmd.audit.dump_bound import mean_total_variation_bound
from otmd.audit.goodness import exact_p_value
from otmd.audit.power import detectable_total_variation
from otmd.audit.sequential import CAUTIONS, NUMBERS_OF_CELLS
from otmd.probabilities import BoolArray, FloatArray, IntArray

STATEMENTS = 3
"""Of a claim: the test of the counts, the bets and the bound of the total variation."""
# Over positions that differ a fault is smooth along the order, and fewer cells show it sooner.
_MOST_CELLS = 16
_SAMPLES_A_CELL = 100


@dataclass(frozen=True)
class Claim:
    """What was found of a claim about many positions.

    Attributes
    ----------
    name : str
        The claim, in words.
    num_samples : int
        How many numbers were tested.
    p_value : float
        Of the exact G-test of counts in equal cells; valid if the number of rows was decided in advance.
    betting_p_value : float
        Valid whenever one looks and stops recording.
    total_variation_bound : float
        The laws claimed and the laws in fact have at least this total variation, on average over the second
        half of the positions.
    detectable : float
        A total variation on the cells that the test would have found with probability 0.9.
    level : float
        The false-alarm rate of each of the three statements.
    """

    name: str
    num_samples: int
    p_value: float
    betting_p_value: float
    total_variation_bound: float
    detectable: float
    level: float

    @property
    def refuted(self) -> bool:
        """Whether any of the three statements contradicts the claim."""
        smallest = min(self.p_value, self.betting_p_value)
        return smallest <= self.level or self.total_variation_bound > 0


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a claim is judged by, in the order in which it was recorded.

    Attributes
    ----------
    numbers : ndarray of float64, shape (M,)
        In [0, 1), uniform given everything before.
    impossible : ndarray of bool, shape (M,)
        Where an outcome has probability zero under the claim.
    bands : ndarray of int64, shape (M,), or None
        Classes of the same outcomes, that are alike from position to position.
    band_probs : ndarray of float64, shape (M, K), or None
        What the claim gives each class at each position.
    """

    numbers: FloatArray
    impossible: BoolArray
    bands: IntArray | None = None
    band_probs: FloatArray | None = None


def judge_claim(name: str, evidence: Evidence, level: float, *, rng: np.random.Generator) -> Claim:
    """Test a claim, each of three statements at a false-alarm rate of ``level``.

    The numbers are counted in equal cells. Bets are made on the cells and on the classes, and so is the bound
    of the total variation; an impossible outcome has a part in the bound alone.
    """
    possible = evidence.numbers[~evidence.impossible]
    cells = max(2, min(_MOST_CELLS, evidence.numbers.size // _SAMPLES_A_CELL))
    counts = np.bincount(_labels(possible, cells), minlength=cells)
    uniform = np.full(cells, 1.0 / cells)
    return Claim(
        name=name,
        num_samples=evidence.numbers.size,
        p_value=exact_p_value(counts, uniform, level, rng=rng),
        betting_p_value=float(np.exp(-_largest_log_wealth(evidence))),
        total_variation_bound=_bound(evidence, uniform, level),
        detectable=detectable_total_variation(max(1, possible.size), cells, level),
        level=level,
    )


def _labels(numbers: FloatArray, cells: int) -> IntArray:
    return np.minimum((numbers * cells).astype(np.int64), cells - 1)


def _largest_log_wealth(evidence: Evidence) -> float:
    possible = ~evidence.impossible
    if not possible.any():
        return 0.0
    numbers = evidence.numbers[possible]
    paths = [
        _path(_labels(numbers, cells), np.full(cells, 1.0 / cells), caution)
        for cells in NUMBERS_OF_CELLS
        for caution in CAUTIONS
    ]
    sides = [mean_wealth(paths)]
    if evidence.bands is not None and evidence.band_probs is not None:
        labels, probs = evidence.bands[possible], evidence.band_probs[possible]
        sides.append(mean_wealth([_path(labels, probs, caution) for caution in CAUTIONS]))
    return max(0.0, float(mean_wealth(sides).max()))


def _path(labels: IntArray, probs: FloatArray, caution: float) -> FloatArray:
    return CellBets(probs.shape[-1], caution).update(labels, probs)


def _bound(evidence: Evidence, uniform: FloatArray, level: float) -> float:
    by_cells = np.where(evidence.impossible, IMPOSSIBLE, _labels(evidence.numbers, uniform.size))
    if evidence.bands is None or evidence.band_probs is None:
        return mean_total_variation_bound(by_cells, uniform, level)
    by_bands = np.where(evidence.impossible, IMPOSSIBLE, evidence.bands)
    return max(
        mean_total_variation_bound(by_cells, uniform, level / 2),
        mean_total_variation_bound(by_bands, evidence.band_probs, level / 2),
    )
