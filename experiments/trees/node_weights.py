"""A fitted estimate of the nodes' reach in adaptive trees, compared with the formula and with an oracle.

    python -m experiments node_weights
    python -m experiments node_weights --prompts 2 --quotas 2 --temperatures 1.0

An adaptive tree gives each level's drafts to the nodes of the largest reach, an estimate of the probability
that the accepted path ends at them or below. Given the drafts above, the layer rule's score of a node is that
probability. So an oracle takes the scores. The fitted estimate is the formula's reach times exp(β·x), x being
``FEATURES``, by Poisson regression of the scores of the formula's trees on half of each domain's prompts, at
the default draft. The held-out half is measured, at this draft and at ``OTHER``. All trees have eight levels.
The layer rule decides. Intervals are 95%, over prompts; ``recovered`` is the fitted estimate's gain in units
of the oracle's.
"""

import gc
from argparse import Namespace
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy.optimize import minimize

from experiments.claims.whole_trees import DEPTH, STARTS, Reader, readers_along, sampled
from experiments.estimates import interval
from experiments.runner import markdown, run
from experiments.texts import after_prompt, load_models
from experiments.trees.adaptive_trees import (
    DOMAINS,
    DRAFT_TOP_K,
    SameDrafts,
    chosen_prompts,
)
from otmd import Processing
from otmd.models import DEFAULT_DRAFT, Draft, LanguageModel
from otmd.models.variants import pack_weights
from otmd.probabilities import FloatArray
from otmd.study import jackknife
from otmd.trees import AdaptiveTree, LayerVerification
from otmd.trees.adaptive import GrownTree, Leaf
from otmd.trees.base import Context, Prefix
from otmd.trees.estimates import expected_tokens
from otmd.trees.whole_tree import SweptLayer

OTHER = "skip:15"
NGRAM = "ngram:3+context"
FEATURES = (
    "intercept",
    "log reach",
    "log q of the token",
    "log g of the token",
    "most likely in g",
    "Σ q² after it",
    "log max q after it",
    "depth",
    "log position",
)
"""q is the draft's distribution, g that of an n-gram model which also counts the text so far."""


class FittedTree(AdaptiveTree):
    """An adaptive tree with the fitted estimate; without ``beta`` it has the formula's, as AdaptiveTree."""

    def __init__(
        self, draft: Reader, ngram: Reader, position: int, quotas: tuple[int, ...], beta: FloatArray
    ) -> None:
        super().__init__(draft, quotas)
        self.beta = beta
        self.ngram = ngram
        self.position = position

    def features(self, prefix: Prefix, leaf: Leaf) -> list[float]:
        """The numbers of ``FEATURES`` at a node below the root."""
        above, token = prefix[:-1], prefix[-1]
        drafted, counted = np.asarray(self.draft_model(above)), self.ngram(above)
        after = leaf.draft_probs
        return [
            1.0,
            np.log(leaf.reach),
            np.log(drafted[token]),
            np.log(counted[token]),
            float(np.argmax(counted) == token),
            float(after @ after),
            np.log(after.max()),
            len(prefix),
            np.log1p(self.position),
        ]

    def num_drafts(self, leaves: Mapping[Prefix, Leaf], quota: int) -> dict[Prefix, int]:
        """See :meth:`AdaptiveTree.num_drafts`."""
        if () not in leaves:
            leaves = {
                prefix: leaf._replace(
                    reach=leaf.reach * float(np.exp(self.beta @ self.features(prefix, leaf)))
                )
                for prefix, leaf in leaves.items()
            }
        return super().num_drafts(leaves, quota)


