import json
import math
from collections import Counter

import numpy as np
import pytest

from otmd.models.decoding import STAGES, Decoded
from otmd.study import decoding_costs, decoding_json, draw_decoding, print_decoding


def text(tokens: int, steps: int, seconds: float) -> Decoded:
    return Decoded(
        tokens=[0] * tokens,
        steps=[(tokens // steps, 4)] * steps,
        reached=Counter({1: steps, 2: steps // 2}),
        kept=Counter({1: steps // 2, 2: steps // 4}),
        seconds={stage: seconds * (place + 1) for place, stage in enumerate(STAGES)},
    )


@pytest.fixture
def costs():
    texts = [
        {"alone": text(8, 8, 1.0), "tree": text(8, 4, 0.5)},
        {"alone": text(4, 4, 0.5), "tree": text(4, 2, 0.25)},
    ]
    return decoding_costs(texts)


def test_sums_over_texts(costs):
    alone, tree = costs
    assert (alone.tokens, alone.steps, tree.steps) == (12, 12, 6)
    assert tree.tokens_per_step == 2.0
    assert tree.acceptance == [3 / 6, 1 / 3]
    assert alone.prompt_seconds == 1.5
    # Stages 2 to 5 of 1.5 seconds each, over 12 tokens.
    assert alone.speed_up.value == 1.0
    assert tree.speed_up.value == pytest.approx(2.0)
    assert tree.difference == "unknown"
    assert alone.tokens_per_second == pytest.approx(12 / (1.5 * 14))
    assert tree.tokens_per_second == pytest.approx(2 * alone.tokens_per_second)


def test_the_interval_is_over_repeats_and_noise_is_called_noise():
    def costs(*seconds):
        rounds = [{"alone": text(8, 8, 1.0), "tree": text(8, 4, s)} for s in seconds]
        return decoding_costs(rounds, repeats=len(seconds))[1]

    assert costs(0.5, 0.51, 0.49).difference == "faster"
    assert costs(2.0, 2.1, 1.9).difference == "slower"
    noisy = costs(2.0, 0.5)
    value, low, high = noisy.speed_up
    # The geometric mean, and Student's t with 1 degree of freedom on the logarithms.
    assert value == pytest.approx(1.0)
    assert (1 / low, high) == pytest.approx([math.exp(12.7062 * math.log(2))] * 2, rel=1e-4)
    assert noisy.difference == "noise"


def test_ratios_and_intervals_are_over_prompts():
    texts = [
        {"alone": text(8, 8, 1.0), "a": text(8, 4, 0.5), "b": text(8, 2 + i % 3, 0.25 + 0.1 * i)}
        for i in range(6)
    ]
    _, a, b = decoding_costs(texts, 2, compared_with="a")
    assert a.tokens_ratio is None
    assert b.tokens_ratio is not None
    assert b.speed_ratio is not None
    # Prompt i has the steps 2 + i, twice.
    assert b.tokens_per_step == pytest.approx(48 / 18)
    assert b.tokens_ratio.value == pytest.approx(48 / 18 / 2)
    without = 0.5 * 32 / (18 - 2 * np.array([2, 3, 4]))
    margin = 4.302653 * np.sqrt(2 * without.var())
    assert b.tokens_ratio.high - b.tokens_ratio.value == pytest.approx(margin, rel=1e-6)
    assert b.speed_ratio.value == pytest.approx(6 * 0.5 / sum(0.25 + 0.1 * i for i in range(6)))
    alone = decoding_costs(texts[:1], compared_with="alone")[1]
    assert alone.per_step.low is None
    assert json.loads(json.dumps(decoding_json([alone])))[0]["per_step"] == [2.0, None, None]


def test_the_table_and_json(costs, capsys):
    print_decoding(costs)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "tokens per step 1.00 2.00" in lines
    assert "speed-up 1.00 2.00" in lines
    assert "accepted by depth, % 50 50 50 33" in lines
    found = json.loads(json.dumps(decoding_json(costs)))
    assert [way["name"] for way in found] == ["alone", "tree"]
    assert found[1]["tokens_per_step"] == 2.0


def test_the_figure(costs, tmp_path):
    paths = [tmp_path / "new" / "a.png", tmp_path / "a.pdf", tmp_path / "a.svg"]
    assert draw_decoding(costs, paths, source="otmd decode") == paths
    assert "verification" in paths[2].read_text()
