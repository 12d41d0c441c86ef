"""The table of every candidate at every token of the texts: resumable, one part a text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import numpy as np
import polars as pl

from otmd.laws import DraftLaw, Race
from otmd.models.dataset import Dataset
from otmd.optimum.acceptance import optimal_acceptance
from otmd.probabilities import FloatArray, Processing
from otmd.storage.parquet import read_parquet
from otmd.storage.store import Layout, Store
from otmd.study.planning.candidates import CANDIDATES
from otmd.study.planning.texts import Text
from otmd.study.rows import process
from otmd.study.run import describe_dataset
from otmd.study.runner import Bar, finish_run, frame
from otmd.verifiers import TargetOnly

LAYOUT = Layout(
    read_parquet,
    pattern=r"text-\d+",
    record="plan.json",
    result="probs.parquet",
    subfolder="parts",
)
SCHEMA: dict[str, Any] = {
    **{"text": int, "index": int, "entropy": float},
    **{"rule": str, "variant": str, "draft_temperature": float, "num_drafts": int},
    **{"parts": pl.List(pl.Float64), "included": pl.List(pl.Float64)},
    **{"prob": float, "rate": float, "optimal": float},
}
# Exact rates and α* cost as much as everything else, and only their means are shown.
RATES_EVERY = 8
# A rate without a closed form is the middle of bounds so far apart.
TOL = 0.01


class Settings(NamedTuple):
    """The settings of the table of emission probabilities.

    Attributes
    ----------
    rules, num_drafts : tuple of str, tuple of int
        Keys of :data:`otmd.study.planning.CANDIDATES`; how many drafts a node may have.
    target, drafts : Processing, tuple of Processing
        How the texts were sampled; one for each draft temperature that is tried.
    seed : int
    """

    rules: tuple[str, ...]
    num_drafts: tuple[int, ...]
    target: Processing
    drafts: tuple[Processing, ...]
    seed: int

    def counts(self, rule: str) -> Sequence[int]:
        """The numbers of drafts in the table."""
        candidate = CANDIDATES[rule]
        if candidate.chain:
            return (1,)
        return range(1, max(self.num_drafts) + 1) if candidate.all_counts else self.num_drafts


class Job(NamedTuple):
    """A text with its rows: ``number`` among the texts, ``target`` and ``draft`` (N, V) as stored."""

    number: int
    tokens: list[int]
    target: np.ndarray
    draft: np.ndarray
    kind: str


def probs_table(
    dataset: Dataset,
    texts: Sequence[Text],
    settings: Settings,
    output: Path,
    workers: int | None = None,
    progress: bool = False,
    overwrite: bool = False,
) -> pl.DataFrame:
    """Compute, or resume computing, the emission probabilities of each candidate at each token.

    Parameters
    ----------
    dataset, texts, settings, output, workers, progress, overwrite
        As for :func:`otmd.study.planning.make_plan`; texts are of :func:`otmd.study.planning.read_texts`.

    Returns
    -------
    polars.DataFrame
        A row a token, candidate, variant, draft temperature and number of drafts. ``prob`` is P(the token
        was drafted | it is emitted), or q/p for block verification. ``parts`` are its parts by the index of
        the draft that holds the token, or by how many independent paths do; null for other trees.
        ``included`` are the same parts of P(the token is drafted), divided by the target's probability. On
        every eighth token, ``rate`` is how often the rule accepts and ``optimal`` the law's α*; else null.

    Raises
    ------
    ValueError
        For rows that are no distributions, a text that the target cannot have written, or a folder with
        other settings.
    """
    about = settings._asdict() | {
        "target": asdict(settings.target),
        "drafts": [asdict(step) for step in settings.drafts],
        "columns": list(SCHEMA),
        **describe_dataset(dataset),
    }
    store = Store(output, about, LAYOUT, overwrite)
    bar = Bar("planning: texts", len(texts), progress)
    return finish_texts(partial(text_table, settings), dataset, texts, store, bar, workers)


def finish_texts(
    function: Callable[[Job], pl.DataFrame],
    dataset: Dataset,
    texts: Sequence[Text],
    store: Store[pl.DataFrame],
    bar: Bar,
    workers: int | None,
) -> pl.DataFrame:
    """Compute the table of each text that the store lacks, and join all tables."""

    def left(tables: Collection[str]) -> Iterator[tuple[str, Job]]:
        for i, text in enumerate(texts):
            if (name := f"text-{i:06d}") not in tables:
                yield name, Job(i, text.tokens, *dataset.arrays(text.rows), dataset.kind)

    most = min(workers or joblib.cpu_count(), len(texts))
    return finish_run(function, left, store, most, bar)


def text_table(settings: Settings, job: Job) -> pl.DataFrame:
    """The rows of one text; see :func:`probs_table`."""
    rng = np.random.default_rng([settings.seed, job.number])
    rows: list[dict[str, Any]] = []
    for index, token in enumerate(job.tokens):
        with located(job.number, index):
            p = target_probs(job.target[index], job.kind, settings.target, token)
            positive = p[p > 0]
            at = {
                "text": job.number,
                "index": index,
                "entropy": -float(positive @ np.log(positive)),
            }
            for step in settings.drafts:
                q = process("draft_probs", job.draft[index], job.kind, step)
                for row, law in _rows(settings, p, q, token, rng):
                    if index % RATES_EVERY == 0:
                        verifier = CANDIDATES[row["rule"]].verifier
                        low, high = verifier.acceptance_bounds(p, law, TOL)
                        # The last digits of sums depend on where arrays lie in memory.
                        row["rate"] = round(float(0.5 * (low + high)), 12)
                        row["optimal"] = round(float(optimal_acceptance(p, law).rate), 12)
                    rows.append(at | {"draft_temperature": step.temperature} | row)
    return frame(rows, schema=SCHEMA)


@contextmanager
def located(text: int, index: int) -> Iterator[None]:
    """Name the text and the token in a ValueError."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"dataset: text {text}, token {index}: {error}") from error


