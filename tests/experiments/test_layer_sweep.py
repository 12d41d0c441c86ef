"""The benchmark of layers on a small vocabulary: it runs, and its layers are those that the sweep gets."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.performance import layer_sweep


def test_it_prints_every_task(capsys) -> None:
    layer_sweep.main(["--requests", "2", "--rounds", "1", "--vocab-size", "300", "--top-k", "40"])
    out = capsys.readouterr().out
    assert [line.split("|")[1].strip() for line in out.splitlines()[2:]] == [
        "softmax in float32",
        "pair sweeps",
        "all of the verification",
    ]


def test_the_sweep_is_over_the_pairs_that_are_drafted() -> None:
    request = layer_sweep.Request(300, 40, seed=1)
    assert request.slots.num_drafts == 2 * layer_sweep.NUM_NODES
    assert request.targets.size == 40 * layer_sweep.NUM_NODES
    assert 0.0 < request.sweep() < 1.0
    assert request.targets.sum() < request.scores.sum() == pytest.approx(0.9)
    assert len(request.verify()) == 2
    assert np.isfinite(request.targets).all()
