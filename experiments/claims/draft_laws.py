"""Which law should drafts be drawn from? Every law, by its best closed-form rule and at its optimum.

    python experiments/claims/draft_laws.py
    python experiments/claims/draft_laws.py --spec experiments/claims/two_sizes.toml \
        --parts runs/two_sizes --output runs/two_sizes_positions.parquet

Collects texts of SmolLM2-135M-Instruct, or of a larger model with a smaller one as its draft, under runs: a
text for each prompt and temperature, sampled at that temperature, with the logits of the target and of its
drafts at a few positions of each. Measures laws and rules there, a task for each prompt. The rows of all
positions stay under runs; what ``law_choice.py`` finds in them is stored. For the two sizes, the two files
that PAIRS names must lie under runs/models.

Parameters of a law: ``sharpness`` (β, drafts are drawn from q^β), ``falling`` (the share of a stratum in
units of the one before it, from the head to the tail) and ``top`` (m, the likeliest tokens that are certain).
"""

import hashlib
import io
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import sweep_script
from otmd.verifiers.taking import Cells, TakenInCells

import otmd
from otmd.laws import Slots
from otmd.laws.stratified import _likeliest_first, _starts
from otmd.models import Prompt, load_draft, load_prompts, load_target
from otmd.models.collection import held_out_corpus
from otmd.models.continuations import continuations
from otmd.models.language_models import sample_token
from otmd.models.progress import progress_bar
from otmd.models.prompts import prompt_tokens
from otmd.probabilities import FloatArray, IntArray
from otmd.storage.files import write_atomically

ROWS = Path("runs/draft_laws_positions.parquet")
DOMAINS = ("code", "maths", "chat", "prose")
TEMPERATURES = (0.3, 0.6, 0.8, 1.0, 1.5)
PER_DOMAIN, PER_TEXT, LENGTH = 16, 3, 24
COUNTS = (2, 3, 4, 8)
SHARPNESS = (0.7, 1.0, 1.4, 2.0)
FALLING = (0.6, 1.0, 1.5)
TOPS = (0, 1, 2, 4)
POISSON_AT, POISSON_COUNTS = (1.0,), (2, 3, 4)
ORDERS_AT, ORDERS_COUNTS = (0.6, 1.0), (2, 4, 8)
CLOSE, LOOSE = 2e-3, 1e-2

Rates = Iterator[tuple[str, str, int, dict[str, float], float]]


class Pairs(NamedTuple):
    """A target and its drafts by name, as the harness loads them, and where the logits of texts lie."""

    target: str
    drafts: dict[str, str]
    texts: Path


LAYERS = Pairs(
    "default",
    {name: name for name in ("skip:15", "skip:13,15,17", "skip:27,28,29", "ngram:3+context")},
    Path("runs/draft_laws_texts"),
)
SIZES = Pairs(
    "runs/models/qwen2.5-coder-1.5b-instruct.gguf",
    {"Qwen2.5-Coder 0.5B": "runs/models/qwen2.5-coder-0.5b-instruct.gguf"},
    Path("runs/two_sizes_texts"),
)
PAIRS = {"layers": LAYERS, "sizes": SIZES}


class Ordered(NamedTuple):
    """p and q (V,), the likeliest drafts first, and how many tokens q has."""

    target: FloatArray
    draft: FloatArray
    support: int


def chosen_prompts() -> list[Prompt]:
    """The prompts, in the order of the tasks."""
    return load_prompts(list(DOMAINS), PER_DOMAIN, 0, progress=False)


def text_file(prompt: Prompt, pairs: Pairs = LAYERS) -> Path:
    """Where the logits of a prompt's texts lie."""
    return pairs.texts / f"{hashlib.sha256(prompt.id.encode()).hexdigest()[:16]}.npz"


def texts_of(tasks: Sequence[dict[str, Any]]) -> str:
    """Collect the missing texts of these tasks' prompts; return a string that identifies all texts."""
    chosen = chosen_prompts()
    (pairs,) = {task.get("pairs", "layers") for task in tasks}
    return collected([chosen[task["prompt"]] for task in tasks], PAIRS[pairs])


def collected(prompts: Sequence[Prompt], pairs: Pairs = LAYERS) -> str:
    """Collect the missing texts of the prompts; return a string that identifies all texts."""
    pairs.texts.mkdir(parents=True, exist_ok=True)
    missing = [prompt for prompt in prompts if not text_file(prompt, pairs).exists()]
    if missing:
        target = load_target(pairs.target)
        drafts = {
            name: load_draft(spec, target, held_out_corpus(spec, target, chosen_prompts(), False))
            for name, spec in pairs.drafts.items()
        }
        with progress_bar("Collecting texts", len(missing), True) as update:
            for number, prompt in enumerate(missing):
                update(number, prompt.id)
                write_atomically(text_file(prompt, pairs), _collect(target, drafts, prompt))
    # All prompts count, so that a sweep over more of them knows what is done.
    ids = [prompt.id for prompt in chosen_prompts()]
    what = f"{ids}{tuple(pairs.drafts)}{TEMPERATURES}{PER_TEXT}{LENGTH}"
    return hashlib.sha256(what.encode()).hexdigest()


