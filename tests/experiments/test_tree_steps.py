from itertools import product

import numpy as np
import polars as pl
import pytest

import otmd
from experiments.estimates import cell_text, summarise
from experiments.trees.sequence_optimum import reduced_models
from experiments.trees.steps import (
    OPTIMAL,
    block_starts,
    decoded,
    emission_and_rate,
    paths_emission,
    token_level_starts,
)
from otmd.trees import (
    BlockVerification,
    IIDPaths,
    TableModel,
    TokenLevel,
    TokenTree,
    tokens_per_step,
)

DEPTH = 3


def small_pair(seed: int = 3) -> tuple[TableModel, TableModel]:
    rng = np.random.default_rng(seed)
    return TableModel.random(3, 2, rng=rng), TableModel.random(3, 2, rng=rng)


def texts(target: TableModel, draft: TableModel, length: int):
    """Every text with its probability, and both models' distributions along it."""
    for tokens in product(range(target.vocab_size), repeat=length):
        p, q = (np.array([model(tokens[:i]) for i in range(length)]) for model in (target, draft))
        yield float(np.prod(p[np.arange(length), tokens])), list(tokens), p, q


def mean_over_texts(target, draft, state, at_token, depth) -> np.ndarray:
    """Tokens of the first step, by the chain alone and with the last token averaged."""
    total, answers = np.zeros(2), {}
    for prob, tokens, p, q in texts(target, draft, depth):
        pairs = []
        for position in zip(p, q, tokens, strict=True):
            # Texts that share a context ask once.
            key = position[0].tobytes(), position[2]
            answers[key] = answers.get(key) or at_token(*position)
            pairs.append(answers[key])
        passing, rates = (np.array(part) for part in zip(*pairs, strict=True))
        starts = token_level_starts(passing, rates, state, depth)
        total += prob * np.array([starts.reached[0].sum(), starts.expected[0]])
    return total


TREES = {
    "RRS": (otmd.RecursiveRejection(), otmd.WithReplacement),
    "RRSw": (otmd.RecursiveRejection(), otmd.WithoutReplacement),
    "SpecHub": (otmd.SpecHub(), otmd.Hub),
    "optimal, without": (OPTIMAL, otmd.WithoutReplacement),
}


@pytest.mark.parametrize("rule", TREES)
def test_binary_trees_along_texts_are_block_efficiency(rule):
    (verifier, law), (target, draft) = TREES[rule], small_pair()
    # Of the others there are many more trees of three levels.
    depth = 3 if rule == "SpecHub" else 2
    rng = np.random.default_rng(0)

    def at_token(p, q, token):
        emission, rate = emission_and_rate(verifier, p, law(q, 2), token, rng)
        return [[emission.sum()]], [rate]

    expected = tokens_per_step(TokenLevel(verifier), target, TokenTree(draft, (2,) * depth, law))
    # The rate of recursive rejection without replacement is known within 1e-6.
    mean = mean_over_texts(target, draft, 0, at_token, depth)
    assert np.abs(mean - expected.value).max() < 5e-6


def test_a_probability_that_forgets_the_emitted_token_is_caught():
    target, draft = small_pair()
    verifier, law = TREES["RRS"]

    def at_token(p, q, token):
        rate = verifier.acceptance_rate(p, law(q, 2))
        return [[rate]], [rate]

    expected = tokens_per_step(TokenLevel(verifier), target, TokenTree(draft, (2, 2), law))
    assert np.abs(mean_over_texts(target, draft, 0, at_token, 2) - expected.value).min() > 1e-3


@pytest.mark.parametrize(
    "verifier", [otmd.KSequential(), pytest.param(OPTIMAL, marks=pytest.mark.slow)], ids=repr
)
def test_paths_along_texts_are_block_efficiency(verifier):
    target, draft = small_pair()
    for paths in (1, 2, 3):
        expected = tokens_per_step(TokenLevel(verifier), target, IIDPaths(draft, paths, 2))

        def at_token(p, q, token, paths=paths):
            return paths_emission(verifier, p, q, token, paths)

        measured = mean_over_texts(target, draft, paths - 1, at_token, depth=2)
        assert np.abs(measured - expected.value).max() < 1e-8


