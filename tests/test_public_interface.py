"""What the package promises at its door: clear errors, a light import, seeds that decide."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable

import numpy as np
import pytest
from conformance import REGISTERED
from scipy import stats

import otmd
from otmd.optimum.bounds import draft_probability_bound, k_sequential_floor
from otmd.trees import IIDPaths, TableModel, TokenLevel, block_efficiency

P = np.array([0.5, 0.3, 0.2])
Q = np.array([0.2, 0.3, 0.5])
NAN = np.array([0.5, np.nan, 0.5])
INFINITE = np.array([0.5, np.inf, 0.5])
NEGATIVE = np.array([0.6, -0.1, 0.5])
SHORT_SUM = np.array([0.5, 0.3, 0.1])
LONG_SUM = np.array([0.5, 0.5, 0.5])
BATCH_ONE_BAD = np.stack([P, P * 1.01])
BAD_PROBS = {
    "NaN": (NAN, "nan"),
    "infinity": (INFINITE, "inf"),
    "negative mass": (NEGATIVE, r"-0\.1"),
    "a sum too small": (SHORT_SUM, r"0\.9|0\.8999"),
    "a sum too large": (LONG_SUM, r"1\.5"),
    "one bad row": (BATCH_ONE_BAD, r"1\.01"),
    "no tokens": (np.zeros(0), "shape"),
    "no axis": (np.float64(1.0), "shape"),
    "complex numbers": (P.astype(complex), "complex"),
    "text": (np.array(["a", "b", "c"]), "dtype|number"),
}
WRONG_TYPES = {"complex numbers", "text"}


def expected_error(value: object, *kinds: type) -> type[Exception]:
    """ValueError for a value of the right kind, TypeError for one of another."""
    return ValueError if type(value) in kinds else TypeError


bad_probs = pytest.mark.parametrize("bad", BAD_PROBS)


# ---------------------------------------------------------------- distributions


@bad_probs
@pytest.mark.parametrize("family", REGISTERED)
def test_a_bad_draft_distribution_is_named(family: str, bad: str) -> None:
    value, told = BAD_PROBS[bad]
    if family == "independent" and bad == "no axis":
        pytest.skip("a table of one row a draft always has an axis")
    error = TypeError if bad in WRONG_TYPES else ValueError
    with pytest.raises(error, match=rf"(?s)draft_probs.*({told})"):
        REGISTERED[family](value, 2)


TAKERS: dict[str, Callable[[np.ndarray], object]] = {
    "optimal_acceptance": lambda p: otmd.optimal_acceptance(p, otmd.WithReplacement(Q, 2)),
    "acceptance_rate": lambda p: otmd.acceptance_rate(
        otmd.TargetOnly(), p, otmd.WithReplacement(Q, 2)
    ),
    "acceptance_bounds": lambda p: otmd.acceptance_bounds(
        otmd.RecursiveRejection(), p, otmd.WithoutReplacement(Q, 3)
    ),
    "verify": lambda p: otmd.KSequential().verify(
        p, otmd.WithReplacement(Q, 2), np.array([0, 1]), rng=np.random.default_rng(0)
    ),
    "output_distribution": lambda p: otmd.SpecHub().output_distribution(p, otmd.Hub(Q)),
    "RatioCurve": lambda p: otmd.RatioCurve(p, Q),
    "draft_probability_bound": lambda p: draft_probability_bound(p, otmd.WithReplacement(Q, 2)),
}
takers = pytest.mark.parametrize("taker", TAKERS)


@bad_probs
@takers
def test_a_bad_target_distribution_is_named(taker: str, bad: str) -> None:
    value, told = BAD_PROBS[bad]
    error = TypeError if bad in WRONG_TYPES else ValueError
    with pytest.raises(error, match=rf"(?s)target_probs.*({told})"):
        TAKERS[taker](value)


@takers
def test_different_vocabularies_are_named(taker: str) -> None:
    with pytest.raises(ValueError, match=r"(?s)target_probs.*4.*3"):
        TAKERS[taker](np.full(4, 0.25))


def test_only_the_rounding_of_the_dtype_is_divided_out() -> None:
    off = np.array([0.5, 0.3, 0.201])
    for dtype, fine in ((np.float64, False), (np.float32, False), (np.float16, True)):
        if fine:
            assert otmd.validate_probs("target_probs", off.astype(dtype)).sum() == pytest.approx(1)
        else:
            with pytest.raises(ValueError, match=r"target_probs.*1\.0"):
                otmd.validate_probs("target_probs", off.astype(dtype))
    for dtype in (np.float64, np.float32, np.float16):
        probs = otmd.validate_probs("draft_probs", P.astype(dtype))
        assert probs.dtype == np.float64
        assert probs.sum() == pytest.approx(1, abs=1e-15)


def test_validation_leaves_the_input_alone() -> None:
    given = P.astype(np.float16)
    before = given.copy()
    otmd.validate_probs("target_probs", given)
    otmd.WithReplacement(given, 2)
    np.testing.assert_array_equal(given, before)
    mutable = Q.copy()
    drafts = otmd.WithReplacement(mutable, 2)
    mutable[:] = [1, 0, 0]
    assert drafts.tuple_prob(np.array([2, 2])) == pytest.approx(0.25)


def test_what_is_only_read_is_not_copied() -> None:
    given = otmd.validate_probs("target_probs", P)
    assert np.shares_memory(given, otmd.validate_probs("target_probs", given, copy=False))
    assert not np.shares_memory(given, otmd.validate_probs("target_probs", given))
    for other in (given * (1 + 1e-9), given.astype(np.float32), given[::-1]):
        copied = otmd.validate_probs("target_probs", other, copy=False)
        assert not np.shares_memory(copied, other)
        assert copied.sum() == pytest.approx(1, abs=1e-15)
    given.flags.writeable = False
    for copy in (False, True):
        own = otmd.validate_probs("target_probs", given, copy=copy)
        assert own.flags.writeable
        assert not np.shares_memory(own, given)


@pytest.mark.parametrize("rule", [otmd.RecursiveRejection(), otmd.KSequential(), otmd.Optimal()])
def test_what_is_asked_leaves_the_target_alone(rule: otmd.Verifier) -> None:
    drafts, target = otmd.WithReplacement(Q, 2), otmd.validate_probs("target_probs", P)
    before = target.copy()
    otmd.optimal_acceptance(target, drafts, every_n=True)
    rule.acceptance_rate(target, drafts)
    rule.output_distribution(target, drafts)
    np.testing.assert_array_equal(target, before)
    prepared = rule.prepare(target, drafts)
    rate = prepared.conditional_law(np.array([0, 1]))
    target[:] = [1, 0, 0]
    np.testing.assert_array_equal(prepared.conditional_law(np.array([0, 1])), rate)


def test_lists_and_whole_numbers_are_welcome() -> None:
    best = otmd.optimal_acceptance([1, 0], otmd.WithReplacement([0.5, 0.5], 2))
    assert best.rate == pytest.approx(0.75)
    # With replacement there may be more drafts than tokens.
    assert otmd.optimal_acceptance([1.0], otmd.WithReplacement([1.0], 5)).rate == 1


# ---------------------------------------------------------------- numbers of drafts


@pytest.mark.parametrize(
    "family",
    ["with-replacement", "without-replacement", "conditional-poisson", "greedy", "top-then"],
)
@pytest.mark.parametrize("number", [0, -1, 1.5, 2.0, True, "2", None, np.nan], ids=repr)
def test_num_drafts_is_a_whole_number(family: str, number: object) -> None:
    with pytest.raises(expected_error(number, int), match=r"num_drafts.*whole number"):
        REGISTERED[family](Q, number)
    assert all(REGISTERED[family](Q, kind(2)).num_drafts == 2 for kind in (np.int64, np.uint8))


@pytest.mark.parametrize("family", ["without-replacement", "conditional-poisson", "greedy"])
def test_more_drafts_than_tokens_with_mass(family: str) -> None:
    with pytest.raises(ValueError, match=r"num_drafts.*4.*3"):
        REGISTERED[family](Q, 4)
    with pytest.raises(ValueError, match=r"num_drafts.*3.*2"):
        REGISTERED[family](np.array([0.5, 0.5, 0.0]), 3)
    with pytest.raises(ValueError, match=r"num_drafts.*3.*2"):
        REGISTERED[family](np.stack([Q, [0.5, 0.5, 0.0]]), 3)
    with pytest.raises(ValueError, match=r"num_drafts.*4.*3"):
        REGISTERED[family](Q, 2).with_num_drafts(4)
    assert REGISTERED[family](np.array([0.5, 0.5, 0.0]), 2).num_drafts == 2


def test_a_hub_needs_another_token() -> None:
    for alone in ([1.0], [1.0, 0.0]):
        with pytest.raises(ValueError, match=r"draft_probs|num_drafts"):
            otmd.Hub(np.array(alone))
    with pytest.raises(ValueError, match=r"num_drafts.*3"):
        otmd.Hub(Q, num_drafts=3)
    assert otmd.Hub(Q, num_drafts=2).num_drafts == otmd.Hub(Q).num_drafts == 2


@pytest.mark.parametrize("top", [-1, 3, 1.0, True, "1", None, 10**400])
def test_top_is_a_whole_number_up_to_num_drafts(top: object) -> None:
    with pytest.raises(expected_error(top, int), match="top: got"):
        otmd.TopThen(Q, 2, top=top)


def test_none_or_all_of_the_drafts_may_be_certain() -> None:
    """top = 0 is the rest's own law, top = n a single tuple, ties to the lowest id."""
    none, rest = otmd.TopThen(Q, 2, top=0), otmd.WithoutReplacement(Q, 2)
    tuples, probs = rest.enumerate()
    np.testing.assert_allclose(none.tuple_prob(tuples), probs, rtol=1e-14)
    tuples, probs = otmd.TopThen(np.array([0.2, 0.4, 0.4]), 2, top=2).enumerate()
    assert (tuples.tolist(), probs.tolist()) == ([[1, 2]], [1.0])


