"""Rates of laws of drafts: every law, by its best closed-form rule and at its optimum.

    python -m experiments draft_laws
    python -m experiments draft_laws --spec experiments/claims/two_sizes.toml \
        --parts runs/two_sizes --output runs/two_sizes_positions.parquet

Measures laws and rules at the positions of ``positions.py``, a task for each prompt, and collects these
first. The rows of all positions stay under runs; what ``law_choice.py`` finds in them is stored.

Parameters of a law: ``sharpness`` (β, drafts are drawn from q^β), ``falling`` (the share of a stratum in
units of the one before it, from the head to the tail) and ``top`` (m, the most likely tokens, which are
deterministic).
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import otmd
from experiments.claims.positions import MODELS, chosen_prompts, stored, texts_of
from experiments.runner import run
from otmd.laws import Slots
from otmd.probabilities import FloatArray, IntArray

ROWS = Path("runs/draft_laws_positions.parquet")
COUNTS = (2, 3, 4, 8)
SHARPNESS = (0.7, 1.0, 1.4, 2.0)
FALLING = (0.6, 1.0, 1.5)
TOPS = (0, 1, 2, 4)
POISSON_AT = (1.0,)
POISSON_COUNTS = (2, 3, 4)
ORDERS_AT = (0.6, 1.0)
ORDERS_COUNTS = (2, 4, 8)
CLOSE, LOOSE = 2e-3, 1e-2
DEFAULTS = {"sharpness": 1.0, "falling": 1.0, "top": 0.0}
"""Parameters of a law, where nothing else is said."""

Rates = Iterator[tuple[str, str, int, dict[str, float], float]]


def prompt_rates(
    rng: np.random.Generator, prompt: int, pairs: str = "layers"
) -> Iterator[dict[str, Any]]:
    """All rows of one prompt's texts."""
    chosen = chosen_prompts()[prompt]
    arrays = stored(chosen, MODELS[pairs])
    seen: set[float] = set()
    for at, temperature in enumerate(arrays["temperature"].tolist()):
        step = otmd.Processing(temperature)
        target = step(arrays["target"][at])
        # What takes long is measured at the first position of each text.
        first = temperature not in seen
        seen.add(temperature)
        for name in MODELS[pairs].drafts:
            draft = step(arrays[name][at])
            about = {
                "domain": chosen.domain,
                "prompt_id": chosen.id,
                "draft": name,
                "temperature": temperature,
                "position": at,
                "entropy": float(-(draft * np.log(np.maximum(draft, 1e-300))).sum()),
                "top_draft": float(draft.max()),
                "overlap": float(np.minimum(target, draft).sum()),
            }
            for law, rule, n, parameters, rate in rates(target, draft, first, temperature):
                values = {key: float(value) for key, value in (DEFAULTS | parameters).items()}
                yield about | {"law": law, "rule": rule, "num_drafts": n, "rate": rate} | values


def rates(target: FloatArray, draft: FloatArray, slow: bool, temperature: float) -> Rates:
    """Everything that is measured at a position: law, rule, number of drafts, parameters and rate."""
    order = np.argsort(-draft, kind="stable")
    p = target[order]
    q = draft[order]
    yield from _independent(p, q)
    yield from _stratified_grid(p, q)
    yield from _without_replacement(p, q)
    if slow:
        yield from _sharpened(p, q)
        yield from _tops(p, q)
        yield from _stratified_optima(p, q)
        if temperature in ORDERS_AT:
            yield from _orders(p, q)
        if temperature in POISSON_AT:
            yield from _poisson(p, q)


def _independent(target: FloatArray, draft: FloatArray) -> Rates:
    """Deterministic top n, greedy drafts, and drafts with replacement, of tokens sorted by q."""
    law = otmd.WithReplacement(draft, max(COUNTS))
    rules = {
        "recursive rejection": otmd.RecursiveRejection(),
        "K-SEQ": otmd.KSequential(),
        "preference": otmd.Preference(),
    }
    for rule, verifier in rules.items():
        low, _ = verifier.family_bounds(target, law, COUNTS, CLOSE)
        for n, rate in zip(COUNTS, low, strict=True):
            yield "with replacement", rule, n, {}, float(rate)
    best = np.ravel(otmd.optimal_acceptance(target, law, every_n=True).rate)
    for n in COUNTS:
        yield "with replacement", "optimum", n, {}, float(best[n - 1])
        certain = float(target[:n].sum())
        yield "certain", "target only", n, {}, certain
        yield "certain", "optimum", n, {}, certain
        rest = np.minimum(target[n - 1 :], draft[n - 1 :] / draft[n - 1 :].sum())
        rate = float(target[: n - 1].sum() + rest.sum())
        yield "greedy", "greedy coupling", n, {}, rate
        yield "greedy", "optimum", n, {}, rate


def _stratified_grid(target: FloatArray, draft: FloatArray) -> Rates:
    """Stratified drafts by the preference rule, for all parameters, of tokens sorted by q."""
    for sharpness in SHARPNESS:
        for n in COUNTS:
            for top in (m for m in {*TOPS, n - 1} if m < n):
                # With deterministic tokens, one of the other parameters is varied at a time.
                single = top == n - 1 or (top > 0 and sharpness != 1.0)
                for falling in (1.0,) if single else FALLING:
                    rest = draft[top:] / draft[top:].sum()
                    law = otmd.Stratified(rest, n - top, sharpness, falling ** np.arange(n - top))
                    rate = float(target[:top].sum() + own_order_rate(target[top:], law))
                    parameters = {"sharpness": sharpness, "falling": falling, "top": top}
                    yield "stratified", "preference", n, parameters, rate


