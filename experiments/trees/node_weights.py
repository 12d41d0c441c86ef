"""Fitted estimates of the nodes' reach in adaptive trees, compared with the formula and with an oracle.

    python -m experiments node_weights
    python -m experiments node_weights --prompts 1 --positions 1 --temperatures 1.0

An adaptive tree gives each level's drafts to the nodes of the largest reach, an estimate of the probability
that the accepted path ends at them or below. Given the drafts above, the layer rule's score of a node is
that probability. So an oracle takes the scores. A fitted estimate is the formula's reach times exp(β·x), by
Poisson regression of the scores of the formula's trees on the last ``FIT_PROMPTS`` prompts of each domain, at
the default draft. *Nine* has the features ``FEATURES``; *hidden* also the draft model's last hidden state at
the node, reduced to its first ``COMPONENTS`` principal components. The weight of their ridge penalty is the
best of ``RIDGES`` in a cross-validation over prompts. Other prompts are measured, at this draft and at
``OTHER``. All trees have eight levels. The layer rule decides. Intervals are 95%, over prompts; *recovers* is
the gain in units of the oracle's.
"""

import gc
import hashlib
import io
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from scipy.optimize import minimize

from experiments.claims.positions import PER_DOMAIN, chosen_prompts
from experiments.claims.whole_trees import DEPTH, STARTS, Reader, readers_along, sampled
from experiments.estimates import interval
from experiments.runner import markdown, run, write_whole
from experiments.texts import after_prompt, load_models
from experiments.trees.adaptive_trees import DRAFT_TOP_K, of_each_domain
from otmd import Processing
from otmd.models import DEFAULT_DRAFT, Draft, LanguageModel
from otmd.models.drawn_trees import SameDrafts
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

FIT_PROMPTS, FIT_POSITIONS = 8, 2
COMPONENTS = 32
RIDGES = (1e-3, 1e-2, 1e-1, 1.0)
FOLDS = 4
ESTIMATES = ("nine", "hidden", "oracle")


class Place(NamedTuple):
    """Readers after the first ``start`` tokens of a text, and the draft's raw logits after prefixes."""

    target: Reader
    draft: Reader
    ngram: Reader
    start: int
    logits: Callable[[Sequence[Prefix]], list[np.ndarray]]


class FittedTree(AdaptiveTree):
    """An adaptive tree with the fitted estimate; with ``beta`` = 0 it has the formula's, as AdaptiveTree.

    ``direction`` (V,) adds its product with the draft's logits after a node to β·x. The last hidden state is
    a linear map of these logits.
    """

    def __init__(
        self,
        place: Place,
        quotas: tuple[int, ...],
        beta: FloatArray,
        direction: FloatArray | None = None,
    ) -> None:
        super().__init__(place.draft, quotas)
        self.beta = beta
        self.direction = direction
        self.place = place

    def features(self, prefix: Prefix, leaf: Leaf) -> list[float]:
        """The numbers of ``FEATURES`` at a node below the root."""
        above, token = prefix[:-1], prefix[-1]
        drafted, counted = np.asarray(self.draft_model(above)), self.place.ngram(above)
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
            np.log1p(self.place.start),
        ]

    def correction(self, prefix: Prefix, leaf: Leaf) -> float:
        """The factor of the formula's reach."""
        exponent = float(self.beta @ self.features(prefix, leaf))
        if self.direction is not None:
            [logits] = self.place.logits([prefix])
            exponent += float(self.direction @ logits[: self.direction.size])
        return float(np.exp(exponent))

    def num_drafts(self, leaves: Mapping[Prefix, Leaf], quota: int) -> dict[Prefix, int]:
        """See :meth:`AdaptiveTree.num_drafts`."""
        if () not in leaves:
            leaves = {
                prefix: leaf._replace(reach=leaf.reach * self.correction(prefix, leaf))
                for prefix, leaf in leaves.items()
            }
        return super().num_drafts(leaves, quota)


