"""Acceptance lost by a draft that cannot propose every token: a reduced vocabulary, and another tokenizer.

    python -m experiments draft_vocabularies --workers 1

The pair ``reduced`` is SmolLM2-135M-Instruct and the same model without three layers, which proposes its K
most frequent tokens alone, counted in the built-in texts that are not among the prompts. The other pairs are
SmolLM2-135M-Instruct and Qwen2.5-Coder 0.5B (``runs/models``), whose tokenizers differ. The target samples a
text at each temperature. ``p_proposed`` and ``q_proposed`` are the masses of target and draft on the tokens
that may be proposed; ``loss`` is that of the optimum, compared with all tokens. Errors are half of a 95%
interval by a jackknife over prompts.
"""

import math
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import polars as pl
from scipy.special import logsumexp

import otmd
from experiments.claims.positions import chosen_prompts
from experiments.runner import Task, run, show
from experiments.texts import after_prompt, load_models, sample_paths
from otmd.laws import DraftLaw
from otmd.models import DEFAULT_DRAFT, Draft, LanguageModel, TranslatedDraft
from otmd.models.collection import held_out_corpus
from otmd.models.draft_vocabularies import most_frequent
from otmd.probabilities import FloatArray, IntArray
from otmd.study.jackknife import interval, left_out

QWEN = "runs/models/qwen2.5-coder-0.5b-instruct.gguf"
PAIRS = {
    "reduced": ("default", DEFAULT_DRAFT),
    "Qwen for SmolLM2": ("default", QWEN),
    "SmolLM2 for Qwen": (QWEN, "default"),
}
SIZES = (32000, 16000, 8000, 4000)
TEMPERATURES = (0.6, 1.0)
PER_TEXT, LENGTH = 6, 30
LAWS: dict[str, Callable[[FloatArray], DraftLaw]] = {
    "one draft": lambda q: otmd.WithReplacement(q, 1),
    "4 with replacement": lambda q: otmd.WithReplacement(q, 4),
    "4 from strata": lambda q: otmd.Stratified(q, 4),
}
PREFERENCE = otmd.Preference()
CELL = ("pair", "proposed", "temperature", "law")


class Weighed(TranslatedDraft):
    """A draft with another tokenizer; its logits end with the log of its total mass at each temperature."""

    def restrict(self, logits: np.ndarray) -> np.ndarray:
        """Logits over the target's tokens, and a column for each temperature."""
        return np.hstack([super().restrict(logits), log_masses(logits)])


def log_masses(logits: np.ndarray) -> np.ndarray:
    """The log of the sum of exp(logits / T), shape (rows, temperatures)."""
    sums = [logsumexp(logits.astype(float) / t, axis=-1) for t in TEMPERATURES]
    return np.stack(sums, axis=-1)


@cache
def loaded(pair: str) -> tuple[LanguageModel, Draft, dict[str, IntArray]]:
    """Target, draft, and the tokens of each vocabulary that may be proposed."""
    name, drafting = PAIRS[pair]
    if pair != "reduced":
        target, _ = load_models(name, [])
        drafter, _ = load_models(drafting, [])
        translated = Weighed(drafter, target.tokenizer)
        return target, translated, {"shared": translated.tokens}
    target, [draft] = load_models(name, [drafting])
    corpus = held_out_corpus("ngram", target, chosen_prompts(), progress=False)
    ordered = most_frequent(corpus or [], target.token_count, target.token_count)
    return target, draft, {"all": ordered} | {str(size): ordered[:size] for size in SIZES}


def logits_along(pair: str, prompt: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Logits of target and draft, and the draft's log masses, at positions of each temperature's text."""
    target, draft, _ = loaded(pair)
    chosen = chosen_prompts()[prompt]
    model, drafting = (after_prompt(read, target, chosen) for read in (target, draft))
    texts = sample_paths(target, model, chosen, LENGTH, TEMPERATURES, 0)
    # The middles of equal parts of each text.
    middles = [np.arange(1, 2 * PER_TEXT, 2) * len(text) // (2 * PER_TEXT) for text in texts]
    prefixes = [[text[:t] for t in np.unique(at)] for text, at in zip(texts, middles, strict=True)]
    drafting.logits([prefix for listed in prefixes for prefix in listed])
    for i, listed in enumerate(prefixes):
        ours, theirs = (np.stack(read.logits(listed)) for read in (model, drafting))
        count = target.token_count
        masses = log_masses(theirs) if pair == "reduced" else theirs[:, count:]
        yield ours[:, :count], theirs[:, :count], masses[:, i]


def prompt_rows(rng: np.random.Generator, pair: str, prompt: int) -> Iterator[dict[str, object]]:
    """Sums over the positions of a prompt's texts, for each vocabulary, temperature and law."""
    along = zip(TEMPERATURES, logits_along(pair, prompt), strict=True)
    for temperature, (target, draft, log_mass) in along:
        step = otmd.Processing(temperature)
        p = step(target)
        full: dict[str, float] = {}
        for name, tokens in loaded(pair)[2].items():
            restricted = np.full(draft.shape, -np.inf)
            restricted[:, tokens] = draft[:, tokens]
            shares = np.exp(logsumexp(restricted / temperature, axis=-1) - log_mass)
            about = {"proposed": name, "temperature": temperature, "positions": len(p)}
            about |= {"p_proposed": p[:, tokens].sum(), "q_proposed": shares.sum()}
            q = step(restricted)
            for law, make in LAWS.items():
                drawn = [(x, make(y)) for x, y in zip(p, q, strict=True)]
                best = sum(float(otmd.optimal_acceptance(*given).rate) for given in drawn)
                rate = sum(float(otmd.acceptance_rate(PREFERENCE, *given)) for given in drawn)
                if name == "all":
                    full[law] = best
                loss = full.get(law, math.nan) - best
                rates = {"law": law, "optimal": best, "preference": rate, "loss": loss}
                yield about | rates


def means(rows: pl.DataFrame) -> pl.DataFrame:
    """Means over the positions of each cell, with their errors."""
    summary = []
    for cell, of in rows.group_by(*CELL, maintain_order=True):
        sizes = of["positions"].to_numpy().astype(float)
        row = dict(zip(CELL, cell, strict=True))
        row |= {"prompts": of.height, "positions": int(sizes.sum())}
        for name in ("p_proposed", "q_proposed", "optimal", "preference", "loss"):
            totals = of[name].to_numpy()
            value = float(totals.sum() / sizes.sum())
            low, high = interval(value, left_out(totals, sizes))
            row |= {name: value, f"{name}_error": (high - low) / 2}
        summary.append(row)
    return pl.DataFrame(summary)


def tasks(chosen: Namespace) -> list[Task]:
    """Every fourth prompt, for every pair."""
    return [{"pair": pair, "prompt": i} for pair in PAIRS for i in range(0, 64, 4)]


def main(arguments: list[str]) -> pl.DataFrame:
    """Measure what is missing, and print the means."""
    table = run(prompt_rows, arguments, 10.0, tasks, summarise=means)
    show(table)
    return table