class ScoredTree(FittedTree):
    """An adaptive tree that knows the scores of the nodes; it keeps features and scores of all of them."""

    def __init__(self, target: Reader, oracle: bool, *arguments: Any) -> None:
        super().__init__(*arguments, beta=np.zeros(len(FEATURES)))
        self.target = target
        self.oracle = oracle
        self.rows: list[list[float]] = []

    def grow(self, tree: GrownTree) -> Iterator[list[Prefix]]:
        """See :meth:`AdaptiveTree.grow`."""
        self._tree = tree
        self._scores: dict[Prefix, float] = {(): 1.0}
        return super().grow(tree)

    def num_drafts(self, leaves: Mapping[Prefix, Leaf], quota: int) -> dict[Prefix, int]:
        """See :meth:`AdaptiveTree.num_drafts`."""
        if () not in leaves:
            self.target.read(list(self._scores))
            context = Context(self.target, self)
            layer = SweptLayer(LayerVerification(), context, self._tree, self._scores)
            scores = layer.child_scores()
            self._scores = {prefix: scores.get(prefix, 0.0) for prefix in leaves}
            for prefix, leaf in leaves.items():
                self.rows.append([*self.features(prefix, leaf), self._scores[prefix]])
            if self.oracle:
                leaves = {p: leaf._replace(reach=self._scores[p]) for p, leaf in leaves.items()}
        return AdaptiveTree.num_drafts(self, leaves, quota)


@cache
def loaded(draft: str, prompts: int, seed: int) -> tuple[LanguageModel, Draft, Draft]:
    """The target, the draft and the n-gram, which is fitted on texts that are not among the prompts."""
    chosen = list(chosen_prompts(prompts, seed).values())
    target, [drafting, ngram] = load_models("default", [draft, NGRAM], chosen)
    assert isinstance(drafting, LanguageModel)
    return pack_weights(target), pack_weights(drafting), ngram