def target_probs(row: np.ndarray, kind: str, step: Processing, token: int) -> FloatArray:
    """The target's probabilities (V,) of a stored row; ValueError if it never emits the token."""
    p = process("target_probs", row, kind, step)
    if p[token] <= 0.0:
        raise ValueError(
            f"the target never emits token {token} with these settings, expected those that the text was "
            "sampled with"
        )
    return p


def _rows(
    settings: Settings, p: FloatArray, q: FloatArray, token: int, rng: np.random.Generator
) -> Iterator[tuple[dict[str, Any], DraftLaw]]:
    support = int(np.count_nonzero(q))
    for rule in settings.rules:
        candidate = CANDIDATES[rule]
        for variant, make in candidate.variants.items():
            included = np.zeros(0)
            for n in settings.counts(rule):
                # If the draft has mass on fewer than n tokens, distinct drafts are all of them.
                law = make(q, n if candidate.repeats else min(n, support))
                parts = None
                if rule == "block":
                    prob = float(law.next_draft_probs(())[token] / p[token])
                else:
                    emission = candidate.verifier.prepare(p, law).emission_probs(token, rng=rng)
                    # By how many drafts hold the token, or by the first that does.
                    by_draft = emission.sum(axis=0 if candidate.paths else 1)
                    prob = float(by_draft.sum())
                    if candidate.paths or candidate.static:
                        parts = np.append(by_draft, np.zeros(n - law.num_drafts))
                included = _included(law, p, token, candidate.paths, included)
                row = {"rule": rule, "variant": variant, "num_drafts": n, "prob": prob}
                padded = np.append(included, np.zeros(n - law.num_drafts)) / p[token]
                yield row | {"parts": parts, "included": padded}, law


def _included(
    law: DraftLaw, p: FloatArray, token: int, is_paths: bool, before: FloatArray
) -> FloatArray:
    """P(draft i is the first that holds a token), or P(i of the independent paths do), shape (n,).

    ``before`` is the result for one draft less, or for as many.
    """
    if before.size == law.num_drafts:
        return before
    if isinstance(law.position_structure.random, Race):
        # The first drafts are drawn as if there were no others.
        return np.append(before, law.position_structure.inclusion_probs()[token] - before.sum())
    return TargetOnly().prepare(p, law).emission_probs(token).sum(axis=0 if is_paths else 1)