def _collect(target: Any, drafts: dict[str, Any], prompt: Prompt) -> bytes:
    """Sample a text at each temperature; return all models' logits at a few of its positions, as .npz."""
    before = prompt_tokens(target.tokenizer, prompt)
    model = continuations(target, before)
    rngs = [np.random.default_rng([0, zlib.crc32(prompt.id.encode())]) for _ in TEMPERATURES]
    texts: list[tuple[int, ...]] = [() for _ in TEMPERATURES]
    for _ in range(LENGTH):
        growing = [i for i, text in enumerate(texts) if not set(text[-1:]) & target.stop_tokens]
        for i, logits in zip(growing, model.logits([texts[i] for i in growing]), strict=True):
            drawn = sample_token(logits[: target.token_count], TEMPERATURES[i], rngs[i])
            texts[i] += (drawn,)
    # The middles of equal parts of the text; all of a text that is too short for that.
    places = [
        sorted({(2 * i + 1) * len(text) // (2 * PER_TEXT) for i in range(PER_TEXT)})
        for text in texts
    ]
    prefixes = [text[:t] for text, own in zip(texts, places, strict=True) for t in own]
    arrays = {"temperature": np.repeat(TEMPERATURES, list(map(len, places)))}
    for name, own in {"target": target, **drafts}.items():
        read = model if own is target else continuations(own, before)
        logits = np.stack(read.logits(prefixes))[:, : target.token_count]
        arrays[name] = logits.astype(np.float32)
    stored = io.BytesIO()
    np.savez(stored, **arrays)
    return stored.getvalue()


def prompt_rates(
    rng: np.random.Generator, prompt: int, pairs: str = "layers"
) -> Iterator[dict[str, Any]]:
    """All rows of one prompt's texts."""
    chosen = chosen_prompts()[prompt]
    with np.load(text_file(chosen, PAIRS[pairs])) as stored:
        arrays = dict(stored)
    seen: set[float] = set()
    for at, temperature in enumerate(arrays["temperature"].tolist()):
        step = otmd.Processing(temperature)
        target = step(arrays["target"][at])
        # What takes long is measured at the first position of each text.
        first = temperature not in seen
        seen.add(temperature)
        for name in PAIRS[pairs].drafts:
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
                measured = {"law": law, "rule": rule, "num_drafts": n, "rate": rate}
                yield {**about, **measured, **dict(_parameters(parameters))}


def _parameters(given: dict[str, float]) -> Iterator[tuple[str, float]]:
    for name, default in (("sharpness", 1.0), ("falling", 1.0), ("top", 0.0)):
        yield name, float(given.get(name, default))


def rates(target: FloatArray, draft: FloatArray, slow: bool, temperature: float) -> Rates:
    """Everything that is measured at a position: law, rule, number of drafts, parameters and rate."""
    order = _likeliest_first(draft)
    ordered = Ordered(target[order], draft[order], int(np.count_nonzero(draft)))
    yield from _independent(*ordered[:2])
    yield from _stratified_grid(ordered)
    yield from _without_replacement(*ordered[:2])
    if slow:
        yield from _sharpened(*ordered[:2])
        yield from _tops(*ordered[:2])
        yield from _stratified_optima(*ordered[:2])
        if temperature in ORDERS_AT:
            yield from _orders(*ordered[:2])
        if temperature in POISSON_AT:
            yield from _poisson(*ordered[:2])


def _independent(target: FloatArray, draft: FloatArray) -> Rates:
    """Certain top n, greedy drafts, and drafts with replacement."""
    law = otmd.WithReplacement(draft, max(COUNTS))
    rules = {
        "recursive rejection": otmd.RecursiveRejection(),
        "K-SEQ": otmd.KSequential(),
        "preference": otmd.Preference(),
    }
    for rule, verifier in rules.items():
        for n, rate in zip(
            COUNTS, verifier.family_bounds(target, law, COUNTS, CLOSE)[0], strict=True
        ):
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


def _stratified_grid(of: Ordered) -> Rates:
    """Stratified drafts by the preference rule, for all parameters."""
    for sharpness in SHARPNESS:
        weights = (of.draft / of.draft[0]) ** sharpness
        for n in COUNTS:
            for top in (m for m in {*TOPS, n - 1} if m < n):
                # With certain tokens, one of the other parameters is varied at a time.
                alone = top == n - 1 or (top > 0 and sharpness != 1.0)
                for falling in (1.0,) if alone else FALLING:
                    shares = falling ** np.arange(n - top)
                    given = {"sharpness": sharpness, "falling": falling, "top": top}
                    rate = stratified_rate(of, weights, top, shares)
                    yield "stratified", "preference", n, given, rate


def stratified_rate(of: Ordered, weights: FloatArray, top: int, shares: FloatArray) -> float:
    """The preference rule's rate on m certain tokens and strata of the rest, in the first of its two orders.

    As ``Preference(own_order)`` has it for ``TopThen`` over ``Stratified``, without a sort for each set of
    parameters.
    """
    own = np.maximum(weights[top:], np.finfo(np.float64).tiny * (of.draft[top:] > 0))
    target = of.target[top:]
    starts = np.array([0, own.size])
    if shares.size > 1:
        starts = _starts(own, of.support - top, 1.0, shares)
    sizes = np.diff(starts)
    inclusion = own / np.repeat(np.add.reduceat(own, starts[:-1]), sizes)
    number = np.repeat(np.arange(shares.size, dtype=np.int16), sizes)
    cells = Cells(target, inclusion, number, shares.size)
    taken = TakenInCells(cells, cells.liked_first())
    return float(of.target[:top].sum() + taken.rate)


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
    given: dict[str, float],
    tol: float = CLOSE,
) -> Rates:
    """Recursive rejection: the middle of its certain bounds."""
    rule = otmd.RecursiveRejection()
    low, high = rule.family_bounds(target, law.with_num_drafts(max(counts)), counts, tol)
    for n, rate in zip(counts, (low + high) / 2, strict=True):
        yield "without replacement", "recursive rejection", n, given, float(rate)


def _sharpened(target: FloatArray, draft: FloatArray) -> Rates:
    """Drafts without replacement from q^β renormalised."""
    law = otmd.WithoutReplacement(draft, max(COUNTS))
    yield from _rejected(target, law, COUNTS[-1:], {}, LOOSE)
    for sharpness in SHARPNESS[2:]:
        law = otmd.WithoutReplacement(_sharp(draft, sharpness), max(COUNTS))
        given = {"sharpness": sharpness}
        best = np.ravel(otmd.optimal_acceptance(target, law, every_n=True).rate)
        for n in COUNTS:
            yield "without replacement", "optimum", n, given, float(best[n - 1])
        yield from _rejected(target, law, COUNTS[:-1], given)


def _sharp(draft: FloatArray, sharpness: float) -> FloatArray:
    weights = (draft / draft.max()) ** sharpness
    return weights / weights.sum()


def _tops(target: FloatArray, draft: FloatArray) -> Rates:
    """The likeliest m for certain, the rest with or without replacement."""
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
    """First the liked tokens, p ≥ q_j, then the others, both from the tail."""
    return np.lexsort((-slots.number, target < slots.token_probs))


def ratio_order(target: FloatArray, slots: Slots) -> IntArray:
    """The largest p/q_j first."""
    inclusion = slots.token_probs
    ratio = np.divide(target, inclusion, out=np.zeros(target.size), where=inclusion > 0)
    return np.argsort(-ratio)


def peeled_order(target: FloatArray, slots: Slots) -> IntArray:
    """First the tokens that can be accepted whole, given those peeled before; the others from the tail.

    Once other strata have accepted, a token needs only p ≥ q_j Π_{i≠j} s_i to be accepted whole.
    """
    number, inclusion = slots.number, slots.token_probs
    left, peeled = np.ones(slots.num_drafts), np.zeros(target.size, bool)
    turn = np.full(target.size, np.iinfo(np.int64).max)
    for step in range(target.size):
        others = np.array([np.delete(left, j).prod() for j in range(left.size)])
        new = ~peeled & (target >= inclusion * others[number])
        if not new.any():
            break
        turn[new], peeled = step, peeled | new
        left = np.maximum(1.0 - np.bincount(number[peeled], inclusion[peeled], left.size), 0.0)
    return np.lexsort((-number.astype(np.int64), turn))


def _poisson(target: FloatArray, draft: FloatArray) -> Rates:
    """Conditional Poisson drafts with weights q^β. No closed-form rule but target only serves them."""
    for sharpness in SHARPNESS[1:3]:
        law = otmd.ConditionalPoisson(_sharp(draft, sharpness), max(POISSON_COUNTS))
        best = np.ravel(otmd.optimal_acceptance(target, law, every_n=True).rate)
        for n in POISSON_COUNTS:
            given = {"sharpness": sharpness}
            yield "conditional Poisson", "optimum", n, given, float(best[n - 1])


def main(arguments: list[str] | None = None) -> pl.DataFrame:
    """Collect and measure what is missing."""
    given = sys.argv[1:] if arguments is None else arguments
    table = sweep_script.run(
        prompt_rates,
        __doc__ or "",
        15.0,
        ["--output", str(ROWS), *given],
        texts_of,
    )
    print(f"{table.height} rows; python experiments/claims/law_choice.py says what they say")
    return table


if __name__ == "__main__":
    main()
