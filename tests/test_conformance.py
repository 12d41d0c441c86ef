"""Laws, verifiers and tree verifiers of the registry keep their interface; the checks catch what does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest
from conformance import REGISTERED, VARIANTS
from strategies import KINDS, unit

import otmd
from otmd.laws import ProposalLaw, Slots, Structure, Table
from otmd.laws.structure import all_random
from otmd.registry import TREE_VERIFIERS, VERIFIERS
from otmd.testing import check_law, check_tree_verifier, check_verifier, hostile_trees
from otmd.trees import IIDPaths, LayerVerification, TableModel, TokenLevel, TokenTree
from otmd.verifiers import PreparedVerifier, Verdict

Array = np.ndarray
SIZES = {"random": (5, 3), "ties": (4, 4), "zeros in q": (6, 2), "wide": (5, 3)}


def quick(names: Iterable[str], *kept: str) -> list[object]:
    """These names as parameters of which ``make test`` runs a few, and ``make test-slow`` the others."""
    return [name if name in kept else pytest.param(name, marks=pytest.mark.slow) for name in names]


TREES = (
    "one path",
    "with replacement",
    "strata",
    "strata of ties",
    "greedy",
    "hub",
    "two drafters",
    "dependent drafts",
    "a node without drafts",
    "unequal depths",
    "adaptive",
)


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


@pytest.mark.parametrize("kind", KINDS)
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
    assert [name for name, entry in VERIFIERS.items() if entry.load()().supports(law)] == [
        "target-only"
    ]


@pytest.mark.parametrize("kind", quick(SIZES, "zeros in q"))
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_verifiers(verifier: str, name: str, kind: str) -> None:
    check_verifier(VERIFIERS[verifier].load()(), made(name, draft_probs(kind, SIZES[kind][0]), 3))


@pytest.mark.parametrize("axes", [(2, 1), (0,)], ids=str)
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_verifiers_with_leading_axes(verifier: str, name: str, axes: tuple[int, ...]) -> None:
    law = VARIANTS[name](np.random.default_rng(7).dirichlet(np.full(3, 0.7), axes), 2)
    check_verifier(VERIFIERS[verifier].load()(), law, target_probs=[0.5, 0.0, 0.5])


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_every_verifier_serves_a_law_of_the_registry(verifier: str) -> None:
    q = draft_probs("random", 5)
    rule = VERIFIERS[verifier].load()()
    assert any(rule.supports(make(q, 2)) for make in REGISTERED.values())


@pytest.mark.parametrize("name", quick(hostile_trees(), *TREES))
@pytest.mark.parametrize("rule", TREE_VERIFIERS)
def test_tree_verifiers(rule: str, name: str) -> None:
    check_tree_verifier(TREE_VERIFIERS[rule].load()(), hostile_trees()[name])


@pytest.mark.parametrize("name", quick(VARIANTS, "without-replacement", "certain-top"))
@pytest.mark.parametrize("rule", TREE_VERIFIERS)
def test_tree_verifiers_for_every_law_at_the_nodes(rule: str, name: str) -> None:
    target, draft = (TableModel.random(3, 1, rng=seed) for seed in (1, 2))
    tree = TokenTree(draft, (2,) if name == "hub" else (2, 1), VARIANTS[name])
    check_tree_verifier(TREE_VERIFIERS[rule].load()(), tree, target)


@pytest.mark.parametrize("name", quick(hostile_trees(), "greedy", "dependent drafts"))
@pytest.mark.parametrize(
    "verifier", ["recursive-rejection", "k-sequential", "target-only", "optimal"]
)
def test_layers_that_a_verifier_decides_node_by_node(verifier: str, name: str) -> None:
    rule = LayerVerification(VERIFIERS[verifier].load()())
    check_tree_verifier(rule, hostile_trees()[name])


def test_every_tree_verifier_serves_a_tree_and_every_tree_is_served() -> None:
    target = TableModel([[0.2, 0.3, 0.5]])
    served = set()
    for rule, entry in TREE_VERIFIERS.items():
        for name, tree in hostile_trees().items():
            try:
                entry.load()().step(target, tree, rng=0)
            except otmd.UnsupportedLaw:
                continue
            served |= {rule, name}
    assert served == {*TREE_VERIFIERS, *hostile_trees()}


# ---------------------------------------------------------------- laws with a fault

Q = np.array([0.5, 0.3, 0.15, 0.05])
P = np.array([0.1, 0.2, 0.3, 0.4])


def law_with(**methods: object) -> otmd.DraftLaw:
    """Two drafts with replacement, of which these methods alone are replaced."""
    kept = ("position_structure", "position_next_draft_probs", "count_sets")
    inherited = {name: getattr(otmd.WithReplacement, name) for name in kept}
    faulty = type("Faulty", (otmd.WithReplacement,), {**inherited, **methods})
    # A pickle looks the class up by its name.
    faulty.__module__ = __name__
    globals()["Faulty"] = faulty
    return faulty(Q, 2)


def skewed(self: ProposalLaw, rng: np.random.Generator, count: int) -> Array:
    return rng.choice(4, size=(count, 2), p=[0.4, 0.4, 0.15, 0.05])


def never_redrawn(self: ProposalLaw, rng: np.random.Generator, count: int) -> Array:
    return otmd.WithoutReplacement(Q, 2).position_sample(rng, count)


WR = otmd.WithReplacement
FAULTY_LAWS: dict[str, tuple[Callable[[], otmd.DraftLaw], str]] = {
    "unnormalised": (
        lambda: law_with(position_tuple_prob=lambda self, x: 0.9 * WR.position_tuple_prob(self, x)),
        "sum of the probabilities",
    ),
    "containment": (
        lambda: law_with(position_containment=lambda self, H: float(Q[H].sum())),
        "containment",
    ),
    "inclusion": (lambda: law_with(position_inclusion_probs=lambda self: Q), "inclusion_probs"),
    "hit rate": (
        lambda: law_with(
            hit_rates=lambda self, target, counts: [
                1e-6 + WR.position_hit_rate(self, target) for _ in counts
            ]
        ),
        "hit_rates",
    ),
    "next drafts": (
        lambda: law_with(position_next_draft_probs=lambda self, prefix: np.full(4, 0.25)),
        "next_draft_probs",
    ),
    "can_draw": (
        lambda: law_with(can_draw=lambda self, x: len(set(x.tolist())) == x.size),
        "can_draw",
    ),
    "count_sets": (lambda: law_with(count_sets=lambda self, merge: (16, 32)), "count_sets"),
    "skewed samples": (lambda: law_with(position_sample=skewed), "p-value"),
    "distinct samples": (lambda: law_with(position_sample=never_redrawn), "p-value"),
    "slots of another distribution": (
        lambda: law_with(position_structure=lambda self: all_random(Slots.single(P, 2))),
        "structure",
    ),
    "a deterministic token": (
        lambda: law_with(
            position_structure=lambda self: Structure(np.array([0]), Slots.single(Q, 1))
        ),
        "structure",
    ),
    "containment of prefixes": (
        lambda: law_with(
            position_structure=lambda self: all_random(
                Table(self.enumerate, Q, lambda order: np.linspace(0, 1, 5))
            )
        ),
        "optimal_acceptance|should agree",
    ),
    "fewer drafts": (
        lambda: law_with(with_num_drafts=lambda self, n: WR(Q, 2)),
        "num_drafts of with_num_drafts",
    ),
    "copies": (
        lambda: law_with(__copy__=lambda self: WR(P, 2)),
        "the copy",
    ),
    "pickles": (
        lambda: law_with(__reduce__=lambda self: (WR, (P, 2))),
        "the pickle",
    ),
}


@pytest.mark.parametrize("fault", FAULTY_LAWS)
def test_a_law_with_a_fault_is_caught(fault: str) -> None:
    make, named = FAULTY_LAWS[fault]
    with pytest.raises(AssertionError, match=named):
        check_law(make())


class WrongPosition(otmd.WithReplacement):
    """Gives the first position whatever the index."""

    def __getitem__(self, index: tuple[int, ...]) -> otmd.DraftLaw:
        if index == ():
            return self
        return otmd.WithReplacement(self.draft_probs[0], 2)


class SwapsPositions(otmd.WithReplacement):
    """Positions are right one by one; all together come in another order."""

    def inclusion_probs(self) -> Array:
        return super().inclusion_probs()[::-1]


def test_a_law_with_wrong_leading_axes_is_caught() -> None:
    with pytest.raises(
        AssertionError, match=r"optimal_acceptance .*should agree|optimal_acceptance .* at"
    ):
        check_law(WrongPosition(np.stack([Q, P]), 2))
    with pytest.raises(AssertionError, match=r"inclusion_probs .* at \(0,\)"):
        check_law(SwapsPositions(np.stack([Q, P]), 2))


class EqualDrafts(ProposalLaw):
    """One token, drafted n times."""

    def position_sample(self, rng: np.random.Generator, count: int) -> Array:
        return np.repeat(
            rng.choice(4, size=(count, 1), p=self.draft_probs), self.num_drafts, axis=1
        )

    def position_tuple_prob(self, draft_tokens: Array) -> Array:
        first = draft_tokens[:, :1]
        return self.draft_probs[first[:, 0]] * (draft_tokens == first).all(axis=1)


def test_a_law_of_ones_own_is_not_drawn_as_its_base_is() -> None:
    law = EqualDrafts(Q, 2)
    assert not law.can_draw(np.array([0, 1]))
    check_law(law)
    check_verifier(otmd.TargetOnly(), law)


def test_the_message_says_where_and_what() -> None:
    with pytest.raises(AssertionError) as caught:
        check_law(FAULTY_LAWS["inclusion"][0]())
    assert str(caught.value) == (
        "inclusion_probs() of Faulty(draft_probs(4,), num_drafts=2): "
        "got [0.5, 0.3, 0.15, 0.05], expected [0.75, 0.51, 0.2775, 0.0975] to 1e-10"
    )


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


class SkipsDuplicates(Prepared):
    """Passes over a second, equal draft: the residual is that of one draft."""

    def residual(self, draft_tokens: Array) -> Array:
        if draft_tokens[0] == draft_tokens[1]:
            return unit(np.maximum(self.target - self.law.draft_probs, 0.0))
        return super().residual(draft_tokens)


class KeepsTheTargetAsResidual(Prepared):
    def residual(self, draft_tokens: Array) -> Array:
        return self.target


class EmitsImpossibleTokens(Prepared):
    def residual(self, draft_tokens: Array) -> Array:
        return np.full(self.target.size, 1 / self.target.size)


class VerifiesOtherwise(Prepared):
    def verify(self, draft_tokens: Array, *, rng: np.random.Generator) -> Verdict:
        return Verdict(int(draft_tokens[0]), 0)


class VerifiesWithoutLookingAtDrafts(Prepared):
    def verify(self, draft_tokens: Array, *, rng: np.random.Generator) -> Verdict:
        token = int(rng.choice(self.target.size, p=self.target))
        drafted = np.flatnonzero(draft_tokens == token)
        return Verdict(token, int(drafted[0]) if drafted.size else -1)


class NamesTheWrongDraft(Prepared):
    def verify(self, draft_tokens: Array, *, rng: np.random.Generator) -> Verdict:
        return Verdict(super().verify(draft_tokens, rng=rng).token, -1)


class ForgetsItsTarget(Prepared):
    def __reduce__(self) -> tuple:
        return Prepared, (np.roll(self.target, 1), self.law)


class FaultyRejection(otmd.RecursiveRejection):
    def __init__(self, prepared: type = Prepared, low: float = 0.0, high: float = 0.0) -> None:
        self.prepared = prepared
        self.low = low
        self.high = high

    def prepare_position(self, target: Array, law: otmd.DraftLaw) -> PreparedVerifier:
        return self.prepared(target, law)

    def position_bounds(self, target: Array, law: otmd.DraftLaw, tol: float) -> tuple[float, float]:
        low, high = otmd.RecursiveRejection().acceptance_bounds(target, law)
        return low + self.low, high + self.high

    def curve_rates(self, curve: otmd.RatioCurve, counts: list[int]) -> None:
        return None


class ServesEveryLaw(FaultyRejection):
    def serves(self, structure: Structure) -> bool:
        return True

    def prepare_position(self, target: Array, law: otmd.DraftLaw) -> PreparedVerifier:
        believed = otmd.WithReplacement(law.draft_probs, law.num_drafts)
        return otmd.RecursiveRejection().prepare(target, believed)


class WrongForAllDrafts(FaultyRejection):
    """The rates of 1, 2, … drafts are those of the largest number."""

    def family_bounds(
        self, target: Array, law: otmd.DraftLaw, counts: list[int], tol: float
    ) -> tuple[Array, Array]:
        low, high = super().family_bounds(target, law, counts[-1:], tol)
        return np.repeat(low, len(counts), axis=-1), np.repeat(high, len(counts), axis=-1)


class MixesPositions(FaultyRejection):
    """The rates of several positions come in another order."""

    def family_bounds(
        self, target: Array, law: otmd.DraftLaw, counts: list[int], tol: float
    ) -> tuple[Array, Array]:
        low, high = super().family_bounds(target, law, counts, tol)
        return np.flip(low, axis=0), np.flip(high, axis=0)


class AnswersForAnyLaw(FaultyRejection):
    """Says what it does not serve, but gives a rate all the same."""

    def acceptance_rate(self, target_probs: Array, law: otmd.DraftLaw) -> float:
        return 0.5


WITH, WITHOUT = otmd.WithReplacement(Q, 2), otmd.WithoutReplacement(Q, 2)
FAULTY_VERIFIERS = {
    "skips duplicates": (FaultyRejection(SkipsDuplicates), WITH, "the output of"),
    "residual kept": (FaultyRejection(KeepsTheTargetAsResidual), WITH, "the output of"),
    "impossible tokens": (FaultyRejection(EmitsImpossibleTokens), WITH, "where p = 0"),
    "bounds too high": (FaultyRejection(low=1e-6, high=1e-6), WITH, "the enumerated rate in"),
    "bounds too low": (FaultyRejection(low=-1e-6, high=-1e-6), WITH, "the enumerated rate in"),
    "bounds above the optimum": (FaultyRejection(low=0.5, high=0.5), WITH, "the lower end"),
    "bounds that cross": (FaultyRejection(low=1e-6, high=-1e-6), WITH, "the lower end"),
    "verify": (FaultyRejection(VerifiesOtherwise), WITH, "verify of"),
    "verify given drafts": (FaultyRejection(VerifiesWithoutLookingAtDrafts), WITH, "rate|given"),
    "index of the draft": (FaultyRejection(NamesTheWrongDraft), WITH, "expected the index"),
    "pickles": (FaultyRejection(ForgetsItsTarget), WITH, "after a pickle"),
    "the wrong law": (ServesEveryLaw(), WITHOUT, "the output of"),
    "every number of drafts": (WrongForAllDrafts(), WITH, "every_n=True"),
    "leading axes": (MixesPositions(), WITH, "acceptance_bounds of .* at"),
    "a law that is not served": (
        AnswersForAnyLaw(),
        otmd.Greedy(Q, 2),
        "expected an UnsupportedLaw",
    ),
}


def test_the_verifier_without_a_fault_passes() -> None:
    check_verifier(FaultyRejection(), WITH)


@pytest.mark.parametrize("fault", FAULTY_VERIFIERS)
def test_a_verifier_with_a_fault_is_caught(fault: str) -> None:
    verifier, law, named = FAULTY_VERIFIERS[fault]
    target_probs = [0.6, 0.4, 0.0, 0.0] if fault == "impossible tokens" else None
    with pytest.raises(AssertionError, match=named):
        check_verifier(verifier, law, target_probs=target_probs)


class IgnoresTheDrafter(otmd.PoissonCoupling):
    """The target reads clocks that are not the drafter's: lossless, and rarely accepted."""

    def prepare_position(self, target: Array, law: otmd.DraftLaw) -> PreparedVerifier:
        return VerifiesWithoutLookingAtDrafts(target, law)


