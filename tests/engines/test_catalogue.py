"""The engines' rules: exact against draws, lossless ones lossless, lossy ones not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from otmd.engines import CATALOGUE, SOURCES, LossyRule, lossy

SIGMAS = 4.5
DRAWS = 4000
LOSSY = [name for name, rule in CATALOGUE.items() if not rule.lossless]


def pair(seed: int, size: int = 6):
    return np.random.default_rng(seed).dirichlet(np.full(size, 0.6), 2)


def drafts_of(rule, most: int = 2) -> int:
    return min(rule.most_drafts or most, most)


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name not in LOSSY])
def test_lossless_rules_are_lossless(name):
    rule = CATALOGUE[name]
    for seed in range(5):
        p, q = pair(seed)
        law = rule.drafts(q, drafts_of(rule))
        np.testing.assert_allclose(rule.rule.output_distribution(p, law), p, atol=1e-12)
        verdict = rule.judge(p, q, drafts_of(rule))
        assert 0.0 <= verdict.rate <= 1.0
        assert verdict.total_variation == 0.0
        if name != "sequoia":
            assert verdict.rate <= verdict.best + 1e-9
        assert "lossless, accepts" in str(verdict)


@pytest.mark.parametrize("name", LOSSY)
def test_lossy_rules_as_drawn(name):
    rule, rng = CATALOGUE[name], np.random.default_rng(3)
    p, q = pair(7)
    count = drafts_of(rule, 3)
    assert isinstance(rule.rule, LossyRule)
    output, rate = rule.rule.output_distribution(p, q, count)
    law = rule.rule.law(q, count)
    prepared = rule.rule.prepare(p, q, law)
    assert output.sum() == pytest.approx(1.0, abs=1e-12)
    tokens, hits = np.zeros(p.size), 0
    for drafted in law.sample(rng=rng, size=DRAWS):
        verdict = prepared.verify(drafted, rng=rng)
        tokens[verdict.token] += 1
        hits += verdict.draft_index >= 0
    errors = SIGMAS * np.sqrt(output * (1 - output) / DRAWS) + 1e-12
    assert (np.abs(tokens / DRAWS - output) <= errors).all()
    assert abs(hits / DRAWS - rate) <= SIGMAS * np.sqrt(rate * (1 - rate) / DRAWS) + 1e-9


@pytest.mark.parametrize("name", LOSSY)
def test_lossy_rules_are_biased(name):
    """Each departs from the target on some position, and says so."""
    rule = CATALOGUE[name]
    found = [rule.judge(*pair(seed, 80), drafts_of(rule)) for seed in range(8)]
    assert max(verdict.total_variation for verdict in found) > 0.01
    assert "biased, TV" in str(max(found, key=lambda verdict: verdict.total_variation))


@pytest.mark.parametrize(
    ("rule", "rate", "output"),
    [
        # The argmax of q, token 2, is accepted half the time; its rejection gives token 0.
        (lossy.ratio_test(None), 0.5, [0.5, 0.0, 0.5]),
        # The output is (p + q)/2, of which .875 is at most q.
        (lossy.ensemble(0.5), 0.875, [0.375, 0.25, 0.375]),
        # Token 2 is accepted with probability .5 + .3·.5; its rejection gives token 0.
        (lossy.ears(0.3), 0.825, [0.425, 0.25, 0.325]),
        # Only token 0 is the draft model's: its .25, and p on the other .75.
        (lossy.cascade(0.25), 0.625, [0.625, 0.1875, 0.1875]),
        # All three tokens have at least .05 of the largest p: the output is q.
        (lossy.cascade(0.95), 1.0, [0.25, 0.25, 0.5]),
        # The argmax of q, with p = .25, and half of what is rejected.
        (lossy.fly(0.3, 0.5), 0.625, [0.25, 0.125, 0.625]),
        (lossy.fly(0.3), 1.0, [0.0, 0.0, 1.0]),
        # Token 2 is kept and accepted half the time; of the dropped drafts 3/8 are drawn again.
        (lossy.dropped(0.3), 0.25 + 0.5 * 0.375, [0.5, 0.125, 0.375]),
    ],
)
def test_exact_loss_by_hand(rule, rate, output):
    """At p = (.5, .25, .25) and q = (.25, .25, .5), where rejection sampling accepts .75."""
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.25, 0.5])
    assert CATALOGUE["rejection"].judge(p, q).rate == pytest.approx(0.75)
    exact, accepted = rule.output_distribution(p, q, 1)
    np.testing.assert_allclose(exact, output, atol=1e-15)
    assert accepted == pytest.approx(rate)


@pytest.mark.parametrize(
    "rule",
    [
        lossy.ears(0.0),
        lossy.fly(0.3, 0.0),
        lossy.fly(2.0),
        lossy.dropped(0.0),
        lossy.dropped(1.1),
        # Dropped by max q, which is fixed before the draft is drawn, as vLLM's confidence_stop.py does.
        lossy.dropped(0.0)._replace(keeps=lambda q: np.full(q.size, q.max() >= 0.4)),
    ],
)
def test_sound_twins_are_lossless(rule):
    for seed in range(6):
        p, q = pair(seed)
        np.testing.assert_allclose(rule.output_distribution(p, q, 1)[0], p, atol=1e-12)


def test_thresholds_of_one_are_lossless():
    p, q = pair(1)
    output, rate = lossy.thresholds(1.0, 1.0).output_distribution(p, q, 3)
    np.testing.assert_allclose(output, p, atol=1e-12)
    assert rate == pytest.approx(p[np.argsort(-q)[:3]].sum())


def test_every_rule_says_where_it_was_read():
    named = {key for rule in CATALOGUE.values() for key in rule.sources}
    assert named == SOURCES.keys()
    page = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()
    for name, rule in CATALOGUE.items():
        assert f"| `{name}` |" in page
        assert rule.sources
    for source in SOURCES.values():
        assert source.split(" at ")[-1][:12] in page or "transformers" in source


def test_too_many_drafts():
    with pytest.raises(ValueError, match="num_drafts: got 2, expected a whole number ≤ 1"):
        CATALOGUE["rejection"].judge(*pair(0), 2)
