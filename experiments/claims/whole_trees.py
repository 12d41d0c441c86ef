"""Tokens per step of verifiers of whole trees, at positions of texts that the target samples.

    python -m experiments whole_trees

The pairs and prompts are those of ``positions.py``. At every eighth token of a text a draft tree is drawn for
each law and shape, both models read all trees, and every rule of that law decides on the same tree. Of a rule
``tokens`` is an unbiased estimate of the tokens per step at the position, averaged exactly over the
rule's decisions on the tree. ``on_tree`` and ``on_text`` are estimates of the inclusion bound of this law,
from the same tree and from the text that follows. So tokens − on_tree + on_text has the same mean as tokens,
and less variance where the tree decides how much can be accepted.
"""

import hashlib
from collections.abc import Callable, Container, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch

import otmd
from experiments.claims.positions import MODELS, chosen_prompts
from experiments.claims.tree_leads import leads
from experiments.runner import run
from experiments.texts import after_prompt, load_models
from otmd import Processing
from otmd.laws import DraftLaw
from otmd.models import Draft, LanguageModel
from otmd.models.continuations import Continuations, Reader
from otmd.models.language_models import sample_token
from otmd.models.packing import pack_weights
from otmd.probabilities import FloatArray
from otmd.trees import (
    BlockVerification,
    GreedyMultiPath,
    IIDPaths,
    InclusionBound,
    LayerVerification,
    MostLikelyTree,
    SubtreeVerification,
    TokenLevel,
    TokenTree,
    Traversal,
    TreeLaw,
    TreeVerifier,
    inclusion,
)
from otmd.trees.base import Context, DraftTree, Model, Prefix
from otmd.trees.random_choices import Sampled

APART = 8
STARTS = (0, APART, 2 * APART)
DEPTH = 8
"""The levels of trees; texts go on for so many tokens after the last position."""

TEMPERATURES = (0.6, 1.0)
COLD = {"skip:13,15,17": (0.1,)}
"""Temperatures that are measured for one draft only."""


class Candidate(NamedTuple):
    """A law of trees of one shape, and the rules that verify them.

    ``tree`` makes the law of the tree from the draft model.
    """

    law: str
    shape: str
    tree: Callable[[Model], TreeLaw]
    rules: dict[str, TreeVerifier]


NODE_LAWS: dict[str, tuple[Callable[[FloatArray, int], DraftLaw], dict[str, TreeVerifier]]] = {
    "strata": (
        otmd.Stratified,
        {
            "token level": TokenLevel(otmd.Preference()),
            "node by node": SubtreeVerification(),
            "layer": LayerVerification(),
        },
    ),
    "without replacement": (
        otmd.WithoutReplacement,
        {"token level": TokenLevel(otmd.RecursiveRejection()), "Traversal": Traversal()},
    ),
    "greedy": (
        otmd.Greedy,
        {"token level": TokenLevel(otmd.Preference()), "node by node": SubtreeVerification()},
    ),
}
PATHS: dict[str, TreeVerifier] = {
    "token level": TokenLevel(otmd.Preference()),
    "K-SEQ": TokenLevel(otmd.KSequential()),
    "GBV": GreedyMultiPath(),
    "layer": LayerVerification(),
}
ONE_PATH: dict[str, TreeVerifier] = {
    "token level": TokenLevel(otmd.Preference()),
    "block": BlockVerification(),
}
MOST_LIKELY = "most likely"
CERTAIN: dict[str, TreeVerifier] = {"target only": TokenLevel(otmd.TargetOnly())}
SHAPES = ((2, *[1] * 7), (4, 1, 1, 1), (2, 2, 1, 1))
"""Numbers of drafts at the root, below each of its drafts, and so on: 16 drafts or 14."""

MOST_PATHS = ((2, 8), (4, 4))
"""Numbers of independent paths and of levels."""

BUDGET = 16


def candidates() -> Iterator[Candidate]:
    """Every law and shape that is measured."""
    for law, (kind, rules) in NODE_LAWS.items():
        for shape in SHAPES:
            name = "×".join(map(str, shape))
            yield Candidate(law, name, partial(TokenTree, branching=shape, law=kind), rules)
    for k, depth in MOST_PATHS:
        name = "+".join([str(k)] * depth)
        yield Candidate("paths", name, partial(IIDPaths, num_paths=k, depth=depth), PATHS)
    path = partial(TokenTree, branching=[1] * DEPTH)
    yield Candidate("one path", f"chain of {DEPTH}", path, ONE_PATH)
    tree = partial(MostLikelyTree, budget=BUDGET, depth=DEPTH)
    yield Candidate(MOST_LIKELY, MOST_LIKELY, tree, CERTAIN)


def readers_along(
    models: Sequence[Continuations],
    text: Sequence[int],
    stop_tokens: Container[int],
    steps: Sequence[Processing],
    vocab_size: int,
) -> Iterator[tuple[int, list[Reader]]]:
    """Readers of all models after each of the ``STARTS`` before the text's end, and that start."""
    ends = [i for i, token in enumerate(text) if token in stop_tokens]
    read = 0
    for start in STARTS:
        if start > min(ends, default=start):
            return
        if start:
            for model in models:
                model.extend(text[read:start])
        read = start
        readers = [Reader(model, step, vocab_size) for model, step in zip(models, steps, strict=True)]
        yield start, readers


