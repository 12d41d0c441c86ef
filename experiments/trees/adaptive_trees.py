"""Tokens per step on sampled trees that adapt, compared with fixed shapes and with the most likely tree.

    python -m experiments adaptive_trees
    python -m experiments adaptive_trees --prompts 4 --widths 2x2x2x2x2x2x2x2 --temperatures 1.0

The target is SmolLM2-135M, the draft the same model with layers left out. At positions of texts that the
target samples, trees of strata are drawn from the draft's most likely tokens: for the drafts of each level in
``--widths`` a tree of fixed shape, and an adaptive tree with these quotas. A tree that grows best first, and
EAGLE-2's most likely tree, have as many drafts. All rules decide on the same drawn trees. Prints tokens per
step, and the difference of the adaptive tree from the fixed one in percent, with 95% intervals over prompts.
"""

import gc
import zlib
from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np
import polars as pl

import otmd
from experiments.claims.whole_trees import (
    DEPTH,
    STARTS,
    Growing,
    Reader,
    readers_along,
    sampled,
)
from experiments.estimates import interval
from experiments.runner import markdown, run
from experiments.texts import after_prompt, load_models
from otmd import Processing
from otmd.laws import DraftLaw
from otmd.laws.proposal import ProposalLaw
from otmd.models import DEFAULT_DRAFT, Draft, LanguageModel, Prompt, load_prompts
from otmd.models.variants import pack_weights
from otmd.probabilities import IntArray
from otmd.study import jackknife
from otmd.trees import (
    AdaptiveTree,
    BestFirstTree,
    LayerVerification,
    MostLikelyTree,
    SubtreeVerification,
    TokenLevel,
    TokenTree,
    TreeVerifier,
)
from otmd.trees.base import Context
from otmd.trees.estimates import expected_tokens
from otmd.trees.random_choices import Sampled

DOMAINS = ("code", "maths", "chat", "prose")
DRAFT_TOP_K = 1024
RULES: dict[str, TreeVerifier] = {
    "layer": LayerVerification(),
    "node by node": SubtreeVerification(),
    "token level": TokenLevel(otmd.Preference()),
}
CERTAIN: dict[str, TreeVerifier] = {"token level": TokenLevel(otmd.TargetOnly())}
FIXED, ADAPTIVE, MOST_LIKELY = "fixed", "adaptive", "most likely"
WIDTHS = ("2x2x2x1x1", "2x2x2x2x2x2x2x2", "4x4x4x4x4x4x4x4", "3x4x4x4x4x4x4x5")


