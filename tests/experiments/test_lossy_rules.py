import numpy as np
import polars as pl
import pytest
from models.conftest import make_pair, make_prompts

import otmd
from experiments.claims import lossy_rules as rules
from experiments.claims import lossy_texts
from experiments.texts import Pair
from otmd.engines.catalogue import distances
from otmd.models.prompts import prompt_tokens


def pairs(count: int, size: int = 30):
    rng = np.random.default_rng(0)
    for _ in range(count):
        yield [probs / probs.sum() for probs in rng.dirichlet(np.full(size, 0.3), size=2) + 1e-9]


def every_way():
    return [*rules.sampled_ways(), *rules.certain_ways(1), *rules.certain_ways(4)]


def test_no_rule_is_above_the_front():
    for p, q in pairs(10):
        for way in every_way():
            output, rate = way.output(p, q)
            law = way.law(q)
            assert output.sum() == pytest.approx(1.0, abs=1e-10), way
            assert rate <= otmd.optimal_acceptance(output, law).rate + 1e-10, way
            front = otmd.lossy_frontier(p, law)
            assert rate <= front.rate_at(0.5 * np.abs(output - p).sum()) + 1e-9, way


@pytest.mark.parametrize("budget", [0.0, 0.1, 1.0])
def test_cactus_is_that_of_its_code(budget: float):
    """The sums over drafts, one draft after another; without a budget it is speculative sampling."""
    for p, q in pairs(20):
        expected = np.zeros(p.size)
        for x in range(p.size):
            h_x = min(p[x] + np.sqrt(2 * budget * p[x] * (1 - p[x])), 1.0)
            h = p * (1 - h_x) / (1 - p[x])
            h[x] = h_x
            accept = min(h_x / q[x], 1.0)
            expected[x] += q[x] * accept
            if accept < 1.0:
                residual = np.maximum(h - q, 0.0)
                expected += q[x] * (1 - accept) * residual / residual.sum()
        output, rate = rules.cactus(p, q, budget)
        np.testing.assert_allclose(output, expected, atol=1e-12)
        front = otmd.lossy_frontier(p, otmd.WithReplacement(q, 1))
        spent = 0.5 * np.abs(output - p).sum()
        assert front.rate_at(spent) == pytest.approx(rate, abs=1e-12)
        if budget == 0.0:
            np.testing.assert_allclose(output, p, atol=1e-12)


def test_the_front_of_certain_drafts_and_the_rule_on_it():
    """Scaled by one factor on the drafts, and one elsewhere: p′ of the front, and of a coin of a < 1."""
    for p, q in pairs(20):
        law = otmd.engines.lossy.TopK(q, 4)
        drafted = law.position_structure.deterministic
        mass = p[drafted].sum()
        rate = 0.5 * (1.0 + mass)
        best = np.where(np.isin(np.arange(p.size), drafted), rate / mass, (1 - rate) / (1 - mass))
        front = otmd.lossy_frontier(p, law, "kl")
        least = front.divergence_at(rate)
        assert least == pytest.approx(distances(best * p, p)[1], abs=1e-9)
        rule = otmd.engines.lossy.thresholds(1.0, mass / rate)
        output, accepted = rule.output_distribution(p, q, 4)
        assert accepted == pytest.approx(rate, abs=1e-12)
        np.testing.assert_allclose(output, best * p, atol=1e-12)


def test_rows_of_a_position():
    p, q = next(pairs(1))
    table = pl.DataFrame(list(rules.position_rows(p, q)))
    assert table.height == len(every_way())
    assert (table["kl"] >= table["least_kl"] - 1e-9).all()
    assert (table["rate"] <= table["rate_within_kl"] + 1e-9).all()
    mixtures = table.filter(pl.col("rule").str.starts_with("mixture"))
    assert mixtures.height >= 2
    most = mixtures["rate_within_total_variation"].to_numpy()
    assert mixtures["rate"].to_numpy() == pytest.approx(most, abs=1e-12)
    mass = p[np.argsort(-q)[:4]].sum()
    certain = table.filter(num_drafts=4)
    assert certain["lossless"].to_numpy() == pytest.approx(np.full(certain.height, mass))
    sampled = table.filter(drafts="sampled")
    assert np.abs(sampled["strata_least_kl"] - sampled["least_kl"]).max() < 1e-9


