"""Hostile inputs: a seeded generator of thousands of instances.

Every kind of trouble that a draft law or a verifier can meet has a name here: zero mass in p, in q
or in both, ties, p = q, disjoint supports, one-hot laws, a vocabulary of one, more drafts than
tokens with mass, half and single precision, masses over thirty orders of magnitude, dyadic
rationals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import reference

import otmd
from otmd.verifiers.optimal import ChoicePlan
from otmd.verifiers.prepared import ChoosingVerifier

MAX_VOCAB, MAX_DRAFTS = 7, 4
LAWS = (
    "with_replacement", "without_replacement", "conditional_poisson", "greedy", "top_then_with",
    "top_then_without", "top_then_poisson", "hub", "independent", "joint", "stratified",
    "top_then_stratified",
)  # fmt: skip
Rng = np.random.Generator
Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Instance:
    """A pair of distributions, a number of drafts, and what the wider laws need beside them.

    `table` is for independent drafts, `top` for the tops, `joint` a table of tuples and their
    masses. `target_probs` and `draft_probs` are as a user would pass them, in their own dtype; `p`
    and `q` are the same distributions in float64 with sum one.
    """

    kind: str
    target_probs: Array
    draft_probs: Array
    num_drafts: int
    law: str
    table: Array
    top: int
    joint: tuple[Array, Array]
    seed: tuple[int, int]

    @property
    def vocab_size(self) -> int:
        return len(self.target_probs)

    @property
    def p(self) -> list[float]:
        return unit(self.target_probs).tolist()

    @property
    def q(self) -> list[float]:
        return unit(self.draft_probs).tolist()

    @property
    def draft_support(self) -> int:
        return int(np.count_nonzero(self.draft_probs))

    def applicable(self, law: str) -> bool:
        """Whether the law exists here: enough tokens with mass, enough drafts."""
        distinct = ("without_replacement", "conditional_poisson", "greedy")
        tops = ("top_then_without", "top_then_poisson", "top_then_stratified")
        if law in (*distinct, *tops, "stratified"):
            return self.draft_support >= self.num_drafts
        if law == "top_then_with":
            return self.draft_support >= min(self.top + 1, self.num_drafts)
        return self.draft_support >= 2 if law == "hub" else True

    def __str__(self) -> str:
        return (
            f"instances(..., seed={self.seed[0]})[{self.seed[1]}] ({self.kind}): "
            f"target_probs={self.target_probs!r}, draft_probs={self.draft_probs!r}, "
            f"num_drafts={self.num_drafts}, top={self.top}"
        )


def unit(masses: Array) -> Array:
    wide = np.asarray(masses, dtype=np.float64)
    return wide / wide.sum(axis=-1, keepdims=True)


def close_pair(
    size: int | tuple[int, ...], noise: float = 1.0, seed: Any = 0, scale: float = 2.5
) -> tuple[Array, Array]:
    """p and q of a large vocabulary: of normal logits, and of the same with normal noise."""
    rng = np.random.default_rng(seed)
    logits = scale * rng.standard_normal(size)
    moved = logits + noise * rng.standard_normal(size)
    return otmd.probs_from_logits(logits), otmd.probs_from_logits(moved)


def dirichlet(rng: Rng, vocab_size: int, concentration: float = 1.0) -> Array:
    return unit(rng.gamma(concentration, size=vocab_size) + 1e-12)


def one_hot(rng: Rng, vocab_size: int) -> Array:
    return np.eye(vocab_size)[rng.integers(vocab_size)]


def ties(rng: Rng, vocab_size: int) -> Array:
    """Small whole numbers, so that many masses and many ratios coincide."""
    return unit(rng.integers(1, 4, size=vocab_size).astype(float))


def dyadic(rng: Rng, vocab_size: int) -> Array:
    """Multiples of 1/64: sums and products of a few of them are exact in float64."""
    return rng.multinomial(64, np.full(vocab_size, 1 / vocab_size)) / 64


def wide(rng: Rng, vocab_size: int) -> Array:
    """Masses spread evenly in their exponents over thirty orders of magnitude."""
    return unit(10.0 ** rng.uniform(-30, 0, size=vocab_size))


def almost_one_hot(rng: Rng, vocab_size: int) -> Array:
    masses = np.full(vocab_size, 1e-30)
    masses[rng.integers(vocab_size)] = 1.0
    return unit(masses)


def with_zeros(rng: Rng, masses: Array) -> Array:
    """Some tokens lose their mass, never all of them."""
    kept = rng.random(len(masses)) < 0.5
    kept[rng.integers(len(masses))] = True
    return unit(np.where(kept, masses, 0.0))


def _disjoint(rng: Rng, vocab_size: int) -> tuple[Array, Array]:
    if vocab_size == 1:
        return np.ones(1), np.ones(1)
    side = rng.permutation(np.arange(vocab_size) < rng.integers(1, vocab_size))
    p, q = dirichlet(rng, vocab_size), dirichlet(rng, vocab_size)
    return unit(np.where(side, p, 0)), unit(np.where(side, 0, q))


def _permuted(rng: Rng, vocab_size: int) -> tuple[Array, Array]:
    p = dirichlet(rng, vocab_size)
    return p, rng.permutation(p)


def _close(rng: Rng, vocab_size: int) -> tuple[Array, Array]:
    p = dirichlet(rng, vocab_size)
    return p, unit(p * (1 + 1e-9 * rng.standard_normal(vocab_size)))


def _same(make: Callable[[Rng, int], Array]) -> Callable[[Rng, int], tuple[Array, Array]]:
    def pair(rng: Rng, vocab_size: int) -> tuple[Array, Array]:
        p = make(rng, vocab_size)
        return p, p.copy()

    return pair


def _rounded(dtype: type) -> Callable[[Rng, int], tuple[Array, Array]]:
    def pair(rng: Rng, vocab_size: int) -> tuple[Array, Array]:
        return dirichlet(rng, vocab_size).astype(dtype), dirichlet(rng, vocab_size).astype(dtype)

    return pair


# Kinds beyond the plain random pair; each makes (p, q) for a vocabulary.
KINDS: dict[str, Callable[[Rng, int], tuple[Array, Array]]] = {
    "random": lambda rng, V: (dirichlet(rng, V), dirichlet(rng, V)),
    "peaked": lambda rng, V: (dirichlet(rng, V, 0.1), dirichlet(rng, V, 0.1)),
    "uniform": lambda rng, V: (np.full(V, 1 / V), np.full(V, 1 / V)),
    "uniform draft": lambda rng, V: (dirichlet(rng, V), np.full(V, 1 / V)),
    "ties": lambda rng, V: (ties(rng, V), ties(rng, V)),
    "dyadic": lambda rng, V: (dyadic(rng, V), dyadic(rng, V)),
    "p = q": _same(dirichlet),
    "p = q, ties": _same(ties),
    "p permuted": _permuted,
    "p close to q": _close,
    "zeros in p": lambda rng, V: (with_zeros(rng, dirichlet(rng, V)), dirichlet(rng, V)),
    "zeros in q": lambda rng, V: (dirichlet(rng, V), with_zeros(rng, dirichlet(rng, V))),
    "zeros in both": lambda rng, V: (
        with_zeros(rng, dirichlet(rng, V)),
        with_zeros(rng, dirichlet(rng, V)),
    ),
    "disjoint": _disjoint,
    "one-hot p": lambda rng, V: (one_hot(rng, V), dirichlet(rng, V)),
    "one-hot q": lambda rng, V: (dirichlet(rng, V), one_hot(rng, V)),
    "one-hot both": lambda rng, V: (one_hot(rng, V), one_hot(rng, V)),
    "one-hot p = q": _same(one_hot),
    "wide": lambda rng, V: (wide(rng, V), wide(rng, V)),
    "wide draft": lambda rng, V: (dirichlet(rng, V), wide(rng, V)),
    "almost one-hot q": lambda rng, V: (dirichlet(rng, V), almost_one_hot(rng, V)),
    "almost one-hot both": lambda rng, V: (almost_one_hot(rng, V), almost_one_hot(rng, V)),
    "vocabulary of one": lambda rng, V: (np.ones(1), np.ones(1)),
    "float32": _rounded(np.float32),
    "float16": _rounded(np.float16),
}


def _joint(rng: Rng, vocab_size: int, num_drafts: int) -> tuple[Array, Array]:
    """Up to a dozen distinct tuples, repeated tokens allowed, some of them without mass."""
    drawn = rng.integers(vocab_size, size=(int(rng.integers(1, 13)), num_drafts))
    tuples = np.unique(drawn, axis=0)
    masses = dirichlet(rng, len(tuples))
    return tuples, with_zeros(rng, masses) if rng.random() < 0.3 else masses


def _instance(seed: int, index: int) -> Instance:
    rng = np.random.default_rng([seed, index])
    kinds = list(KINDS)
    # A quarter is plain beside its turn in the round, so that the ordinary case is not crowded out.
    kind = "random" if rng.random() < 0.25 else kinds[index % len(kinds)]
    target, draft = KINDS[kind](rng, int(rng.integers(2, MAX_VOCAB + 1)))
    n, vocab_size = int(rng.integers(1, MAX_DRAFTS + 1)), len(draft)
    # The largest enumerations cost more than all others together: three of four are made smaller.
    if vocab_size**n > 1000 and rng.random() < 0.75:
        n = 3
    table = np.stack([unit(draft)] + [dirichlet(rng, vocab_size) for _ in range(n - 1)])
    if n > 1 and rng.random() < 0.3:
        table[-1] = with_zeros(rng, table[-1])
    top = int(rng.integers(n + 1))
    joint = _joint(rng, vocab_size, n)
    bare = Instance(kind, target, draft, n, "", table, top, joint, (seed, index))
    return replace(bare, law=str(rng.choice([law for law in LAWS if bare.applicable(law)])))


def instances(count: int, seed: int) -> list[Instance]:
    """Mixed random and hostile instances, the same for equal arguments, V <= 7 and n <= 4.

    Instance i depends on (seed, i) alone: one that fails is rebuilt by `instances(i + 1, seed)[i]`.
    """
    return [_instance(seed, index) for index in range(count)]


# ---------------------------------------------------------------- the same law twice


def stratified_twin(q: list[float], n: int) -> reference.Law:
    """Stratified drafts by the package's strata: where a share ends on a token, floats may round either way.

    The strata have exact twins of their own.
    """
    number = otmd.Stratified(q, n).strata.tolist() if n else []
    rows = [[m if own == j else 0.0 for own, m in zip(number, q, strict=True)] for j in range(n)]
    return reference.independent([unit(np.array(row)).tolist() for row in rows])


# The twin of a law of q and n, and the law; what follows the top tokens is one of these.
PLAIN: dict[str, tuple[Callable[..., reference.Law], type[otmd.DraftLaw]]] = {
    "with_replacement": (reference.with_replacement, otmd.WithReplacement),
    "without_replacement": (reference.without_replacement, otmd.WithoutReplacement),
    "conditional_poisson": (reference.conditional_poisson, otmd.ConditionalPoisson),
    "greedy": (reference.greedy, otmd.Greedy),
    "stratified": (stratified_twin, otmd.Stratified),
}
RESTS = {
    "top_then_with": "with_replacement",
    "top_then_without": "without_replacement",
    "top_then_poisson": "conditional_poisson",
    "top_then_stratified": "stratified",
}


def twin_law(instance: Instance, law: str) -> reference.Law:
    """The law of an instance as the twins see it: every tuple with its probability."""
    q, n = instance.q, instance.num_drafts
    if law == "joint":
        tuples, masses = (part.tolist() for part in instance.joint)
        return {tuple(x): m for x, m in zip(tuples, masses, strict=True) if m > 0}
    if law == "independent":
        return reference.independent(instance.table.tolist())
    if law == "hub":
        return reference.hub(q)
    if law in RESTS:
        return reference.top_then(q, n, instance.top, PLAIN[RESTS[law]][0])
    return PLAIN[law][0](q, n)


def package_law(instance: Instance, law: str) -> otmd.DraftLaw:
    """The law of an instance as the package sees it, inputs in the instance's own dtype."""
    q, n = instance.draft_probs, instance.num_drafts
    if law == "joint":
        return otmd.Joint(*instance.joint, instance.vocab_size)
    if law == "independent":
        return otmd.Independent(instance.table)
    if law == "hub":
        return otmd.Hub(q)
    if law in RESTS:
        return otmd.TopThen(q, n, instance.top, rest=PLAIN[RESTS[law]][1])
    return PLAIN[law][1](q, n)


