"""Leads of verifiers of whole trees over each other: from sums over prompts to means with intervals.

The shape of a rule's trees is chosen on one half of the prompts and measured on the other, both ways. Leads
are ratios of tokens per step over the same prompts less 1, intervals are those of ``otmd.study.jackknife``.
"""

from collections.abc import Iterator
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from otmd.probabilities import FloatArray, wrong
from otmd.study import jackknife

ALL = "all"
"""The draft of rows that are means over all pairs."""

BOUND = "inclusion bound"
LAYER = "layer"
PATH = "one path"
RANDOM_LAWS = ("strata", "without replacement", "paths")
TOKEN_LEVEL = {"token level", "K-SEQ"}

EQUAL_DEPTH = ("paths", "GBV", "2×8")
"""Law, rule and shape that are compared with block verification of a path as deep, too."""

Key = tuple[int, str, str]


class Chosen(NamedTuple):
    """The tokens of a rule by prompt (N,), and the shapes of its trees that were chosen."""

    tokens: FloatArray
    shapes: str


Rules = dict[str, Chosen]


def leads(table: pl.DataFrame) -> pl.DataFrame:
    """Tokens per step of every rule, and its lead over every rule with as many drafts.

    Parameters
    ----------
    table : DataFrame
        Sums over the positions of a prompt: ``draft``, ``prompt``, ``temperature``, ``positions``,
        ``budget``, ``law``, ``shape``, ``rule`` and ``tokens``. All pairs have the same prompts, else
        ValueError.

    Returns
    -------
    DataFrame
        ``value``, ``low`` and ``high`` are tokens per step where ``over`` is null, else the lead over it in
        per cent. ``name`` and ``over`` are a law and a rule.
    """
    for (draft,), part in table.group_by("draft", maintain_order=True):
        if (count := part["prompt"].n_unique()) < table["prompt"].n_unique():
            raise wrong("table", f"{count} prompts of {draft}", "the same of all pairs")
    rows = []
    cells: dict[tuple[float, int], list[Rules]] = {}
    for (draft, temperature), part in table.group_by("draft", "temperature", maintain_order=True):
        positions = part.unique("prompt").sort("prompt")["positions"].to_numpy()
        about = {"draft": draft, "temperature": temperature, "positions": positions.sum()}
        for budget, rules in rules_by_budget(part).items():
            cells.setdefault((float(str(temperature)), budget), []).append(rules)
            rows += [about | row for row in _rows([rules], budget, positions)]
    for (temperature, budget), pairs in cells.items():
        if len(pairs) == table["draft"].n_unique():
            about = {"draft": ALL, "temperature": temperature}
            rows += [about | row for row in _rows(pairs, budget, None)]
    return pl.DataFrame(rows, infer_schema_length=None)


def _rows(
    pairs: list[Rules], budget: int, positions: FloatArray | None
) -> Iterator[dict[str, Any]]:
    """The leads of a temperature and budget, means over pairs; for given positions tokens per step, too."""
    for name, rule in pairs[0].items():
        about = {"budget": budget, "name": name, "over": None, "prompts": rule.tokens.size}
        if positions is not None:
            yield about | {"shapes": rule.shapes} | _ends(ratios(rule.tokens, positions))
    for name, over in permutations(pairs[0], 2):
        about = {"budget": budget, "name": name, "over": over}
        each_pair = [ratios(rules[name].tokens, rules[over].tokens) for rules in pairs]
        yield about | _ends(100.0 * (np.mean(each_pair, axis=0) - 1.0))


def rules_by_budget(part: pl.DataFrame) -> dict[int, Rules]:
    """The rules of a pair and temperature by the number of drafts, each with its chosen shapes."""
    by_shape = _with_one_path(tokens_by_shape(part))
    rules: dict[int, Rules] = {}
    for budget in sorted({budget for budget, law, _ in by_shape if law != PATH}):
        rules[budget] = {
            f"{law}, {rule}": chosen(by_shape, (size, law, rule))
            for size, law, rule in by_shape
            if size == budget or law == PATH
        }
        law, rule, shape = EQUAL_DEPTH
        if (tokens := by_shape[budget, law, rule].get(shape)) is not None:
            rules[budget][f"{law}, {rule}, {shape}"] = Chosen(tokens, shape)
    return rules


def tokens_by_shape(part: pl.DataFrame) -> dict[Key, dict[str, FloatArray]]:
    """The tokens by prompt (N,) of each budget, law and rule, by the shape of the trees."""
    arrays: dict[Key, dict[str, FloatArray]] = {}
    cells = part.sort("prompt").group_by("budget", "law", "rule", "shape", maintain_order=True)
    for row in cells.agg("tokens").iter_rows(named=True):
        key = (row["budget"], row["law"], row["rule"])
        arrays.setdefault(key, {})[row["shape"]] = np.array(row["tokens"])
    return arrays


def _with_one_path(
    by_shape: dict[Key, dict[str, FloatArray]],
) -> dict[Key, dict[str, FloatArray]]:
    """Let every law of random drafts choose a single path, of which all its rules make the same."""
    paths = {rule: shapes for (_, law, rule), shapes in by_shape.items() if law == PATH}
    more = {}
    for (budget, law, rule), shapes in by_shape.items():
        more[budget, law, rule] = shapes
        if law in RANDOM_LAWS:
            more[budget, law, rule] |= paths["token level" if rule in TOKEN_LEVEL else "block"]
    return more


def chosen(by_shape: dict[Key, dict[str, FloatArray]], key: Key) -> Chosen:
    """The tokens of a rule in the shapes that yield most on the held-out half of the prompts.

    Where the rule is the bound, the shapes are those of the layer rule.
    """
    budget, law, rule = key
    choosing = by_shape[budget, law, LAYER if rule == BOUND else rule]
    measured = by_shape[key]
    number = np.arange(next(iter(measured.values())).size)
    tokens, names = np.zeros(number.size), []
    for half in (0, 1):
        measuring = number % 2 == half
        totals = {shape: values[~measuring].sum() for shape, values in choosing.items()}
        best = max(totals, key=totals.__getitem__)
        tokens[measuring] = measured[best][measuring]
        names.append(best)
    return Chosen(tokens, ", ".join(dict.fromkeys(names)))


def ratios(tokens: FloatArray, base: FloatArray) -> FloatArray:
    """The ratio of the sums over all prompts, and those without each prompt: shape (1 + N,)."""
    return np.append(tokens.sum() / base.sum(), jackknife.left_out(tokens, base))


def _ends(estimates: FloatArray) -> dict[str, float]:
    """A value, the first of the estimates, with its interval by the others, those without each prompt."""
    low, high = jackknife.interval(float(estimates[0]), estimates[1:])
    return {"value": float(estimates[0]), "low": low, "high": high}