def test_k_sequential_floor_takes_a_whole_number() -> None:
    for number in (0, 1.5, True):
        with pytest.raises(expected_error(number, int), match="num_drafts"):
            k_sequential_floor(number)


# ---------------------------------------------------------------- tables of drafts


@pytest.mark.parametrize(
    ("tuples", "probs", "vocab_size", "told"),
    [
        ([[0, 1], [1, 2]], [0.5, 0.4], 3, "probs"),
        ([[0, 1], [1, 2]], [1.5, -0.5], 3, "probs"),
        ([[0, 1], [1, 2]], [0.5, np.nan], 3, "probs"),
        ([[0, 1], [1, 2]], [1.0], 3, "probs|tuples"),
        ([[0, 1], [1, 3]], [0.5, 0.5], 3, "tuples"),
        ([[0, -1], [1, 2]], [0.5, 0.5], 3, "tuples"),
        ([[0.0, 1.0], [1.0, 2.0]], [0.5, 0.5], 3, "tuples"),
        ([0, 1], [0.5, 0.5], 3, "tuples"),
        ([[0, 1], [1, 0]], [0.5, 0.5], 0, "vocab_size"),
        ([[0, 1], [1, 0]], [0.5, 0.5], 2.5, "vocab_size"),
        ([[0]], [1.0], 10**400, "vocab_size: got .*, expected a whole number ≤"),
        ([[0]], [1.0], 2**62, "vocab_size: got .*, expected a whole number ≤"),
    ],
)
def test_a_bad_joint_table_is_named(
    tuples: list, probs: list, vocab_size: object, told: str
) -> None:
    whole = np.array(tuples).dtype.kind == "i" and isinstance(vocab_size, int)
    with pytest.raises(ValueError if whole else TypeError, match=told):
        otmd.Joint(np.array(tuples), np.array(probs), vocab_size)


