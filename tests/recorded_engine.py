"""A simulated engine that records its run: two models whose logits depend on the token before, and a rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from faulty_verifiers import RejectionSteps

from otmd.laws import DraftLaw, WithReplacement
from otmd.probabilities import Processing
from otmd.verifiers import Verifier

PLAIN = Processing()
Row = dict[str, Any]


@dataclass
class Engine:
    """What it uses, and what it writes down; the two differ where a fault is simulated."""

    vocab_size: int = 50
    law: Callable[[Any, int], DraftLaw] = WithReplacement
    num_drafts: int = 1
    depth: int = 1
    rule: Callable | Verifier = RejectionSteps
    target: Processing = PLAIN
    draft: Processing = PLAIN
    recorded_target: Processing | None = None
    recorded_draft: Processing | None = None
    record_unreached: bool = False
    disagreement: float = 1.0

    def run(self, num_rows: int, seed: int) -> list[Row]:
        rng = np.random.default_rng(seed)
        contexts = 20
        target = rng.normal(0, 2, (contexts, self.vocab_size))
        draft = target + rng.normal(0, self.disagreement, target.shape)
        # Few contexts, many rows: what a context decides is made once.
        at = cache(lambda context: self._position(target[context], draft[context]))
        rows: list[Row] = []
        last, step = 0, 0
        while len(rows) < num_rows:
            last = self._step(rows, step, last, lambda own: at(own % contexts), rng)
            step += 1
        return rows

    def _step(self, rows, step, last, at, rng) -> int:
        reached, drafted_path = True, last
        for depth in range(self.depth + 1):
            p, law, rule, recorded = at(last if reached else drafted_path)
            row = recorded | {"step": step, "depth": depth}
            tokens = np.empty(0, np.int64)
            if depth < self.depth:
                tokens = law.sample(rng=rng)
                row["draft_tokens"] = tokens
            if reached:
                output = rule(tokens) if tokens.size else p
                last = row["output_token"] = int(rng.choice(p.size, p=output / output.sum()))
                reached = last in tokens
            elif not self.record_unreached or depth == self.depth:
                break
            drafted_path = int(tokens[0]) if tokens.size else last
            rows.append(row)
            if not reached and not self.record_unreached:
                break
        return last

    def _position(self, target_logits, draft_logits) -> tuple[Any, DraftLaw, Callable, Row]:
        """What the engine uses in a context, its rule, and what it writes down."""
        p, law = self.target(target_logits), self.law(self.draft(draft_logits), self.num_drafts)
        if isinstance(self.rule, Verifier):
            rule = self.rule.prepare(p, law).conditional_law
        else:
            rule = self.rule(p, law)
        recorded = {
            "target_probs": (self.recorded_target or self.target)(target_logits),
            "draft_probs": (self.recorded_draft or self.draft)(draft_logits),
        }
        return p, law, rule, recorded
