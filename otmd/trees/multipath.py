"""Greedy multi-path verification (GBV): one of K sampled paths is picked, and verified as a block."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from otmd.curve._kernels import ratios_of
from otmd.probabilities import FloatArray
from otmd.trees.base import Context, DraftTree, Prefix
from otmd.trees.laws import IIDPaths
from otmd.trees.verifiers import BottomUp, Stop, after_rejection
from otmd.verifiers import UnsupportedLaw
from otmd.verifiers.prepared import accept_prob


class GreedyMultiPath(BottomUp):
    """Pick the path that follows the drafted token of largest p/q at each node; verify it as a block.

    After Thomas and Pal (arXiv 2602.16961). Paths are compared position by position, by
    p/q at each node; the picked path is the largest of K independent ones. Let x be the probability that a
    path begins with the picked prefix, A that it ranks below it, and F(y) the draft mass of the tokens that
    rank at most as high as y. The picked path ranks at most as high as the prefix followed by y with
    probability (A + x F(y))^K. The differences of this over y, normalised, are the distribution of the next
    picked token. Block verification with it in place of the draft model's is lossless.

    Serves :class:`IIDPaths`; other laws are an UnsupportedLaw error.

    Examples
    --------
    >>> from otmd import trees
    >>> target = trees.TableModel([[0.5, 0.3, 0.2]])
    >>> draft = trees.TableModel([[0.2, 0.3, 0.5]])
    >>> paths = trees.IIDPaths(draft, num_paths=2, depth=2)
    >>> round(trees.tokens_per_step(trees.GreedyMultiPath(), target, paths).value, 4)
    2.5508
    """

    def stops(self, context: Context, tree: DraftTree) -> Iterator[Stop]:
        path, drafts = _picked_path(context, tree)
        reached = [1.0]
        for i, draft in enumerate(drafts):
            target = context.target(path[:i])
            reached.append(float(accept_prob(reached[i] * target[path[i]], draft[path[i]])))
        yield Stop.at(path, reached[-1], context.target(path))
        for i in reversed(range(len(path))):
            yield Stop.at(path[:i], *after_rejection(reached[i], context.target(path[:i]), drafts[i]))


def _picked_path(context: Context, tree: DraftTree) -> tuple[Prefix, list[FloatArray]]:
    """The picked path, and the distribution (V,) of each of its tokens given those before it."""
    law = context.law
    if not isinstance(law, IIDPaths):
        raise UnsupportedLaw(f"GreedyMultiPath: got {law!r}, expected IIDPaths")
    path: Prefix = ()
    drafts = []
    # P(a path ranks below the prefix | it does not rank above it), and P(it has the prefix | the same).
    below, equal = 0.0, 1.0
    while (node := tree.node(path)) is not None:
        draft = context.draft(path)
        ratio = ratios_of(context.target(path), draft, np.arange(draft.size))
        order = np.argsort(ratio, kind="stable")
        up_to = np.empty(draft.size)
        up_to[order] = below + equal * draft[order].cumsum()
        picked = _last_of(law.num_paths, up_to, equal * draft)
        drafts.append(picked / picked.sum())
        rank = np.argsort(order)
        token = int(node.tokens[rank[node.tokens].argmax()])
        equal = min(float(equal * draft[token] / up_to[token]), 1.0)
        below = 1.0 - equal
        path = (*path, token)
    return path, drafts


def _last_of(num_paths: int, up_to: FloatArray, mass: FloatArray) -> FloatArray:
    """F^K − (F − m)^K of each token (V,), F and m being ``up_to`` and ``mass``, without cancellation."""
    share = np.divide(mass, up_to, out=np.zeros_like(mass), where=mass > 0.0).clip(max=1.0)
    with np.errstate(divide="ignore"):
        return -(up_to**num_paths) * np.expm1(num_paths * np.log1p(-share))