def own_order_rate(target: FloatArray, law: otmd.Stratified) -> float:
    """Rate of ``Preference(own_order)``, without a sort for each set of parameters.

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


def _without_replacement(target: FloatArray, draft: FloatArray) -> Rates:
    law = otmd.WithoutReplacement(draft, max(COUNTS))
    best = np.ravel(otmd.optimal_acceptance(target, law, every_n=True).rate)
    for n in COUNTS:
        yield "without replacement", "optimum", n, {}, float(best[n - 1])
    yield from _rejected(target, law, COUNTS[:-1], {})


def _rejected(
    target: FloatArray,
    law: otmd.WithoutReplacement,
    counts: Sequence[int],
    parameters: dict[str, float],
    tol: float = CLOSE,
) -> Rates:
    """Recursive rejection: the middle of its guaranteed bounds."""
    rule = otmd.RecursiveRejection()
    low, high = rule.family_bounds(target, law.with_num_drafts(max(counts)), counts, tol)
    for n, rate in zip(counts, (low + high) / 2, strict=True):
        yield "without replacement", "recursive rejection", n, parameters, float(rate)


def _sharpened(target: FloatArray, draft: FloatArray) -> Rates:
    """Drafts without replacement from q^β renormalised."""
    law = otmd.WithoutReplacement(draft, max(COUNTS))
    yield from _rejected(target, law, COUNTS[-1:], {}, LOOSE)
    for sharpness in SHARPNESS[2:]:
        law = otmd.WithoutReplacement(_sharp(draft, sharpness), max(COUNTS))
        parameters = {"sharpness": sharpness}
        best = np.ravel(otmd.optimal_acceptance(target, law, every_n=True).rate)
        for n in COUNTS:
            yield "without replacement", "optimum", n, parameters, float(best[n - 1])
        yield from _rejected(target, law, COUNTS[:-1], parameters)


def _sharp(draft: FloatArray, sharpness: float) -> FloatArray:
    weights = (draft / draft.max()) ** sharpness
    return weights / weights.sum()


def _tops(target: FloatArray, draft: FloatArray) -> Rates:
    """The m most likely tokens, then others with or without replacement."""
    kinds = {
        "top, then with": otmd.WithReplacement,
        "top, then without": otmd.WithoutReplacement,
    }
    for n in COUNTS:
        for top in (m for m in TOPS if 0 < m < n - 1):
            for name, rest in kinds.items():
                law = otmd.TopThen(draft, n, top, rest)
                best = float(otmd.optimal_acceptance(target, law).rate)
                yield name, "optimum", n, {"top": top}, best
                if rest is otmd.WithReplacement:
                    rate = float(otmd.acceptance_rate(otmd.Preference(), target, law))
                    yield name, "preference", n, {"top": top}, rate


def _stratified_optima(target: FloatArray, draft: FloatArray) -> Rates:
    for n in COUNTS:
        best = float(otmd.optimal_acceptance(target, otmd.Stratified(draft, n)).rate)
        yield "stratified", "optimum", n, {}, best


def _orders(target: FloatArray, draft: FloatArray) -> Rates:
    """The preference rule on equal strata, in other orders than its own."""
    tried: dict[str, Callable[[FloatArray, Slots], IntArray]] = {
        "preference, ratio order": ratio_order,
        "preference, peeled": peeled_order,
    }
    for n in ORDERS_COUNTS:
        law = otmd.Stratified(draft, n)
        for name, order in tried.items():
            rate = float(otmd.acceptance_rate(otmd.Preference(order), target, law))
            yield "stratified", name, n, {}, rate


def own_order(target: FloatArray, slots: Slots) -> IntArray:
    """First the preferred tokens, p ≥ q_j, then the others, both from the tail."""
    return np.lexsort((-slots.number, target < slots.token_probs))


def ratio_order(target: FloatArray, slots: Slots) -> IntArray:
    """Largest p/q_j first."""
    inclusion = slots.token_probs
    ratio = np.divide(target, inclusion, out=np.zeros(target.size), where=inclusion > 0)
    return np.argsort(-ratio)


def peeled_order(target: FloatArray, slots: Slots) -> IntArray:
    """First the tokens that can be accepted whole, given those peeled before; the others from the tail.

    Once other strata have accepted, a token needs only p ≥ q_j Π_{i≠j} s_i to be accepted whole.
    """
    number = slots.number
    inclusion = slots.token_probs
    left = np.ones(slots.num_drafts)
    peeled = np.zeros(target.size, bool)
    turn = np.full(target.size, np.iinfo(np.int64).max)
    for step in range(target.size):
        others = np.array([np.delete(left, j).prod() for j in range(left.size)])
        new = ~peeled & (target >= inclusion * others[number])
        if not new.any():
            break
        turn[new] = step
        peeled |= new
        left = np.maximum(1.0 - np.bincount(number[peeled], inclusion[peeled], left.size), 0.0)
    return np.lexsort((-number.astype(np.int64), turn))


def _poisson(target: FloatArray, draft: FloatArray) -> Rates:
    """Conditional Poisson drafts with weights q^β. No closed-form rule but target only serves them."""
    for sharpness in SHARPNESS[1:3]:
        law = otmd.ConditionalPoisson(_sharp(draft, sharpness), max(POISSON_COUNTS))
        best = np.ravel(otmd.optimal_acceptance(target, law, every_n=True).rate)
        for n in POISSON_COUNTS:
            parameters = {"sharpness": sharpness}
            yield "conditional Poisson", "optimum", n, parameters, float(best[n - 1])


def main(arguments: list[str]) -> pl.DataFrame:
    """Collect and measure what is missing."""
    table = run(prompt_rates, arguments, 15.0, data=texts_of, output=ROWS)
    print(f"{table.height} rows; python -m experiments law_choice summarises them")
    return table
