"""Small models, some of them hostile."""

from __future__ import annotations

import numpy as np

from otmd.trees import TableModel

# How the two models are made: drawn, peaked, the same, without common tokens, with rows of one token each.
KINDS = ["any", "peaked", "equal", "apart", "certain"]


def model_pair(kind: str, seed: int, vocab_size: int = 3) -> tuple[TableModel, TableModel]:
    """A target and a draft model, second-order Markov chains."""
    rng = np.random.default_rng([79, KINDS.index(kind), seed])
    peak = 0.2 if kind == "peaked" else 1.0
    target = TableModel.random(vocab_size, 2, peak, rng=rng)
    draft = TableModel.random(vocab_size, 2, peak, rng=rng)
    if kind == "equal":
        return target, target
    if kind == "apart":
        common = [rng.random(table.shape) < 0.5 for table in target.tables]
        common[0][:2] = [True, False]
        return _only(target, common), _only(draft, [~some for some in common])
    if kind == "certain":
        return target, TableModel([np.eye(vocab_size)[t.argmax(axis=-1)] for t in draft.tables])
    return target, draft


def _only(model: TableModel, kept: list[np.ndarray]) -> TableModel:
    """The model on some tokens of each row; on all where none is kept."""
    tables = []
    for table, some in zip(model.tables, kept, strict=True):
        mass = np.where(some | ~some.any(axis=-1, keepdims=True), table, 0.0)
        tables.append(mass / mass.sum(axis=-1, keepdims=True))
    return TableModel(tables)


def along(model: TableModel, path: tuple[int, ...]) -> list[float]:
    """The probability of each token of a path, given those before it."""
    return [float(model(path[:i])[token]) for i, token in enumerate(path)]
