"""Tokens per step on sampled trees that adapt, compared with fixed shapes and with deterministic drafts.

    python -m experiments adaptive_trees
    python -m experiments adaptive_trees --drafts skip:15 --prompts 2 --positions 1 --budgets 16

The pairs and prompts are those of ``positions.py``. At positions of texts that the target samples, trees of
one size are drawn from the draft's most likely tokens, and verified. The kinds of trees:

- *adaptive*, *fixed*: strata. The drafts of a level go to the nodes of the largest reach, or to all evenly.
  All levels have equally many drafts. The number of levels is the one with which fixed trees yield most
  tokens layer by layer, on other prompts.
- *Sequoia*: drafts without replacement. The shape is Sequoia's optimum for the rates at which recursive
  rejection accepts the draft of each rank, on the same other prompts.
- *one sampled*: adaptive, but all drafts of a node are its most likely tokens, except one, which is sampled
  from the other tokens: the idea of RheoSampling, not its method.
- *most likely*: EAGLE-2's tree, whose drafts are deterministic.

Prints tokens per step, and what adaptive trees layer by layer gain, with 95% intervals over prompts.
"""

import gc
import hashlib
import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from scipy.optimize import isotonic_regression

import otmd
from experiments.claims.positions import DOMAINS, MODELS, PER_DOMAIN, chosen_prompts
from experiments.claims.whole_trees import (
    DEPTH,
    STARTS,
    Reader,
    loaded,
    readers_along,
    sampled,
)
from experiments.estimates import interval
from experiments.runner import markdown, run, write_whole
from experiments.texts import after_prompt
from otmd import Processing
from otmd.models.drawn_trees import SameDrafts
from otmd.probabilities import FloatArray
from otmd.study import jackknife
from otmd.trees import (
    AdaptiveTree,
    LayerVerification,
    MostLikelyTree,
    TokenLevel,
    TokenTree,
    Traversal,
    TreeVerifier,
    budget_shape,
)
from otmd.trees.base import Context, Prefix
from otmd.trees.estimates import expected_tokens

DRAFT_TOP_K = 1024
BUDGETS = (8, 16, 32, 59)
LEVELS = (3, 5, 8)
"""Numbers of levels among which that of the strata's trees is chosen."""

RANKS = 16
"""Drafts of a node whose acceptance rates Sequoia's shape rests on."""

FIT_PROMPTS, FIT_POSITIONS = 1, 2
"""Prompts of each domain, its last, and positions of each text, on which shapes are chosen."""

DRAFTS = ("skip:13,15,17", "skip:15", "ngram:3+context", "skip:27,28,29", "Qwen2.5-Coder 0.5B")
PROMPTS = (6, 4, 4, 4, 3)
"""Prompts of each domain to measure on, by draft."""

ADAPTIVE, FIXED, SEQUOIA, ONE_SAMPLED = "adaptive", "fixed", "Sequoia", "one sampled"
MOST_LIKELY = "most likely"
KINDS: dict[str, dict[str, TreeVerifier]] = {
    ADAPTIVE: {"layer": LayerVerification()},
    FIXED: {"layer": LayerVerification(), "token level": TokenLevel(otmd.Preference())},
    SEQUOIA: {"token level": TokenLevel(otmd.RecursiveRejection()), "Traversal": Traversal()},
    ONE_SAMPLED: {"token level": TokenLevel(otmd.Preference()), "layer": LayerVerification()},
    MOST_LIKELY: {"token level": TokenLevel(otmd.TargetOnly())},
}


