"""Promises of the public interface: clear errors, seeds that decide, a light import."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from conformance import REGISTERED
from scipy import stats

import otmd
from otmd.audit import losslessness
from otmd.optimum.bounds import draft_probability_bound, k_sequential_floor
from otmd.transport import solve_transport
from otmd.trees import IIDPaths, TableModel, TokenLevel, tokens_per_step
from otmd.verifiers.plan_verifier import PlanVerifier

P = np.array([0.5, 0.3, 0.2])
Q = np.array([0.2, 0.3, 0.5])
LAW = otmd.WithReplacement(Q, 2)
HUGE = 10**400
BAD_PROBS = {
    "NaN": ([0.5, np.nan, 0.5], ValueError, "nan"),
    "infinity": ([0.5, np.inf, 0.5], ValueError, "inf"),
    "negative mass": ([0.6, -0.1, 0.5], ValueError, r"-0\.1"),
    "a sum too large": ([0.5, 0.5, 0.5], ValueError, r"1\.5"),
    "one bad row": (np.stack([P, P * 1.01]), ValueError, r"1\.01"),
    "no tokens": (np.zeros(0), ValueError, "shape"),
    "rows of different lengths": ([[0.5, 0.5], [1.0]], ValueError, "lengths"),
    "complex numbers": (P.astype(complex), TypeError, "complex"),
    "text": (np.array(["a", "b", "c"]), TypeError, "dtype"),
}
bad_probs = pytest.mark.parametrize("bad", BAD_PROBS)


@bad_probs
@pytest.mark.parametrize("name", [name for name in REGISTERED if name != "independent"])
def test_a_bad_draft_distribution_is_named(name: str, bad: str) -> None:
    value, error, message = BAD_PROBS[bad]
    with pytest.raises(error, match=rf"(?s)draft_probs.*({message})"):
        REGISTERED[name](value, 2)


TAKERS: dict[str, Callable[[np.ndarray], object]] = {
    "optimal_acceptance": lambda p: otmd.optimal_acceptance(p, LAW),
    "acceptance_rate": lambda p: otmd.acceptance_rate(otmd.TargetOnly(), p, LAW),
    "acceptance_bounds": lambda p: otmd.acceptance_bounds(otmd.RecursiveRejection(), p, LAW),
    "verify": lambda p: otmd.KSequential().verify(p, LAW, np.array([0, 1]), rng=0),
    "output_distribution": lambda p: otmd.SpecHub().output_distribution(p, otmd.Hub(Q)),
    "RatioCurve": lambda p: otmd.RatioCurve(p, Q),
    "draft_probability_bound": lambda p: draft_probability_bound(p, LAW),
}


@pytest.mark.parametrize("taker", TAKERS)
def test_a_bad_target_distribution_is_named(taker: str) -> None:
    for value, error, message in BAD_PROBS.values():
        with pytest.raises(error, match=rf"(?s)target_probs.*({message})"):
            TAKERS[taker](value)
    with pytest.raises(ValueError, match=r"(?s)target_probs.*4.*3"):
        TAKERS[taker](np.full(4, 0.25))


@pytest.mark.parametrize("verifier", [otmd.RecursiveRejection(), otmd.KSequential(), otmd.Optimal()])
def test_arguments_are_left_alone_and_not_read_again(verifier: otmd.Verifier) -> None:
    target, draft = otmd.validate_probs("target_probs", P), otmd.validate_probs("draft_probs", Q)
    before = target.copy()
    law = otmd.WithReplacement(draft, 2)
    prepared = verifier.prepare(target, law)
    output = prepared.conditional_law(np.array([0, 1]))
    np.testing.assert_array_equal(target, before)
    target[:] = draft[:] = [1, 0, 0]
    np.testing.assert_array_equal(prepared.conditional_law(np.array([0, 1])), output)
    assert law.tuple_prob([2, 2]) == pytest.approx(0.25)


# ---------------------------------------------------------------- laws


@pytest.mark.parametrize("name", ["with-replacement", "conditional-poisson", "greedy", "top-then"])
@pytest.mark.parametrize("number", [0, -1, 1.5, True, "2", None, HUGE, 10_001], ids=lambda n: str(n)[:9])
def test_num_drafts_is_a_whole_number(name: str, number: object) -> None:
    error = ValueError if type(number) is int else TypeError
    with pytest.raises(error, match=r"num_drafts.*whole number"):
        REGISTERED[name](Q, number)
    with pytest.raises(error, match="num_drafts"):
        REGISTERED[name](Q, 2).with_num_drafts(number)
    assert REGISTERED[name](Q, np.uint8(2)).num_drafts == 2


@pytest.mark.parametrize("name", ["without-replacement", "conditional-poisson", "greedy", "stratified"])
def test_more_drafts_than_tokens_with_mass(name: str) -> None:
    with pytest.raises(ValueError, match=r"num_drafts.*3.*2"):
        REGISTERED[name](np.stack([Q, [0.5, 0.5, 0.0]]), 3)
    with pytest.raises(ValueError, match=r"num_drafts.*4.*3"):
        REGISTERED[name](Q, 2).with_num_drafts(4)


# ---------------------------------------------------------------- tokens, subsets, numbers


@pytest.mark.parametrize(
    "tokens", [[0], [0, 1, 2], [0, 3], [-1, 0], [0.0, 1.0], [True, False], 0, None, "a"], ids=repr
)
def test_bad_tokens_are_named(tokens: object) -> None:
    error = ValueError if np.array(tokens).dtype.kind == "i" else TypeError
    with pytest.raises(error, match="tokens"):
        LAW.tuple_prob(np.array(tokens))
    with pytest.raises(error, match="tokens"):
        otmd.TargetOnly().verify(P, LAW, np.array(tokens), rng=0)
    with pytest.raises(error, match="tokens: got"):
        otmd.RecursiveRejection().prepare(P, LAW).verify(tokens, rng=0)


@pytest.mark.parametrize("subset", [[0, 1, 1], [True, False], [0.0, 1.0, 1.0], True], ids=repr)
def test_bad_subsets_are_named(subset: object) -> None:
    error = ValueError if np.array(subset).dtype == bool else TypeError
    with pytest.raises(error, match="subset"):
        LAW.containment(np.array(subset))


def sample(size: object) -> Callable[[], object]:
    return lambda: LAW.sample(size, rng=0)


def bounds(tol: float) -> Callable[[], object]:
    return lambda: otmd.acceptance_bounds(otmd.RecursiveRejection(), P, LAW, tol=tol)


def anything(q: np.ndarray, num_drafts: int) -> otmd.DraftLaw:
    """A law of all tokens, those without mass included."""
    return otmd.WithReplacement(np.full(q.size, 1 / q.size), num_drafts)


def verify(law: otmd.DraftLaw, tokens: list[int]) -> Callable[[], object]:
    return lambda: otmd.TargetOnly().verify(P, law, tokens, rng=0)


def frontier(divergence: str) -> Callable[[], otmd.LossyFrontier]:
    return lambda: otmd.lossy_frontier(P, LAW, divergence)


NEVER_DRAWN, TWO = "never draws", np.stack([P, P])
WITHOUT, SOLVED = otmd.WithoutReplacement(Q, 2), solve_transport(P, LAW).plan
REFUSALS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: otmd.Hub([1.0, 0.0]), ValueError, "num_drafts"),
    (lambda: otmd.Hub(Q, num_drafts=3), ValueError, "num_drafts.*3"),
    (lambda: otmd.TopThen(Q, 2, top=-1), ValueError, "top: got"),
    (lambda: otmd.TopThen(Q, 2, top=3), ValueError, "top: got"),
    (lambda: otmd.TopThen(Q, 2, top=1.0), TypeError, "top: got"),
    (lambda: otmd.TopThen(Q, 3, 1, rest=otmd.Hub).inclusion_probs(), ValueError, "rest: "),
    (lambda: otmd.TopThen(Q, 2, 1, rest=anything).sample(rng=0), ValueError, "rest: "),
    (lambda: otmd.TopThen(Q, 2, 1, rest="hub"), TypeError, "rest: "),
    (lambda: otmd.Independent(Q), ValueError, "draft_probs"),
    (lambda: otmd.Independent(np.empty((0, 3))), ValueError, "draft_probs"),
    (lambda: otmd.Joint([[0, 1]], [0.9], 3), ValueError, "probs"),
    (lambda: otmd.Joint([[0, 1], [1, 2]], [1.0], 3), ValueError, "probs"),
    (lambda: otmd.Joint([[0, 3]], [1.0], 3), ValueError, "tuples"),
    (lambda: otmd.Joint([[0.0, 1.0]], [1.0], 3), TypeError, "tuples"),
    (lambda: otmd.Joint([[0, 1], [2]], [0.5, 0.5], 3), ValueError, "tuples"),
    (lambda: otmd.Joint([[0, 1]], [1.0], 0), ValueError, "vocab_size"),
    (lambda: otmd.Joint([[0]], [1.0], HUGE), ValueError, "vocab_size"),
    *((sample(size), ValueError, "size: got") for size in (-1, (2, -1), HUGE)),
    *((bounds(tol), ValueError, "tol") for tol in (0, -1e-6, np.nan)),
    (lambda: k_sequential_floor(0), ValueError, "num_drafts"),
    (lambda: k_sequential_floor(1.5), TypeError, "num_drafts"),
    (lambda: otmd.optimal_acceptance(LAW, P), TypeError, "law: got ndarray .*swapped"),
    (lambda: otmd.validate_probs("p", [Fraction(1)]), TypeError, "p: got list, .*otmd.exact takes frac"),
    (lambda: otmd.WithReplacement(P, 2).next_draft_probs((4,)), ValueError, "prefix: got 4"),
    (lambda: otmd.WithReplacement(P, 2).next_draft_probs((-1,)), ValueError, "prefix: got -1"),
    (lambda: otmd.WithReplacement(P, 2).next_draft_probs((0, 1)), ValueError, "fewer than 2"),
    (lambda: otmd.Greedy(P, 2).next_draft_probs((1,)), ValueError, "with which no draw of"),
    (lambda: otmd.WithReplacement(TWO, 2).next_draft_probs(()), ValueError, r"leading axes \(2,\)"),
    (lambda: otmd.WithReplacement(P, 2)[(0,)], IndexError, "too many indices"),
    (lambda: otmd.Independent(TWO)[(0,)], IndexError, "too many indices"),
    (verify(otmd.WithoutReplacement(P, 2), [0, 0]), ValueError, NEVER_DRAWN),
    (verify(otmd.Greedy(P, 2), [1, 0]), ValueError, NEVER_DRAWN),
    (verify(otmd.Hub(P), [1, 2]), ValueError, NEVER_DRAWN),
    (verify(otmd.Independent([[1, 0, 0], [0, 0.5, 0.5]]), [1, 0]), ValueError, NEVER_DRAWN),
    (verify(otmd.Joint([[0, 1], [1, 2]], [0.5, 0.5], 3), [1, 0]), ValueError, NEVER_DRAWN),
    (lambda: otmd.Stratified(P, 3, sharpness=0.0), ValueError, "^sharpness: "),
    (lambda: otmd.Stratified(P, 3, sharpness=np.inf), ValueError, "^sharpness: "),
    (lambda: otmd.Stratified(P, 3, sharpness="1"), TypeError, "^sharpness: "),  # type: ignore[arg-type]
    (lambda: otmd.Stratified(P, 3, shares=[1, 1]), ValueError, "^shares: "),
    (lambda: otmd.Stratified(P, 3, shares=[1, 1, 0]), ValueError, "^shares: "),
    (lambda: otmd.Stratified(P, 3, shares="equal"), TypeError, "^shares: "),  # type: ignore[arg-type]
    (lambda: otmd.Stratified(P, 2, shares=[1, 2]).with_num_drafts(3), ValueError, "shares"),
    (lambda: otmd.Stratified(P, 2).with_num_drafts(4), ValueError, "num_drafts"),
    (lambda: otmd.RatioCurve(P, P).hockey_stick(-1.0), ValueError, "^C: "),
    (lambda: otmd.RatioCurve(P, P).hockey_stick([0.5, np.nan]), ValueError, "^C: "),
    (lambda: otmd.RatioCurve(np.stack([P] * 4), TWO), ValueError, "^target_probs: "),
    (lambda: otmd.Optimal(0.0), ValueError, "^tol: got .*, expected a positive number"),
    (lambda: otmd.Optimal(np.nan), ValueError, "^tol: got .*, expected a positive number"),
    (lambda: otmd.Optimal("1e-6"), TypeError, "^tol: got .*, expected a number"),
    (lambda: otmd.Preference().prepare(P, WITHOUT), otmd.UnsupportedLaw, "Preference"),
    (lambda: otmd.Preference().prepare(P, otmd.TopThen(Q, 3, 1)), otmd.UnsupportedLaw, "Preference"),
    (lambda: otmd.Optimal().prepare(P, otmd.ConditionalPoisson(Q, 2)), otmd.UnsupportedLaw, "Optimal"),
    (lambda: otmd.PoissonCoupling().output_token(P, np.ones(2)), ValueError, r"clocks: got shape \(2,\)"),
    (lambda: otmd.PoissonCoupling().output_distribution(P, LAW), ValueError, "no closed form given"),
    (frontier("hellinger"), ValueError, "divergence: got 'hellinger', expected one of"),
    (lambda: otmd.lossy_frontier(P, otmd.Independent(TWO)), ValueError, "law with one draft distribution"),
    (lambda: frontier("kl")().rate_at(-1), ValueError, "budget: got -1"),
    (lambda: frontier("leniency")().rate_at(0.5), ValueError, r"expected numbers in \[1, inf\]"),
    (lambda: frontier("kl")().divergence_at(2), ValueError, "rate: got 2"),
    (lambda: PlanVerifier("plan"), TypeError, "plan: got str"),
    (lambda: otmd.acceptance_rate(PlanVerifier(SOLVED), P, WITHOUT), otmd.UnsupportedLaw, "PlanVerifier"),
    (lambda: otmd.acceptance_rate(PlanVerifier(SOLVED), Q, LAW), ValueError, "target_probs: got"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), REFUSALS)
def test_a_refusal(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


WRAP = r"TypeError: law: got an array, expected a DraftLaw; wrap it: otmd\.WithReplacement\(q, 2\)"
LEADS_ON = {
    "otmd.optimal_acceptance(P, Q, 2)": WRAP,
    "otmd.optimal_acceptance(P, Q.tolist(), num_drafts=2)": WRAP,
    "otmd.optimal_acceptance(P, LAW, 2)": "TypeError: .*takes 2 positional arguments but 3",
    "otmd.solve_transport(P, Q, 2)": WRAP,
    "otmd.acceptance_rate('preference', P, Q, 2)": WRAP,
    "otmd.acceptance_rate('preference', P, Q)": WRAP,
    "otmd.optimal_acceptance(P, otmd.Hub)": r"TypeError: law: got the class Hub, .*: Hub\(q, 2\)",
    "otmd.optimal_acceptance(P, 'hub')": r"TypeError: law: got the name 'hub', .*: otmd.Hub\(q, 2\)",
    "otmd.optimal_acceptance(P, None)": "TypeError: law: got NoneType, expected a DraftLaw such as",
    "otmd.acceptance_rate('rrs', P, LAW)": "ValueError: verifier: got 'rrs'.*is recursive-rejection meant",
    "otmd.acceptance_rate(otmd.PlanVerifier, P, LAW)": "TypeError: verifier: got the class PlanVerifier",
    "otmd.acceptance_rate(P, P, LAW)": "TypeError: verifier: got ndarray, expected a Verifier such as",
    "otmd.compare(P, LAW)": r"TypeError: draft_probs: got WithReplacement, .* by laws=\[…\]",
    "otmd.compare([2.0, -3.0], Q)": r"ValueError: target_probs: got -3.0 .*otmd\.probs_from_logits",
    "otmd.compare(P, [5, 3, 2])": "ValueError: draft_probs: .* sums to 10.0.*divide by the sum",
    "float(otmd.optimal_acceptance(P, LAW))": r"TypeError: float: .*take its \.rate",
    "otmd.WithReplacement(Q)": r"TypeError: WithReplacement\(draft_probs, num_drafts\): missing .*'num_d",
    "otmd.WithReplacement(Q, 2, n=2)": r"TypeError: WithReplacement\(.* unexpected keyword argument 'n'",
    "otmd.Stratified(Q)": r"TypeError: Stratified\(draft_probs, num_drafts, sharpness, shares\): missing",
    "otmd.KSeq": "AttributeError: otmd has no KSeq: is otmd.KSequential meant",
    "otmd.RRSw": "AttributeError: .*is otmd.RecursiveRejection meant",
    "otmd.softmax": "AttributeError: .*is otmd.probs_from_logits meant",
    "otmd.optimal_aceptance": "AttributeError: .*is otmd.optimal_acceptance meant",
    "otmd.nothing_of_the_kind": "AttributeError: otmd has no nothing_of_the_kind$",
}


@pytest.mark.parametrize("typed", LEADS_ON)
def test_an_error_leads_on(typed: str) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError)) as caught:
        eval(typed)
    assert re.match(LEADS_ON[typed], f"{caught.type.__name__}: {caught.value}")


@pytest.mark.parametrize("verifier", ["k-sequential", "K-SEQ", "k_sequential", otmd.KSequential])
def test_a_name_or_a_class_is_a_verifier_everywhere(verifier: str | type[otmd.Verifier]) -> None:
    rate = otmd.acceptance_rate(otmd.KSequential(), P, LAW)
    assert otmd.acceptance_rate(verifier, P, LAW) == rate
    assert otmd.acceptance_bounds(verifier, P, LAW) == (rate, rate)
    for laws in ("with-replacement", ["WithReplacement"], otmd.WithReplacement):
        (row,) = otmd.compare(P, Q, np.int64(2), laws=laws, verifiers=verifier)
        assert row[:4] == ("WithReplacement", "KSequential", 2, rate)
    assert otmd.audit.enumerated(verifier, P, LAW).acceptance == pytest.approx(rate, abs=1e-12)
    assert not otmd.audit.losslessness(verifier, P, LAW, 100).faulty
    otmd.testing.assert_lossless(verifier, P, LAW)
    assert repr(TokenLevel(verifier)) == "TokenLevel(KSequential())"


def test_tensors_and_frames_are_arrays() -> None:
    torch, pl = pytest.importorskip("torch"), pytest.importorskip("polars")
    rate = otmd.acceptance_rate("preference", P, LAW)
    for array in (torch.tensor, pl.Series):
        law = otmd.WithReplacement(array(Q), 2)
        assert otmd.acceptance_rate("preference", array(P), law) == rate
        assert law.tuple_prob(array([0, 1])) == LAW.tuple_prob([0, 1])
        assert law.containment(array([True, False, True])) == LAW.containment([True, False, True])
    rows = pl.DataFrame([P.tolist(), P.tolist()], orient="row")
    assert otmd.optimal_acceptance(rows, LAW).rate.shape == (2,)


def test_the_floor_of_k_sequential() -> None:
    assert k_sequential_floor(2) == 0.75 > k_sequential_floor() == 1 - np.exp(-1)


def test_a_law_that_is_not_served_is_named_with_the_verifiers_that_serve_it() -> None:
    with pytest.raises(otmd.UnsupportedLaw) as caught:
        otmd.SpecHub().prepare(P, otmd.Greedy(Q, 2))
    assert isinstance(caught.value, ValueError)
    law = "Greedy(draft_probs(3,), num_drafts=2)"
    message = f"SpecHub does not serve {law}; Preference, TargetOnly, Optimal do"
    assert str(caught.value) == message


# ---------------------------------------------------------------- random numbers


TREE = IIDPaths(lambda _: Q, num_paths=2, depth=2)
TREE_RULE, FIXED = TokenLevel(otmd.KSequential()), TableModel([P])
COUPLED = otmd.PoissonCoupling().prepare(P, LAW)
RANDOM = {
    "sample": lambda rng: LAW.sample(5, rng=rng),
    "verify": lambda rng: otmd.KSequential().verify(P, LAW, [[0, 1]] * 9, rng=rng).token,
    "prepared": lambda rng: otmd.KSequential().prepare(P, LAW).verify([0, 1], rng=rng).token,
    "prepared coupling": lambda rng: COUPLED.verify([0, 1], rng=rng).token,
    "clocks": lambda rng: otmd.PoissonCoupling().clocks(4, 2, rng=rng),
    "losslessness": lambda rng: losslessness(otmd.KSequential(), P, LAW, 50, rng=rng).p_value,
    "draft_law": lambda rng: otmd.audit.draft_law([[0, 1]] * 9, LAW, rng=rng).p_values,
    "step": lambda rng: TREE_RULE.step(FIXED, TREE, rng=rng),
    "tokens_per_step": lambda rng: tokens_per_step(TREE_RULE, FIXED, TREE, 5, rng=rng).value,
    "TableModel": lambda rng: TableModel.random(3, 1, rng=rng)(()),
}


@pytest.mark.parametrize("name", RANDOM)
def test_rng_is_a_seed_a_sequence_a_generator_or_none(name: str) -> None:
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


def test_without_a_seed_draws_differ_and_audits_do_not() -> None:
    """Two equal sets of 200 draws have probability below 1e-40."""
    drafts = np.tile([2, 2], (200, 1))
    rule = otmd.RecursiveRejection()
    draws = (lambda: LAW.sample(200), lambda: rule.verify(P, LAW, drafts).token)
    assert all((draw() != draw()).any() for draw in draws)
    assert losslessness(rule, P, LAW, 200) == losslessness(rule, P, LAW, 200, rng=0)
    audits = [otmd.audit.draft_law(drafts, LAW, **given) for given in ({}, {"rng": 0})]
    assert audits[0] == audits[1]


@pytest.mark.parametrize("of_seed", [int, np.random.default_rng], ids=["seed", "generator"])
def test_a_seed_draws_drafts_and_decisions_independently(of_seed: type) -> None:
    """Negative control: with two generators of one seed the same numbers draw and decide."""
    law = otmd.WithReplacement(P[::-1], 1)
    output = np.zeros(P.size)
    for seed in range(600):
        tokens = law.sample(rng=seed)
        output[otmd.RecursiveRejection().verify(P, law, tokens, rng=of_seed(seed)).token] += 1
    p_value = stats.chisquare(output, 600 * P / P.sum()).pvalue
    assert p_value > 1e-3 if of_seed is int else p_value < 1e-9


def test_global_random_state_is_left_alone() -> None:
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    otmd.TargetOnly().verify(P, LAW, LAW.sample(10, rng=0), rng=1)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


# ---------------------------------------------------------------- results and the import


def test_a_single_position_gives_plain_numbers() -> None:
    assert isinstance(otmd.acceptance_rate(otmd.TargetOnly(), P, LAW), float)
    bounds = otmd.acceptance_bounds(otmd.TargetOnly(), P, LAW)
    assert all(isinstance(bound, float) for bound in bounds)
    verdict = otmd.TargetOnly().verify(P, LAW, [0, 1], rng=0)
    assert np.ndim(verdict.token) == np.ndim(verdict.draft_index) == 0


HEAVY = [
    "torch",
    "transformers",
    "cvxpy",
    "networkx",
    "sympy",
    "matplotlib",
    "dask",
    "polars",
    "pytest",
]
BLOCKED = """
import socket, sys

