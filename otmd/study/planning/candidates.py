"""The candidates of a plan: verifiers with the laws of drafts that they may serve."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from otmd import verifiers
from otmd.engines import CATALOGUE
from otmd.laws import DraftLaw, Greedy, Stratified, WithReplacement
from otmd.trees import LayerVerification, SubtreeVerification, TreeVerifier

MakeLaw = Callable[[ArrayLike, int], DraftLaw]


class Candidate(NamedTuple):
    """A rule with the laws that it may serve.

    Attributes
    ----------
    title : str
    verifier : Verifier
    variants : dict of str to callable
        Functions of (draft_probs, num_drafts) that make the law with different parameters. Empty for trees of
        deterministic tokens whose nodes differ: these are read from the texts.
    engines : tuple of str
        The engines for serving that run it. Repositories of papers are not among them.
    chain, repeats : bool
        Whether it takes only one draft a position, and whether two drafts of a position may be the same.
    static, paths : bool
        Whether nodes of a level may have different numbers of drafts, and whether drafts are independent
        paths.
    all_counts : bool
        Whether all numbers of drafts up to the largest are tried.
    tree_rule : TreeVerifier or None
        The rule that looks at whole trees; None if the verifier decides at one node after another.
    drawn, adaptive : bool
        Whether it is measured on drawn trees, and whether these are adaptive.
    same_drafts : str
        For such a rule the candidate whose verifier it is at a single node, "" for others.
    """

    title: str
    verifier: verifiers.Verifier
    variants: dict[str, MakeLaw]
    engines: tuple[str, ...] = ()
    chain: bool = False
    repeats: bool = False
    static: bool = False
    paths: bool = False
    all_counts: bool = False
    tree_rule: TreeVerifier | None = None
    drawn: bool = False
    adaptive: bool = False
    same_drafts: str = ""


def _engine(name: str, title: str, **options: Any) -> Candidate:
    entry = CATALOGUE[name]
    rule: Any = entry.rule
    assert entry.drafts is not None
    return Candidate(title, rule, {"": entry.drafts}, chain=entry.most_drafts == 1, **options)


def _deterministic(title: str, engines: tuple[str, ...] = ()) -> Candidate:
    return _engine("top-k-tree", title, engines=engines)._replace(variants={})


def _with_replacement(
    name: str, title: str, rule: verifiers.Verifier, all_counts: bool = False
) -> dict[str, Candidate]:
    nodes = Candidate(f"with replacement, {title}", rule, {"": WithReplacement}, repeats=True)
    paths = nodes._replace(title=f"independent paths, {title}", paths=True, all_counts=True)
    return {name: nodes._replace(static=True, all_counts=all_counts), f"{name}-paths": paths}


def _small_head(draft_probs: ArrayLike, num_drafts: int) -> Stratified:
    """Each stratum has 0.6 of the weight of the one below it."""
    return Stratified(draft_probs, num_drafts, shares=0.6 ** np.arange(num_drafts)[::-1])


_EQUAL_STRATA = "equal strata"
_STRATA: dict[str, MakeLaw] = {
    _EQUAL_STRATA: Stratified,
    "β 1.5": partial(Stratified, sharpness=1.5),
    "small head": _small_head,
}


def _drawn(title: str, rule: TreeVerifier, adaptive: bool = False) -> Candidate:
    return Candidate(
        f"{title} (measured on drawn trees)",
        verifiers.Preference(),
        {_EQUAL_STRATA: Stratified},
        tree_rule=rule,
        drawn=True,
        adaptive=adaptive,
        same_drafts="stratified",
    )


CANDIDATES = {
    "one-hot": _engine(
        "one-hot",
        "argmax chain (the default of engines)",
        engines=("vLLM", "SGLang", "TensorRT-LLM", "llama.cpp"),
    ),
    "match-sampled": _engine(
        "match-sampled", "sampled chain, sample and match (mlx-lm)", engines=("mlx-lm",)
    ),
    "rejection": _engine(
        "rejection", "sampled chain, rejection (vLLM probabilistic)", engines=("vLLM", "SGLang")
    ),
    "rejection-top-10": _engine(
        "rejection-top-10",
        "chain sampled from the top 10, rejection (llama.cpp probabilistic)",
        engines=("llama.cpp",),
    ),
    "block": _engine(
        "block",
        "sampled chain, block verification (vLLM block, V2 runner alone)",
        engines=("vLLM",),
    ),
    "top-k-tree": _engine("top-k-tree", "deterministic top-n tree, target only"),
    "static-tree": _deterministic(
        "deterministic tokens, best static tree, target only (Medusa, EAGLE-1)"
    ),
    "most-likely": _deterministic(
        "most likely paths, target only (EAGLE-2, SGLang)", engines=("SGLang",)
    ),
    "sequoia": _engine(
        "sequoia",
        "without replacement, recursive rejection (Sequoia)",
        static=True,
        all_counts=True,
    ),
    "greedy": Candidate(
        "greedy drafts, greedy coupling", verifiers.Preference(), {"": Greedy}, static=True
    ),
    **_with_replacement(
        "rrs", "recursive rejection", verifiers.RecursiveRejection(), all_counts=True
    ),
    **_with_replacement("k-seq", "K-SEQ", verifiers.KSequential()),
    **_with_replacement("preference", "preference", verifiers.Preference()),
    "stratified": Candidate(
        "stratified drafts, preference", verifiers.Preference(), _STRATA, static=True
    ),
    "stratified-subtree": Candidate(
        "stratified drafts, whole trees, node by node",
        verifiers.Preference(),
        {_EQUAL_STRATA: Stratified},
        all_counts=True,
        tree_rule=SubtreeVerification(),
        same_drafts="stratified",
    ),
    "greedy-subtree": Candidate(
        "greedy drafts, whole trees, node by node",
        verifiers.Preference(),
        {"": Greedy},
        all_counts=True,
        tree_rule=SubtreeVerification(),
        same_drafts="greedy",
    ),
    "stratified-layer": _drawn(
        "stratified drafts, whole trees, layer by layer", LayerVerification()
    ),
    "adaptive-layer": _drawn(
        "adaptive trees of stratified drafts, layer by layer", LayerVerification(), adaptive=True
    ),
    "adaptive-subtree": _drawn(
        "adaptive trees of stratified drafts, node by node", SubtreeVerification(), adaptive=True
    ),
    **_with_replacement("optimal", "optimal", verifiers.Optimal()),
    "stratified-optimal": Candidate(
        "stratified drafts, optimal", verifiers.Optimal(), _STRATA, static=True
    ),
}
"""The verifiers and laws that a plan may rank, by name; every one is lossless."""
