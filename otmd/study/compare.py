"""Compare all laws and verifiers on one or many pairs of distributions: mean rates and gaps to α*."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from otmd.laws import DraftLaw
from otmd.probabilities import validate_probs, validate_same_vocabulary, wrong, wrong_type
from otmd.registry import LAWS, VERIFIERS
from otmd.study.rows import make_settings, position_rows
from otmd.study.table import Table

if TYPE_CHECKING:
    import polars as pl

ALL_LAWS = tuple(entry.load() for entry in LAWS.values() if entry.compared)
ALL_VERIFIERS = tuple(entry.load() for entry in VERIFIERS.values() if entry.compared)
AVERAGED = ("rate", "gap", "optimal", "rate_low", "rate_high")
HEAD = ("law", "verifier", "n", "rate", "gap to α*", "standard error", "positions")


class ComparedRow(NamedTuple):
    """A law, a number of drafts and a verifier, averaged over the positions that have a rate.

    ``error`` is the standard error of the rate, None for one position. ``bound_width`` is the width of the
    rate's guaranteed bounds.
    """

    law: str
    verifier: str
    num_drafts: int
    rate: float
    gap: float
    optimal: float
    error: float | None
    bound_width: float
    positions: int


class Comparison(list[ComparedRow]):
    """The result of :func:`compare`: a list of :class:`ComparedRow`, best rate first, shown as a table.

    ``skipped`` names what has no rate, and why.
    """

    def __init__(self, rows: Iterable[ComparedRow], skipped: Sequence[str] = ()) -> None:
        super().__init__(rows)
        self.skipped = list(skipped)

    @property
    def rows(self) -> list[ComparedRow]:
        """The rows as a plain list."""
        return list(self)

    @property
    def best(self) -> ComparedRow:
        """The row with the best rate; IndexError where nothing has a rate."""
        return self[0]

    @property
    def table(self) -> Table:
        """The rows as they are shown."""
        rows = [(*row[:5], row.error, row.positions) for row in self]
        note = "\n".join(f"left out: {reason}" for reason in self.skipped)
        return Table("", HEAD, rows, note, decimals=4)

    def __repr__(self) -> str:
        return str(self.table)

    def _repr_html_(self) -> str:
        return self.table.to_html()

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary for each row."""
        return [row._asdict() for row in self]

    def to_polars(self) -> pl.DataFrame:
        """The rows as a Polars data frame."""
        import polars as pl

        return pl.DataFrame(self.to_dicts())

    def to_pandas(self) -> Any:
        """The rows as a pandas data frame, if pandas is installed."""
        import pandas as pd  # pyright: ignore[reportMissingImports]

        return pd.DataFrame(self.to_dicts())


def compare(
    target_probs: ArrayLike,
    draft_probs: ArrayLike,
    num_drafts: int | Iterable[int] = range(1, 5),
    *,
    laws: str | Iterable[Any] = ALL_LAWS,
    verifiers: str | Iterable[Any] = ALL_VERIFIERS,
    tol: float = 1e-4,
) -> Comparison:
    """Rate every verifier with each of the laws that it serves.

    By default the laws are those that a draft distribution and a number of drafts define. The result prints
    as a table. Rows are ranked by their mean rate; of equal ones, fewer drafts come first.

    Parameters
    ----------
    target_probs, draft_probs : array_like, shape (…, V)
        p and q. Leading axes are broadcast, and the rates of all positions averaged.
    num_drafts : int or iterable of int
        The numbers of drafts.
    laws, verifiers
        As for :func:`otmd.measure`: names, such as ``"stratified"``, classes or objects. By default all laws
        of one draft distribution without further parameters,
        and all verifiers. :class:`otmd.Optimal`, whose rate is α*, and the couplings take most
        of the time: at a large vocabulary, leave them out.
    tol : float
        How far apart the guaranteed bounds of a rate may lie where there is no closed form.

    Returns
    -------
    Comparison
        A list of rows, best rate first; it prints as a table.

    Raises
    ------
    ValueError
        For invalid distributions, different vocabularies, no position, or settings as in
        :func:`otmd.measure`; for a verifier of your own that is not lossless at small positions.

    Examples
    --------
    >>> import otmd
    >>> laws = ["with-replacement", "stratified"]
    >>> otmd.compare([0.5, 0.3, 0.2], [0.3, 0.3, 0.4], 2, laws=laws, verifiers="preference")
    law              verifier    n    rate  gap to α*  standard error  positions
    WithReplacement  Preference  2  1.0000     0.0000               –          1
    Stratified       Preference  2  0.9286     0.0000               –          1
    """
    if isinstance(draft_probs, DraftLaw):
        raise wrong_type("draft_probs", draft_probs, "q, shape (…, V); give the law by laws=[…]")
    p = validate_probs("target_probs", target_probs)
    q = validate_probs("draft_probs", draft_probs)
    validate_same_vocabulary(p, q.shape[-1], q.shape[:-1])
    p, q = (rows.reshape(-1, q.shape[-1]) for rows in np.broadcast_arrays(p, q))
    if len(p) == 0:
        raise wrong("target_probs", "no position", "at least one")
    settings = make_settings(laws, verifiers, num_drafts, tol=tol)
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for target, draft in zip(p, q, strict=True):
        for row in position_rows(target, draft, settings):
            groups.setdefault((row["law"], row["verifier"], row["num_drafts"]), []).append(row)
    rows = []
    skipped = []
    for (law, verifier, n), group in groups.items():
        rated = np.array([[row[name] for name in AVERAGED] for row in group if "rate" in row])
        if len(rated) == 0:
            skipped.append(f"{law} × {verifier}, n = {n}: {group[0]['status']}")
            continue
        rate, gap, optimal, low, high = rated.mean(axis=0).tolist()
        count = len(rated)
        error = float(rated[:, 0].std(ddof=1)) / math.sqrt(count) if count > 1 else None
        rows.append(ComparedRow(law, verifier, n, rate, gap, optimal, error, high - low, count))
    rows.sort(key=lambda row: (-round(row.rate, 12), row.num_drafts))
    return Comparison(rows, skipped)
