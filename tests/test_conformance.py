"""Laws, verifiers and tree verifiers of the registry keep their interface; the checks catch what does not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from contextlib import suppress

import numpy as np
import pytest
from conformance import REGISTERED, VARIANTS
from strategies import KINDS, unit

import otmd
from otmd.laws import Slots, Structure, Table
from otmd.registry import TREE_VERIFIERS, VERIFIERS
from otmd.testing import check_law, check_tree_verifier, check_verifier, hostile_trees
from otmd.trees import IIDPaths, LayerVerification, TableModel, TokenLevel, TokenTree
from otmd.verifiers import PreparedVerifier, Verdict

Array = np.ndarray
pytestmark = pytest.mark.usefixtures("compiled")
SIZES = {"random": (5, 3), "ties": (4, 4), "zeros in q": (6, 2), "wide": (5, 3)}


def quick(names: Iterable[str], *kept: str) -> list[object]:
    """These names as parameters of which ``make test`` runs a few, and ``make test-slow`` the others."""
    return [name if name in kept else pytest.param(name, marks=pytest.mark.slow) for name in names]


# A law knows q alone: the other kinds differ in p.
KINDS_OF_Q = (
    "random", "peaked", "uniform", "ties", "zeros in q", "one-hot q", "wide", "almost one-hot q",
    "vocabulary of one", "float32", "float16",
)  # fmt: skip
TREES = (
    "with replacement", "strata", "hub", "two drafters", "dependent drafts", "a node without drafts",
    "adaptive",
)  # fmt: skip


def draft_probs(kind: str, vocab_size: int) -> Array:
    return unit(KINDS[kind](np.random.default_rng(list(KINDS).index(kind)), vocab_size)[1])


def made(name: str, q: Array, num_drafts: int) -> otmd.DraftLaw:
    """The law, with as many drafts as exist for q."""
    for number in range(num_drafts, 0, -1):
        try:
            return VARIANTS[name](q, number)
        except ValueError:
            continue
    pytest.skip("the law does not exist for this q")


@pytest.mark.parametrize("kind", quick(KINDS, *KINDS_OF_Q))
@pytest.mark.parametrize("name", VARIANTS)
def test_laws(name: str, kind: str) -> None:
    vocab_size, number = SIZES.get(kind, (4, 3))
    check_law(made(name, draft_probs(kind, vocab_size), number))


@pytest.mark.parametrize("axes", [(2, 1), (0,)], ids=str)
@pytest.mark.parametrize("name", VARIANTS)
def test_laws_with_leading_axes(name: str, axes: tuple[int, ...]) -> None:
    law = VARIANTS[name](np.random.default_rng(7).dirichlet(np.full(4, 0.7), axes), 2)
    assert law.batch_shape == axes
    check_law(law)


def test_a_table_of_tuples() -> None:
    tuples, probs = np.array([[0, 1], [1, 1], [5, 2]]), np.array([0.2, 0.3, 0.5])
    law = otmd.Joint(tuples, probs, 6)
    check_law(law)
    for entry in VERIFIERS.values():
        check_verifier(entry.load()(), law)
    assert [name for name, entry in VERIFIERS.items() if entry.load()().supports(law)] == ["target-only"]


@pytest.mark.parametrize("kind", quick(SIZES, "zeros in q"))
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_verifiers(verifier: str, name: str, kind: str) -> None:
    check_verifier(VERIFIERS[verifier].load()(), made(name, draft_probs(kind, SIZES[kind][0]), 3))


@pytest.mark.parametrize("axes", [(2, 1), (0,)], ids=str)
@pytest.mark.parametrize("name", quick(VARIANTS, "without-replacement", "stratified"))
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_verifiers_with_leading_axes(verifier: str, name: str, axes: tuple[int, ...]) -> None:
    law = VARIANTS[name](np.random.default_rng(7).dirichlet(np.full(3, 0.7), axes), 2)
    check_verifier(VERIFIERS[verifier].load()(), law, target_probs=[0.5, 0.0, 0.5])


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_every_verifier_serves_a_law_of_the_registry(verifier: str) -> None:
    q = draft_probs("random", 5)
    rule = VERIFIERS[verifier].load()()
    assert any(rule.supports(make(q, 2)) for make in REGISTERED.values())


# A plan of the optimal verifier at each node takes longest.
@pytest.mark.parametrize(
    ("rule", "name"),
    [
        pytest.param(rule, name, marks=() if name in few else pytest.mark.slow)
        for rule in TREE_VERIFIERS
        for few in [("strata",) if rule == "optimal" else TREES]
        for name in hostile_trees()
    ],
)
def test_tree_verifiers(rule: str, name: str) -> None:
    check_tree_verifier(TREE_VERIFIERS[rule].load()(), hostile_trees()[name])


@pytest.mark.parametrize("name", quick(VARIANTS, "without-replacement", "top-k"))
@pytest.mark.parametrize("rule", TREE_VERIFIERS)
def test_tree_verifiers_for_every_law_at_the_nodes(rule: str, name: str) -> None:
    target, draft = (TableModel.random(3, 1, rng=seed) for seed in (1, 2))
    tree = TokenTree(draft, (2,) if name == "hub" else (2, 1), VARIANTS[name])
    check_tree_verifier(TREE_VERIFIERS[rule].load()(), tree, target)


# Each plan of the optimal verifier takes as long as a tree of the others.
LAYERS = [
    *itertools.product(("recursive-rejection", "k-sequential", "target-only"), hostile_trees()),
    *itertools.product(("optimal",), ("greedy", "two paths", "strata")),
]


@pytest.mark.parametrize(
    ("verifier", "name"),
    [pytest.param(*layer, marks=() if "dependent drafts" in layer else pytest.mark.slow) for layer in LAYERS],
)
def test_layers_that_a_verifier_decides_node_by_node(verifier: str, name: str) -> None:
    check_tree_verifier(LayerVerification(VERIFIERS[verifier].load()()), hostile_trees()[name])


def test_every_tree_verifier_serves_a_tree_and_every_tree_is_served() -> None:
    target = TableModel([[0.2, 0.3, 0.5]])
    served = set()
    for rule, entry in TREE_VERIFIERS.items():
        for name, tree in hostile_trees().items():
            with suppress(otmd.UnsupportedLaw):
                entry.load()().step(target, tree, rng=0)
                served |= {rule, name}
    assert served == {*TREE_VERIFIERS, *hostile_trees()}


def spoilt(base: type, **members: object) -> type:
    """A subclass with these members, which a pickle finds by its name."""
    name = f"Faulty{base.__name__}{len(globals())}"
    globals()[name] = kind = type(name, (base,), {"__module__": __name__, **members})
    return kind


# ---------------------------------------------------------------- laws with a fault

Q, P = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.1, 0.2, 0.3, 0.4])
WR = otmd.WithReplacement
WITH, WITHOUT = WR(Q, 2), otmd.WithoutReplacement(Q, 2)
# The method of the structure, or of the law, that is replaced, its replacement, and what the check names.
FAULTY_STRUCTURES: list[tuple[str, Callable, str]] = [
    ("tuple_prob", lambda self, x: 0.9 * Slots.tuple_prob(self, x), "sum of the prob"),
    ("containment", lambda self, H: float(Q[H].sum()), "containment"),
    ("inclusion_probs", lambda self: Q,
     r"inclusion_probs\(\) of Faulty\w+\(draft_probs\(4,\), num_drafts=2\): got \[0.5, 0.3, 0.15, 0.05\], "
     r"expected \[0.75, 0.51, 0.2775, 0.0975\] to 1e-10"),
    ("next_draft_probs", lambda self, prefix: np.full(4, 0.25), "next_draft_probs"),
    ("can_draw", lambda self, x: len(set(x.tolist())) == x.size, "can_draw"),
    ("sample", lambda self, rng, n: rng.choice(4, (n, 2), p=[0.4, 0.4, 0.15, 0.05]), "p-value"),
    ("sample", lambda self, rng, count: WITHOUT.sample(count, rng=rng), "p-value"),
    ("prefix_containment", lambda self, order: np.linspace(0, 1, 5), "prefix_containment"),
    ("widened", lambda self, size: Slots.single(np.full(size, 1 / size), 2), "more tokens"),
]  # fmt: skip
BOTH = np.stack([Q, P])
FAULTY_LAWS: list[tuple[Array, str, Callable, str]] = [
    (Q, "structure", lambda self, q: Structure(np.array([0]), Slots.single(q, 1), 4),
     "deterministic|sum of"),
    (Q, "with_num_drafts", lambda self, n: WR(Q, 2), "num_drafts of with_num_drafts"),
    (Q, "__copy__", lambda self: WR(P, 2), "the copy"),
    (Q, "__reduce__", lambda self: (WR, (P, 2)), "the pickle"),
    # The first position whatever the index.
    (BOTH, "__getitem__", lambda self, index: WR(self.draft_probs[0], 2) if index else self,
     "optimal_acceptance .* at"),
    # Positions are right one by one; all together come in another order.
    (BOTH, "inclusion_probs", lambda self: WR.inclusion_probs(self)[::-1],
     r"inclusion_probs .* at \(0,\)"),
]  # fmt: skip


@pytest.mark.parametrize(("q", "method", "fault", "named"), FAULTY_LAWS)
def test_a_law_with_a_fault_is_caught(q: Array, method: str, fault: Callable, named: str) -> None:
    with pytest.raises(AssertionError, match=named):
        check_law(spoilt(WR, **{method: fault})(q, 2))


@pytest.mark.parametrize(("method", "fault", "named"), FAULTY_STRUCTURES)
def test_a_structure_with_a_fault_is_caught(method: str, fault: Callable, named: str) -> None:
    slots = spoilt(Slots, **{method: fault})
    with pytest.raises(AssertionError, match=named):
        check_law(spoilt(WR, structure=lambda self, q: slots.single(q, self.num_drafts))(Q, 2))


class EqualDrafts(otmd.DraftLaw):
    """One token, drafted n times."""

    def structure(self, q: Array) -> Table:
        tokens = np.arange(q.size)
        return Table(np.repeat(tokens[:, None], self.num_drafts, axis=1), q, q.size)


def test_a_law_of_ones_own_may_be_a_table() -> None:
    law = EqualDrafts(BOTH, 2)
    assert not law[1].position_structure.can_draw(np.array([0, 1]))
    check_law(law)
    check_verifier(otmd.TargetOnly(), law[0])


# ---------------------------------------------------------------- verifiers with a fault


class Prepared(PreparedVerifier):
    """Recursive rejection with replacement, to be spoilt."""

    def __init__(self, target: Array, law: otmd.DraftLaw) -> None:
        super().__init__(target, law)
        self.right = otmd.RecursiveRejection().prepare(target, law)

    def accept_probs(self, draft_tokens: Array) -> Array:
        return self.right.accept_probs(draft_tokens)

    def residual(self, draft_tokens: Array) -> Array:
        return self.right.residual(draft_tokens)


def skips_duplicates(self: Prepared, drafts: Array) -> Array:
    """The residual of one draft, where the second is equal to it."""
    once = unit(np.maximum(self.target - self.law.draft_probs, 0.0))
    return once if drafts[0] == drafts[1] else self.right.residual(drafts)


def verifies_without_drafts(self: PreparedVerifier, drafts: Array, *, rng) -> Verdict:
    token = int(rng.choice(self.target.size, p=self.target))
    drafted = np.flatnonzero(drafts == token)
    return Verdict(token, int(drafted[0]) if drafted.size else -1)


class FaultyRejection(otmd.RecursiveRejection):
    def __init__(self, low: float = 0.0, high: float = 0.0, prepared: type = Prepared) -> None:
        self.prepared, self.low, self.high = prepared, low, high

    def prepare_position(self, target: Array, law: otmd.DraftLaw) -> PreparedVerifier:
        return self.prepared(target, law)

    def position_bounds(self, target: Array, law: otmd.DraftLaw, tol: float) -> tuple[float, float]:
        low, high = otmd.RecursiveRejection().acceptance_bounds(target, law)
        return low + self.low, high + self.high

    def curve_rates(self, curve: otmd.RatioCurve, num_drafts: int) -> None:
        return None


def prepared(**methods: Callable) -> FaultyRejection:
    return FaultyRejection(prepared=spoilt(Prepared, **methods))


def reversed_axes(self: otmd.Verifier, *args, **options):
    """The bounds of positions in another order."""
    low, high = FaultyRejection.acceptance_bounds(self, *args, **options)
    return np.flip(low), np.flip(high)


def believes_in_replacement(self: otmd.Verifier, target: Array, law: otmd.DraftLaw):
    return otmd.RecursiveRejection().prepare(target, WR(law.draft_probs, law.num_drafts))


def ignores_the_drafter(self: otmd.Verifier, target: Array, law: otmd.DraftLaw):
    """The target reads clocks that are not the drafter's: lossless, and rarely accepted."""
    return spoilt(Prepared, verify=verifies_without_drafts)(target, law)


