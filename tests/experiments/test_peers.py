import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import otmd
from experiments.performance import peers
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