def test_independent_takes_one_row_a_draft() -> None:
    assert otmd.Independent(np.stack([P, Q])).num_drafts == 2
    with pytest.raises(ValueError, match="draft_probs"):
        otmd.Independent(Q)


# ---------------------------------------------------------------- tokens, subsets, generators


LAW = otmd.WithReplacement(Q, 2)


@pytest.mark.parametrize(
    "tokens", [[0], [0, 1, 2], [0, 3], [-1, 0], [0.0, 1.0], [True, False], 0, [[0], [1]]], ids=repr
)
def test_bad_tokens_are_named(tokens: object) -> None:
    error = ValueError if np.array(tokens).dtype.kind == "i" else TypeError
    with pytest.raises(error, match="tokens"):
        LAW.tuple_prob(np.array(tokens))
    with pytest.raises(error, match="tokens"):
        otmd.TargetOnly().verify(P, LAW, np.array(tokens), rng=np.random.default_rng(0))


@pytest.mark.parametrize("subset", [[0, 1, 1], [True, False], [0.0, 1.0, 1.0], True], ids=repr)
def test_bad_subsets_are_named(subset: object) -> None:
    error = ValueError if np.array(subset).dtype == bool else TypeError
    with pytest.raises(error, match="subset"):
        LAW.containment(np.array(subset))


