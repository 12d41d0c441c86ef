"""Rules that look at whole trees, along texts: fixed trees node by node exactly, others on drawn trees.

Node by node, only p and q along a text y_1, y_2, … matter. A node has a score w; w_0 = 1 at the root. The
pair sweep for the target w p accepts y with the mass a(y), and gives the child the score c(y). So a step that
begins at y_1 accepts at least k tokens of the text with probability Π_{i≤k} a(y_i)/(w_{i−1} p(y_i)), w_i =
c(y_i). The sweep depends on w, so each position where a step may begin needs its own sweeps, one for each
level with several drafts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from otmd.laws import Slots
from otmd.models.dataset import Dataset, DrawnTree
from otmd.probabilities import FloatArray, Processing
from otmd.storage.parquet import read_parquet
from otmd.storage.store import Layout, Store
from otmd.study.planning.candidates import CANDIDATES, Candidate, MakeLaw
from otmd.study.planning.texts import Text
from otmd.study.planning.token_table import Job, finish_texts, located, target_probs
from otmd.study.planning.tree_choices import Choice
from otmd.study.rows import process
from otmd.study.run import describe_dataset
from otmd.study.runner import Bar, frame
from otmd.trees import LayerVerification
from otmd.trees.whole_tree import node_slots
from otmd.verifiers.pair_sweep import sweep_pairs

FOLDER = "node-by-node"
LAYOUT = Layout(
    read_parquet,
    pattern=r"text-\d+",
    record="reach.json",
    result="reach.parquet",
    subfolder="parts",
)
SCHEMA: dict[str, Any] = {
    **{"text": int, "rule": str, "variant": str, "draft_temperature": float},
    **{"shape": pl.List(pl.Int64), "reached": pl.List(pl.Float64), "bound": pl.List(pl.Float64)},
}
# The drafts at a node, by level; and its reach and bound along a text, (2, N).
Levels = tuple[int, ...]
Reach = dict[Levels, FloatArray]


class WalkSettings(NamedTuple):
    """The settings of the table of reaches.

    Attributes
    ----------
    rules : tuple of str
        Keys of :data:`otmd.study.planning.CANDIDATES` that verify node by node.
    shapes : tuple of tuple of int
        Trees, by the drafts at a node of each level.
    target, drafts : Processing, tuple of Processing
        As for :class:`otmd.study.planning.Settings`.
    """

    rules: tuple[str, ...]
    shapes: tuple[Levels, ...]
    target: Processing
    drafts: tuple[Processing, ...]


class NodeByNode(NamedTuple):
    """Trees of equal levels that are verified node by node.

    ``reach`` has for each tree and text an array (2, N): the probability that a step which begins at a token
    accepts all levels, and the upper bound of this probability for every lossless rule.
    """

    variant: str
    draft_temperature: float
    reach: Mapping[Levels, list[FloatArray]]

    def choices(self, budgets: Sequence[int]) -> Iterator[Choice]:
        """Every tree within the largest budget."""
        for shape in self.reach:
            choice = Choice(self.variant, self.draft_temperature, shape)
            if choice.drafts <= max(budgets):
                yield choice

    def reached(self, text: int, choice: Choice) -> FloatArray:
        """See :class:`otmd.study.planning.tree_choices.EqualLevels`."""
        return self._stacked(0, text, choice.shape)

    def bound(self, text: int, choice: Choice) -> FloatArray:
        """See :class:`otmd.study.planning.tree_choices.EqualLevels`."""
        return self._stacked(1, text, choice.shape)

    def _stacked(self, row: int, text: int, shape: Levels) -> FloatArray:
        levels = [self.reach[shape[: k + 1]][text][row] for k in range(len(shape))]
        return np.stack([np.ones_like(levels[0]), *levels], axis=1)


class DrawnTrees(NamedTuple):
    """Trees that were drawn at positions of the texts, each as the difference from a fixed one node by node.

    Attributes
    ----------
    node_by_node : NodeByNode
    references : dict of Choice to Choice
        The fixed tree: for an adaptive tree another one, drawn at the same positions, else the tree itself.
    gains : dict of Choice to list of ndarray of float64, shape (N,)
        For each text the difference in tokens of a step that begins at each token, divided by the probability
        that trees were drawn there; 0 where none were.
    """

    node_by_node: NodeByNode
    references: Mapping[Choice, Choice]
    gains: Mapping[Choice, list[FloatArray]]

    def choices(self, budgets: Sequence[int]) -> Iterator[Choice]:
        """Every tree that was drawn, within the largest budget."""
        return (choice for choice in self.gains if choice.drafts <= max(budgets))

    def reached(self, text: int, choice: Choice) -> FloatArray:
        """The reach of the fixed tree node by node."""
        return self.node_by_node.reached(text, self.references[choice])

    def bound(self, text: int, choice: Choice) -> FloatArray:
        """See :class:`otmd.study.planning.tree_choices.EqualLevels`; NaN for an adaptive tree."""
        bound = self.node_by_node.bound(text, self.references[choice])
        return np.full_like(bound, np.nan) if choice.adaptive else bound

    def more(self, text: int, choice: Choice) -> FloatArray:
        """The tokens that a step yields beyond those of the fixed tree, see :func:`steps_along`."""
        return self.gains[choice][text]


def drawn_trees(
    dataset: Dataset,
    texts: Sequence[Text],
    node_by_node: NodeByNode,
    candidate: Candidate,
    depth: int,
) -> DrawnTrees:
    """The trees of strata that were drawn for a candidate, see ``otmd collect --trees``.

    An adaptive tree of at most ``depth`` levels is compared with the fixed one of the most similar size.
    """
    drawn: dict[Choice, dict[int, DrawnTree]] = {}
    for tree in dataset.trees:
        budget = sum(tree.shape) if tree.adaptive else 0
        choice = Choice(*node_by_node[:2], tree.shape, budget, adaptive=tree.adaptive)
        drawn.setdefault(choice, {})[tree.index] = tree
    fixed = [
        choice for choice in drawn if not choice.adaptive and choice.shape in node_by_node.reach
    ]
    references = {choice: choice for choice in fixed}
    if candidate.adaptive:
        adaptive = [choice for choice in drawn if choice.adaptive and len(choice.shape) <= depth]
        references = {choice: min(fixed, key=choice.distance) for choice in adaptive if fixed}
    is_layer = isinstance(candidate.tree_rule, LayerVerification)
    gains = {}
    for choice, reference in references.items():
        gain = {
            row: (tree.layer if is_layer else tree.node_by_node)
            - drawn[reference][row].node_by_node
            for row, tree in drawn[choice].items()
        }
        gains[choice] = [
            dataset.metadata["trees_every"] * np.array([gain.get(row, 0.0) for row in text.rows])
            for text in texts
        ]
    return DrawnTrees(node_by_node, references, gains)


def reach_table(
    dataset: Dataset,
    texts: Sequence[Text],
    settings: WalkSettings,
    output: Path,
    workers: int | None = None,
    progress: bool = False,
    overwrite: bool = False,
) -> dict[tuple[str, str, float], NodeByNode]:
    """Compute, or resume computing, the reach of trees node by node, by rule, variant and temperature.

    Parameters
    ----------
    dataset, texts, settings, output, workers, progress, overwrite
        As for :func:`otmd.study.planning.probs_table`, whose folder is the same.
    """
    about = settings._asdict() | {
        "target": asdict(settings.target),
        "drafts": [asdict(step) for step in settings.drafts],
        **describe_dataset(dataset),
    }
    store = Store(output / FOLDER, about, LAYOUT, overwrite)

    bar = Bar("planning: trees", len(texts), progress)
    table = finish_texts(partial(text_reach, settings), dataset, texts, store, bar, workers)
    kinds: dict[tuple[str, str, float], NodeByNode] = {}
    for row in table.sort("text").iter_rows(named=True):
        key = row["rule"], row["variant"], row["draft_temperature"]
        kind = kinds.setdefault(key, NodeByNode(key[1], key[2], {}))
        values = np.array([row["reached"], row["bound"]])
        # The rows of a tree come text by text.
        kind.reach.setdefault(tuple(row["shape"]), []).append(values)  # pyright: ignore
    return kinds


def text_reach(settings: WalkSettings, job: Job) -> pl.DataFrame:
    """The rows of one text; see :func:`reach_table`."""
    rows = []
    for step in settings.drafts:
        for rule in settings.rules:
            for variant, make in CANDIDATES[rule].variants.items():
                nodes = _nodes(settings, job, step, make)
                key = {"text": job.number, "rule": rule, "variant": variant}
                key["draft_temperature"] = step.temperature
                for shape, (reached, bound) in reach_along(nodes, settings.shapes).items():
                    rows.append(key | {"shape": list(shape), "reached": reached, "bound": bound})
    return frame(rows, schema=SCHEMA)


def _nodes(settings: WalkSettings, job: Job, step: Processing, make: MakeLaw) -> Iterator[TextNode]:
    for index, token in enumerate(job.tokens):
        with located(job.number, index):
            p = target_probs(job.target[index], job.kind, settings.target, token)
            q = process("draft_probs", job.draft[index], job.kind, step)
            yield TextNode(p, q, token, make)


class TextNode:
    """A position of a text as a node of trees, with the token that follows it.

    Parameters
    ----------
    target, draft : ndarray of float64, shape (V,)
    token : int
    make : callable
        The law of the drafts at a node, from q and their number.
    """

    def __init__(self, target: FloatArray, draft: FloatArray, token: int, make: MakeLaw) -> None:
        self.target = target
        self.draft = draft
        self.token = token
        self._make = make
        self._slots: dict[int, Slots] = {}
        self._steps: dict[tuple[int, float], tuple[float, float]] = {}

    def slots(self, num_drafts: int) -> Slots:
        """The slots of the node's drafts; if fewer tokens have mass, these are the drafts."""
        if num_drafts not in self._slots:
            count = min(num_drafts, int(np.count_nonzero(self.draft)))
            self._slots[num_drafts] = node_slots(self._make(self.draft, count))
        return self._slots[num_drafts]

    def ratio(self, num_drafts: int) -> float:
        """P(the token is drafted), divided by p."""
        return float(self.slots(num_drafts).token_probs[self.token] / self.target[self.token])

    def step(self, num_drafts: int, score: float) -> tuple[float, float]:
        """a/(w p) of the token for the score w of the node, and c, the score of its child."""
        key = num_drafts, score
        if key not in self._steps:
            self._steps[key] = self._swept(num_drafts, score)
        return self._steps[key]

    def _swept(self, num_drafts: int, score: float) -> tuple[float, float]:
        slots = self.slots(num_drafts)
        drafted = float(slots.token_probs[self.token])
        scaled = score * float(self.target[self.token])
        if drafted == 0.0 or scaled == 0.0:
            return 0.0, 0.0
        if slots.num_drafts == 1:
            return min(drafted / scaled, 1.0), min(scaled / drafted, 1.0)
        sweep = sweep_pairs(score * self.target, slots)
        token = np.array([self.token])
        _, accept, accepted = sweep.pairs(slots.number[token].astype(np.int64), token)
        return min(float(accepted[0]) / scaled, 1.0), float(accept[0])


