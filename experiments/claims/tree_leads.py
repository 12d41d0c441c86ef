"""Leads of verifiers of whole trees over each other: from sums over prompts to means with intervals.

The tokens of a rule are those of ``whole_trees.py``, less the inclusion bound on the tree, plus that on the
text. The shape of a rule's trees is chosen on one half of the prompts and measured on the held-out half, both
ways. Leads are ratios of tokens per step over the same prompts less 1, intervals are by the jackknife.
"""

from collections.abc import Iterator
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from otmd.probabilities import FloatArray, wrong
from otmd.study.estimate import Estimate, ratios

ALL = "all"
"""The draft of rows that are means over all pairs."""

BOUND = "inclusion bound"
BY_BOUND = {
    "strata": "layer",
    "paths": "layer",
    "greedy": "node by node",
    "without replacement": "Traversal",
}
"""The rule of a law that is compared with the law's bound."""

PATH, BLOCK = "one path", "block"
TOKEN_LEVEL = {"token level", "K-SEQ"}

EQUAL_DEPTH = ("paths", "GBV", "2+2+2+2+2+2+2+2")
"""Law, rule and shape that are compared with block verification of a path as deep, too."""

Key = tuple[str, str]
Shapes = dict[str, FloatArray]
"""The tokens by prompt (N,), by the shape of the trees."""


class Chosen(NamedTuple):
    """The tokens of a rule by prompt (N,), and the shapes of its trees that were chosen."""

    tokens: FloatArray
    shapes: str


Rules = dict[str, Chosen]


def leads(table: pl.DataFrame) -> pl.DataFrame:
    """Tokens per step of every rule, and its lead over every other.

    Parameters
    ----------
    table : DataFrame
        Sums over the positions of a prompt: ``draft``, ``prompt``, ``temperature``, ``positions``, ``law``,
        ``shape``, ``rule``, ``tokens``, ``on_tree`` and ``on_text``. All pairs have the same prompts, else
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
    cells: dict[float, list[Rules]] = {}
    for (temperature, draft), part in table.group_by("temperature", "draft", maintain_order=True):
        positions = part.unique("prompt").sort("prompt")["positions"].to_numpy()
        about = {"draft": draft, "temperature": temperature, "positions": positions.sum()}
        rules = rules_of(part)
        cells.setdefault(float(str(temperature)), []).append(rules)
        rows += [about | row for row in _rows([rules], positions)]
    for temperature, pairs in cells.items():
        if len(pairs) == table["draft"].n_unique():
            about = {"draft": ALL, "temperature": temperature}
            rows += [about | row for row in _rows(pairs, None)]
    return pl.DataFrame(rows, infer_schema_length=None)


def _rows(pairs: list[Rules], positions: FloatArray | None) -> Iterator[dict[str, Any]]:
    """The leads of a temperature, means over pairs; for given positions the tokens per step, too."""
    for name, rule in pairs[0].items():
        about = {"name": name, "over": None, "prompts": rule.tokens.size}
        if positions is not None:
            estimate = Estimate.of(ratios(rule.tokens, positions))
            yield about | {"shapes": rule.shapes} | estimate.columns("value")
    for name, over in permutations(pairs[0], 2):
        each_pair = [ratios(rules[name].tokens, rules[over].tokens) for rules in pairs]
        lead = Estimate.of(100.0 * (np.mean(each_pair, axis=0) - 1.0))
        yield {"name": name, "over": over} | lead.columns("value")


def rules_of(part: pl.DataFrame) -> Rules:
    """The rules of a pair and temperature, each with its chosen shapes."""
    by_shape = _with_one_path(tokens_by_shape(part))
    rules = {f"{law}, {rule}": chosen(by_shape, (law, rule)) for law, rule in by_shape}
    law, rule, shape = EQUAL_DEPTH
    rules[f"{law}, {rule}, {shape}"] = Chosen(by_shape[law, rule][shape], shape)
    return rules


def tokens_by_shape(part: pl.DataFrame) -> dict[Key, Shapes]:
    """The tokens by prompt of each law and rule, and the bound of each law of random drafts, by shape."""
    tokens: dict[Key, Shapes] = {}
    cells = part.sort("prompt").group_by("law", "rule", "shape", maintain_order=True)
    for row in cells.agg("tokens", "on_tree", "on_text").iter_rows(named=True):
        emitted, on_tree, on_text = (np.array(row[c]) for c in ("tokens", "on_tree", "on_text"))
        law, shape = row["law"], row["shape"]
        # On a single path block verification yields what the bound says.
        exact = (law, row["rule"]) == (PATH, BLOCK)
        tokens.setdefault((law, row["rule"]), {})[shape] = on_text if exact else emitted - on_tree + on_text
        if law in BY_BOUND:
            tokens.setdefault((law, BOUND), {})[shape] = on_text
    return tokens


def _with_one_path(by_shape: dict[Key, Shapes]) -> dict[Key, Shapes]:
    """Let every law of random drafts choose a single path, of which all its rules make the same."""
    more = {}
    for (law, rule), shapes in by_shape.items():
        more[law, rule] = shapes
        if law in BY_BOUND:
            same = "token level" if rule in TOKEN_LEVEL else BLOCK
            more[law, rule] = shapes | by_shape[PATH, same]
    return more


def chosen(by_shape: dict[Key, Shapes], key: Key) -> Chosen:
    """The tokens of a rule in the shapes that yield most on the held-out half of the prompts.

    Where the rule is the bound, the shapes are those of the law's rule for whole trees.
    """
    law, rule = key
    choosing = by_shape[law, BY_BOUND[law] if rule == BOUND else rule]
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