class ScoredTree(FittedTree):
    """An adaptive tree that knows the scores of the nodes; it keeps features and scores of all of them."""

    def __init__(self, place: Place, quotas: tuple[int, ...], oracle: bool) -> None:
        super().__init__(place, quotas, np.zeros(len(FEATURES)))
        self.oracle = oracle
        self.rows: dict[Prefix, list[float]] = {}

    def grow(self, tree: GrownTree) -> Iterator[list[Prefix]]:
        """See :meth:`AdaptiveTree.grow`."""
        self._tree = tree
        self._scores: dict[Prefix, float] = {(): 1.0}
        return super().grow(tree)

    def num_drafts(self, leaves: Mapping[Prefix, Leaf], quota: int) -> dict[Prefix, int]:
        """See :meth:`AdaptiveTree.num_drafts`."""
        if () not in leaves:
            self.place.target.read(list(self._scores))
            context = Context(self.place.target, self)
            layer = SweptLayer(LayerVerification(), context, self._tree, self._scores)
            scores = layer.child_scores()
            self._scores = {prefix: scores.get(prefix, 0.0) for prefix in leaves}
            for prefix, leaf in leaves.items():
                self.rows[prefix] = [*self.features(prefix, leaf), self._scores[prefix]]
            if self.oracle:
                leaves = {p: leaf._replace(reach=self._scores[p]) for p, leaf in leaves.items()}
        return AdaptiveTree.num_drafts(self, leaves, quota)


@cache
def loaded(draft: str) -> tuple[LanguageModel, LanguageModel, Draft]:
    """The target, the draft and the n-gram, which is fitted on texts that are not among the prompts."""
    target, [drafting, ngram] = load_models("default", [draft, NGRAM], chosen_prompts())
    assert isinstance(drafting, LanguageModel)
    return pack_weights(target), pack_weights(drafting), ngram


def places(
    rng: np.random.Generator, prompt: int, draft: str, temperature: float, number: int
) -> Iterator[Place]:
    """So many positions of a text of a prompt."""
    models = loaded(draft)
    target = models[0]
    texts = [after_prompt(model, target, chosen_prompts()[prompt]) for model in models]
    [text] = sampled(texts[0], [temperature], STARTS[-1], rng)
    steps = Processing(temperature), Processing(temperature, top_k=DRAFT_TOP_K), Processing(1.0)
    along = readers_along(texts, text, target.stop_tokens, steps, target.token_count)
    for start, (verifying, drafting, counting) in islice(along, number):
        yield Place(verifying, drafting, counting, start, texts[1].logits)
        # Contexts refer to themselves, and hold gigabytes.
        gc.collect()


def drawn(laws: Sequence[FittedTree], seed: int) -> list[float]:
    """The tokens per step on a tree of each law at one position; the trees are drawn side by side."""
    place = laws[0].place
    contexts = [Context(place.target, law) for law in laws]
    trees = [context.law.draft_tree(context, SameDrafts(seed)) for context in contexts]
    growing = [tree.grow() for tree in trees]
    while level := {prefix for tree in growing for prefix in next(tree, [])}:
        place.draft.read(sorted(level))
    place.target.read([prefix for tree in trees for prefix in tree.prefixes()])
    pairs = zip(contexts, trees, strict=True)
    return [expected_tokens(LayerVerification(), context, tree) for context, tree in pairs]


class Nodes(NamedTuple):
    """Training nodes: features (N, F), the layer rule's scores, hidden states (N, D), and prompts."""

    features: FloatArray
    scores: FloatArray
    hidden: FloatArray
    prompts: FloatArray


@cache
def from_logits(draft: str) -> FloatArray:
    """The matrix (V, D) that turns logits into the hidden state: the pseudo-inverse of the output layer."""
    weights = loaded(draft)[1].model.get_output_embeddings().weight.detach().double().numpy()
    return weights @ np.linalg.inv(weights.T @ weights)