def favours_token_0(self: otmd.Verifier, target: Array, law: otmd.DraftLaw):
    favoured = unit(target * np.array([2, 1, 1, 1]))
    return otmd.PoissonCoupling.prepare_position(self, favoured, law)


FAULTY_VERIFIERS = [
    (prepared(residual=skips_duplicates), WITH, "the output of"),
    (prepared(residual=lambda self, drafts: self.target), WITH, "the output of"),
    (prepared(residual=lambda self, drafts: np.full(4, 0.25)), WITH, "where p = 0"),
    (FaultyRejection(1e-6, 1e-6), WITH, "the enumerated rate in"),
    (FaultyRejection(-1e-6, -1e-6), WITH, "the enumerated rate in"),
    # Above the optimum, and crossed.
    (FaultyRejection(0.5, 0.5), WITH, "the lower end"),
    (FaultyRejection(1e-6, -1e-6), WITH, "the lower end"),
    (prepared(verify=lambda self, drafts, *, rng: Verdict(int(drafts[0]), 0)), WITH, "verify of"),
    (prepared(verify=verifies_without_drafts), WITH, "rate|given"),
    (prepared(verify=lambda self, drafts, *, rng: Verdict(self.right.verify(drafts, rng=rng).token, -1)),
     WITH, "expected the index"),
    (prepared(__reduce__=lambda self: (Prepared, (np.roll(self.target, 1), self.law))), WITH,
     "after a pickle"),
    (spoilt(FaultyRejection, serves=lambda self, structure: True,
            prepare_position=believes_in_replacement)(), WITHOUT, "the output of"),
    (spoilt(FaultyRejection, acceptance_bounds=reversed_axes)(), WITH, "acceptance_bounds of .* at"),
    # It says what it does not serve, but gives a rate all the same.
    (spoilt(FaultyRejection, acceptance_rate=lambda self, target_probs, law: 0.5)(),
     otmd.Greedy(Q, 2), "expected an UnsupportedLaw"),
    (spoilt(otmd.PoissonCoupling, prepare_position=ignores_the_drafter)(), WITH,
     "an acceptance rate between"),
    (spoilt(otmd.PoissonCoupling, prepare_position=favours_token_0)(), WITH, "not lossless"),
]  # fmt: skip
TARGETS = {
    "where p = 0": [0.6, 0.4, 0.0, 0.0], "an acceptance rate between": Q, "not lossless": [0.25] * 4
}  # fmt: skip