class FavoursToken0(otmd.PoissonCoupling):
    def prepare_position(self, target: Array, law: otmd.DraftLaw) -> PreparedVerifier:
        return super().prepare_position(unit(target * np.array([2, 1, 1, 1])), law)


def test_a_coupling_with_a_fault_is_caught() -> None:
    with pytest.raises(AssertionError, match="an acceptance rate between"):
        check_verifier(IgnoresTheDrafter(), WITH, target_probs=Q)
    with pytest.raises(AssertionError, match="not lossless"):
        check_verifier(FavoursToken0(), WITH, target_probs=[0.25, 0.25, 0.25, 0.25])


class StopsEarly(TokenLevel):
    """Emits the target's token after one draft too few."""

    def emit(self, context, tree, chance):
        return super().emit(context, tree, chance)[:1]


class RepeatsItself(TokenLevel):
    """Emits the path of the most likely draft, whether accepted or not."""

    def emit(self, context, tree, chance):
        node = tree.node(())
        return (int(node.tokens[0]), chance.token(context.target((int(node.tokens[0]),))))


class AnswersNow(TokenLevel):
    """Refuses at the first call only."""

    calls = 0

    def emit(self, context, tree, chance):
        self.calls += 1
        if self.calls == 1:
            raise otmd.UnsupportedLaw("not now")
        return (chance.token(context.target(())),)


