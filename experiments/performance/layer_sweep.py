"""Time of verifying a layer of a draft tree, compared with the softmax of its nodes' logits.

    python -m experiments layer_sweep
    python -m experiments layer_sweep --requests 1 --rounds 20

In each request a layer has 16 nodes, and each drafts two tokens from strata of its k most likely tokens.
Prints milliseconds for all requests, the best of rounds in which the tasks take turns: torch's softmax of the
nodes' logits in float32, the pair sweeps, and all of the verification of these layers: slots, sweep, the
scores of the children, and a token of a node that emits.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

import otmd
from experiments.performance.timing import best_times, synthetic_logits
from experiments.runner import markdown, options
from otmd.laws import Slots
from otmd.trees.base import Context, DraftTree, Prefix
from otmd.trees.random_choices import Sampled
from otmd.trees.whole_tree import SweptLayer
from otmd.verifiers.pair_sweep import sweep_pairs

ONE_THREAD = True
NUM_NODES = 16
NOISE = 1.0
RULE = otmd.trees.LayerVerification()


class Request:
    """A layer of a request: its target's logits (16, V), the sweep's input, and its tree."""

    def __init__(self, vocab_size: int, top_k: int, seed: int) -> None:
        self.logits, draft_logits = synthetic_logits((NUM_NODES, vocab_size), NOISE, seed)
        target = otmd.probs_from_logits(self.logits)
        draft = otmd.probs_from_logits(draft_logits, top_k=top_k)
        rng = np.random.default_rng(seed)
        self.scores = 0.9 * rng.dirichlet(np.ones(NUM_NODES))
        strata = [otmd.Stratified(q, 2).slots for q in draft]
        ends = np.cumsum([0, *(part.tokens.size for part in strata)])
        parts = [
            replace(part, tokens=np.arange(end, end + part.tokens.size))
            for part, end in zip(strata, ends[:-1], strict=True)
        ]
        rows = zip(self.scores, target, strata, strict=True)
        self.targets = np.concatenate([w * p[part.tokens] for w, p, part in rows])
        self.slots = Slots.joined(parts, int(ends[-1]))
        node = lambda prefix: prefix[0] % NUM_NODES if prefix else 0  # noqa: E731
        law = otmd.trees.TokenTree(lambda u: draft[node(u)], (NUM_NODES, 2), otmd.Stratified)
        self.context = Context(lambda u: target[node(u)], law)
        self.choices = Sampled(rng)
        self.tree = DraftTree(self.context, self.choices)
        for prefix in self.tree.prefixes():
            self.context.target(prefix)

    def sweep(self) -> float:
        """The pair sweep over the slots of the layer, whose cached values do not count."""
        return sweep_pairs(self.targets, replace(self.slots)).missed

    def verify(self) -> Prefix:
        """The layer from its scores to those of its children, and the token of a node that emits."""
        root = self.tree.node(())
        assert root is not None
        nodes = [(token,) for token in root.tokens.tolist()]
        scores = dict(zip(nodes, self.scores.tolist(), strict=True))
        layer = SweptLayer(RULE, self.context, self.tree, scores)
        layer.child_scores()
        return layer.emit(self.choices)


def main(arguments: list[str]) -> None:
    """Time and print."""
    sizes = {"vocab_size": 151_936, "top_k": 1024}
    chosen = options(__name__, arguments, requests=8, rounds=40, **sizes)
    requests = [Request(chosen.vocab_size, chosen.top_k, seed) for seed in range(chosen.requests)]
    logits = torch.tensor(np.concatenate([x.logits for x in requests]), dtype=torch.float32)
    tasks: dict[str, Callable[[], object]] = {
        "softmax in float32": lambda: logits.softmax(-1),
        "pair sweeps": lambda: [request.sweep() for request in requests],
        "all of the verification": lambda: [request.verify() for request in requests],
    }
    best = best_times(tasks, chosen.rounds)
    softmax = best["softmax in float32"]
    lines = [[name, f"{1e3 * best[name]:.2f}", f"{best[name] / softmax:.1%}"] for name in tasks]
    print(markdown(["", "ms", "of the softmax"], lines))
