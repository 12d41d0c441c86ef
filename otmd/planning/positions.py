"""What every candidate does at every token of the texts: one table, resumable, one part a text."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from otmd import verifiers
from otmd.drafts import DraftLaw, Greedy, Stratified, WithReplacement
from otmd.engines import CATALOGUE
from otmd.harness.dataset import Dataset
from otmd.measurement.pool import available_cpus, compute_parts, finish_run
from otmd.measurement.run import describe_dataset, process
from otmd.optimum.acceptance import optimal_acceptance
from otmd.planning.copies import COUNTED, copies
from otmd.planning.texts import Text, drafted_chance
from otmd.probabilities import FloatArray, Processing
from otmd.storage.parquet import read_parquet
from otmd.storage.store import Layout, Store

LAYOUT = Layout(
    read_parquet,
    pattern=r"text-\d+",
    record="plan.json",
    result="chances.parquet",
    subfolder="parts",
)
SCHEMA: dict[str, Any] = {
    **{"text": int, "place": int, "entropy": float},
    **{"rule": str, "variant": str, "draft_temperature": float, "num_drafts": int},
    **{"parts": pl.List(pl.Float64), "chance": float, "rate": float, "optimal": float},
}
# Exact rates and α* cost as much as everything else, and only their means are shown.
RATES_EVERY = 8
# Recursive rejection of distinct drafts has no closed form: its rate is the middle of bounds so far apart.
TOL = 0.01
MakeLaw = Callable[[ArrayLike, int], DraftLaw]


class Candidate(NamedTuple):
    """A rule with the laws that it may serve.

    Attributes
    ----------
    title : str
    verifier : Verifier
    variants : dict of str to callable
        Functions of (draft_probs, num_drafts) that make the law with different parameters. Empty for trees of
        certain tokens whose nodes differ: these are read from the texts.
    engines : tuple of str
        The engines for serving that run it. Repositories of papers are not among them.
    chain, paths : bool
        Whether it takes only one draft a position, and whether its drafts are independent paths.
    """

    title: str
    verifier: verifiers.Verifier
    variants: dict[str, MakeLaw]
    engines: tuple[str, ...] = ()
    chain: bool = False
    paths: bool = False


def _engine(name: str, title: str, *engines: str) -> Candidate:
    known = CATALOGUE[name]
    assert isinstance(known.rule, verifiers.Verifier)
    assert known.drafts is not None
    return Candidate(title, known.rule, {"": known.drafts}, engines, known.most_drafts == 1)


def _certain(title: str, *engines: str) -> Candidate:
    return _engine("certain-tree", title, *engines)._replace(variants={})


def _with_replacement(name: str, title: str, rule: verifiers.Verifier) -> dict[str, Candidate]:
    nodes = Candidate(f"with replacement, {title}", rule, {"": WithReplacement})
    paths = nodes._replace(title=f"independent paths, {title}", paths=True)
    return {name: nodes, f"{name}-paths": paths}


def _small_head(draft_probs: ArrayLike, num_drafts: int) -> Stratified:
    """Each stratum has 0.6 of the weight of the one below it."""
    return Stratified(draft_probs, num_drafts, shares=0.6 ** np.arange(num_drafts)[::-1])


_STRATA: dict[str, MakeLaw] = {
    "equal strata": Stratified,
    "β 1.5": partial(Stratified, sharpness=1.5),
    "small head": _small_head,
}
CANDIDATES = {
    "one-hot": _engine("one-hot", "argmax chain (vLLM default, llama.cpp)", "vLLM", "llama.cpp"),
    "match-sampled": _engine("match-sampled", "sampled chain, sample and match (mlx-lm)", "mlx-lm"),
    "rejection": _engine("rejection", "sampled chain, rejection (vLLM probabilistic)", "vLLM"),
    "block": _engine("block", "sampled chain, block verification (vLLM block)", "vLLM"),
    "certain-tree": _engine(
        "certain-tree", "certain top-n tree, target only (EAGLE, SGLang)", "SGLang"
    ),
    "static-tree": _certain("certain tokens, best static tree, target only (Medusa, EAGLE-1)"),
    "likeliest": _certain("certain likeliest paths, target only (EAGLE-2, SGLang)", "SGLang"),
    "sequoia": _engine("sequoia", "without replacement, recursive rejection (Sequoia)"),
    "greedy": Candidate("greedy drafts, greedy coupling", verifiers.Preference(), {"": Greedy}),
    **_with_replacement("rrs", "recursive rejection", verifiers.RecursiveRejection()),
    **_with_replacement("k-seq", "K-SEQ", verifiers.KSequential()),
    **_with_replacement("preference", "preference", verifiers.Preference()),
    "stratified": Candidate("stratified drafts, preference", verifiers.Preference(), _STRATA),
    **_with_replacement("optimal", "optimal", verifiers.Optimal()),
    "stratified-optimal": Candidate("stratified drafts, optimal", verifiers.Optimal(), _STRATA),
}
"""What a plan may rank, by name; every one is lossless."""


class Settings(NamedTuple):
    """What the table of chances depends on.

    Attributes
    ----------
    rules, num_drafts : tuple of str, tuple of int
        Keys of :data:`otmd.planning.CANDIDATES`; how many drafts a node may have.
    target, drafts : Processing, tuple of Processing
        How the texts were sampled; one for each draft temperature that is tried.
    seed : int
    """

    rules: tuple[str, ...]
    num_drafts: tuple[int, ...]
    target: Processing
    drafts: tuple[Processing, ...]
    seed: int

    def counts(self, rule: str) -> Sequence[int]:
        """Numbers of drafts in the table: for paths and recursive rejection, all up to the most."""
        candidate = CANDIDATES[rule]
        if candidate.chain:
            return (1,)
        each = candidate.paths or isinstance(candidate.verifier, verifiers.RecursiveRejection)
        return range(1, max(self.num_drafts) + 1) if each else self.num_drafts


class Job(NamedTuple):
    """A text with its rows: ``number`` among the texts, ``target`` and ``draft`` (N, V) as stored."""

    number: int
    tokens: list[int]
    target: np.ndarray
    draft: np.ndarray
    kind: str


def chances_table(
    dataset: Dataset,
    texts: Sequence[Text],
    settings: Settings,
    output: Path,
    workers: int | None = None,
    progress: bool = False,
    overwrite: bool = False,
) -> pl.DataFrame:
    """Compute, or go on computing, what each candidate does at each token.

    Parameters
    ----------
    dataset, texts, settings, output, workers, progress, overwrite
        As for :func:`otmd.planning.make_plan`; texts are of :func:`otmd.planning.read_texts`.

    Returns
    -------
    polars.DataFrame
        A row a token, candidate, variant, draft temperature and number of drafts. ``chance`` is P(the token
        was drafted | it is emitted), or q/p for block verification. ``parts`` are its parts by the slot in
        which the token is drafted, or by how many independent paths go on; null where that is not known. On
        every eighth token, ``rate`` is how often the rule accepts and ``optimal`` the law's α*; else null.

    Raises
    ------
    ValueError
        For rows that are no distributions, a text that the target cannot have written, or a folder with
        other settings.
    """
    about = settings._asdict() | {
        "target": asdict(settings.target),
        "drafts": [asdict(step) for step in settings.drafts],
        "columns": list(SCHEMA),
        **describe_dataset(dataset),
    }
    store = Store(output, about, LAYOUT, overwrite)

    def compute(parts: dict[str, pl.DataFrame]) -> None:
        left = [i for i in range(len(texts)) if f"text-{i:06d}" not in parts]
        jobs = (
            (f"text-{i:06d}", Job(i, texts[i].tokens, *dataset.arrays(texts[i].rows), dataset.kind))
            for i in left
        )
        count = min(workers or available_cpus(), max(len(left), 1))
        bar = "planning: texts", len(texts), progress
        compute_parts(partial(text_table, settings), jobs, parts, store, count, None, bar)

    finish_run(store, compute)
    return read_parquet(output / LAYOUT.result)


def text_table(settings: Settings, job: Job) -> pl.DataFrame:
    """The rows of one text; see :func:`chances_table`."""
    rng = np.random.default_rng([settings.seed, job.number])
    rows: list[dict[str, Any]] = []
    for place, token in enumerate(job.tokens):
        with located(job.number, place):
            p = target_probs(job.target[place], job.kind, settings.target, token)
            some = p[p > 0]
            at = {"text": job.number, "place": place, "entropy": -float(some @ np.log(some))}
            for step in settings.drafts:
                q = process("draft_probs", job.draft[place], job.kind, step)
                for row, law in _rows(settings, p, q, token, rng):
                    if place % RATES_EVERY == 0:
                        rule = CANDIDATES[row["rule"]].verifier
                        low, high = rule.acceptance_bounds(p, law, TOL)
                        # The last digits of sums depend on where arrays lie in memory.
                        row["rate"] = round(float(0.5 * (low + high)), 12)
                        row["optimal"] = round(float(optimal_acceptance(p, law).rate), 12)
                    rows.append(at | {"draft_temperature": step.temperature} | row)
    return pl.DataFrame(rows, schema=SCHEMA)


@contextmanager
def located(text: int, place: int) -> Iterator[None]:
    """Name the text and the token in a ValueError."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"dataset: text {text}, token {place}: {error}") from error


