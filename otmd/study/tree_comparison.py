"""Tokens per step of laws of draft trees and of their rules, on trees drawn after texts of the target."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from otmd.laws import Stratified, WithoutReplacement
from otmd.models.continuations import Reader, read_trees
from otmd.models.prompts import Prompt, prompt_tokens
from otmd.probabilities import Processing
from otmd.study.runner import frame, run_study
from otmd.trees import (
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
)
from otmd.trees.base import Context, DraftTree, Model, Prefix
from otmd.trees.random_choices import Sampled
from otmd.verifiers import KSequential, Preference, RecursiveRejection, TargetOnly

if TYPE_CHECKING:
    from otmd.models import Draft, LanguageModel

DEPTH = 8
STARTS = (8, 16)
"""Trees are drawn after so many tokens of a text."""

# A model reads the trees of so many texts in one call: a call costs little more for more of them.
_TOGETHER = 4

SCHEMA: dict[str, Any] = {
    **{"domain": str, "prompt_id": str, "start": int, "law": str, "rule": str},
    **{"tokens": float, "bound": float},
}
MakeTree = Callable[[Model], TreeLaw]


class Candidate(NamedTuple):
    """A law of draft trees, made from the draft model, and the rules that verify its trees, by name.

    In a plan, ``tree`` says its shape, and ``levels`` and ``budget`` what a step costs, as
    :meth:`otmd.study.latency.Latency.step` takes them.
    """

    law: str
    make: MakeTree
    rules: Mapping[str, TreeVerifier]
    tree: str = ""
    levels: tuple[int, ...] = ()
    budget: int = 0


# Sixteen drafts each.
CANDIDATES = (
    Candidate(
        "most likely tokens",
        partial(MostLikelyTree, budget=2 * DEPTH, depth=DEPTH),
        {"target only": TokenLevel(TargetOnly())},
    ),
    Candidate(
        "independent paths",
        partial(IIDPaths, num_paths=2, depth=DEPTH),
        {
            "K-SEQ, token by token": TokenLevel(KSequential()),
            "greedy multi-path": GreedyMultiPath(),
            "layer by layer": LayerVerification(),
        },
    ),
    Candidate(
        "drafts without replacement",
        partial(TokenTree, branching=(2, *[1] * (DEPTH - 1)), law=WithoutReplacement),
        {
            "recursive rejection, token by token": TokenLevel(RecursiveRejection()),
            "Traversal": Traversal(),
        },
    ),
    Candidate(
        "stratified drafts",
        partial(TokenTree, branching=(2, *[1] * (DEPTH - 1)), law=Stratified),
        {
            "preference, token by token": TokenLevel(Preference()),
            "node by node": SubtreeVerification(),
            "layer by layer": LayerVerification(),
        },
    ),
)


def compare_trees(
    target: str,
    draft: str,
    prompts: Sequence[Prompt],
    texts: Mapping[str, Sequence[int]],
    output: Path,
    workers: int | None = None,
    progress: bool = False,
) -> pl.DataFrame:
    """Draw trees of 16 drafts along texts that the target sampled, and ask each rule for its tokens.

    The texts are of temperature 1, and so are both models.

    Parameters
    ----------
    target, draft : str
        Names as :func:`otmd.models.load_target` and :func:`otmd.models.load_draft` take them.
    prompts : sequence of Prompt
        The prompts of the texts.
    texts : mapping of str to sequence of int
        By the prompts' ids, the tokens that the target sampled after them. Trees are drawn after 8 and 16.
    output : Path
        The folder of the results; an interrupted run is continued, a finished one is read.
    workers : int
        Processes, each with both models; one per CPU unless given.
    progress : bool
        Show a progress bar.

    Returns
    -------
    polars.DataFrame
        A row for each position, law and rule. ``tokens`` is an unbiased estimate of the tokens per step,
        averaged over the rule's decisions on the drawn tree; ``bound`` one of the inclusion bound of the law
        (null for deterministic drafts, whose rule attains it). Both share the noise of the text.

    Raises
    ------
    ValueError
        If the folder holds results of other models or texts.

    See Also
    --------
    rank : Means with intervals.
    """
    written = {prompt.id: tuple(texts[prompt.id]) for prompt in prompts}
    about = {"target": target, "draft": draft, "prompts": [*written], "temperature": 1.0}
    about |= {"texts": zlib.crc32(repr(written).encode())}
    groups = [
        {prompt: written[prompt.id] for prompt in prompts[i : i + _TOGETHER]}
        for i in range(0, len(prompts), _TOGETHER)
    ]
    work = partial(_texts_table, target, draft, tuple(prompts))
    return run_study("trees", work, groups, output, about, workers, progress=progress)


@cache
def loaded_pair(
    target: str, draft: str, prompts: tuple[Prompt, ...]
) -> tuple[LanguageModel, Draft]:
    """Both models of a process; an n-gram draft is fitted on texts that are not among the prompts."""
    # A finished run is read without torch.
    import torch

    from otmd.models import load_draft, load_target
    from otmd.models.collection import held_out_corpus

    torch.set_num_threads(1)
    model = load_target(target, progress=False)
    corpus = held_out_corpus(draft, model, prompts, progress=False)
    return model, load_draft(draft, model, corpus)


class _Position(NamedTuple):
    """A position of a text: both models after it, how it goes on, and a tree of each candidate."""

    about: dict[str, Any]
    target: Reader
    draft: Reader
    following: Prefix
    contexts: list[Context]
    trees: list[DraftTree]


def _texts_table(
    target: str, draft: str, prompts: tuple[Prompt, ...], texts: Mapping[Prompt, Prefix]
) -> pl.DataFrame:
    """The rows of some texts, which each model reads together."""
    from otmd.models.continuations import branches

    models = loaded_pair(target, draft, prompts)
    tokenizer, size, stops = models[0].tokenizer, models[0].token_count, models[0].stop_tokens
    starts = [
        (prompt, text, start)
        for prompt, text in texts.items()
        for start in STARTS
        if start <= len(text) and not stops & {*text[:start]}
    ]
    read = [[*prompt_tokens(tokenizer, prompt), *text[:start]] for prompt, text, start in starts]
    readers = [
        [Reader(text, Processing(), size) for text in branches(model, read)] for model in models
    ]
    positions = []
    for (prompt, text, start), after, drafting in zip(starts, *readers, strict=True):
        rng = np.random.default_rng([zlib.crc32(prompt.id.encode()), start])
        following = text[start : start + DEPTH]
        # What a tree drafts may go on after the end of a text, so this does as well.
        while len(following) < DEPTH:
            probs = after(following)
            following = (*following, int(rng.choice(probs.size, p=probs)))
        contexts = [Context(after, candidate.make(drafting)) for candidate in CANDIDATES]
        trees = [context.law.draft_tree(context, Sampled(rng)) for context in contexts]
        about = {"domain": prompt.domain, "prompt_id": prompt.id, "start": start}
        positions.append(_Position(about, after, drafting, following, contexts, trees))
    # A model reads a level of all trees in one call.
    for at in positions:
        for model in (at.draft, at.target):
            model.read([at.following[:i] for i in range(DEPTH)])
    read_trees((tree, at.target, at.draft) for at in positions for tree in at.trees)
    rows: list[dict[str, Any]] = []
    while positions:
        # Each position is forgotten before the next one's distributions are computed.
        rows += _rows_at(positions.pop(0))
    return frame(rows, schema=SCHEMA)


def _rows_at(position: _Position) -> Iterator[dict[str, Any]]:
    """A row for each law and rule."""
    for candidate, context, tree in zip(CANDIDATES, position.contexts, position.trees, strict=True):
        bound, less_noise = None, 0.0
        if not isinstance(context.law, MostLikelyTree):
            bound = InclusionBound().along(context, position.following)
            # Both are estimates of the bound: the tree's has the noise of the drafts, the text's has not.
            less_noise = bound - InclusionBound().expected_tokens(context, tree)
        for name, rule in candidate.rules.items():
            tokens = rule.expected_tokens(context, tree) + less_noise
            named = {"law": candidate.law, "rule": name}
            yield position.about | named | {"tokens": tokens, "bound": bound}