def test_block_verification_along_texts_is_block_efficiency():
    target, draft = small_pair()
    total = np.zeros(2)
    for prob, tokens, p, q in texts(target, draft, DEPTH):
        starts = block_starts(p, q, tokens, DEPTH)
        total += prob * np.array([starts.reached[0].sum(), starts.expected[0]])
    expected = tokens_per_step(BlockVerification(), target, IIDPaths(draft, 1, DEPTH)).value
    assert np.abs(total - expected).max() < 1e-12
    token_wise = tokens_per_step(TokenLevel(otmd.Preference()), target, IIDPaths(draft, 1, DEPTH))
    assert expected > token_wise.value + 0.01


@pytest.mark.parametrize(("prob", "per_step"), [(0.0, 1.0), (1.0, 3.0)])
def test_steps_without_randomness(prob, per_step):
    starts = token_level_starts(np.full((13, 1, 1), prob), np.full((13, 1), prob), 0, 2)
    tokens, steps = decoded(starts)
    assert steps == (12 if prob == 0 else 4)
    assert tokens == per_step * steps


def test_errors_are_those_of_prompts_and_differences_are_paired():
    """Of few prompts too: those of the mean of two strata, without bias at three prompts in each."""
    for seed in range(5):
        first, lead = np.random.default_rng(seed).normal(size=(2, 6))
        rows = [
            # Domains are fixed: their distance, 9, is no error.
            {"domain": f"d{i % 2}", "prompt": str(i), "depth": 1, "steps": 1.0}
            | {"rule": rule, "tokens": 9.0 * (i % 2) + float(value)}
            for rule, values in (("RRS", first), ("K-SEQ", first + 3 + 0.1 * lead))
            for i, value in enumerate(values)
        ]
        summary = summarise(pl.DataFrame(rows), ["depth"], "rule", "RRS")
        base, ahead = summary.to_dicts()
        textbook, of_lead = (sum(x[i::2].var(ddof=1) / 12 for i in range(2)) ** 0.5 for x in (first, lead))
        assert base["error"] == pytest.approx(textbook, rel=0.05)
        assert ahead["difference"] == pytest.approx(3 + 0.1 * lead.mean())
        assert ahead["difference_error"] == pytest.approx(0.1 * of_lead, rel=0.05)
        assert base["difference"] is None
        assert f"(+{ahead['difference']:.3f} ± " in cell_text(summary.filter(rule="K-SEQ"))
        assert cell_text(summary.filter(rule="none")) == ""


def test_small_models_are_the_laws_of_the_large_ones():
    class Chain:
        """The next token depends on the last one alone."""

        def __init__(self, seed: int) -> None:
            self.table = np.random.default_rng(seed).normal(size=(9, 9))

        def logits(self, prefixes):
            return [self.table[prefix[-1] if prefix else 2] for prefix in prefixes]

    models, probs = (Chain(0), Chain(1)), otmd.Processing()
    target, draft = reduced_models(models, probs, 3, 2, np.random.default_rng(0))
    p, q = (probs(model.table[2]) for model in models)
    best = np.argsort(-(p + q))
    assert np.abs(target(()) - [p[best[0]], p[best[1]], p[best[2:]].sum()]).max() < 1e-12
    assert np.abs(draft(()) - [q[best[0]], q[best[1]], q[best[2:]].sum()]).max() < 1e-12
    after = probs(models[0].table[best[1]])
    kept = np.argsort(-(after + probs(models[1].table[best[1]])))[:2]
    assert np.abs(target((1,))[:2] - after[kept]).max() < 1e-12
