"""Rates of laws of drafts, each by its best closed-form rule.

    python -m experiments draft_laws
    python -m experiments draft_laws --spec experiments/claims/two_sizes.toml \
        --parts runs/two_sizes --output runs/two_sizes_positions.parquet

Measures laws and rules at the positions of ``positions.py``, a task for each prompt, and collects these
first. The rows of all positions stay under runs; what ``law_choice.py`` finds in them is stored.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import otmd
from experiments.claims.positions import MODELS, chosen_prompts, stored, texts_of
from experiments.runner import run
from otmd.probabilities import FloatArray

ROWS = Path("runs/draft_laws_positions.parquet")
COUNTS = (2, 3, 4, 8)
TOLERANCE = 2e-3

Rates = Iterator[tuple[str, int, float]]


def prompt_rates(rng: np.random.Generator, prompt: int, pairs: str = "layers") -> Iterator[dict[str, Any]]:
    """All rows of one prompt's texts."""
    chosen = chosen_prompts()[prompt]
    arrays = stored(chosen, MODELS[pairs])
    for at, temperature in enumerate(arrays["temperature"].tolist()):
        step = otmd.Processing(temperature)
        target = step(arrays["target"][at])
        for name in MODELS[pairs].drafts:
            about = {"domain": chosen.domain, "prompt_id": chosen.id, "draft": name}
            about |= {"temperature": temperature, "position": at}
            for choice, n, rate in rates(target, step(arrays[name][at])):
                yield about | {"choice": choice, "num_drafts": n, "rate": rate}


def rates(target: FloatArray, draft: FloatArray) -> Rates:
    """Everything that is measured at a position: law and rule, number of drafts, rate."""
    order = np.argsort(-draft, kind="stable")
    p = target[order]
    q = draft[order]
    yield from _with_replacement(p, q)
    yield from _without_replacement(p, q)
    for n in COUNTS:
        yield "certain", n, float(p[:n].sum())
        rest = np.minimum(p[n - 1 :], q[n - 1 :] / q[n - 1 :].sum())
        yield "greedy", n, float(p[: n - 1].sum() + rest.sum())
        yield "stratified", n, two_class_rate(p, otmd.Stratified(q, n))


def _with_replacement(target: FloatArray, draft: FloatArray) -> Rates:
    rules = {
        "with, recursive": otmd.RecursiveRejection(),
        "with, K-SEQ": otmd.KSequential(),
        "with, preference": otmd.Preference(),
    }
    for name, verifier in rules.items():
        for n in COUNTS:
            yield name, n, float(verifier.acceptance_rate(target, otmd.WithReplacement(draft, n)))


def _without_replacement(target: FloatArray, draft: FloatArray) -> Rates:
    """The optimum, and the middle of the guaranteed bounds of recursive rejection up to four drafts."""
    for n in COUNTS:
        law = otmd.WithoutReplacement(draft, n)
        yield "without, optimum", n, float(otmd.optimal_acceptance(target, law).rate)
        if n < max(COUNTS):
            low, high = otmd.RecursiveRejection().acceptance_bounds(target, law, TOLERANCE)
            yield "without, recursive", n, float(low + high) / 2


def two_class_rate(target: FloatArray, law: otmd.Stratified) -> float:
    """Rate of the preference rule on strata, tokens with p ≥ q_j first, both classes from the tail.

    s_j is the probability that stratum j's draft has not been accepted. It is the same for all tokens of a
    cell, the preferred ones of a stratum or the rest of them: each is accepted with the probability
    min(p, q_j Π_{i≠j} s_i), which takes its share from s_j.
    """
    number = law.strata
    inclusion = law.inclusion_probs()
    preferred = target >= inclusion
    open_probs = np.ones(law.num_drafts)
    for first in (True, False):
        for j in reversed(range(law.num_drafts)):
            cell = np.flatnonzero((number == j) & (preferred == first))
            others = np.delete(open_probs, j).prod()
            if others > 0:
                open_probs[j] -= np.minimum(target[cell] / others, inclusion[cell]).sum()
    return 1.0 - float(np.maximum(open_probs, 0.0).prod())


def main(arguments: list[str]) -> pl.DataFrame:
    """Collect and measure what is missing."""
    table = run(prompt_rates, arguments, 10.0, data=texts_of, output=ROWS)
    print(f"{table.height} rows; python -m experiments law_choice summarises them")
    return table
