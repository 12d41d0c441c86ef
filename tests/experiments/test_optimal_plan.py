"""The benchmark of the optimal plan on a small vocabulary, and what it is compared with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import otmd

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments" / "performance"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def test_a_small_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    dump, output = tmp_path / "toy.npz", tmp_path / "plan.parquet"
    np.savez(dump, target_logits=rng.normal(size=(3, 40)), draft_logits=rng.normal(size=(3, 40)))
    options = ["--quick", "--vocab-size", 3000, "--rounds", 2, "--positions", 2]
    paths = ["--dataset", dump, "--output", output]
    command = [sys.executable, FOLDER / "optimal_plan.py", *options, *paths]
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "prepare, sorts (worst)" in done.stdout
    rows = pl.read_parquet(output)
    assert rows.height == 3 * (2 + 2 * 2)
    rules = rows.filter(pl.col("method") != "global resolution")
    timed = rules.select("sort_seconds", "prepare_seconds", "optimum_seconds").to_numpy()
    assert (timed > 0).all()
    assert rules["gap"].is_between(-1e-12, 1e-6).all()
    assert set(rules["vocab_size"]) == {3000, 40}
    others = rows.filter(method="global resolution")
    assert (others["seconds"] > 0).all()
    assert others["distance"].is_between(0, 1).all()


@pytest.mark.parametrize("n", [1, 2, 4])
def test_global_resolution_attains_the_optimum_of_what_it_keeps(n: int) -> None:
    from global_resolution import resolve

    rng = np.random.default_rng(n)
    for _ in range(5):
        p, q = rng.dirichlet(np.ones(8), size=2)
        found = resolve(p, q, 8, n)
        best = otmd.optimal_acceptance(p, otmd.WithReplacement(q, n)).rate
        assert not found.sampled
        assert found.converged
        assert found.rate == pytest.approx(best, abs=1e-4)
        assert found.distance < 1e-4


def test_truncation_is_seen_in_the_distance() -> None:
    from global_resolution import resolve

    p, q = np.random.default_rng(5).dirichlet(np.ones(60), size=2)
    kept = np.sort(p)[-10:].sum()
    assert resolve(p, q, 10, 2).distance == pytest.approx(1 - kept, abs=1e-4)


def test_sampled_tuples_are_said_and_leave_an_error() -> None:
    from global_resolution import resolve

    p, q = np.random.default_rng(6).dirichlet(np.ones(40), size=2)
    found = resolve(p, q, 40, 4)
    assert found.sampled
    assert 1e-4 < found.distance < 0.1


def test_multisets_carry_all_probability() -> None:
    from global_resolution import _multisets

    q = np.random.default_rng(7).dirichlet(np.ones(5))
    sets, chance = _multisets(q, 4, np.random.default_rng(0))
    assert len(sets) == 70
    assert chance.sum() == pytest.approx(1.0, abs=1e-13)
    twice = (sets == [0, 0, 1, 1]).all(axis=1)
    assert chance[twice] == pytest.approx(6 * q[0] ** 2 * q[1] ** 2)


def test_the_couplings_on_a_small_vocabulary(capsys: pytest.CaptureFixture[str]) -> None:
    from couplings import NUM_DRAFTS, RULES, main

    main(["--vocab-size", "300", "--rounds", "1"])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if "noise" in line]
    assert len(rows) == 2 * len(RULES) * len(NUM_DRAFTS)
    for row in rows:
        assert float(row[4]) > 0.0
        assert 0.0 < float(row[6]) < 1.0
        assert float(row[7].rstrip(" |")) <= 1e-6