def fixed_shape(widths: Sequence[int]) -> tuple[Any, ...]:
    """The shape with so many drafts on each level; where nodes have not equally many, the first have more."""
    shapes: list[tuple[Any, ...]] = [()] * widths[-1]
    for above, below in reversed(list(pairwise([1, *widths]))):
        counts = [below // above + (i < below % above) for i in range(above)]
        rest = iter(shapes)
        shapes = [tuple(islice(rest, count)) for count in counts]
    return shapes[0]


class SameDrafts(Sampled):
    """Draws the same drafts wherever the draft distribution and the number of drafts are the same.

    So trees have most of their nodes in common, and differences between them little variance.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def drafts(self, law: DraftLaw) -> IntArray:
        """See :class:`otmd.trees.random_choices.RandomChoices`."""
        assert isinstance(law, ProposalLaw)
        return law.sample(rng=[self._seed, zlib.crc32(law.draft_probs.tobytes())])


class Candidate(NamedTuple):
    """A kind of tree, its drafts by level, its law from the draft model, and the rules that verify it."""

    kind: str
    widths: str
    law: partial[Any]
    rules: dict[str, TreeVerifier]


def candidates(widths: Sequence[str]) -> Iterator[Candidate]:
    """The trees that are compared; those that have no widths once for each number of drafts."""
    listed = [tuple(map(int, text.split("x"))) for text in widths]
    for text, counts in zip(widths, listed, strict=True):
        fixed = partial(TokenTree, branching=fixed_shape(counts), law=otmd.Stratified)
        yield Candidate(FIXED, text, fixed, RULES)
        yield Candidate(ADAPTIVE, text, partial(AdaptiveTree, quotas=counts), RULES)
    for budget in sorted({sum(counts) for counts in listed}):
        size = {"budget": budget, "depth": DEPTH}
        by_node = {name: rule for name, rule in RULES.items() if name != "layer"}
        yield Candidate("best first", str(budget), partial(BestFirstTree, **size), by_node)
        yield Candidate(MOST_LIKELY, str(budget), partial(MostLikelyTree, **size), CERTAIN)


@cache
def chosen_prompts(prompts: int, seed: int) -> dict[str, Prompt]:
    """So many prompts of each domain, by their ids."""
    return {prompt.id: prompt for prompt in load_prompts(DOMAINS, prompts, seed, progress=False)}


@cache
def loaded(draft: str, prompts: int, seed: int) -> tuple[LanguageModel, Draft]:
    """The target and a draft; an n-gram draft is fitted on texts that are not among the prompts."""
    chosen = list(chosen_prompts(prompts, seed).values())
    target, [drafting] = load_models("default", [draft], chosen)
    if isinstance(drafting, LanguageModel):
        drafting = pack_weights(drafting)
    return pack_weights(target), drafting


def position_rows(
    target: Reader, draft: Reader, listed: Sequence[Candidate], rng: np.random.Generator
) -> Iterator[dict[str, Any]]:
    """A row for every candidate and rule at one position; the trees are drawn side by side."""
    contexts = [Context(target, candidate.law(draft)) for candidate in listed]
    choices = SameDrafts(int(rng.integers(2**32)))
    trees = [context.law.draft_tree(context, choices) for context in contexts]
    # The most likely trees would ask for one distribution after another.
    budgets = [c.law.keywords["budget"] for c in listed if c.kind == MOST_LIKELY]
    most_likely = Growing(draft, max(budgets))
    while missing := most_likely.grow():
        draft.read(sorted(missing))
    growing = [tree.grow() for tree in trees]
    while levels := [nodes for tree in growing if (nodes := next(tree, None))]:
        draft.read([prefix for nodes in levels for prefix in nodes])
    target.read([prefix for tree in trees for prefix in tree.prefixes()])
    for candidate, context, tree in zip(listed, contexts, trees, strict=True):
        about = {"kind": candidate.kind, "widths": candidate.widths}
        about |= {"drafts": len(tree.prefixes()) - 1}
        for name, rule in candidate.rules.items():
            yield {**about, "rule": name, "tokens": expected_tokens(rule, context, tree)}


def prompt_rows(
    rng: np.random.Generator, prompt: str, draft: str, temperature: float, settings: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Sums over the positions of a text of a prompt, of every candidate and rule."""
    target, drafting = loaded(draft, settings["prompts"], settings["seed"])
    chosen = chosen_prompts(settings["prompts"], settings["seed"])[prompt]
    texts = [after_prompt(model, target, chosen) for model in (target, drafting)]
    [text] = sampled(texts[0], [temperature], STARTS[-1], rng)
    steps = Processing(temperature), Processing(temperature, top_k=DRAFT_TOP_K)
    rows: list[dict[str, Any]] = []
    for _, readers in readers_along(texts, text, target.stop_tokens, steps, target.token_count):
        rows += position_rows(readers[0], readers[1], list(candidates(settings["widths"])), rng)
        # Contexts refer to themselves, and hold gigabytes.
        gc.collect()
    sums = pl.DataFrame(rows).group_by("kind", "widths", "rule", maintain_order=True)
    yield from sums.agg(pl.len().alias("positions"), pl.col("tokens", "drafts").sum()).to_dicts()


def tasks_of(chosen: Namespace) -> list[dict[str, Any]]:
    """A task for each prompt and temperature."""
    settings = {name: getattr(chosen, name) for name in ("prompts", "seed", "widths")}
    return [
        {"prompt": prompt, "draft": chosen.draft, "temperature": temperature, "settings": settings}
        for prompt in chosen_prompts(chosen.prompts, chosen.seed)
        for temperature in chosen.temperatures
    ]


def as_table(table: pl.DataFrame) -> str:
    """Tokens per step of every tree and rule, and what adaptive trees gain over the fixed ones."""
    lines = []
    keys = ("temperature", "widths", "kind", "rule")
    means: dict[tuple[Any, ...], tuple[float, np.ndarray]] = {}
    for key, rows in table.group_by(keys, maintain_order=True):
        tokens = rows["tokens"].to_numpy()
        positions = rows["positions"].to_numpy().astype(np.float64)
        mean = tokens.sum() / positions.sum()
        without = jackknife.left_out(tokens, positions)
        means[key] = mean, without
        gain = "–"
        if key[2] == ADAPTIVE:
            fixed, fixed_without = means[key[0], key[1], FIXED, key[3]]
            gain = interval(100 * (mean / fixed - 1), 100 * (without / fixed_without - 1), ".1f")
        drafts = f"{rows['drafts'].to_numpy().sum() / positions.sum():.1f}"
        lines.append([*map(str, key), drafts, interval(mean, without, ".3f"), gain])
    return markdown([*keys, "drafts", "tokens per step", "gain, %"], lines)


def main(arguments: list[str]) -> pl.DataFrame:
    """Measure what is missing, and print."""
    defaults: dict[str, Any] = {"prompts": 8, "seed": 1, "draft": DEFAULT_DRAFT}
    defaults |= {"widths": WIDTHS, "temperatures": (0.6, 1.0)}
    table = run(prompt_rows, arguments, 20.0, tasks_of, **defaults)
    print(as_table(table))
    return table