TREE = IIDPaths(lambda _: Q, num_paths=2, depth=2)
TREE_RULE = TokenLevel(otmd.KSequential())
RANDOM = {
    "sample": lambda rng: LAW.sample(5, rng=rng),
    "verify": lambda rng: otmd.KSequential().verify(P, LAW, [[0, 1]] * 9, rng=rng).token,
    "prepared": lambda rng: otmd.KSequential().prepare(P, LAW).verify([0, 1], rng=rng).token,
    "prepared coupling": lambda rng: (
        otmd.PoissonCoupling().prepare(P, LAW).verify([0, 1], rng=rng).token
    ),
    "clocks": lambda rng: otmd.GumbelTop().clocks(4, 2, rng=rng),
    "losslessness": lambda rng: (
        otmd.audit.losslessness(otmd.KSequential(), P, LAW, 50, rng=rng).p_value
    ),
    "draft_law": lambda rng: otmd.audit.draft_law([[0, 1]] * 9, LAW, rng=rng).p_values,
    "step": lambda rng: TREE_RULE.step(lambda _: P, TREE, rng=rng),
    "block_efficiency": lambda rng: (
        block_efficiency(TREE_RULE, lambda _: P, TREE, 5, rng=rng).value
    ),
    "TableModel": lambda rng: TableModel.random(3, 1, rng=rng)(()),
}


@pytest.mark.parametrize("name", RANDOM)
def test_rng_is_a_seed_a_sequence_a_generator_or_none(name):
    run = RANDOM[name]
    for seed in (3, [1, 2]):
        np.testing.assert_array_equal(run(seed), run(seed))
    with_generator = run(np.random.default_rng(3))
    if not name.startswith(("verify", "prepared")):
        np.testing.assert_array_equal(run(3), with_generator)
    assert type(run(None)) is type(with_generator)
    for wrong in ("3", 1.5, object(), np.random.Generator):
        with pytest.raises(TypeError, match="rng: got"):
            run(wrong)
    with pytest.raises(ValueError, match="rng: got -1, expected a seed ≥ 0"):
        run(-1)


@pytest.mark.parametrize("of_seed", [int, np.random.default_rng], ids=["seed", "generator"])
def test_a_seed_draws_drafts_and_decisions_independently(of_seed):
    """Negative control: with two generators of one seed the same numbers draw and decide."""
    law = otmd.WithReplacement(P[::-1], 1)
    output = np.zeros(P.size)
    for seed in range(2000):
        tokens = law.sample(rng=seed)
        output[otmd.RecursiveRejection().verify(P, law, tokens, rng=of_seed(seed)).token] += 1
    p_value = stats.chisquare(output, 2000 * P / P.sum()).pvalue
    assert p_value > 1e-3 if of_seed is int else p_value < 1e-9


@pytest.mark.parametrize("tol", [0, -1e-6, np.nan, True])
def test_tolerance_is_positive(tol: object) -> None:
    with pytest.raises(expected_error(tol, int, float), match="tol"):
        otmd.acceptance_bounds(otmd.RecursiveRejection(), P, otmd.WithoutReplacement(Q, 3), tol=tol)


@pytest.mark.parametrize("C", [-0.1, np.nan, np.inf])
def test_the_hockey_stick_takes_finite_numbers(C: float) -> None:
    with pytest.raises(ValueError, match="C"):
        otmd.RatioCurve(P, Q).hockey_stick(C)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": np.nan}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_p": -0.1}, "top_p"),
        ({"min_p": 2.0}, "min_p"),
    ],
)
def test_bad_processing_is_named(options: dict, named: str) -> None:
    error = expected_error(options[named], *([int] if named == "top_k" else [float]))
    with pytest.raises(error, match=named):
        otmd.probs_from_logits(np.zeros(3), **options)


def test_bad_logits_are_named() -> None:
    for logits in ([0.0, np.nan], [0.0, np.inf], [-np.inf, -np.inf], []):
        with pytest.raises(ValueError, match="logits"):
            otmd.probs_from_logits(np.array(logits))


# ---------------------------------------------------------------- who serves whom


def test_a_law_that_is_not_served_is_named_with_the_verifiers_that_serve_it() -> None:
    with pytest.raises(otmd.UnsupportedLaw) as caught:
        otmd.SpecHub().prepare(P, otmd.Greedy(Q, 2))
    assert isinstance(caught.value, ValueError)
    told = "SpecHub does not serve Greedy(draft_probs(3,), num_drafts=2); Preference, TargetOnly, Optimal do"
    assert str(caught.value) == told