def half(prompts: int, seed: int, number: int) -> list[str]:
    """The ids of every second prompt of each domain: those to fit on (0), or those to measure on (1)."""
    ids = list(chosen_prompts(prompts, seed))
    return [id for i, id in enumerate(ids) if i % (len(ids) // len(DOMAINS)) % 2 == number]


def positions(
    rng: np.random.Generator, prompt: str, draft: str, temperature: float, settings: dict[str, Any]
) -> Iterator[tuple[Reader, Reader, Reader, int]]:
    """Readers of the target, the draft and the n-gram after some tokens of a text, and their number."""
    models = loaded(draft, settings["prompts"], settings["seed"])
    target = models[0]
    chosen = chosen_prompts(settings["prompts"], settings["seed"])[prompt]
    texts = [after_prompt(model, target, chosen) for model in models]
    [text] = sampled(texts[0], [temperature], STARTS[-1], rng)
    steps = Processing(temperature), Processing(temperature, top_k=DRAFT_TOP_K), Processing(1.0)
    for start, readers in readers_along(texts, text, target.stop_tokens, steps, target.token_count):
        yield readers[0], readers[1], readers[2], start
        # Contexts refer to themselves, and hold gigabytes.
        gc.collect()


def drawn(law: FittedTree, target: Reader, draft: Reader, seed: int) -> float:
    """The tokens per step on a tree of this law."""
    context = Context(target, law)
    tree = law.draft_tree(context, SameDrafts(seed))
    for level in tree.grow():
        draft.read(level)
    target.read(tree.prefixes())
    return expected_tokens(LayerVerification(), context, tree)


def training_rows(quotas: int, temperature: float, settings: dict[str, Any]) -> list[list[float]]:
    """Features and scores of all nodes of the formula's trees, on the prompts to fit on."""
    rows = []
    for number, prompt in enumerate(half(settings["prompts"], settings["seed"], 0)):
        rng = np.random.default_rng([quotas, number])
        for target, draft, ngram, start in positions(
            rng, prompt, DEFAULT_DRAFT, temperature, settings
        ):
            law = ScoredTree(target, False, draft, ngram, start, (quotas,) * DEPTH)
            drawn(law, target, draft, int(rng.integers(2**32)))
            rows += law.rows
    return rows


def fitted(rows: FloatArray) -> FloatArray:
    """The maximum-likelihood β of Poisson counts whose means are reach · exp(β·x), slightly regularised."""
    features, scores = rows[:, :-1], rows[:, -1]
    offset = features[:, FEATURES.index("log reach")]
    scale = np.maximum(features.std(axis=0), 1e-9)
    scale[0] = 1.0

    def loss(beta: FloatArray) -> tuple[float, FloatArray]:
        log_mean = np.clip(offset + features @ (beta / scale), -60.0, 3.0)
        mean = np.exp(log_mean)
        value = float((mean - scores * log_mean).mean() + 1e-4 * beta @ beta)
        return value, features.T @ (mean - scores) / scores.size / scale + 2e-4 * beta

    return minimize(loss, np.zeros(len(FEATURES)), jac=True, method="L-BFGS-B").x / scale


def prompt_rows(
    rng: np.random.Generator,
    prompt: str,
    draft: str,
    temperature: float,
    quotas: int,
    settings: dict[str, Any],
) -> Iterator[dict[str, Any]]:
    """Sums over the positions of a text, for each estimate."""
    beta = np.load(beta_file(temperature, quotas, settings))
    counts = (quotas,) * DEPTH
    sums: dict[str, float] = dict.fromkeys(("formula", "fitted", "oracle"), 0.0)
    number = 0
    for target, drafting, ngram, start in positions(rng, prompt, draft, temperature, settings):
        seed = int(rng.integers(2**32))
        arguments = drafting, ngram, start, counts
        laws = {
            "formula": FittedTree(*arguments, np.zeros(len(FEATURES))),
            "fitted": FittedTree(*arguments, beta),
            "oracle": ScoredTree(target, True, *arguments),
        }
        for name, law in laws.items():
            sums[name] += drawn(law, target, drafting, seed)
        number += 1
    yield {"positions": number, **sums}


def beta_file(temperature: float, quotas: int, settings: dict[str, Any]) -> Path:
    """The file of the fitted β."""
    name = f"{settings['prompts']}-{settings['seed']}-{temperature:g}-{quotas}.npy"
    return Path("runs/node_weights_fits") / name


def fit(tasks: list[dict[str, Any]]) -> str:
    """Fit for each temperature and quota of the tasks; return a string that identifies the results."""
    cells = {(task["temperature"], task["quotas"]): task["settings"] for task in tasks}
    fits = []
    for (temperature, quotas), settings in cells.items():
        path = beta_file(temperature, quotas, settings)
        if not path.exists():
            rows = np.array(training_rows(quotas, temperature, settings))
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, fitted(rows))
            print(f"fitted to {len(rows)} nodes: {path}", flush=True)
        beta = np.load(path)
        fits.append(beta.tolist())
        print(temperature, quotas, dict(zip(FEATURES, beta.round(3).tolist(), strict=True)))
    return repr(fits)


def tasks_of(chosen: Namespace) -> list[dict[str, Any]]:
    """A task for each prompt to measure on, draft, temperature and quota."""
    settings = {name: getattr(chosen, name) for name in ("prompts", "seed")}
    return [
        {"prompt": prompt, "draft": draft, "temperature": t, "quotas": q, "settings": settings}
        for prompt in half(chosen.prompts, chosen.seed, 1)
        for draft in (DEFAULT_DRAFT, OTHER)
        for t in chosen.temperatures
        for q in chosen.quotas
    ]


def as_table(table: pl.DataFrame) -> str:
    """Tokens per step with the formula, and what the fitted estimate and the oracle gain."""
    lines = []
    keys = ("draft", "temperature", "quotas")
    for key, rows in table.group_by(keys, maintain_order=True):
        count = rows["positions"].to_numpy().astype(np.float64)
        means = {}
        for name in ("formula", "fitted", "oracle"):
            tokens = rows[name].to_numpy()
            means[name] = tokens.sum() / count.sum(), jackknife.left_out(tokens, count)
        base, base_without = means["formula"]
        gains = [
            interval(
                100 * (means[name][0] / base - 1), 100 * (means[name][1] / base_without - 1), ".1f"
            )
            for name in ("fitted", "oracle")
        ]
        recovered = (means["fitted"][0] - base) / (means["oracle"][0] - base)
        lines.append([*map(str, key), f"{base:.3f}", *gains, f"{recovered:.2f}"])
    return markdown([*keys, "formula", "fitted, %", "oracle, %", "recovered"], lines)


def main(arguments: list[str]) -> pl.DataFrame:
    """Fit and measure what is missing, and print."""
    defaults: dict[str, Any] = {"prompts": 8, "seed": 1}
    defaults |= {"quotas": (2, 4), "temperatures": (0.6, 1.0)}
    table = run(prompt_rows, arguments, 20.0, tasks_of, fit, **defaults)
    print(as_table(table))
    return table
