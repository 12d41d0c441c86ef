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
from referee_engines import (
    flashinfer_definition,
    flashinfer_tree,
    layers,
    position_by_position,
    transformers,
)

import otmd
from otmd import trees
from otmd.testing import referee

CASES = referee.load()
LEVEL = 5e-5

# ---------------------------------------------------------------- the file of cases


def test_the_file_is_not_stale():
    """otmd enumerates the laws in the file, which are fractions where ``reference.py`` has the rule.

    If not, run ``python tests/referee_cases.py``.
    """
    compared = 0
    written = json.loads(referee.CASES.read_text("utf-8"))
    for case, expected in zip(written, referee_cases.cases(), strict=True):
        laws = case.pop("laws")
        assert case == json.loads(json.dumps(expected))
        assert [*laws] == [*referee_cases.RULES[case["drafts"]]]
        for rule, law in laws.items():
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
    ("verify", "rule", "verdict"),
    [
        (referee.rejection, "token-level", "PASS"),
        (referee.block, "block", "PASS"),
        (referee.block, "token-level", "ANOTHER RULE"),
        (referee.rejection, "block", "ANOTHER RULE"),
    ],
)
def test_chains(verify, rule, verdict):
    assert referee.judge(verify, rule).verdict == verdict


@pytest.mark.parametrize("name", referee.FAULTS)
def test_negative_controls(name):
    """Dropping every draft unseen is lossless, and no speculative decoding."""
    report = referee.judge(partial(referee.rejection, **referee.FAULTS[name]))
    assert report.verdict == ("ANOTHER RULE" if name == "drafts ignored" else "NOT LOSSLESS")
    assert "expected" in str(report)


MORE_FAULTS = {
    "residual of the next position": {
        "draft": lambda q: np.append(q[:, 1:], q[:, -1:], axis=1),
        "accept": lambda p, q, u: u < 0,
    },
    "q after top-2": {"draft": lambda q: referee._unit(q * (np.argsort(np.argsort(-q)) < 2))},
    "ratio of the position before": {
        "accept": lambda p, q, u: u * np.roll(q, 1, axis=1) < np.roll(p, 1, axis=1),
    },
    "p and q swapped": {"accept": lambda p, q, u: u * p < q},
    "residual not below 1e-3, in half precision": {
        "residual": lambda p, q, _: np.maximum((p - q).astype(np.float16), 1e-3),
    },
    "|p - q|": {"residual": lambda p, q, _: np.abs(p - q)},
    "the last token is lost": {
        "residual": lambda p, q, _: (p - q) * (np.arange(p.shape[-1]) < p.shape[-1] - 1),
    },
    "a coin for all drafts": {"accept": lambda p, q, u: u[:, :1] * q < p},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_FAULTS)
def test_faults_that_are_not_in_the_file(name):
    changes = dict(MORE_FAULTS[name])
    see = changes.pop("draft", lambda q: q)
    faulty = lambda p, q, x, rng: referee.rejection(p, see(q), x, rng, **changes)  # noqa: E731
    assert referee.judge(faulty).verdict == "NOT LOSSLESS"


def test_a_bonus_token_from_the_draft():
    def faulty(p, q, x, rng):
        return referee.rejection(np.append(p[:, :-1], q[:, -1:], axis=1), q, x, rng)

    assert referee.judge(faulty).verdict == "NOT LOSSLESS"


@pytest.mark.slow
def test_recursive_rejection_that_forgets_which_drafts_were_removed():
    sound = position_by_position(otmd.RecursiveRejection())
    faulty = lambda *given: sound(*given[:-1], given[-1]._replace(drafts="with replacement"))  # noqa: E731
    assert referee.judge(faulty, "recursive rejection").verdict == "NOT LOSSLESS"


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


@pytest.mark.parametrize(
    ("verifier", "rule"),
    [
        (otmd.RecursiveRejection(), "recursive rejection"),
        (otmd.KSequential(), "k-seq"),
        (otmd.Preference(), "preference"),
    ],
    ids=repr,
)
def test_verifiers_of_otmd(verifier, rule):
    assert referee.judge(position_by_position(verifier), rule, 2_000).verdict == "PASS"


def test_layers_on_tensors():
    """On few tokens the sweep by classes accepts what :class:`~otmd.trees.LayerVerification` does."""
    pytest.importorskip("torch")
    assert referee.judge(layers, "layer", 5_000).verdict == "PASS"


def test_the_definitions_for_flashinfer_have_sound_references():
    pytest.importorskip("torch")
    assert referee.judge(flashinfer_definition).verdict == "PASS"
    assert referee.judge(flashinfer_tree, "recursive rejection").verdict == "PASS"


def test_the_definition_of_trees_needs_what_each_draft_was_drawn_from():
    """With q in place of q without the siblings before, distinct drafts are accepted too often."""
    pytest.importorskip("torch")

    def faulty(p, q, tokens, rng, case):
        return flashinfer_tree(p, q, tokens, rng, case._replace(drafts="with replacement"))

    assert referee.judge(faulty, "recursive rejection").verdict == "NOT LOSSLESS"


def test_transformers():
    pytest.importorskip("transformers")
    assert referee.judge(transformers, num_draws=50).verdict == "PASS"


def test_transformers_accepts_a_token_of_probability_0_for_the_coin_0(monkeypatch):
    """torch.rand gives 0 once in 2^24 draws in float32; no number of draws here shows it."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    monkeypatch.setattr(torch, "rand_like", torch.zeros_like)
    report = referee.judge(transformers, num_draws=20)
    assert report.verdict == "NOT LOSSLESS"
    assert report.text.p_value == 0.0


# ---------------------------------------------------------------- what is refused, and what it needs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda output: output[:, :-1], r"output_tokens: got int64 \(\d+, 1\)"),
        (lambda output: output + 0.5, "output_tokens: got float64"),
        (lambda output: output + 9, "expected integers .* below"),
        (lambda output: 0 * output - 1, "one to 2 tokens .*, then −1 only"),
        (lambda output: output[::-1], "expected drafts before the last token"),
        (lambda output: None, r"output_tokens: got object \(\), \[None\] …, expected integers"),
        (lambda output: [row[row >= 0] for row in output], "output_tokens: expected integers"),
        (lambda output: (output, np.zeros(3)), r"num_accepted: expected \(\d+,\), the tokens"),
        (
            lambda output: (output, (output >= 0).sum(1)),
            r"num_accepted: expected \(\d+,\), the tokens",
        ),
    ],
)
def test_outputs_of_another_form(change, message):
    with pytest.raises(ValueError, match=message):
        referee.judge(lambda *given: change(referee.rejection(*given)), num_draws=100)


def test_the_number_of_accepted_drafts_may_come_along():
    right = lambda *given: (out := referee.rejection(*given), (out >= 0).sum(1) - 1)  # noqa: E731
    assert referee.judge(right, num_draws=100).verdict == "PASS"


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"rule": "topk"}, ValueError, "^rule: got 'topk', expected one of token-level, block, "),
        ({"num_draws": 0}, ValueError, "^num_draws: got 0, expected an integer ≥ 1$"),
        ({"num_draws": 1.5}, TypeError, "^num_draws: got float, expected an integer ≥ 1$"),
        ({"false_alarm": 2}, ValueError, "^false_alarm: got 2, expected a number between 0 and 1"),
    ],
)
def test_settings_that_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        referee.judge(referee.rejection, **settings)


def test_numpy_alone():
    code = "import sys, referee; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    folder = referee.CASES.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert "numpy" in done.stdout.split()
    assert not {"otmd", "scipy", "torch", "numba"} & {*done.stdout.split()}