def test_classes_and_swapped_arguments_are_named() -> None:
    with pytest.raises(TypeError, match="law: got ndarray, expected a DraftLaw"):
        otmd.acceptance_rate(otmd.TargetOnly(), P, Q)
    with pytest.raises(TypeError, match=r"law: got the class WithReplacement, expected a DraftLaw"):
        otmd.optimal_acceptance(P, otmd.WithReplacement)
    with pytest.raises(
        TypeError, match=r"verifier: got the class KSequential, expected .* KSequential\(\)"
    ):
        otmd.acceptance_rate(otmd.KSequential, P, LAW)
    with pytest.raises(TypeError, match="verifier: got ndarray, expected a Verifier"):
        otmd.acceptance_rate(P, otmd.KSequential(), LAW)
    with pytest.raises(TypeError, match="law: got ndarray"):
        otmd.optimal_acceptance(LAW, P)


# ---------------------------------------------------------------- results


def test_a_single_position_gives_plain_numbers() -> None:
    rate = otmd.acceptance_rate(otmd.TargetOnly(), P, LAW)
    assert isinstance(rate, float)
    assert all(
        isinstance(bound, float) for bound in otmd.acceptance_bounds(otmd.TargetOnly(), P, LAW)
    )
    verdict = otmd.TargetOnly().verify(P, LAW, [0, 1], rng=np.random.default_rng(0))
    assert isinstance(verdict, otmd.Verdict)
    assert np.ndim(verdict.token) == np.ndim(verdict.draft_index) == 0


@pytest.mark.parametrize("law", REGISTERED)
def test_equal_seeds_give_equal_results(law: str) -> None:
    drafts, rule = REGISTERED[law](Q, 2), otmd.TargetOnly()

    def run(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        tokens = drafts.sample(rng=rng, size=200)
        verdict = rule.verify(P, drafts, tokens, rng=rng)
        return tokens, verdict.token, verdict.draft_index

    for one, two in zip(run(5), run(5), strict=True):
        np.testing.assert_array_equal(one, two)
    assert any((one != two).any() for one, two in zip(run(5), run(6), strict=True))


def test_global_random_state_is_left_alone() -> None:
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    tokens = LAW.sample(rng=np.random.default_rng(0), size=10)
    otmd.TargetOnly().verify(P, LAW, tokens, rng=np.random.default_rng(1))
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_every_public_name_is_there() -> None:
    for name in otmd.__all__:
        assert getattr(otmd, name) is not None
        assert name in dir(otmd)
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        otmd.nothing_of_the_kind  # noqa: B018


# ---------------------------------------------------------------- the import itself


HEAVY = ("torch", "transformers", "cvxpy", "networkx", "sympy", "matplotlib", "dask", "polars")


def in_fresh_python(code: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


SOLVE = """
import numpy as np
drafts = otmd.WithReplacement(np.array([0.2, 0.3, 0.5]), num_drafts=2)
target = np.array([0.5, 0.3, 0.2])
otmd.optimal_acceptance(target, drafts)
otmd.acceptance_rate(otmd.RecursiveRejection(), target, drafts)
otmd.probs_from_logits(np.zeros(3))
"""


def test_the_check_for_a_light_import_can_fail() -> None:
    code = f"import sys\nimport json\nprint(*[m for m in {('json', *HEAVY)!r} if m in sys.modules])"
    assert in_fresh_python(code).split() == ["json"]


BLOCKED = """
import socket

def refuse(*args, **kwargs):
    raise AssertionError("a socket was opened")

socket.socket = socket.create_connection = socket.getaddrinfo = refuse
"""


@pytest.mark.parametrize("use", ["", SOLVE], ids=["import alone", "and a first answer"])
def test_import_stays_light_and_opens_no_socket(use: str) -> None:
    loaded = f"print('done', *[m for m in {HEAVY!r} if m in sys.modules])"
    code = f"{BLOCKED}\nimport sys\nimport otmd\n{use}\n{loaded}"
    assert in_fresh_python(code).split() == ["done"]


def test_every_module_of_the_mathematics_imports_without_a_socket() -> None:
    code = BLOCKED + (
        "import importlib, pkgutil, otmd\n"
        "for part in ('curve', 'laws', 'laws.race', 'optimum', 'verifiers', 'verifiers.optimal', 'trees'):\n"
        "    package = importlib.import_module('otmd.' + part)\n"
        "    for module in pkgutil.iter_modules(package.__path__, package.__name__ + '.'):\n"
        "        importlib.import_module(module.name)\n"
        "import otmd.probabilities, otmd.kernel\n"
        "print('done')"
    )
    assert in_fresh_python(code).split() == ["done"]


def test_the_socket_block_bites() -> None:
    with pytest.raises(AssertionError, match="a socket was opened"):
        in_fresh_python(BLOCKED + "import socket\nsocket.create_connection(('localhost', 1))")
