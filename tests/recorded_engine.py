"""Simulated engines that record their runs; a faulty one records what it should have used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from faulty_verifiers import RejectionSteps
from scipy.special import softmax

from otmd.laws import DraftLaw
from otmd.probabilities import Processing
from otmd.verifiers import Verifier

VOCAB_SIZE, CONTEXTS = 40, 20
PLAIN, COLD = Processing(), Processing(0.6)
Row = dict[str, Any]


@dataclass
class Slot:
    """A request of a batch in one step: logits along the drafted path, one more of the target, drafts."""

    target_logits: list[np.ndarray] = field(default_factory=list)
    draft_logits: list[np.ndarray] = field(default_factory=list)
    drafts: list[np.ndarray] = field(default_factory=list)
    came_out: list[np.ndarray] = field(default_factory=list)


@dataclass
class Step:
    """The data of an engine when it verifies depth ``depth`` of ``slots[index]``."""

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

    def q(self, slot: int = 0) -> np.ndarray:
        logits = self.slots[(self.index + slot) % len(self.slots)].draft_logits
        return self.draft(logits[self.depth % len(logits)])

    @property
    def logits(self) -> np.ndarray:
        return self.slots[self.index].target_logits[self.depth]

    @property
    def came_out(self) -> np.ndarray:
        return self.slots[self.index].came_out[self.depth]

    @property
    def tokens(self) -> np.ndarray:
        drafts = self.slots[self.index].drafts
        return drafts[self.depth] if self.depth < len(drafts) else np.empty(0, int)

    def draw(self, weights: np.ndarray) -> int:
        total = weights.sum()
        return int(self.rng.choice(weights.size, p=weights / total)) if total > 0 else 0


@dataclass
class Engine:
    """Recursive rejection, of which each of the first fields replaces one part, and how it is set up.

    With ``law``, it draws the drafts, and ``verifier`` decides about them, or recursive rejection by the law.
    """

    p: Callable[[Step], np.ndarray] = Step.p
    q: Callable[[Step], np.ndarray] = Step.q
    accept: Callable[[float, float, float], bool] = lambda u, p, q: u * q < p
    residual: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    sample: Callable[[np.random.Generator, np.ndarray, int, int], np.ndarray] = lambda rng, q, count, step: (
        rng.choice(q.size, count, p=q)
    )
    skip: bool = False
    carry: bool = True
    rule: Callable[[Step], int] | None = None
    law: Callable[[np.ndarray, int], DraftLaw] | None = None
    verifier: Verifier | None = None
    num_drafts: int = 1
    depth: int = 1
    slots: int = 1
    target: Processing = PLAIN
    draft: Processing = PLAIN
    penalty: float = 0.0
    logits: bool = False
    record_unreached: bool = False

    def run(self, num_rows: int, seed: int) -> list[Row]:
        rng = np.random.default_rng(seed)
        target = rng.normal(0, 2, (CONTEXTS, VOCAB_SIZE))
        draft = target + rng.normal(0, 1.0, target.shape)
        texts: list[list[int]] = [[slot] for slot in range(self.slots)]
        rows: list[Row] = []
        step, memory = 0, {}
        while len(rows) < num_rows:
            slots = [self._draft(target, draft, text, rng, step) for text in texts]
            for index, text in enumerate(texts):
                for depth in range(self.depth + 1):
                    at = Step(slots, index, depth, self.target, self.draft, rng, memory)
                    output = (self.rule if self.rule and at.tokens.size else self._verify)(at)
                    row = {"request": index, "step": step, "depth": depth}
                    rows.append(self._row(at, output) | row)
                    text.append(output)
                    if output not in at.tokens:
                        unreached = range(depth + 1, self.depth if self.record_unreached else 0)
                        rows += [
                            self._row(replace(at, depth=d), None) | row | {"depth": d} for d in unreached
                        ]
                        break
            step += 1
        return rows

    def _draft(self, target, draft, text, rng, step) -> Slot:
        slot, path = Slot(), text.copy()
        for depth in range(self.depth + 1):
            last = path[-1] % CONTEXTS
            slot.came_out.append(np.isin(np.arange(VOCAB_SIZE), path))
            slot.target_logits.append(target[last] - self.penalty * slot.came_out[-1])
            if depth < self.depth:
                slot.draft_logits.append(draft[last])
                q = self.draft(slot.draft_logits[-1])
                drafts = (
                    self.law(q, self.num_drafts).sample(rng=rng)
                    if self.law
                    else self.sample(rng, q, self.num_drafts, step)
                )
                slot.drafts.append(drafts)
                path.append(int(slot.drafts[-1][0]))
        return slot

    def _verify(self, at: Step) -> int:
        p = self.p(at)
        if not at.tokens.size:
            return at.draw(p)
        if self.law:
            law = self.law(at.q(), self.num_drafts)
            rule = self.verifier.prepare(p, law).conditional_law if self.verifier else RejectionSteps(p, law)
            return at.draw(rule(at.tokens))
        q, first, left = self.q(at), p, p
        for j, token in enumerate(at.tokens):
            if self.skip and token in at.tokens[:j]:
                continue
            if self.accept(at.rng.random(), p[token], q[token]):
                return int(token)
            left = np.maximum(p - q, 0)
            left = left / left.sum() if left.sum() else p
            p = left if self.carry else p
        return at.draw(left if self.residual is None else self.residual(first, q))

    def _row(self, at: Step, output: int | None) -> Row:
        row: Row = {"draft_tokens": at.tokens, "output_token": output}
        if self.logits:
            row |= {"target_logits": at.logits, "target_temperature": self.target.temperature}
            row |= {"target_top_k": self.target.top_k, "target_top_p": self.target.top_p}
        else:
            row["target_probs"] = self.target(at.logits)
        return row | {"draft_probs": at.q()} if at.tokens.size else row


def row_before(at: Step) -> np.ndarray:
    """As from a buffer that is filled too late."""
    before, at.memory["q"] = at.memory.get("q", at.q()), at.q()
    return before


def every_other(at: Step) -> np.ndarray:
    at.memory["turn"] = not at.memory.get("turn", False)
    return at.p() ** 2 / (at.p() ** 2).sum() if at.memory["turn"] else at.p()


def first_accepted_of_many(at: Step) -> int:
    """Each draft is tested by itself; of those that pass, the one the target likes best is emitted."""
    p, q = at.p(), at.q()
    passed = [x for x in at.tokens if at.rng.random() * q[x] < p[x]]
    return int(max(passed, key=lambda x: p[x])) if passed else at.draw(np.maximum(p - q, 0))


def shared_random_numbers(at: Step) -> int:
    """The acceptance of a draft uses the uniform number that drew it."""
    p, q, token = at.p(), at.q(), int(at.tokens[0])
    below = q[:token].sum()
    u = at.rng.uniform(below, below + q[token])
    return token if u * q[token] < p[token] else at.draw(np.maximum(p - q, 0))


def rejected_late(at: Step) -> int:
    """The test of a draft decides on the draft after it."""
    p, q, token = at.p(), at.q(), int(at.tokens[0])
    late = at.depth > 0 and at.memory["rejected"]
    at.memory["rejected"] = at.rng.random() * q[token] >= p[token]
    return at.draw(np.maximum(p - q, 0)) if late else token


def not_renormalised(at: Step) -> int:
    """A search of running sums that ends at the last token."""
    p, q, token = at.p(), at.q(), int(at.tokens[0])
    if at.rng.random() * q[token] < p[token]:
        return token
    sums = np.maximum(p - q, 0).cumsum()
    return min(int(np.searchsorted(sums, at.rng.random(), side="right")), p.size - 1)


def cut(q: np.ndarray) -> np.ndarray:
    """The eight most likely tokens."""
    kept = np.where(q >= np.sort(q)[-8], q, 0)
    return kept / kept.sum()


FAULTS = {
    "softmaxed residual": Engine(residual=lambda p, q: softmax(np.maximum(p - q, 0))),
    "residual not subtracted": Engine(residual=lambda p, q: p),
    "residual from q": Engine(residual=lambda p, q: q),
    "residual one token off": Engine(residual=lambda p, q: np.roll(np.maximum(p - q, 0), 1)),
    "residual buffer of zeros": Engine(residual=lambda p, q: 0 * p),
    "residual not renormalised": Engine(rule=not_renormalised),
    "residual not carried": Engine(carry=False, num_drafts=3),
    "best of the accepted drafts": Engine(rule=first_accepted_of_many, num_drafts=4),
    "batch slots mixed up": Engine(lambda at: at.p(slot=1), lambda at: at.q(slot=1), slots=4),
    "q of the row before": Engine(q=row_before),
    "target one depth too far": Engine(lambda at: at.p(depth=-bool(at.depth)), depth=3),
    "temperature not applied": Engine(lambda at: PLAIN(at.logits), target=COLD, logits=True),
    # The buffer holds any magnitude: vLLM 0.32.0 on a CPU, see tests/engines_real/test_vllm.py.
    "temperature never written": Engine(
        lambda at: Processing(10 ** at.rng.uniform(-3, 3))(at.logits), target=COLD, logits=True
    ),
    "cuts before the temperature": Engine(
        lambda at: Processing(0.6, top_p=0.8, order="llama.cpp")(at.logits),
        target=Processing(0.6, top_p=0.8),
        logits=True,
    ),
    "top-k not applied": Engine(lambda at: PLAIN(at.logits), target=Processing(top_k=5), logits=True),
    "top-p not applied": Engine(lambda at: PLAIN(at.logits), target=Processing(top_p=0.8), logits=True),
    "penalty ignored": Engine(lambda at: softmax(at.logits + 1.0 * at.came_out), penalty=1.0, slots=8),
    "one request at another temperature": Engine(
        lambda at: COLD(at.logits) if at.index == 1 else at.p(), slots=4
    ),
    "bonus token from q": Engine(lambda at: at.p() if at.tokens.size else at.q()),
    "bonus token from the row before": Engine(lambda at: at.p(depth=-(not at.tokens.size))),
    "rejections one position late": Engine(rule=rejected_late, depth=3),
    "argmax recorded as sampled": Engine(sample=lambda rng, q, count, step: q.argsort()[-count:]),
    "q recorded before a cut": Engine(sample=lambda rng, q, count, step: rng.choice(q.size, count, p=cut(q))),
    "drafts drawn before a cut": Engine(
        sample=lambda rng, q, count, step: rng.choice(q.size, count), draft=Processing(top_k=20)
    ),
    "one draft repeated": Engine(
        sample=lambda rng, q, count, step: np.repeat(rng.choice(q.size, 1, p=q), count),
        num_drafts=2,
    ),
    "a seed for two steps": Engine(
        sample=lambda rng, q, count, step: np.random.default_rng(step // 2).choice(q.size, count, p=q)
    ),
    "q buffer uniform": Engine(q=lambda at: np.full(VOCAB_SIZE, 1 / VOCAB_SIZE)),
    "accepted with q/p": Engine(accept=lambda u, p, q: u * p < q),
    "accepted with p": Engine(accept=lambda u, p, q: u < p),
    "accepted always": Engine(accept=lambda u, p, q: True),
    "accepted a little too often": Engine(accept=lambda u, p, q: u < 1.3 * p / q),
    "a coarse coin": Engine(
        accept=lambda u, p, q: np.floor(u * 16) / 16 <= p / q,
        target=Processing(top_p=0.9),
        draft=Processing(1.5),
    ),
    "duplicates skipped": Engine(skip=True, num_drafts=4, draft=Processing(0.4)),
    "every other row at half the temperature": Engine(every_other),
    "random numbers used twice": Engine(rule=shared_random_numbers),
}
