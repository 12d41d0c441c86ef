"""Engines with a fault each, written plainly, that record what they should have used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import softmax

from otmd.probabilities import Processing

VOCAB_SIZE, CONTEXTS = 40, 20
Row = dict[str, Any]


@dataclass
class Slot:
    """A request of a batch in one step: logits along the drafted path, one more of the target, drafts."""

    target_logits: list[np.ndarray]
    draft_logits: list[np.ndarray]
    drafts: list[np.ndarray]


@dataclass
class Step:
    """What an engine has at hand when it verifies depth ``depth`` of ``slots[index]``."""

    slots: list[Slot]
    index: int
    depth: int
    target: Processing
    draft: Processing
    rng: np.random.Generator
    memory: dict[str, Any]

    def p(self, slot: int = 0, depth: int = 0) -> np.ndarray:
        """The target of this slot and depth, or of one further on; both wrap around."""
        logits = self.slots[(self.index + slot) % len(self.slots)].target_logits
        return self.target(logits[(self.depth + depth) % len(logits)])

    def q(self, slot: int = 0, depth: int = 0) -> np.ndarray:
        logits = self.slots[(self.index + slot) % len(self.slots)].draft_logits
        return self.draft(logits[(self.depth + depth) % len(logits)])

    @property
    def logits(self) -> np.ndarray:
        return self.slots[self.index].target_logits[self.depth]

    @property
    def tokens(self) -> np.ndarray:
        drafts = self.slots[self.index].drafts
        return drafts[self.depth] if self.depth < len(drafts) else np.empty(0, int)


Rule = Callable[[Step], int]


@dataclass
class Engine:
    """A rule that takes a step and emits a token, and how the engine is set up."""

    rule: Rule
    num_drafts: int = 1
    depth: int = 1
    slots: int = 1
    target: Processing = field(default_factory=Processing)
    draft: Processing = field(default_factory=Processing)
    logits: bool = False

    def run(self, num_rows: int, seed: int) -> list[Row]:
        rng = np.random.default_rng(seed)
        target = rng.normal(0, 2, (CONTEXTS, VOCAB_SIZE))
        draft = target + rng.normal(0, 1.0, target.shape)
        texts: list[list[int]] = [[slot] for slot in range(self.slots)]
        rows: list[Row] = []
        step, memory = 0, {}
        while len(rows) < num_rows:
            slots = [self._draft(target, draft, text[-1], rng) for text in texts]
            for index, text in enumerate(texts):
                for depth in range(self.depth + 1):
                    at = Step(slots, index, depth, self.target, self.draft, rng, memory)
                    output = int(self.rule(at))
                    rows.append(
                        self._row(at, output) | {"request": index, "step": step, "depth": depth}
                    )
                    text.append(output)
                    if output not in at.tokens:
                        break
            step += 1
        return rows

    def _draft(self, target, draft, last, rng) -> Slot:
        slot = Slot([], [], [])
        for depth in range(self.depth + 1):
            slot.target_logits.append(target[last % CONTEXTS])
            if depth < self.depth:
                slot.draft_logits.append(draft[last % CONTEXTS])
                q = self.draft(slot.draft_logits[-1])
                slot.drafts.append(rng.choice(q.size, self.num_drafts, p=q))
                last = int(slot.drafts[-1][0])
        return slot

    def _row(self, at: Step, output: int) -> Row:
        row: Row = {"draft_tokens": at.tokens, "output_token": output}
        if self.logits:
            row |= {"target_logits": at.logits, "target_temperature": self.target.temperature}
            if self.target.top_p:
                row["target_top_p"] = self.target.top_p
        else:
            row["target_probs"] = self.target(at.logits)
        if at.tokens.size:
            row["draft_probs"] = at.q()
        return row


def draw(weights: np.ndarray, rng: np.random.Generator) -> int:
    total = weights.sum()
    return int(rng.choice(weights.size, p=weights / total)) if total > 0 else 0


def verify(
    at: Step,
    p: np.ndarray | None = None,
    q: np.ndarray | None = None,
    accept: Callable[[float, float, float], bool] = lambda u, p, q: u * q < p,
    residual: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
    skip: bool = False,
    carry: bool = True,
) -> int:
    """Recursive rejection; each argument replaces one part of it."""
    p = at.p() if p is None else p
    if not at.tokens.size:
        return draw(p, at.rng)
    q, first = (at.q() if q is None else q), p
    left = p
    for j, token in enumerate(at.tokens):
        if skip and token in at.tokens[:j]:
            continue
        if accept(at.rng.random(), p[token], q[token]):
            return int(token)
        left = np.maximum(p - q, 0)
        if left.sum() == 0:
            left = p
        left = left / left.sum()
        p = left if carry else p
    return draw(left if residual is None else residual(first, q), at.rng)


def stale(name: str, at: Step) -> np.ndarray:
    """The distribution of the row before, as from a buffer that is filled too late."""
    now = getattr(at, name)()
    before = at.memory.get(name, now)
    at.memory[name] = now
    return before


def never_written(at: Step) -> np.ndarray:
    """The target at the temperature of a buffer that holds whatever its memory held before, any magnitude."""
    left_over = 10 ** at.rng.uniform(-3, 3)
    return Processing(left_over)(at.logits)


def first_accepted_of_many(at: Step) -> int:
    """Each draft is tested by itself; of those that pass, the one the target likes best is emitted."""
    p, q = at.p(), at.q()
    if not at.tokens.size:
        return draw(p, at.rng)
    passed = [x for x in at.tokens if at.rng.random() * q[x] < p[x]]
    return int(max(passed, key=lambda x: p[x])) if passed else draw(np.maximum(p - q, 0), at.rng)


def every_other(at: Step, probs: np.ndarray) -> np.ndarray:
    at.memory["turn"] = not at.memory.get("turn", False)
    return probs**2 / (probs**2).sum() if at.memory["turn"] else probs


def shared_random_numbers(at: Step) -> int:
    """The acceptance of a draft uses the uniform number that drew it."""
    p, q = at.p(), at.q()
    if not at.tokens.size:
        return draw(p, at.rng)
    token = int(at.tokens[0])
    below = q[:token].sum()
    u = at.rng.uniform(below, below + q[token])
    return token if u * q[token] < p[token] else draw(np.maximum(p - q, 0), at.rng)


def not_renormalised(at: Step) -> int:
    """A search of running sums that ends at the last token."""
    p = at.p()
    if not at.tokens.size:
        return draw(p, at.rng)
    q = at.q()
    token = int(at.tokens[0])
    if at.rng.random() * q[token] < p[token]:
        return token
    sums = np.maximum(p - q, 0).cumsum()
    return min(int(np.searchsorted(sums, at.rng.random(), side="right")), p.size - 1)


def coarse(u: float, p: float, q: float) -> bool:
    return np.floor(u * 16) / 16 <= p / q


COLD = Processing(0.6)
FAULTS = {
    "softmaxed residual": Engine(
        lambda at: verify(at, residual=lambda p, q: softmax(np.maximum(p - q, 0)))
    ),
    "residual not subtracted": Engine(lambda at: verify(at, residual=lambda p, q: p)),
    "residual from q": Engine(lambda at: verify(at, residual=lambda p, q: q)),
    "residual one token off": Engine(
        lambda at: verify(at, residual=lambda p, q: np.roll(np.maximum(p - q, 0), 1))
    ),
    "residual buffer of zeros": Engine(lambda at: verify(at, residual=lambda p, q: 0 * p)),
    "residual not renormalised": Engine(not_renormalised),
    "residual not carried": Engine(lambda at: verify(at, carry=False), num_drafts=3),
    "best of the accepted drafts": Engine(first_accepted_of_many, num_drafts=4),
    "batch slots mixed up": Engine(lambda at: verify(at, at.p(slot=1), at.q(slot=1)), slots=4),
    "q of the row before": Engine(lambda at: verify(at, q=stale("q", at))),
    "target one depth too far": Engine(
        lambda at: verify(at, at.p(depth=-1)) if at.depth else verify(at), depth=3
    ),
    "temperature not applied": Engine(
        lambda at: verify(at, Processing()(at.logits)), target=COLD, logits=True
    ),
    # vLLM 0.32.0 on a CPU, see tests/engines_real/test_vllm.py.
    "temperature never written": Engine(
        lambda at: verify(at, never_written(at)), target=COLD, logits=True
    ),
    "cuts before the temperature": Engine(
        lambda at: verify(at, Processing(0.6, top_p=0.8, order="llama.cpp")(at.logits)),
        target=Processing(0.6, top_p=0.8),
        logits=True,
    ),
    "q buffer uniform": Engine(lambda at: verify(at, q=np.full(VOCAB_SIZE, 1 / VOCAB_SIZE))),
    "accepted with q/p": Engine(lambda at: verify(at, accept=lambda u, p, q: u * p < q)),
    "accepted with p": Engine(lambda at: verify(at, accept=lambda u, p, q: u < p)),
    "accepted always": Engine(lambda at: verify(at, accept=lambda u, p, q: True)),
    "accepted a little too often": Engine(
        lambda at: verify(at, accept=lambda u, p, q: u < 1.3 * p / q)
    ),
    "a coarse coin": Engine(
        lambda at: verify(at, accept=coarse), target=Processing(top_p=0.9), draft=Processing(1.5)
    ),
    "duplicates skipped": Engine(
        lambda at: verify(at, skip=True), num_drafts=4, draft=Processing(0.4)
    ),
    "every other row at half the temperature": Engine(
        lambda at: verify(at, every_other(at, at.p()))
    ),
    "random numbers used twice": Engine(shared_random_numbers),
}
