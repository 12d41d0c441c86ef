from pathlib import Path

import numpy as np
import polars as pl
import pytest

import otmd
from experiments.performance import optimal_plan
from experiments.performance.global_resolution import resolve


@pytest.mark.slow
def test_a_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    dump, output = tmp_path / "toy.npz", tmp_path / "plan.parquet"
    np.savez(dump, target_logits=rng.normal(size=(3, 40)), draft_logits=rng.normal(size=(3, 40)))
    options = ["--quick", "--vocab-size", 3000, "--rounds", 1, "--positions", 2]
    rows = optimal_plan.main([*map(str, options), "--dataset", str(dump), "--output", str(output)])
    assert pl.read_parquet(output).equals(rows)
    assert "prepare, sorts (worst)" in capsys.readouterr().out
    assert rows.height == 3 * (2 + 2 * 2)
    rules = rows.filter(pl.col("method") != "global resolution")
    timed = rules.select("sort_seconds", "prepare_seconds", "optimum_seconds").to_numpy()
    assert (timed > 0).all()
    assert rules["gap"].is_between(-1e-12, 1e-6).all()
    assert set(rules["vocab_size"]) == {3000, 40}
    resolved = rows.filter(method="global resolution")
    assert (resolved["seconds"] > 0).all()
    assert resolved["distance"].is_between(0, 1).all()


@pytest.mark.parametrize("n", [1, 2, 4])
def test_global_resolution_attains_the_optimum_of_what_it_keeps(n: int) -> None:
    rng = np.random.default_rng(n)
    for _ in range(5):
        p, q = rng.dirichlet(np.ones(8), size=2)
        end = resolve(p, q, 8, n)
        best = otmd.optimal_acceptance(p, otmd.WithReplacement(q, n)).rate
        assert not end.sampled
        assert end.converged
        assert end.rate == pytest.approx(best, abs=1e-4)
        assert end.distance < 1e-4


def test_truncation_and_sampled_tuples_are_seen_in_the_distance() -> None:
    p, q = np.random.default_rng(5).dirichlet(np.ones(60), size=2)
    kept = np.sort(p)[-10:].sum()
    assert resolve(p, q, 10, 2).distance == pytest.approx(1 - kept, abs=1e-4)
    p, q = np.random.default_rng(6).dirichlet(np.ones(40), size=2)
    end = resolve(p, q, 40, 4)
    assert end.sampled
    assert 1e-4 < end.distance < 0.1
