"""A simulated engine that records its run: two models whose logits depend on the token before, and a rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from otmd.audit.mistakes import RejectionSteps
from otmd.drafts import ProposalLaw, WithReplacement
from otmd.probabilities import Processing
from otmd.verifiers import Verifier

PLAIN = Processing()
Row = dict[str, Any]


@dataclass
class Engine:
    """What it uses, and what it writes down; the two differ where a fault is simulated."""

    vocab_size: int = 50
    law: Callable[[Any, int], ProposalLaw] = WithReplacement
    num_drafts: int = 1
    depth: int = 1
    rule: Callable | Verifier = RejectionSteps
    target: Processing = PLAIN
    draft: Processing = PLAIN
    verified_draft: Processing | None = None
    recorded_target: Processing | None = None
    recorded_draft: Processing | None = None
    record_unreached: bool = False
    disagreement: float = 1.0

    def run(self, num_rows: int, seed: int) -> list[Row]:
        rng = np.random.default_rng(seed)
        contexts = 20
        target = rng.normal(0, 2, (contexts, self.vocab_size))
        draft = target + rng.normal(0, self.disagreement, target.shape)
        rows: list[Row] = []
        last, step = 0, 0
        while len(rows) < num_rows:
            last = self._step(rows, step, last, target, draft, rng)
            step += 1
        return rows

    def _step(self, rows, step, last, target, draft, rng) -> int:
        reached, drafted_path = True, last
        for depth in range(self.depth + 1):
            context = (last if reached else drafted_path) % len(target)
            row = self._recorded(target[context], draft[context]) | {"step": step, "depth": depth}
            p = self.target(target[context])
            tokens = np.empty(0, np.int64)
            if depth < self.depth:
                tokens = self.law(self.draft(draft[context]), self.num_drafts).sample(rng)
                row["draft_tokens"] = tokens
            if reached:
                last = row["output_token"] = self._decide(p, draft[context], tokens, rng)
                reached = last in tokens
            elif not self.record_unreached or depth == self.depth:
                break
            drafted_path = int(tokens[0]) if tokens.size else last
            rows.append(row)
            if not reached and not self.record_unreached:
                break
        return last

    def _decide(self, p, draft_logits, tokens, rng) -> int:
        if not tokens.size:
            return int(rng.choice(p.size, p=p))
        law = self.law((self.verified_draft or self.draft)(draft_logits), self.num_drafts)
        if isinstance(self.rule, Verifier):
            return int(self.rule.verify(p, law, tokens, rng=rng).token)
        output = self.rule(p, law)(tokens)
        return int(rng.choice(output.size, p=output / output.sum()))

    def _recorded(self, target_logits, draft_logits) -> Row:
        return {
            "target_probs": (self.recorded_target or self.target)(target_logits),
            "draft_probs": (self.recorded_draft or self.draft)(draft_logits),
        }
