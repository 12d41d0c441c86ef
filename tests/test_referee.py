"""The referee passes sound verifiers, fails its negative controls, and its laws are those of otmd."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import referee_cases
from referee_engines import ENGINES, flashinfer_tree, transformers

import otmd
from otmd import trees
from otmd.testing import referee

CASES = referee.load()
LEVEL = 5e-5
NUM_DRAWS = {
    "transformers": 50, "layers": 5_000, "flashinfer-definition": 20_000, "flashinfer-tree-definition": 20_000
}  # fmt: skip

TORCH = ("layers", "flashinfer-definition", "flashinfer-tree-definition")
NEEDED = {ENGINES[name][0]: ["torch"] for name in TORCH} | {transformers: ["torch", "transformers"]}

# ---------------------------------------------------------------- the file of cases


def test_the_laws_in_the_file_are_those_of_otmd_and_of_fractions():
    """If not, run ``python tests/referee_cases.py``."""
    compared = 0
    for case in json.loads(referee.CASES.read_text("utf-8")):
        for siblings in (np.array(rows) for level in case["draft"] for rows in level):
            if case["drafts"] != "strata":
                assert (siblings == siblings[0]).all()
                continue
            weights, slots = siblings.sum(axis=0), np.arange(len(siblings))[:, None]
            strata = otmd.Stratified(weights / weights.sum(), len(siblings)).strata
            np.testing.assert_array_equal(siblings, np.where(strata == slots, weights, 0))
        assert [*case["laws"]] == [*referee_cases.RULES[case["drafts"]]]
        for rule, law in case["laws"].items():
            assert law == pytest.approx(referee_cases.by_otmd(case, rule), abs=1e-12)
            exact = referee_cases.by_twins(case, rule)
            if exact is not None:
                compared += 1
                assert law == exact
    assert compared == 2 * 18 + 3 + 2 * 3


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_law_continued_by_the_target_is_the_law_of_the_text(case):
    depth, size = len(case.branching), len(case.target[0])
    rows = lambda prefix: case.target[len(prefix)][prefix[-1] if prefix else 0]  # noqa: E731
    expected = referee.text_law(case).reshape((size,) * (depth + 1))
    np.testing.assert_allclose(expected, trees.target_distribution(rows, depth + 1), atol=1e-15)
    for law in case.laws.values():
        text = np.zeros_like(expected)
        for output, probability in law.items():
            tokens = tuple(map(int, output.split()))
            before = math.prod(rows(tokens[:i])[token] for i, token in enumerate(tokens))
            text[tokens] += probability * expected[tokens] / before
        np.testing.assert_allclose(text, expected, atol=1e-12)


# ---------------------------------------------------------------- the statistic


def test_the_expectation_of_the_evidence_is_one():
    law, number = np.array([0.5, 0.4, 0.1, 0.0]), 6
    total = 0.0
    for counts in itertools.product(range(number + 1), repeat=3):
        if sum(counts) == number:
            ways = math.factorial(number) / math.prod(map(math.factorial, counts))
            evidence = math.exp(referee.log_evidence(np.array([*counts, 0]), law))
            total += ways * math.prod(law[:3] ** counts) * evidence
    assert total == pytest.approx(1.0, abs=1e-7)
    assert referee.log_evidence(np.array([5, 0, 0, 1]), law) == np.inf


def test_the_bias_is_seen_nine_times_in_ten():
    """In the direction of one half of the mass against the other; a third of it is not seen."""
    law, rng = np.full(16, 1 / 16), np.random.default_rng(0)
    bias = referee.detectable_bias(law, 20_000, math.log(17 / LEVEL), rng)
    for factor, low, high in ((1.0, 0.8, 1.0), (1 / 3, 0.0, 0.01)):
        biased = law * (1 + 2 * factor * bias * np.tile([1, -1], 8))
        drawn = rng.multinomial(20_000, biased, 1_000)
        assert low <= (referee.log_evidence(drawn, law) > math.log(17 / LEVEL)).mean() <= high
    assert referee.detectable_bias(law, 5, math.log(17 / LEVEL), rng) == 1.0
    assert referee.detectable_bias(np.array([0.0, 1.0]), 5, 1.0, rng) == 0.0


# ---------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("verify", "rule", "num_draws", "verdict"),
    [
        (referee.rejection, "token-level", 20_000, "PASS"),
        (referee.block, "block", 20_000, "PASS"),
        (referee.block, "token-level", 20_000, "ANOTHER RULE"),
        (referee.rejection, "block", 20_000, "ANOTHER RULE"),
        # On few tokens the sweep by classes accepts what LayerVerification does.
        *((*engine, NUM_DRAWS.get(name, 2_000), "PASS") for name, engine in ENGINES.items()),
    ],
)
def test_verdicts_of_sound_verifiers(verify, rule, num_draws, verdict):
    for package in NEEDED.get(verify, ()):
        pytest.importorskip(package)
    assert referee.judge(verify, rule, num_draws).verdict == verdict


def seen_with_replacement(verify):
    """A verifier of distinct drafts that forgets which drafts were removed before."""
    return lambda *given: verify(*given[:-1], given[-1]._replace(drafts="with replacement"))


def of_changed_drafts(see, **changes):
    return lambda p, q, x, rng: referee.rejection(p, see(q), x, rng, **changes)


FAULTS = {
    **{name: partial(referee.rejection, **changes) for name, changes in referee.FAULTS.items()},
    # Faults that are not in the file.
    "residual of the next position": of_changed_drafts(
        lambda q: np.append(q[:, 1:], q[:, -1:], axis=1), accept=lambda p, q, u: u < 0
    ),
    "q after top-2": of_changed_drafts(lambda q: referee._unit(q * (np.argsort(np.argsort(-q)) < 2))),
    "ratio of the position before": partial(
        referee.rejection, accept=lambda p, q, u: u * np.roll(q, 1, axis=1) < np.roll(p, 1, axis=1)
    ),
    "p and q swapped": partial(referee.rejection, accept=lambda p, q, u: u * p < q),
    "residual not below 1e-3, in half precision": partial(
        referee.rejection, residual=lambda p, q, _: np.maximum((p - q).astype(np.float16), 1e-3)
    ),
    "|p - q|": partial(referee.rejection, residual=lambda p, q, _: np.abs(p - q)),
    "the last token is lost": partial(
        referee.rejection, residual=lambda p, q, _: (p - q) * (np.arange(p.shape[-1]) < p.shape[-1] - 1)
    ),
    "a coin for all drafts": partial(referee.rejection, accept=lambda p, q, u: u[:, :1] * q < p),
    "a bonus token from the draft": lambda p, q, x, rng: referee.rejection(
        np.append(p[:, :-1], q[:, -1:], axis=1), q, x, rng
    ),
    "recursive rejection with q": seen_with_replacement(ENGINES["recursive-rejection"][0]),
    "the definition of trees with q": seen_with_replacement(flashinfer_tree),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "recursive rejection with q" else ())
        for name in FAULTS
    ],
)
def test_negative_controls(name):
    """Dropping every draft unseen is lossless, and no speculative decoding."""
    if name.startswith("the definition"):
        pytest.importorskip("torch")
    rule = "recursive rejection" if name.endswith("with q") else "token-level"
    report = referee.judge(FAULTS[name], rule)
    assert report.verdict == ("ANOTHER RULE" if name == "drafts ignored" else "NOT LOSSLESS")
    assert "expected" in str(report)


def test_one_draw_sees_no_bias():
    assert "no bias would have been seen for sure: draw more" in str(
        referee.judge(referee.rejection, num_draws=1)
    )


def test_the_bias_that_a_cosine_above_99_percent_passes():
    p = np.full((1, 2, 8), 1 / 8)
    biased = referee.FAULTS["biased by .07"]["rows"](p)
    cosine = (p * biased).sum() / np.sqrt((p**2).sum() * (biased**2).sum())
    assert cosine > 0.99
    assert np.abs(biased - p)[0, 0].sum() / 2 == pytest.approx(0.07)


def test_transformers_accepts_a_token_of_probability_0_for_the_coin_0(monkeypatch):
    """torch.rand gives 0 once in 2^24 draws in float32; no number of draws here shows it."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    monkeypatch.setattr(torch, "rand_like", torch.zeros_like)
    report = referee.judge(transformers, num_draws=20)
    assert report.verdict == "NOT LOSSLESS"
    assert report.text.p_value == 0.0


