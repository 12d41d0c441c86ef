"""Engines before the referee: ``python tests/referee_engines.py NAME [DRAWS]`` prints the verdict."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import otmd
from otmd.testing import referee

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"


def law_of(case: referee.Case, rows: np.ndarray) -> otmd.DraftLaw:
    if case.drafts == "strata":
        return otmd.Independent(rows)
    make = {
        "with replacement": otmd.WithReplacement,
        "without replacement": otmd.WithoutReplacement,
    }
    return make[case.drafts](rows[0], len(rows))


def position_by_position(verifier: otmd.Verifier) -> Callable[..., np.ndarray]:
    """A verifier of otmd from the root down; requests with the same distributions are verified together."""

    def verify(target_probs, draft_probs, draft_tokens, rng, case):
        batch = len(draft_tokens)
        request = np.arange(batch)
        output = np.full((batch, len(case.branching) + 1), -1)
        # The node reached, by its row in target_probs; drafts are one row less. -1: the step has ended.
        node, first, below = np.zeros(batch, int), 0, 1
        for depth, count in enumerate(case.branching):
            drafts = below - 1 + (node - first)[:, None] * count + np.arange(count)
            drafts[node < 0] = 0
            p, q = target_probs[request, node], draft_probs[request[:, None], drafts]
            tokens = draft_tokens[request[:, None], drafts]
            keys = np.concatenate([p[:, None], q], axis=1)
            for rows in np.unique(keys[node >= 0], axis=0):
                same = np.flatnonzero((node >= 0) & (keys == rows).all((1, 2)))
                decided = verifier.verify(rows[0], law_of(case, rows[1:]), tokens[same], rng=rng)
                output[same, depth] = decided.token
            is_draft = (tokens == output[:, depth, None]) & (node >= 0)[:, None]
            node = np.where(is_draft.any(1), drafts[request, is_draft.argmax(1)] + 1, -1)
            first, below = below, below + math.prod(case.branching[: depth + 1])
        sums = target_probs[request, node].cumsum(-1)
        bonus = (sums <= rng.random((batch, 1)) * sums[:, -1:]).sum(-1)
        output[node >= 0, -1] = bonus[node >= 0]
        return output

    return verify


def transformers(target_probs, draft_probs, draft_tokens, rng):
    """transformers' function, which takes one request."""
    import torch
    from transformers.generation.utils import _speculative_sampling

    torch.manual_seed(int(rng.integers(2**31)))
    p, q = (torch.from_numpy(probs).log() for probs in (target_probs, draft_probs))
    tokens, depth = torch.from_numpy(draft_tokens), draft_tokens.shape[1]
    output = torch.full((len(tokens), depth + 1), -1)
    for i in range(len(tokens)):
        at = slice(i, i + 1)
        valid, _ = _speculative_sampling(tokens[at], q[at], depth, p[at])
        output[i, : valid.shape[1]] = valid[0]
    return output.numpy()


def definition(name: str, rng: np.random.Generator, *given: np.ndarray) -> np.ndarray:
    """The output of a trace definition's reference, which takes its arguments in FlashInfer's order."""
    import torch

    torch.manual_seed(int(rng.integers(2**31)))
    namespace: dict = {}
    exec(json.loads((EXAMPLES / f"{name}.json").read_text("utf-8"))["reference"], namespace)
    return namespace["run"](*map(torch.from_numpy, given)).numpy()


def flashinfer_definition(target_probs, draft_probs, draft_tokens, rng):
    """The definition of chain sampling."""
    return definition("chain_speculative_sampling", rng, draft_probs, draft_tokens, target_probs)


def flashinfer_tree(target_probs, draft_probs, draft_tokens, rng, case):
    """The definition of tree sampling, whose drafts name their first child and next sibling."""
    batch, size = draft_tokens.shape
    probs = draft_probs.copy()
    first_child, next_sibling = np.full((2, batch, size + 1), -1)
    above, start = [0], 1
    for count in case.branching:
        for node in above:
            siblings = np.arange(start, start + count)
            first_child[:, node], next_sibling[:, siblings[:-1]] = start, siblings[1:]
            for draft in siblings[:-1] - 1 if case.drafts == "without replacement" else ():
                later = slice(draft + 1, siblings[-1])
                np.put_along_axis(probs[:, later], draft_tokens[:, draft, None, None], 0.0, -1)
            start += count
        above = range(start - len(above) * count, start)
    probs /= probs.sum(-1, keepdims=True)
    given = probs, draft_tokens, target_probs, first_child, next_sibling
    return definition("tree_speculative_sampling", rng, *given)[:, : len(case.branching) + 1]


def layers(target_probs, draft_probs, draft_tokens, rng, case):
    """Layer verification of otmd.tensors, of strata that are read off the draft distributions."""
    import torch

    from otmd.tensors import Level, verify_tree

    batch, size, depth = len(draft_tokens), target_probs.shape[-1], len(case.branching)
    levels, start, nodes = [], 0, 1
    for count in case.branching:
        stop = start + nodes * count
        rows = draft_probs[:, start:stop].reshape(batch, nodes, count, size)
        # Strata are numbered over all nodes of a level, and drafts are indices among the nodes' tokens.
        slots = (rows > 0).argmax(2) + count * np.arange(nodes)[:, None]
        slots = np.where(rows.any(2), slots, nodes * count)
        tokens = np.broadcast_to(np.arange(size), slots.shape)
        drafts = draft_tokens[:, start:stop] + size * (np.arange(nodes * count) // count)
        above = np.broadcast_to(np.arange(nodes), (batch, nodes))
        parts = (above, tokens, slots, rows.sum(2), drafts)
        levels.append(Level(*(torch.tensor(part) for part in parts)))
        start, nodes = stop, nodes * count
    uniforms = torch.from_numpy(rng.random((batch, 2)))
    verdict = verify_tree(torch.from_numpy(target_probs), levels, uniforms)
    path, length, token = (part.numpy() for part in verdict)
    output = np.full((batch, depth + 1), -1)
    output[:, :-1] = np.where(path >= 0, np.take_along_axis(draft_tokens, path - 1, 1), -1)
    output[np.arange(batch), length] = token
    return output, length


ENGINES = {
    "transformers": (transformers, "token-level"),
    "flashinfer-definition": (flashinfer_definition, "token-level"),
    "flashinfer-tree-definition": (flashinfer_tree, "recursive rejection"),
    "recursive-rejection": (position_by_position(otmd.RecursiveRejection()), "recursive rejection"),
    "k-seq": (position_by_position(otmd.KSequential()), "k-seq"),
    "preference": (position_by_position(otmd.Preference()), "preference"),
    "layers": (layers, "layer"),
}

if __name__ == "__main__":
    verify, rule = ENGINES[sys.argv[1]]
    print(referee.judge(verify, rule, int(sys.argv[2]) if len(sys.argv) > 2 else 20_000))