def test_the_verifier_without_a_fault_passes() -> None:
    check_verifier(FaultyRejection(), WITH)


@pytest.mark.parametrize(("verifier", "law", "named"), FAULTY_VERIFIERS)
def test_a_verifier_with_a_fault_is_caught(verifier, law: otmd.DraftLaw, named: str) -> None:
    with pytest.raises(AssertionError, match=named):
        check_verifier(verifier, law, target_probs=TARGETS.get(named))


def repeats_itself(self: TokenLevel, context, tree, chance):
    """The path of the most likely draft, whether accepted or not."""
    first = int(tree.node(()).tokens[0])
    return first, chance.token(context.target((first,)))


class CountsCalls(TokenLevel):
    calls = 0

    def counted(self) -> int:
        self.calls += 1
        return self.calls


def refuses_once(self: CountsCalls, context, tree, chance):
    if self.counted() == 1:
        raise otmd.UnsupportedLaw("not now")
    return (chance.token(context.target(())),)


@pytest.mark.parametrize(
    ("method", "fault", "named"),
    [
        ("emit", repeats_itself, "output_distribution of"),
        ("emit", refuses_once, "expected an UnsupportedLaw"),
        ("expected_tokens", lambda *given, **rng: TokenLevel.expected_tokens(*given, **rng) + 1e-6,
         "tokens_per_step of"),
        # Steps follow each other, whatever the seed.
        ("step", lambda self, model, law, *, rng: TokenLevel.step(self, model, law, rng=self.counted()),
         "the second time"),
        # A step is not one of the outcomes.
        ("step", lambda self, model, law, *, rng: (*TokenLevel.step(self, model, law, rng=rng), 0, 0),
         "expected one of"),
        # Fewer tokens are lossless, but they are fewer than the rule is expected to emit.
        ("emit", lambda self, *given: TokenLevel.emit(self, *given)[:1], "tokens_per_step of"),
    ],
)  # fmt: skip
def test_a_tree_verifier_with_a_fault_is_caught(method: str, fault: Callable, named) -> None:
    target, draft = (TableModel.random(3, 1, rng=seed) for seed in (1, 2))
    rule = spoilt(CountsCalls, **{method: fault})(otmd.TargetOnly())
    with pytest.raises(AssertionError, match=named):
        check_tree_verifier(rule, IIDPaths(draft, 2, 1), target)
