"""How many samples an audit needs, and what it would have found."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtri, chndtr, chndtrinc, xlogy

from otmd.audit.arguments import validate_fraction, validate_level, validate_position
from otmd.audit.cells import ratio_order, token_cells
from otmd.drafts import DraftLaw
from otmd.probabilities import FloatArray, IntArray, validate_probs

# The false-alarm rate is shared by the test of the law, the bound of the total variation and the acceptance.
NUM_STATEMENTS = 3
_MOST_SAMPLES = 10**12


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
        p.
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
    ValueError
        For invalid input, or unless exactly one of ``output_law`` and ``total_variation`` is given.

    Notes
    -----
    G is taken as noncentral χ² with noncentrality 2N·KL(output‖p) over the cells (Wald 1943), an
    approximation for large N. For a total variation t, KL ≥ 2t² (Pinsker). A token with p = 0 is found at its
    first occurrence.
    """
    p = validate_position(target_probs, law)
    validate_fraction("power", power)
    level = validate_level(false_alarm) / NUM_STATEMENTS
    order = ratio_order(p, law.inclusion_probs())
    if (output_law is None) == (total_variation is None):
        raise ValueError(
            "output_law: got both or neither of it and total_variation, wanted exactly one"
        )
    if total_variation is not None:
        validate_fraction("total_variation", total_variation)

        def found(num_samples: int) -> float:
            num_cells = token_cells(p, order, num_samples).probs.size
            return _power(num_samples, 2.0 * total_variation**2, num_cells, level)

        return _fewest(found, power)
    output = validate_probs("output_law", output_law)  # type: ignore[arg-type]
    if output.shape != p.shape:
        raise ValueError(f"output_law: got shape {output.shape}, wanted {p.shape}")
    return _fewest(lambda number: _chance_to_find(p, order, output, number, level), power)


def _chance_to_find(
    target: FloatArray, order: IntArray, output: FloatArray, num_samples: int, level: float
) -> float:
    """P(an audit sees an impossible token, or that its test of the law fails)."""
    cells = token_cells(target, order, num_samples)
    pooled = cells.pooled(output)
    possible = float(pooled.sum())
    if possible == 0:
        return 1.0
    divergence = max(0.0, float(xlogy(pooled, pooled / possible / cells.probs).sum()))
    nothing_impossible = min(possible, 1.0) ** num_samples
    return 1.0 - nothing_impossible * (
        1.0 - _power(num_samples, divergence, cells.probs.size, level)
    )


def detectable_total_variation(
    num_samples: int, num_cells: int, level: float, power: float = 0.9
) -> float:
    """Total variation between laws of the cells that a G-test finds with this probability."""
    if num_cells < 2:
        return 1.0
    threshold = chdtri(num_cells - 1, level)
    noncentrality = chndtrinc(threshold, num_cells - 1, 1.0 - power)
    return min(1.0, float(np.sqrt(noncentrality / (4.0 * num_samples))))


def _power(num_samples: int, divergence: float, num_cells: int, level: float) -> float:
    if num_cells < 2 or divergence == 0:
        return level
    threshold = chdtri(num_cells - 1, level)
    return 1.0 - float(chndtr(threshold, num_cells - 1, 2.0 * num_samples * divergence))


def _fewest(found: Callable[[int], float], power: float) -> int | None:
    """The smallest number of samples with ``found(number) ≥ power``, by doubling and halving."""
    high = 1
    while found(high) < power:
        high *= 2
        if high > _MOST_SAMPLES:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if found(middle) >= power else (middle, high)
    return high
