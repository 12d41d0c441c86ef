"""Tokens per step of laws of draft trees and of their rules, on trees drawn after texts of the target."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import joblib
import numpy as np
import polars as pl

from otmd.laws import Stratified, WithoutReplacement
from otmd.models.prompts import Prompt, prompt_tokens
from otmd.models.tree_reading import Reader, read_trees
from otmd.probabilities import Processing
from otmd.storage.parquet import read_parquet
from otmd.storage.store import Layout, Store
from otmd.study import jackknife
from otmd.study.runner import Bar, finish_run, frame, numbered
from otmd.study.table import Cell, Table, wrapped
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

LAYOUT = Layout(
    read_parquet,
    pattern=r"texts-\d+",
    record="trees.json",
    result="trees.parquet",
    subfolder="parts",
)
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


class TreeCandidate(NamedTuple):
    """A law of draft trees, made from the draft model, and the rules that verify its trees, by name."""

    law: str
    make: MakeTree
    rules: Mapping[str, TreeVerifier]


# Sixteen drafts each.
CANDIDATES = (
    TreeCandidate(
        "most likely tokens",
        partial(MostLikelyTree, budget=2 * DEPTH, depth=DEPTH),
        {"target only": TokenLevel(TargetOnly())},
    ),
    TreeCandidate(
        "independent paths",
        partial(IIDPaths, num_paths=2, depth=DEPTH),
        {
            "K-SEQ, token by token": TokenLevel(KSequential()),
            "greedy multi-path": GreedyMultiPath(),
            "layer by layer": LayerVerification(),
        },
    ),
    TreeCandidate(
        "drafts without replacement",
        partial(TokenTree, branching=(2, *[1] * (DEPTH - 1)), law=WithoutReplacement),
        {
            "recursive rejection, token by token": TokenLevel(RecursiveRejection()),
            "Traversal": Traversal(),
        },
    ),
    TreeCandidate(
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
    temperature: float = 1.0,
    workers: int | None = None,
    progress: bool = False,
) -> pl.DataFrame:
    """Draw trees of 16 drafts along texts that the target sampled, and ask each rule for its tokens.

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
    temperature : float
        Of the texts and of both models, above 0.
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
    rank_trees : Means with intervals.
    """
    written = {prompt.id: tuple(texts[prompt.id]) for prompt in prompts}
    about = {"target": target, "draft": draft, "prompts": [*written], "temperature": temperature}
    store = Store(output, about | {"texts": zlib.crc32(repr(written).encode())}, LAYOUT)
    groups = [
        {prompt: written[prompt.id] for prompt in prompts[i : i + _TOGETHER]}
        for i in range(0, len(prompts), _TOGETHER)
    ]
    work = partial(_texts_table, target, draft, tuple(prompts), temperature)
    most = min(workers or joblib.cpu_count(), len(groups))
    jobs = numbered("texts", groups)
    return finish_run(work, jobs, store, most, Bar("trees", len(groups), progress))


def tree_table(ranked: pl.DataFrame, confidence: float = 0.95) -> Table:
    """The table of :func:`rank_trees` for a terminal or a page."""
    heads = ["drafts and rule", "tokens per step", "bound of\nany rule", "best\nleads by"]
    rows: list[Sequence[Cell]] = [
        [_label(row), f"{row['tokens']:.2f} {_ends(row, '', '.2f')}", row["bound"], _lead(row)]
        for row in ranked.sort("tokens", descending=True).iter_rows(named=True)
    ]
    note = (
        f"Brackets: {100 * confidence:g}% intervals over prompts. *: the interval of the lead, on the same "
        "texts, excludes 0. Estimates on drawn trees: a rule may lie above its bound through noise."
    )
    return Table("draft trees of 16 tokens, best rule first", heads, rows, wrapped(note))


def _label(row: dict[str, Any]) -> str:
    """Law and rule in few words; a verifier of one position decides token by token."""
    return f"{row['law']}, {row['rule']}".removeprefix("drafts ").removesuffix(", token by token")


def _lead(row: dict[str, Any]) -> str:
    return f"{row['lead']:.1f}%{' *'[row['lead_low'] > 0]}" if row["lead"] else ""


def recommend_trees(ranked: pl.DataFrame, temperature: float = 1.0) -> str:
    """Say which drafts and rule to take, and which others this table does not tell apart from them."""
    rows = ranked.to_dicts()
    best = max(rows, key=lambda row: row["tokens"])
    said = [
        f"T = {temperature:g}, trees of 16 tokens: take {best['law']}, {best['rule']}: "
        f"{best['tokens']:.2f} tokens per step {_ends(best, '', '.2f')}."
    ]
    said += [
        f"{row['lead']:+.1f}% {_ends(row, 'lead_', '+.1f')} over {row['rule']}."
        for row in rows
        if row["law"] == best["law"] and "token by token" in row["rule"]
    ]
    if best["bound"] is not None:
        said.append(f"The bound of any lossless rule with these drafts: {best['bound']:.2f}.")
    others = [row for row in rows if row["lead_low"] <= 0 < row["lead"]]
    if others:
        names = "; ".join(f"{row['law']}, {row['rule']}" for row in others)
        said.append(f"Perhaps as good: {names}.")
    return " ".join(said)


def _ends(row: dict[str, Any], name: str, form: str) -> str:
    return f"[{row[f'{name}low']:{form}}, {row[f'{name}high']:{form}}]"


def rank_trees(table: pl.DataFrame, confidence: float = 0.95) -> pl.DataFrame:
    """Mean tokens per step of each law and rule, with intervals over prompts by the jackknife.

    Parameters
    ----------
    table : polars.DataFrame
        Of :func:`compare_trees`.
    confidence : float
        The coverage of the intervals, in (0, 1).

    Returns
    -------
    polars.DataFrame
        ``law``, ``rule``, ``tokens`` with its ends ``low`` and ``high``, ``bound``, and the lead of the best
        rule over this one in per cent, ``lead`` with ``lead_low`` and ``lead_high``, on the same texts.
    """
    of_prompts = table.group_by("law", "rule", "domain", "prompt_id", maintain_order=True).agg(
        pl.len().alias("positions"),
        pl.col("tokens").sum(),
        # Of nulls, polars has the sum 0.
        pl.when(pl.col("bound").is_null().any())
        .then(None)
        .otherwise(pl.col("bound").sum())
        .alias("bound"),
    )
    means: list[dict[str, Any]] = []
    left_out = []
    for (law, rule), rows in of_prompts.group_by("law", "rule", maintain_order=True):
        sizes = rows["positions"].to_numpy().astype(np.float64)
        tokens = rows["tokens"].to_numpy()
        without = jackknife.left_out(tokens, sizes)
        mean = tokens.sum() / sizes.sum()
        low, high = jackknife.interval(mean, without, confidence)
        bound = None if rows["bound"].has_nulls() else rows["bound"].sum() / sizes.sum()
        means.append(
            {"law": law, "rule": rule, "tokens": mean, "low": low, "high": high, "bound": bound}
        )
        left_out.append(without)
    best = max(range(len(means)), key=lambda i: means[i]["tokens"])
    for row, without in zip(means, left_out, strict=True):
        lead = means[best]["tokens"] / row["tokens"] - 1
        low, high = jackknife.interval(lead, left_out[best] / without - 1, confidence)
        row |= {"lead": 100 * lead, "lead_low": 100 * low, "lead_high": 100 * high}
    return pl.DataFrame(means)


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
    target: str,
    draft: str,
    prompts: tuple[Prompt, ...],
    temperature: float,
    texts: Mapping[Prompt, Prefix],
) -> pl.DataFrame:
    """The rows of some texts, which each model reads together."""
    from otmd.models.continuations import branches

    models = loaded_pair(target, draft, prompts)
    tokenizer, size, stops = models[0].tokenizer, models[0].token_count, models[0].stop_tokens
    step = Processing(temperature)
    starts = [
        (prompt, text, start)
        for prompt, text in texts.items()
        for start in STARTS
        if start <= len(text) and not stops & {*text[:start]}
    ]
    read = [[*prompt_tokens(tokenizer, prompt), *text[:start]] for prompt, text, start in starts]
    readers = [[Reader(text, step, size) for text in branches(model, read)] for model in models]
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
    _read_trees(positions)
    rows: list[dict[str, Any]] = []
    while positions:
        # Each position is forgotten before the next one's distributions are computed.
        rows += _rows_at(positions.pop(0))
    return frame(rows, schema=SCHEMA)


def _read_trees(positions: Sequence[_Position]) -> None:
    """Draw all trees, so that a model reads a level of all of them in one call."""
    for position in positions:
        position.draft.read([position.following[:i] for i in range(DEPTH)])
        position.target.read([position.following[:i] for i in range(DEPTH)])
    read_trees((tree, at.target, at.draft) for at in positions for tree in at.trees)


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