def target_probs(row: np.ndarray, kind: str, step: Processing, token: int) -> FloatArray:
    """The target's probabilities (V,) of a stored row; ValueError if it never emits the token."""
    p = process("target_probs", row, kind, step)
    if p[token] <= 0.0:
        raise ValueError(
            f"the target never emits token {token} with these settings, expected those that the text was "
            "sampled with"
        )
    return p


def _rows(
    settings: Settings, p: FloatArray, q: FloatArray, token: int, rng: np.random.Generator
) -> Iterator[tuple[dict[str, Any], DraftLaw]]:
    support = int(np.count_nonzero(q))
    for rule in settings.rules:
        candidate = CANDIDATES[rule]
        for variant, make in candidate.variants.items():
            for n in settings.counts(rule):
                # If the draft has mass on fewer than n tokens, distinct drafts are all of them.
                law = make(q, n if make is WithReplacement else min(n, support))
                parts = None
                if rule == "block":
                    chance = float(law.next_draft_probs(())[token] / p[token])
                elif isinstance(law, WithReplacement) and type(candidate.verifier) in COUNTED:
                    # By how many drafts are the token, or by the first that is.
                    parts = copies(candidate.verifier, p, law, token).sum(axis=1 - candidate.paths)
                    chance = float(parts.sum())
                else:
                    chance = drafted_chance(candidate.verifier, p, law, token, rng)
                    slot = slot_of(law, token)
                    parts = None if slot is None else chance * (np.arange(n) == slot)
                row = {"rule": rule, "variant": variant, "num_drafts": n, "chance": chance}
                yield row | {"parts": parts}, law


def slot_of(law: DraftLaw, token: int) -> int | None:
    """Which of the drafts a token is if it is drafted, where the law fixes that; else None."""
    if isinstance(law, Stratified):
        return int(law.strata[token])
    if isinstance(law, Greedy):
        first = np.flatnonzero(law.top_tokens == token)
        return int(first[0]) if first.size else law.num_drafts - 1
    return None