def training_nodes(quota: int, temperature: float) -> Nodes:
    """All nodes of the formula's trees on the prompts to fit on."""
    inverse = from_logits(DEFAULT_DRAFT).astype(np.float32)
    rows, states, prompts = [], [], []
    for prompt in of_each_domain(range(PER_DOMAIN - FIT_PROMPTS, PER_DOMAIN)):
        rng = np.random.default_rng([quota, prompt])
        for place in places(rng, prompt, DEFAULT_DRAFT, temperature, FIT_POSITIONS):
            law = ScoredTree(place, (quota,) * DEPTH, oracle=False)
            drawn([law], int(rng.integers(2**32)))
            rows += law.rows.values()
            logits = np.stack(place.logits(list(law.rows)))
            states.append(logits[:, : len(inverse)] @ inverse[: logits.shape[1]])
            prompts += [prompt] * len(law.rows)
    table = np.array(rows)
    hidden = np.concatenate(states).astype(np.float64)
    return Nodes(table[:, :-1], table[:, -1], hidden, np.array(prompts, np.float64))


def log_means(features: FloatArray, beta: FloatArray) -> FloatArray:
    """The logarithms of the reach after the correction, (N,); more than e³ would be no probability."""
    offset = features[:, FEATURES.index("log reach")]
    return np.clip(offset + features @ beta, -60.0, 3.0)


def deviance(features: FloatArray, scores: FloatArray, beta: FloatArray) -> float:
    """The mean negative log-likelihood of Poisson counts, up to a constant."""
    logs = log_means(features, beta)
    return float((np.exp(logs) - scores * logs).mean())


def fitted(features: FloatArray, scores: FloatArray, ridge: float = 1e-4) -> FloatArray:
    """The maximum-likelihood β of Poisson counts whose means are reach · exp(β·x), regularised.

    ``ridge`` is the penalty of the columns after ``FEATURES``, scaled to unit variance; those have 1e-4.
    """
    scale = np.maximum(features.std(axis=0), 1e-9)
    scale[0] = 1.0
    penalty = np.full(scale.size, ridge)
    penalty[: len(FEATURES)] = 1e-4

    def loss(beta: FloatArray) -> tuple[float, FloatArray]:
        value = deviance(features, scores, beta / scale) + float(penalty @ beta**2)
        mean = np.exp(log_means(features, beta / scale))
        return value, features.T @ (mean - scores) / scores.size / scale + 2 * penalty * beta

    return minimize(loss, np.zeros(scale.size), jac=True, method="L-BFGS-B").x / scale


def cross_validated(
    features: FloatArray, scores: FloatArray, prompts: FloatArray, ridge: float
) -> float:
    """The deviance at prompts that are left out of the fit."""
    fold = np.unique(prompts, return_inverse=True)[1] % FOLDS
    left_out = [
        (fold == i, fitted(features[fold != i], scores[fold != i], ridge)) for i in range(FOLDS)
    ]
    return float(np.mean([deviance(features[at], scores[at], beta) for at, beta in left_out]))


class Fits(NamedTuple):
    """β of the nine features alone; and with hidden states, β and what the hidden state (D,) adds."""

    nine: FloatArray
    beta: FloatArray
    hidden: FloatArray


def fit_nodes(nodes: Nodes) -> tuple[Fits, dict[str, float]]:
    """Both fits; and the cross-validated deviances of the formula, of the nine features and of each ridge."""
    mean = nodes.hidden.mean(axis=0)
    basis = np.linalg.svd(nodes.hidden - mean, full_matrices=False)[2][:COMPONENTS]
    features = np.hstack([nodes.features, (nodes.hidden - mean) @ basis.T])
    formula = deviance(nodes.features, nodes.scores, np.zeros(len(FEATURES)))
    nine = cross_validated(nodes.features, nodes.scores, nodes.prompts, 1e-4)
    by_ridge = {
        ridge: cross_validated(features, nodes.scores, nodes.prompts, ridge) for ridge in RIDGES
    }
    beta = fitted(features, nodes.scores, min(by_ridge, key=lambda ridge: by_ridge[ridge]))
    hidden = beta[len(FEATURES) :] @ basis
    beta = beta[: len(FEATURES)].copy()
    beta[0] -= hidden @ mean
    about = {"formula": formula, "nine": nine} | {f"ridge {of:g}": by_ridge[of] for of in RIDGES}
    return Fits(fitted(nodes.features, nodes.scores), beta, hidden), about