def refuse(*args, **kwargs):
    raise AssertionError("a socket was opened")

socket.socket = socket.create_connection = socket.getaddrinfo = refuse
"""
SOLVE = """
import numpy as np
law = otmd.WithReplacement([0.2, 0.3, 0.5], num_drafts=2)
otmd.optimal_acceptance([0.5, 0.3, 0.2], law)
otmd.acceptance_rate(otmd.RecursiveRejection(), [0.5, 0.3, 0.2], law)
otmd.probs_from_logits(np.zeros(3))
otmd.testing.hostile_pairs(), otmd.audit.losslessness
"""
MODULES = """
import importlib, pkgutil
for part in ('curve', 'laws', 'laws.race', 'optimum', 'verifiers', 'verifiers.optimal', 'trees'):
    package = importlib.import_module('otmd.' + part)
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + '.'):
        importlib.import_module(module.name)
"""


def in_fresh_python(code: str) -> str:
    run = [sys.executable, "-c", code]
    ran = subprocess.run(run, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_import_stays_light_and_opens_no_socket() -> None:
    loaded = f"print('done', *[m for m in {HEAVY!r} if m in sys.modules])"
    printed = in_fresh_python(f"{BLOCKED}\nimport otmd\n{SOLVE}\n{MODULES}\n{loaded}").split()
    assert printed == ["done"]


def test_a_heavy_import_and_a_socket_would_be_seen() -> None:
    printed = in_fresh_python(f"import sys, dask\nprint(*[m for m in {HEAVY!r} if m in sys.modules])")
    assert printed.split() == ["dask"]
    with pytest.raises(AssertionError, match="a socket was opened"):
        in_fresh_python(BLOCKED + "socket.create_connection(('localhost', 1))")