def growth(law: TreeLaw, draft: Reader, rng: np.random.Generator) -> Iterator[list[Prefix]]:
    """Draw a tree level by level; before each level, yield its prefixes, which the draft model must read."""
    level: dict[Prefix, Any] = {(): law.root(draft)}
    while level:
        yield list(level)
        below = {}
        for prefix, state in level.items():
            node = law.node_law(draft(prefix), state) if len(prefix) < law.depth else None
            if node is not None:
                tokens = node.sample(rng=rng)
                for token in np.unique(tokens).tolist():
                    below[*prefix, token] = law.child(state, tokens, token)
        level = below


def read_trees(listed: Sequence[Candidate], seeds: Sequence[int], target: Reader, draft: Reader) -> None:
    """Let the draft model read the trees of all candidates, level by level, then the target.

    The trees are not kept: the laws of all nodes of all trees take gigabytes at a large vocabulary.
    """
    growths = []
    for candidate, seed in zip(listed, seeds, strict=True):
        law, rng = candidate.tree(draft), np.random.default_rng(seed)
        if candidate.law == MOST_LIKELY:
            growths.append(law.draft_tree(Context(target, law), Sampled(rng)).grow())
        else:
            growths.append(growth(law, draft, rng))
    nodes: set[Prefix] = set()
    while level := {prefix for tree in growths for prefix in next(tree, [])}:
        nodes |= level
        draft.read(sorted(prefix for prefix in level if len(prefix) < DEPTH))
    target.read(sorted(nodes))


def position_rows(
    target: Reader,
    draft: Reader,
    text: Sequence[int],
    listed: Sequence[Candidate],
    rng: np.random.Generator,
) -> Iterator[dict[str, Any]]:
    """A row for every candidate and rule at one position, which ``text`` continues."""
    along = [tuple(text[:i]) for i in range(len(text))]
    draft.read(along)
    target.read(along)
    seeds = rng.integers(2**32, size=len(listed)).tolist()
    read_trees(listed, seeds, target, draft)
    for candidate, seed in zip(listed, seeds, strict=True):
        context = Context(target, candidate.tree(draft))
        tree = DraftTree(context, Sampled(np.random.default_rng(seed)))
        # All of it is drawn in the order of :func:`growth`, and so is the same.
        tree.prefixes()
        about = {"law": candidate.law, "shape": candidate.shape, "on_tree": 0.0, "on_text": 0.0}
        if candidate.law != MOST_LIKELY:
            about["on_tree"] = InclusionBound().expected_tokens(context, tree)
            about["on_text"] = InclusionBound().along(context, text)
        for name, rule in candidate.rules.items():
            yield {**about, "rule": name, "tokens": rule.expected_tokens(context, tree)}
        # They hold hundreds of megabytes.
        del context, tree


def sampled(
    text: Continuations, temperatures: Sequence[float], length: int, rng: np.random.Generator
) -> list[Prefix]:
    """A text of the target at each temperature. It does not end: what a tree drafts may not, either."""
    paths: list[Prefix] = [() for _ in temperatures]
    for _ in range(length):
        rows = zip(paths, text.logits(paths), temperatures, strict=True)
        paths = [(*path, sample_token(logits, t, rng)) for path, logits, t in rows]
    return paths


@cache
def loaded(pairs: str, draft: str) -> tuple[LanguageModel, Draft]:
    """The target and a draft; an n-gram draft is fitted on texts that are not among the prompts.

    The pair of two sizes is computed in bfloat16, the dtype of its release, the others in float32.
    """
    models = MODELS[pairs]
    target, [drafting] = load_models(models.target, [models.drafts[draft]], chosen_prompts())
    if pairs == "sizes":
        for model in (target, drafting):
            if isinstance(model, LanguageModel):
                model.model.to(torch.bfloat16)
        return target, drafting
    packed = pack_weights(drafting) if isinstance(drafting, LanguageModel) else drafting
    return pack_weights(target), packed


def prompt_rows(
    rng: np.random.Generator, prompt: int, draft: str, pairs: str = "layers"
) -> Iterator[dict[str, Any]]:
    """Sums over the positions of a prompt's texts, of every candidate and rule."""
    target, drafting = loaded(pairs, draft)
    chosen = chosen_prompts()[prompt]
    temperatures = COLD.get(draft, ()) + TEMPERATURES
    listed = list(candidates())
    read = partial(after_prompt, target=target, prompt=chosen)
    length = STARTS[-1] + DEPTH
    for t, text in zip(temperatures, sampled(read(target), temperatures, length, rng), strict=True):
        models = read(target), read(drafting)
        steps = [Processing(t)] * 2
        rows: list[dict[str, Any]] = []
        number = 0
        for start, readers in readers_along(models, text, target.stop_tokens, steps, target.token_count):
            following = text[start : start + DEPTH]
            rows += position_rows(readers[0], readers[1], following, listed, rng)
            number += 1
        by = pl.DataFrame(rows).group_by("law", "shape", "rule", maintain_order=True)
        sums = by.agg(pl.col("tokens", "on_tree", "on_text").sum())
        about = {"domain": chosen.domain, "temperature": t, "positions": number}
        yield from ({**about, **row} for row in sums.to_dicts())


def identity(tasks: Sequence[dict[str, Any]]) -> str:
    """A string that identifies the estimates, prompts and models, which are in other files."""
    code = Path(inclusion.__file__).read_bytes()
    names = [prompt.id for prompt in chosen_prompts()]
    return hashlib.sha256(code + repr((names, MODELS)).encode()).hexdigest()


def main(arguments: list[str]) -> pl.DataFrame:
    """Measure what is missing, and print the leads."""
    return run(prompt_rows, arguments, 20.0, data=identity, summarise=leads)