# ---------------------------------------------------------------- what is refused, and what it needs


def judged(change):
    """The verdict about rejection sampling whose output is changed."""
    return lambda: referee.judge(lambda *given: change(referee.rejection(*given)), num_draws=100)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (judged(lambda output: output[:, :-1]), ValueError, r"output_tokens: got int64 \(\d+, 1\)"),
        (judged(lambda output: output + 0.5), ValueError, "output_tokens: got float64"),
        (judged(lambda output: output + 9), ValueError, "expected integers .* below"),
        (judged(lambda output: 0 * output - 1), ValueError, "one to 2 tokens .*, then −1 only"),
        (judged(lambda output: output[::-1]), ValueError, "expected drafts before the last token"),
        (judged(lambda output: None), ValueError, r"output_tokens: got object \(\), \[None\] …, expected"),
        (judged(lambda output: [row[row >= 0] for row in output]), ValueError, "tokens: expected integers"),
        *((judged(lambda output, count=count: (output, count(output))), ValueError,
           r"num_accepted: expected \(\d+,\), the tokens")
          for count in (lambda output: np.zeros(3), lambda output: (output >= 0).sum(1))),
        (partial(referee.judge, referee.rejection, "topk"), ValueError,
         "^rule: got 'topk', expected one of token-level, block, "),
        (partial(referee.judge, referee.rejection, num_draws=0), ValueError,
         "^num_draws: got 0, expected an integer ≥ 1$"),
        (partial(referee.judge, referee.rejection, num_draws=1.5), TypeError,
         "^num_draws: got float, expected an integer ≥ 1$"),
        (partial(referee.judge, referee.rejection, false_alarm=2), ValueError,
         "^false_alarm: got 2, expected a number between 0 and 1"),
    ],
)  # fmt: skip
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_the_number_of_accepted_drafts_may_come_along():
    assert judged(lambda output: (output, (output >= 0).sum(1) - 1))().verdict == "PASS"


def test_numpy_alone():
    code = "import sys, referee; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    folder = referee.CASES.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert "numpy" in done.stdout.split()
    assert not {"otmd", "scipy", "torch", "numba"} & {*done.stdout.split()}
