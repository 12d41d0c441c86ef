import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import otmd
from experiments.performance import optimal_plan, peers
from experiments.performance.global_resolution import resolve
from experiments.performance.peer_solvers import LAWS, Peer, list_peers, scan_prefixes, timed
from paper_figures import cost

LONG = 3600.0
ROOT = Path(__file__).parents[2]


def pair(size: int) -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.random.default_rng(size).dirichlet(np.ones(size), size=2))


@pytest.mark.slow
def test_every_answer_has_a_time_and_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "peers.parquet"
    # In a process of its own, which the alarm of the time limit may interrupt anywhere.
    command = [sys.executable, "-m", "experiments", "peers", "--quick", "--output", str(path)]
    command += ["--rounds", "1", "--time-limit", "0.5"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "| α* | with | 2 | otmd |" in done.stdout
    rows = pl.read_parquet(path)
    solved = rows.filter(pl.col("status") == "solved")
    assert (solved["seconds"] > 0).all()
    assert solved["time_limit"].unique().to_list() == [0.5]
    assert set(solved["size"]) == {4, 8, 150}
    rates = solved.filter(pl.col("task") != "sort")
    assert rates["answer"].is_not_null().all()
    loose = ["torch chain", "torch, ONE verification", "Global Resolution"]
    exact = rates.filter(~pl.col("name").is_in(loose))
    assert exact["difference"].abs().max() < 1e-9
    assert rates.filter(name="torch chain")["difference"].abs().max() < 1e-5
    assert rates.filter(name="torch, ONE verification")["difference"].abs().max() < 0.25
    assert rates.filter(name="Global Resolution")["difference"].abs().max() > 1e-3
    memory = rows.filter(name="otmd, memory")
    assert {"α*", "RecursiveRejection", "KSequential", "SpecHub", "Optimal"} <= set(memory["task"])
    assert (memory["vectors"] >= 1).all()
    drawn = [tuple(line.get_ydata()) for line in cost.peers(path).axes[0].get_lines()]
    scan = rows.filter(name="sort-and-scan", law="with", num_drafts=2).sort("size")
    assert tuple(scan["seconds"] / 1e-3) in drawn


@pytest.mark.slow
def test_giving_up_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    # Half a second may be too short for this solver on a busy machine: here nobody gives up for time.
    flow = [
        peer for peer in list_peers(LONG, 300) if (peer.name, peer.num_drafts) == ("networkx max-flow", 4)
    ]
    sort = Peer("argsort(p/q)", "sort", "with", 1, timed(lambda p, q: None))
    monkeypatch.setattr(peers, "list_peers", lambda *_, **__: [*flow, sort])
    table = peers.measure([4, 8, 300, 301], rounds=1, limit=LONG).filter(name="networkx max-flow")
    assert table["status"].to_list() == ["solved", "solved", "memory limit", "memory limit"]
    assert table["note"].to_list() == ["", "", "", "not tried"]


@pytest.mark.slow
def test_a_slow_call_is_stopped_and_not_tried_at_larger_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = Peer("slow", "α*", "with", 2, timed(lambda p, q: time.sleep(p.size / 4)))
    sort = Peer("argsort(p/q)", "sort", "with", 1, timed(lambda p, q: None))
    monkeypatch.setattr(peers, "list_peers", lambda *_, **__: [slow, sort])
    table = peers.measure([1, 4, 5], rounds=1, limit=0.4).filter(name="slow")
    assert table["status"].to_list() == ["solved", "time limit", "time limit"]
    assert table["note"].to_list() == ["", "", "not tried"]


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ot", None)
    [pot] = [peer for peer in list_peers(1.0, 10) if peer.name.startswith("POT")]
    row, again = peers.first_call(pot, pair(5), 5, 1.0)
    assert (row["status"], again) == ("not installed", None)
    assert "pip install pot" in row["note"]


@pytest.mark.parametrize(("law", "n"), [("with", 2), ("with", 4), ("without", 2)])
def test_the_scan_of_prefixes_finds_the_optimum(law: str, n: int) -> None:
    for size in (3, 9, 50):
        p, q = pair(size)
        best = otmd.optimal_acceptance(p, LAWS[law](q, n)).rate
        assert scan_prefixes(law, n, p, q) == pytest.approx(best, abs=1e-12)


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
