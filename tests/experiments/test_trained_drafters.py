"""The experiment on trained drafters, on made-up hidden states: it trains, measures and compares."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch

from experiments.claims import trained_drafters as experiment

SIZE = 12


@pytest.fixture(scope="module")
def weights() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.ones(SIZE), torch.randn(9, SIZE)


@pytest.fixture(scope="module")
def texts(weights: tuple[torch.Tensor, torch.Tensor]) -> experiment.Texts:
    """Texts of a target that is the drafter after some linear map, but for a token that is never drafted."""
    torch.manual_seed(1)
    hidden = torch.randn(40, experiment.PATH, SIZE)
    logits = hidden @ torch.randn(SIZE, SIZE) @ weights[1].T / 4
    target = torch.cat([0.9 * logits.softmax(-1), torch.full((40, experiment.PATH, 1), 0.1)], -1)
    tokens = torch.distributions.Categorical(target).sample()
    return experiment.Texts(hidden, target, tokens, torch.arange(40) // 5)


@pytest.mark.parametrize("name", experiment.LOSSES)
def test_training_lowers_the_loss(name, texts, weights) -> None:
    loss = experiment.LOSSES[name]
    before, after = (experiment.Drafter(*weights, seed=0) for _ in range(2))
    experiment.train(loss, texts, after, 0.03, 30, seed=0)
    assert (
        experiment.mean_loss(loss, texts, after) < experiment.mean_loss(loss, texts, before) - 0.02
    )


def test_a_drafter_never_exceeds_what_it_may_draft(texts, weights) -> None:
    sums = experiment.measured(texts, experiment.Drafter(*weights, seed=0))
    np.testing.assert_array_equal(sums["windows"], [5.0] * 8)
    rates = {name: of / sums["windows"] for name, of in sums.items()}
    assert (rates["one_draft"] < rates["optimum"]).all()
    assert (rates["preference"] <= rates["optimum"] + 1e-12).all()
    assert (rates["strata"] < 0.9).all()
    assert (rates["tokens"] > 1.0).all()


def test_gains_are_paired_with_the_reference() -> None:
    """Prompts differ by more than drafters do: the interval of a gain is that of the differences."""
    rows = [
        {"loss": loss, "seed": seed, "learning_rate": 0.1, "prompt": prompt, "windows": 2.0}
        | dict.fromkeys((*experiment.MEASURES, "tokens"), 2.0 * prompt + gain + 0.2 * (prompt % 2))
        for loss, gain in ((experiment.REFERENCE, 0.0), ("total variation", 0.4))
        for seed in range(2)
        for prompt in range(10)
    ]
    result = experiment.summary(pl.DataFrame(rows))
    reference, compared = result.to_dicts()
    assert reference["tokens_gain"] == reference["tokens_gain_low"] == 0.0
    assert compared["tokens_gain"] == pytest.approx(0.2)
    assert compared["tokens_gain_high"] - compared["tokens_gain_low"] < 1e-9
    assert compared["tokens_high"] - compared["tokens_low"] > 1.0
    assert experiment.cells(result)["tokens"].to_list() == [
        "4.550",
        "4.750 (+0.200: +0.200 to +0.200)",
    ]
