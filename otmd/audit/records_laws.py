"""What a row records of one model's next-token distribution."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otmd.audit.records_values import (
    RecordedNumbers,
    optional_number,
    optional_whole,
    read_ids,
    read_numbers,
)
from otmd.probabilities import IntArray, Processing

SIDES = ("target", "draft")
_WARPERS = ("temperature", "top_k", "top_p", "min_p")
LAW_FIELDS = tuple(
    f"{side}_{name}" for side in SIDES for name in ("logits", "probs", "ids", *_WARPERS)
)
Row = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class RecordedLaw:
    """What was recorded of one model's next-token distribution.

    Attributes
    ----------
    numbers : ndarray, shape (V,) or (K,)
        Logits or probabilities, as recorded.
    is_logits : bool
        Which of the two.
    tolerance : float
        How far from 1 probabilities may sum.
    processing : Processing
        What turns logits into the probabilities.
    ids : ndarray of int64, shape (K,), or None
        The tokens that the numbers belong to, ascending; all others have no mass.
    """

    numbers: NDArray
    is_logits: bool
    tolerance: float
    processing: Processing
    ids: IntArray | None


def read_law(side: str, given: Row, default: Processing | None) -> RecordedLaw | None:
    """Read one side of a row, None where it has none; ValueError for fields that do not fit together."""
    kinds = [kind for kind in ("logits", "probs") if f"{side}_{kind}" in given]
    if len(kinds) > 1:
        raise ValueError(f"{side}_logits: got it beside {side}_probs, wanted one of the two")
    if not kinds:
        return None
    name = f"{side}_{kinds[0]}"
    recorded = read_numbers(name, given[name])
    ids = order = None
    if f"{side}_ids" in given:
        ids = read_ids(f"{side}_ids", given[f"{side}_ids"])
        order = _order_of_ids(f"{side}_ids", ids, recorded)
        ids = ids[order]
    return RecordedLaw(
        numbers=recorded.values if order is None else recorded.values[order],
        is_logits=kinds[0] == "logits",
        tolerance=recorded.tolerance,
        processing=_processing(side, kinds[0] == "logits", given, default),
        ids=ids,
    )


def _order_of_ids(name: str, ids: IntArray, recorded: RecordedNumbers) -> IntArray:
    if ids.size != recorded.values.size:
        raise ValueError(f"{name}: got {ids.size} ids for {recorded.values.size} numbers")
    order = np.argsort(ids, kind="stable")
    ascending = ids[order]
    if ascending[0] < 0 or (np.diff(ascending) == 0).any():
        raise ValueError(f"{name}: got a negative or a repeated id, wanted distinct ids ≥ 0")
    return order


def _processing(side: str, is_logits: bool, given: Row, default: Processing | None) -> Processing:
    own = [f"{side}_{name}" for name in _WARPERS if f"{side}_{name}" in given]
    if not is_logits and (own or default is not None):
        raise ValueError(
            f"{own[0] if own else side + '_processing'}: got a processing of {side}_probs, wanted "
            f"{side}_logits with it: probabilities are taken as they are"
        )
    if own and default is not None:
        raise ValueError(f"{own[0]}: got it in the row and for the whole file, wanted one of them")
    if not own:
        return default or Processing()
    temperature = optional_number(f"{side}_temperature", given)
    top_k = optional_whole(f"{side}_top_k", given)
    return Processing(
        temperature=1.0 if temperature is None else temperature,
        # Engines write 0 or −1 for no truncation.
        top_k=None if top_k is None or top_k <= 0 else top_k,
        top_p=optional_number(f"{side}_top_p", given),
        min_p=optional_number(f"{side}_min_p", given),
    )