def rules_for(
    instance: Instance, law: str
) -> dict[str, tuple[otmd.Verifier, Callable[[reference.Tokens], reference.Outcomes]]]:
    """The verifiers that serve the law, each beside its twin."""
    p, q, n = instance.p, instance.q, instance.num_drafts
    rules = {"TargetOnly": (otmd.TargetOnly(), reference.target_only(p))}
    if law == "with_replacement":
        rules["RecursiveRejection"] = otmd.RecursiveRejection(), reference.rrs(p, q)
        rules["KSequential"] = otmd.KSequential(), reference.k_seq(p, q, n)
    elif law == "without_replacement":
        rules["RecursiveRejection"] = otmd.RecursiveRejection(), reference.rrsw(p, q)
    elif law == "independent":
        table = instance.table.tolist()
        rules["RecursiveRejection"] = otmd.RecursiveRejection(), reference.rrs_independent(p, table)
    elif law == "greedy":
        rules["GreedyCoupling"] = otmd.Preference(), reference.greedy_coupling(p, q, n)
    elif law == "hub":
        rules["SpecHub"] = otmd.SpecHub(), reference.spec_hub(p, q)
    if n == 1 and law in LAWS[:4]:
        rules["MaximalCoupling"] = otmd.Preference(), reference.rrs(p, q)
    return rules


def optimal_plan(
    target: Array, law: otmd.DraftLaw, tol: float = 1e-10
) -> tuple[otmd.PreparedVerifier, ChoicePlan]:
    """The optimal verifier of a position, and its plan."""
    rule = otmd.Optimal(tol).prepare(target, law)
    assert isinstance(rule, ChoosingVerifier)
    assert isinstance(rule.choice, ChoicePlan)
    return rule, rule.choice


def shared_tokens(plan: ChoicePlan) -> int:
    """The number of tokens that are shared by two classes."""
    shared = 0
    for side, members in ((plan.inner, plan.subset), (plan.outer, ~plan.subset)):
        if side is not None:
            tokens = np.flatnonzero(members)
            share = side.classes_of(tokens, np.zeros_like(tokens))[1][:, 0]
            shared += np.count_nonzero((share > 1e-6) & (share < 1 - 1e-6))
    return shared