@cache
def fits(temperature: float, quota: int) -> Fits:
    """The fits of a temperature, computed or read from a file."""
    about = Path(__file__).read_bytes() + repr((temperature, quota)).encode()
    path = Path("runs/node_weights_fits") / f"{hashlib.sha256(about).hexdigest()[:16]}.npz"
    if not path.exists():
        nodes = training_nodes(quota, temperature)
        result, deviances = fit_nodes(nodes)
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **result._asdict())
        write_whole(path, file.getvalue())
        print(f"T = {temperature:g}: {len(nodes.scores)} nodes, deviances {deviances}", flush=True)
    with np.load(path) as arrays:
        return Fits(**arrays)


def prompt_rows(
    rng: np.random.Generator, prompt: int, draft: str, temperature: float, quota: int, number: int
) -> Iterator[dict[str, Any]]:
    """Sums over the positions of a text, for each estimate."""
    fit = fits(temperature, quota)
    direction = from_logits(draft) @ fit.hidden
    counts = (quota,) * DEPTH
    sums: dict[str, float] = dict.fromkeys(("formula", *ESTIMATES), 0.0)
    done = 0
    for place in places(rng, prompt, draft, temperature, number):
        laws = {
            "formula": FittedTree(place, counts, np.zeros(len(FEATURES))),
            "nine": FittedTree(place, counts, fit.nine),
            "hidden": FittedTree(place, counts, fit.beta, direction),
            "oracle": ScoredTree(place, counts, oracle=True),
        }
        values = drawn(list(laws.values()), int(rng.integers(2**32)))
        for name, tokens in zip(laws, values, strict=True):
            sums[name] += tokens
        done += 1
    yield {"positions": done, **sums}


def tasks_of(chosen: Namespace) -> list[dict[str, Any]]:
    """A task for each prompt to measure on, draft and temperature."""
    settings = {"quota": chosen.quota, "number": chosen.positions}
    return [
        {"prompt": prompt, "draft": draft, "temperature": temperature, **settings}
        for prompt in of_each_domain(range(chosen.prompts))
        for draft in (DEFAULT_DRAFT, OTHER)
        for temperature in chosen.temperatures
    ]


def identity(tasks: Sequence[dict[str, Any]]) -> str:
    """A string that identifies the prompts, and with them the fits."""
    return repr([prompt.id for prompt in chosen_prompts()])


def as_table(table: pl.DataFrame) -> str:
    """Tokens per step with the formula, what the estimates gain, and the parts of the oracle's gain."""
    lines = []
    keys = ("draft", "temperature")
    for key, rows in table.group_by(*keys, maintain_order=True):
        count = rows["positions"].to_numpy().astype(np.float64)
        means = {}
        for name in ("formula", *ESTIMATES):
            tokens = rows[name].to_numpy()
            means[name] = tokens.sum() / count.sum(), jackknife.left_out(tokens, count)
        base, without = means["formula"]
        gains = [
            interval(100 * (mean / base - 1), 100 * (mean_without / without - 1), "+.1f")
            for mean, mean_without in (means[name] for name in ESTIMATES)
        ]
        most = means["oracle"][0] - base
        recovered = [f"{(means[name][0] - base) / most:.2f}" for name in ESTIMATES[:2]]
        lines.append([*map(str, key), f"{base:.3f}", *gains, *recovered])
    heads = [f"{name}, %" for name in ESTIMATES] + [f"{name} recovers" for name in ESTIMATES[:2]]
    return markdown([*keys, "formula", *heads], lines)


def main(arguments: list[str]) -> pl.DataFrame:
    """Fit and measure what is missing, and print."""
    defaults: dict[str, Any] = {"prompts": 4, "positions": 2, "quota": 4}
    defaults |= {"temperatures": (0.6, 1.0)}
    table = run(prompt_rows, arguments, 20.0, tasks_of, identity, **defaults)
    print(as_table(table))
    return table