def level_counts(budget: int, levels: int) -> tuple[int, ...]:
    """The drafts by level: equally many, or one more on the first levels."""
    return tuple(budget // levels + (i < budget % levels) for i in range(levels))


def fixed_shape(widths: Sequence[int]) -> tuple[Any, ...]:
    """The shape with so many drafts on each level; where nodes have not equally many, the first have more."""
    shapes: list[tuple[Any, ...]] = [()] * widths[-1]
    for above, below in reversed(list(pairwise([1, *widths]))):
        counts = [below // above + (i < below % above) for i in range(above)]
        rest = iter(shapes)
        shapes = [tuple(islice(rest, count)) for count in counts]
    return shapes[0]


class Fit(NamedTuple):
    """Choices for a draft and a temperature: levels by budget, and rates by rank (``RANKS``,)."""

    levels: dict[int, int]
    rank_rates: list[float]


class Candidate(NamedTuple):
    """A kind of tree, the most drafts it has, its levels, and its law from the draft model."""

    kind: str
    budget: int
    levels: int
    law: partial[Any]


def candidates(budget: int, fit: Fit) -> Iterator[Candidate]:
    """The trees of one size that are compared."""
    counts = level_counts(budget, fit.levels[budget])
    shape = budget_shape(fit.rank_rates, budget, DEPTH)
    laws = {
        ADAPTIVE: partial(AdaptiveTree, quotas=counts),
        FIXED: partial(TokenTree, branching=fixed_shape(counts), law=otmd.Stratified),
        SEQUOIA: partial(TokenTree, branching=shape, law=otmd.WithoutReplacement),
        ONE_SAMPLED: partial(AdaptiveTree, quotas=counts, law=otmd.Greedy),
        MOST_LIKELY: partial(MostLikelyTree, budget=budget, depth=DEPTH),
    }
    for kind, law in laws.items():
        yield Candidate(kind, budget, len(counts), law)


def position_rows(
    target: Reader, draft: Reader, listed: Sequence[Candidate], seed: int
) -> Iterator[dict[str, Any]]:
    """A row for every candidate and rule at one position; the trees are drawn side by side."""
    contexts = [Context(target, candidate.law(draft)) for candidate in listed]
    trees = [context.law.draft_tree(context, SameDrafts(seed)) for context in contexts]
    # Side by side, so that the draft model reads a level of all trees in one call.
    growing = [tree.grow() for tree in trees]
    while nodes := {prefix for tree in growing for prefix in next(tree, [])}:
        draft.read(sorted(nodes))
    target.read([prefix for tree in trees for prefix in tree.prefixes()])
    for candidate, context, tree in zip(listed, contexts, trees, strict=True):
        about: dict[str, Any] = {"budget": candidate.budget, "kind": candidate.kind}
        about |= {"levels": candidate.levels, "drafts": len(tree.prefixes()) - 1}
        for name, rule in KINDS[candidate.kind].items():
            yield {**about, "rule": name, "tokens": expected_tokens(rule, context, tree)}


def positions(
    prompt: int, draft: str, temperature: float, number: int, rng: np.random.Generator
) -> Iterator[tuple[Prefix, Reader, Reader]]:
    """Readers of target and draft at so many positions of a text of a prompt, and what follows there."""
    [pairs] = [name for name, models in MODELS.items() if draft in models.drafts]
    target, drafting = loaded(pairs, draft)
    chosen = chosen_prompts()[prompt]
    texts = [after_prompt(model, target, chosen) for model in (target, drafting)]
    [text] = sampled(texts[0], [temperature], STARTS[-1], rng)
    steps = Processing(temperature), Processing(temperature, top_k=DRAFT_TOP_K)
    along = readers_along(texts, text, target.stop_tokens, steps, target.token_count)
    for start, readers in islice(along, number):
        yield text[start : start + DEPTH], readers[0], readers[1]
        # Contexts refer to themselves, and hold gigabytes.
        gc.collect()


def rank_rates(target: FloatArray, draft: FloatArray, rng: np.random.Generator) -> FloatArray:
    """P(recursive rejection accepts the draft of each rank), given drafts drawn without replacement."""
    law = otmd.WithoutReplacement(draft, min(RANKS, int(np.count_nonzero(draft))))
    accepted = otmd.RecursiveRejection().prepare(target, law).accept_probs(law.sample(rng=rng))
    refused = np.cumprod(1.0 - np.asarray(accepted))
    rates = np.zeros(RANKS)
    rates[: refused.size] = -np.diff(refused, prepend=1.0)
    return rates


@cache
def fitted(draft: str, temperature: float, budgets: tuple[int, ...]) -> Fit:
    """Levels and rates, chosen on the last ``FIT_PROMPTS`` prompts of each domain, or read from a file."""
    about = Path(__file__).read_bytes() + repr((draft, temperature, budgets)).encode()
    name = hashlib.sha256(about).hexdigest()[:16]
    path = Path("runs/adaptive_trees_fits") / f"{name}.json"
    if not path.exists():
        write_whole(path, json.dumps(_measured(draft, temperature, budgets)).encode())
    stored = json.loads(path.read_text("utf-8"))
    return Fit({int(budget): levels for budget, levels in stored[0].items()}, stored[1])


def _measured(draft: str, temperature: float, budgets: Sequence[int]) -> Fit:
    listed = []
    for budget in budgets:
        for levels in LEVELS:
            shape = fixed_shape(level_counts(budget, levels))
            law = partial(TokenTree, branching=shape, law=otmd.Stratified)
            listed.append(Candidate(FIXED, budget, levels, law))
    rows, rates = [], []
    for prompt in of_each_domain(range(PER_DOMAIN - FIT_PROMPTS, PER_DOMAIN)):
        rng = np.random.default_rng([prompt, round(100 * temperature)])
        readers = positions(prompt, draft, temperature, FIT_POSITIONS, rng)
        for seed, (text, target, drafting) in enumerate(readers):
            rows += position_rows(target, drafting, listed, seed)
            along = [text[:i] for i in range(len(text))]
            drafting.read(along)
            target.read(along)
            rates += [rank_rates(target(prefix), drafting(prefix), rng) for prefix in along]
    table = pl.DataFrame(rows).filter(pl.col("rule") == "layer")
    means = table.group_by("budget", "levels").agg(pl.col("tokens").mean()).sort("tokens")
    levels = {row["budget"]: row["levels"] for row in means.to_dicts()}
    # Few positions: a later rank may seem to be accepted more often than an earlier one.
    by_rank = isotonic_regression(np.mean(rates, axis=0), increasing=False).x
    print(f"{draft}, T = {temperature:g}: levels by budget {levels}", flush=True)
    return Fit(levels, by_rank.tolist())


def of_each_domain(numbers: Sequence[int]) -> list[int]:
    """These prompts of each domain, numbered as in all :func:`chosen_prompts`."""
    return [domain * PER_DOMAIN + number for number in numbers for domain in range(len(DOMAINS))]


def prompt_rows(
    rng: np.random.Generator,
    prompt: int,
    draft: str,
    temperature: float,
    number: int,
    budgets: list[int],
) -> Iterator[dict[str, Any]]:
    """Sums over the positions of a text of a prompt, of every candidate and rule."""
    fit = fitted(draft, temperature, tuple(budgets))
    listed = [candidate for budget in budgets for candidate in candidates(budget, fit)]
    rows: list[dict[str, Any]] = []
    for _, target, drafting in positions(prompt, draft, temperature, number, rng):
        rows += position_rows(target, drafting, listed, int(rng.integers(2**32)))
    sums = pl.DataFrame(rows).group_by("budget", "levels", "kind", "rule", maintain_order=True)
    yield from sums.agg(pl.len().alias("positions"), pl.col("tokens", "drafts").sum()).to_dicts()


def tasks_of(chosen: Namespace) -> list[dict[str, Any]]:
    """A task for each draft, prompt and temperature."""
    return [
        {
            "prompt": prompt,
            "draft": draft,
            "temperature": temperature,
            "number": chosen.positions,
            "budgets": chosen.budgets,
        }
        for draft, prompts in zip(chosen.drafts, chosen.prompts, strict=True)
        for prompt in of_each_domain(range(prompts))
        for temperature in chosen.temperatures
    ]


def identity(tasks: Sequence[dict[str, Any]]) -> str:
    """A string that identifies the prompts and models."""
    names = [prompt.id for prompt in chosen_prompts()]
    return hashlib.sha256(repr((names, MODELS)).encode()).hexdigest()


def as_table(table: pl.DataFrame) -> str:
    """Tokens per step of every tree and rule, and what adaptive trees layer by layer gain over it."""
    lines = []
    cell, of = ("draft", "temperature", "budget", "levels"), ("kind", "rule")
    adaptive: dict[tuple[Any, ...], tuple[float, np.ndarray]] = {}
    for key, rows in table.group_by(*cell, *of, maintain_order=True):
        tokens = rows["tokens"].to_numpy()
        number = rows["positions"].to_numpy().astype(np.float64)
        mean = tokens.sum() / number.sum()
        without = jackknife.left_out(tokens, number)
        gain = "–"
        if key[-2] == ADAPTIVE:
            adaptive[key[:3]] = mean, without
        else:
            base, base_without = adaptive[key[:3]]
            gain = interval(100 * (base / mean - 1), 100 * (base_without / without - 1), "+.1f")
        drafts = f"{rows['drafts'].to_numpy().sum() / number.sum():.1f}"
        lines.append([*map(str, key), drafts, interval(mean, without, ".3f"), gain])
    return markdown([*cell, *of, "drafts", "tokens per step", "adaptive gains, %"], lines)


def main(arguments: list[str]) -> pl.DataFrame:
    """Measure what is missing, and print."""
    defaults: dict[str, Any] = {"drafts": DRAFTS, "prompts": PROMPTS, "positions": 2}
    defaults |= {"budgets": BUDGETS, "temperatures": (0.6, 1.0)}
    table = run(prompt_rows, arguments, 20.0, tasks_of, identity, **defaults)
    print(as_table(table))
    return table
