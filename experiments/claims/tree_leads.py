"""Leads of verifiers of whole trees over each other: from sums over prompts to means with intervals.

The shape of a rule's trees is chosen on one half of the prompts and measured on the other, both ways. Leads
are ratios of tokens per step over the same prompts less 1, intervals are those of ``otmd.study.jackknife``.
"""

from collections.abc import Iterator
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from otmd.probabilities import FloatArray
from otmd.study import jackknife

BOUND = "inclusion bound"
LAYER = "layer"
RANDOM_LAWS = ("strata", "without replacement", "paths")
TOKEN_LEVEL = {"token level", "K-SEQ"}

EQUAL_DEPTH = ("paths", "GBV", "2×8")
"""Law, rule and shape that are compared with block verification of a path as deep, too."""

PATH = "one path"

Key = tuple[int, str, str]


class Chosen(NamedTuple):
    """The tokens of a rule by prompt (N,), and the shapes of its trees that were chosen."""

    tokens: FloatArray
    shapes: str


def leads(table: pl.DataFrame) -> pl.DataFrame:
    """Tokens per step of every rule, and its lead over every rule with as many drafts.

    Parameters
    ----------
    table : DataFrame
        Sums over the positions of a prompt: ``draft``, ``prompt``, ``temperature``, ``positions``,
        ``budget``, ``law``, ``shape``, ``rule`` and ``tokens``.

    Returns
    -------
    DataFrame
        ``value``, ``low`` and ``high`` are tokens per step where ``over`` is null, else the lead over it in
        per cent. ``name`` and ``over`` are a law and a rule.
    """
    rows = []
    for (draft, temperature), part in table.group_by("draft", "temperature", maintain_order=True):
        positions = part.unique("prompt", maintain_order=True).sort("prompt")["positions"]
        about = {"draft": draft, "temperature": temperature}
        about |= {"prompts": positions.len(), "positions": positions.sum()}
        rows += [about | row for row in _rows(part, positions.to_numpy().astype(float))]
    return pl.DataFrame(rows, infer_schema_length=None)


def _rows(part: pl.DataFrame, positions: FloatArray) -> Iterator[dict[str, Any]]:
    """The rows of a pair and temperature."""
    by_shape = _with_one_path(tokens_by_shape(part))
    budgets = sorted({budget for budget, law, _ in by_shape if law != PATH})
    for budget in budgets:
        rules = {
            f"{law}, {rule}": chosen(by_shape, (size, law, rule))
            for size, law, rule in by_shape
            if size == budget or law == PATH
        }
        law, rule, shape = EQUAL_DEPTH
        if (tokens := by_shape[budget, law, rule].get(shape)) is not None:
            rules[f"{law}, {rule}, {shape}"] = Chosen(tokens, shape)
        for name, of in rules.items():
            row = {"budget": budget, "name": name, "over": None, "shapes": of.shapes}
            yield row | _ends(of.tokens, positions, 0.0, 1.0)
        for (name, of), (over, base) in permutations(rules.items(), 2):
            row = {"budget": budget, "name": name, "over": over, "shapes": of.shapes}
            yield row | _ends(of.tokens, base.tokens, 1.0, 100.0)


def tokens_by_shape(part: pl.DataFrame) -> dict[Key, dict[str, FloatArray]]:
    """The tokens by prompt (N,) of each budget, law and rule, by the shape of the trees."""
    arrays: dict[Key, dict[str, FloatArray]] = {}
    keys = ["budget", "law", "rule", "shape"]
    for (budget, law, rule, shape), rows in part.group_by(keys, maintain_order=True):
        tokens = rows.sort("prompt")["tokens"].to_numpy()
        arrays.setdefault((budget, law, rule), {})[shape] = tokens  # pyright: ignore[reportArgumentType]
    return arrays


def _with_one_path(
    by_shape: dict[Key, dict[str, FloatArray]],
) -> dict[Key, dict[str, FloatArray]]:
    """Let every law of random drafts choose a single path, of which each rule makes the same."""
    paths = {rule: shapes for (_, law, rule), shapes in by_shape.items() if law == PATH}
    more = {}
    for (budget, law, rule), shapes in by_shape.items():
        if law in RANDOM_LAWS:
            same = "token level" if rule in TOKEN_LEVEL else "block"
            shapes = shapes | paths[same]
        more[budget, law, rule] = shapes
    return more


def chosen(by_shape: dict[Key, dict[str, FloatArray]], key: Key) -> Chosen:
    """The tokens of a rule in the shapes that yield most on the other half of the prompts.

    Where the rule is the bound, the shapes are those of the layer rule.
    """
    budget, law, rule = key
    choosing = by_shape[budget, law, LAYER if rule == BOUND else rule]
    measured = by_shape[key]
    number = np.arange(next(iter(measured.values())).size)
    tokens, names = np.zeros(number.size), []
    for half in (0, 1):
        held_out = number % 2 == half
        best = max(choosing, key=lambda shape: choosing[shape][~held_out].sum())
        tokens[held_out] = measured[best][held_out]
        names.append(best)
    return Chosen(tokens, ", ".join(dict.fromkeys(names)))


def _ends(tokens: FloatArray, base: FloatArray, less: float, unit: float) -> dict[str, float]:
    """A ratio of sums over prompts, less ``less``, with its interval."""
    value = tokens.sum() / base.sum() - less
    low, high = jackknife.interval(value, jackknife.left_out(tokens, base) - less)
    return {"value": unit * value, "low": unit * low, "high": unit * high}