@pytest.mark.slow
def test_thresholds_on_certain_drafts_accept_all_that_their_divergence_allows():
    """Yet they may spend more than that rate needs: where p of the drafts is above a threshold."""
    wasted = 0.0
    for p, q in pairs(15):
        for row in rules.position_rows(p, q):
            if row["drafts"] == "certain" and row["rule"].startswith("thresholds"):
                for name in rules.DIVERGENCES:
                    assert row[f"rate_within_{name}"] == pytest.approx(row["rate"], abs=1e-9)
                wasted = max(wasted, row["kl"] - row["least_kl"])
    assert wasted > 0.1


class Same:
    """Says the same after every text."""

    def __init__(self, logits):
        self.said = logits

    def logits(self, prefixes):
        return [self.said] * len(prefixes)


@pytest.mark.slow
def test_numbers_of_texts_add_up():
    """With the same laws at each position, they are those of one position, times the length."""
    p, q = next(pairs(1))
    models = lossy_texts.Models(Same(np.log(p)), Same(np.log(q)), frozenset())
    ways, rng = every_way(), np.random.default_rng(0)
    texts = lossy_texts.written(models, ways, otmd.Processing(), 40, rng)
    rows = {(row["rule"], row["drafts"], row["num_drafts"]): row for row in rules.position_rows(p, q)}
    for way, text in zip(ways, texts, strict=True):
        row = rows[way.rule, way.drafts, way.num_drafts]
        expected = [row[name] for name in lossy_texts.MEASURED[:-1]]
        assert text.measured[:, :-1] == pytest.approx(np.tile(expected, (40, 1)), abs=1e-9), way
        # The mean of log p′/p over what was drawn is the divergence, within five standard errors.
        output, _ = way.output(p, q)
        terms = np.log(np.maximum(output, 1e-300) / p)
        error = np.sqrt(max(output @ terms**2 - row["kl"] ** 2, 0.0) / 40)
        assert abs(text.measured[:, -1].mean() - row["kl"]) <= 5 * error + 1e-9, way


@pytest.fixture
def tiny_pair(monkeypatch):
    pair = Pair(*make_pair())
    monkeypatch.setattr(lossy_texts, "load_pair", lambda *_: pair)
    monkeypatch.setattr(lossy_texts, "chosen_prompts", lambda: make_prompts(2))
    return pair


@pytest.mark.slow
def test_texts_are_drawn_from_what_the_models_say_after_them(tiny_pair):
    """Branches of one tree against plain calls on the text as far as it was written."""
    ways, step = every_way(), otmd.Processing()
    models = lossy_texts.models_after(0, "skip:1,3")
    before = prompt_tokens(tiny_pair.target.tokenizer, make_prompts(1)[0])
    texts = lossy_texts.written(models, ways, step, 6, np.random.default_rng(0))
    assert len({text.tokens for text in texts}) > 3
    for way, text in zip(ways, texts, strict=True):
        tokens = [*before, *text.tokens]
        rows = range(len(before) - 1, len(tokens) - 1)
        p, q = (step(m.logits(tokens, rows)) for m in (tiny_pair.target, tiny_pair.draft))
        for at, token in enumerate(text.tokens):
            output, _ = way.output(p[at], q[at])
            ratio = np.log(output[token] / p[at, token])
            assert text.measured[at, -1] == pytest.approx(ratio, abs=1e-3), way
        ended = set(text.tokens[-1:]) & tiny_pair.target.stop_tokens
        assert len(text.tokens) == 6 or ended


@pytest.mark.slow
def test_the_script_on_a_tiny_model(tiny_pair, tmp_path):
    spec = tmp_path / "spec.toml"
    spec.write_text('[[tasks]]\nprompt = [0, 1]\ndraft = "x"\ntemperature = 1.0\nlength = 5\n')
    given = {"spec": spec, "parts": tmp_path / "parts", "output": tmp_path / "o.parquet"}
    options = [str(text) for name, path in given.items() for text in (f"--{name}", path)]
    table = lossy_texts.main([*options, "--workers", "1"])
    assert table.height == 2 * 20
    assert (table["kl"] >= table["least_kl"] - 1e-9).all()
    assert (table["tokens"] <= 5).all()
    means = lossy_texts.summary(table)
    assert (means["low"] <= means["kl"]).all()
    assert (means["kl"] <= means["high"]).all()
    assert means["text_variation"].is_between(0.0, 1.0).all()