class _State(NamedTuple):
    """A step so far: its reach, the node's score, Π π/p over its tokens, and the least such product."""

    reached: float = 1.0
    score: float = 1.0
    ratio: float = 1.0
    bound: float = 1.0


def reach_along(nodes: Iterable[TextNode], shapes: Sequence[Levels]) -> Reach:
    """Reach of trees that are verified node by node, along the nodes of a text.

    Parameters
    ----------
    nodes : iterable of TextNode
        The N positions of the text.
    shapes : sequence of tuple of int
        The drafts at a node, by level.

    Returns
    -------
    dict of tuple of int to ndarray of float64, shape (2, N)
        For each tree, and for each tree that is left without its last levels: P(a step that begins at token t
        accepts all levels | the text), and its upper bound for every lossless rule. 0 where the text ends
        before the last level.
    """
    trees = sorted({shape[: k + 1] for shape in shapes for k in range(len(shape))}, key=len)
    states: dict[tuple[int, Levels], _State] = {}
    count = 0
    for index, node in enumerate(nodes):
        count += 1
        states[index, ()] = _State()
        for tree in trees:
            start = index + 1 - len(tree)
            if start >= 0:
                states[start, tree] = _after(states[start, tree[:-1]], node, tree[-1])
    reach = {tree: np.zeros((2, count)) for tree in trees}
    for (start, tree), state in states.items():
        if tree:
            reach[tree][:, start] = state.reached, state.bound
    return reach


def _after(state: _State, node: TextNode, num_drafts: int) -> _State:
    """The state of a step after one level more."""
    accepted, score = node.step(num_drafts, state.score) if state.reached > 0.0 else (0.0, 0.0)
    ratio = state.ratio * node.ratio(num_drafts)
    return _State(state.reached * accepted, score, ratio, min(state.bound, ratio))
