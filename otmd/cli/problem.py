"""Reads one position's problem: p and q as they are typed, or from a file."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from otmd.cli import UsageError
from otmd.cli.options import fractions
from otmd.storage.npz import read_npy, read_npz

FIELDS = ("target_probs", "draft_probs")
SUFFIXES = (".npy", ".npz", ".json")
LONGEST_JSON = 32 << 20


def read_problem(target: str, draft: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Read the target's and the draft's distribution.

    Parameters
    ----------
    target, draft : str
        Numbers (``1/3,0,2/3``), or a ``.npy`` or ``.json`` file with one array; ``draft`` may be
        left out where ``target`` is an ``.npz`` or ``.json`` file with both, named
        ``target_probs`` and ``draft_probs``.

    Returns
    -------
    target_probs, draft_probs : ndarray
        As given, not checked.

    Raises
    ------
    UsageError
        If the text is neither numbers nor such a file.
    """
    if draft is not None:
        return _one("TARGET", target), _one("DRAFT", draft)
    whole = _load(Path(target)) if _is_file("TARGET", target) else None
    if not isinstance(whole, dict):
        raise UsageError(f"DRAFT: got nothing, wanted it beside {target!r}, or a file with both")
    missing = [name for name in FIELDS if name not in whole]
    if missing:
        raise UsageError(f"TARGET: {target} holds {sorted(whole)}, wanted {' and '.join(FIELDS)}")
    return _array(target, whole[FIELDS[0]]), _array(target, whole[FIELDS[1]])


def _one(argument: str, text: str) -> np.ndarray:
    if not _is_file(argument, text):
        return np.array(fractions(argument, text))
    found = _load(Path(text))
    if isinstance(found, dict):
        raise UsageError(f"{argument}: got {text}, which names several arrays, wanted one array")
    return _array(text, found)


def _is_file(argument: str, text: str) -> bool:
    if not text.endswith(SUFFIXES):
        return False
    if not Path(text).is_file():
        raise UsageError(f"{argument}: there is no file {text}")
    return True


def _load(path: Path) -> Any:
    try:
        if path.suffix == ".json":
            if path.stat().st_size > LONGEST_JSON:
                raise ValueError(f"more than {LONGEST_JSON} bytes; write it as .npz")
            return json.loads(path.read_text("utf-8"))
        return read_npz(path) if path.suffix == ".npz" else read_npy(path)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from error


def _array(source: str, value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    try:
        numbers = [float(Fraction(item)) for item in np.ravel(np.array(value, dtype=object))]
        return np.array(numbers).reshape(np.shape(value))
    except (TypeError, ValueError, ArithmeticError) as error:
        raise UsageError(f"{source}: got an array that is not of numbers ({error})") from error