class CountsOneTokenMore(TokenLevel):
    """Its estimate of the tokens per step is not what it emits."""

    def expected_tokens(self, context, tree, *, rng=None):
        return super().expected_tokens(context, tree, rng=rng) + 1e-6


class LooksAtNoSeed(TokenLevel):
    """Steps follow each other, whatever the seed."""

    calls = 0

    def step(self, target_model, law, *, rng):
        self.calls += 1
        return super().step(target_model, law, rng=self.calls)


class StepsElsewhere(TokenLevel):
    """A step is not one of the outcomes."""

    def step(self, target_model, law, *, rng):
        return (*super().step(target_model, law, rng=rng), 0, 0)


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        (RepeatsItself, "output_distribution of"),
        (AnswersNow, "expected an UnsupportedLaw"),
        (CountsOneTokenMore, "tokens_per_step of"),
        (LooksAtNoSeed, "the second time"),
        (StepsElsewhere, "expected one of"),
    ],
)
def test_a_tree_verifier_with_a_fault_is_caught(rule: type[TokenLevel], named: str) -> None:
    target, draft = (TableModel.random(3, 1, rng=seed) for seed in (1, 2))
    tree = IIDPaths(draft, 2, 1)
    with pytest.raises(AssertionError, match=named):
        check_tree_verifier(rule(otmd.TargetOnly()), tree, target)
    # Fewer tokens are lossless, and nobody's fault.
    check_tree_verifier(StopsEarly(otmd.TargetOnly()), tree, target)
