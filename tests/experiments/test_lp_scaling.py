"""The linear programs' experiment on a small grid: it runs, goes on where it stopped, and is drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scripts import ROOT, run

SCRIPT = ROOT / "experiments" / "lp_scaling.py"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("paper_figures", "experiments"):
        monkeypatch.syspath_prepend(str(ROOT / folder))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lp")
    rng = np.random.default_rng(0)
    dump = folder / "toy.npz"
    np.savez(dump, target_logits=rng.normal(size=(3, 6)), draft_logits=rng.normal(size=(3, 6)))
    path = folder / "lp.parquet"
    printed = run(SCRIPT, "--quick", "--output", path, "--dataset", dump, "--positions", 2)
    assert "| compact | merged | 16 |" in printed
    assert "Thomas & Pal, other hardware" in printed
    assert not path.with_suffix(".parts").exists()
    return path


def test_every_case_is_solved_measured_and_certified(results):
    rows = pl.read_parquet(results).filter(pl.col("status").is_not_null())
    assert rows.height == 3 * 2 + 3 * 2
    assert set(rows["status"]) == {"optimal"}
    assert rows["rate_error"].abs().max() < 1e-9
    assert rows["gap"].max() < 1e-9
    assert (rows.select("solve_seconds", "build_seconds").min_horizontal() > 0).all()
    assert (rows["peak_bytes"] >= 0).all()
    compact = rows.filter(form="compact", vocab_size=5)
    assert compact["variables"].to_list() == [25]


def test_a_second_run_measures_nothing_again(results):
    before = pl.read_parquet(results)
    run(SCRIPT, "--quick", "--output", results)
    assert pl.read_parquet(results).equals(before)


def test_giving_up_is_said_in_words():
    from lp_solve import Case, solve_apart, synthetic_pair

    pair = synthetic_pair(30, 0)
    slow = Case("synthetic", 0, 30, 2, True, "full", "HiGHS ipm")
    row = solve_apart(slow, pair, limit=1e-6)
    assert (row["status"], row["variables"]) == ("time limit", 13_950)
    large = Case("synthetic", 0, 1000, 4, True, "compact", "Dinic")
    row = solve_apart(large, synthetic_pair(1000, 0), limit=60.0)
    assert row["status"] == "refused"
    assert "no form fits" in row["detail"]


def test_linprog_is_given_the_same_program():
    from lp_solve import solve_with_linprog, synthetic_pair

    import otmd
    from otmd.transport import FORMS, TransportProblem
    from otmd.transport.forms import build_program
    from otmd.transport.solve import conclude

    target, draft = synthetic_pair(6, 1)
    problem = TransportProblem.of(target, otmd.WithReplacement(draft, 2))
    best = otmd.optimal_acceptance(target, problem.law).rate
    for name in FORMS:
        program = build_program(problem, name)
        solution = conclude(problem, program, solve_with_linprog(program)())
        assert abs(solution.rate - best) < 1e-9


def test_likeliest_tokens_are_kept_and_renormalised(tmp_path):
    from lp_scaling import likeliest_pairs

    from otmd.models import open_dataset

    target, draft = np.array([[0.1, 0.4, 0.2, 0.3]]), np.array([[0.4, 0.1, 0.2, 0.3]])
    np.savez(tmp_path / "toy.npz", target_probs=target, draft_probs=draft)
    [(kept, drafted)] = likeliest_pairs(open_dataset(tmp_path / "toy.npz"), 2, 5)
    assert np.abs(kept - [4 / 7, 3 / 7]).max() < 1e-12
    assert np.abs(drafted - [1 / 4, 3 / 4]).max() < 1e-12


def test_the_figure_is_drawn_from_the_results(results, tmp_path):
    from PIL import Image

    figure = tmp_path / "lp.png"
    run(ROOT / "paper_figures" / "lp_scaling.py", results, figure)
    with Image.open(figure) as image:
        assert image.info["Source"] == f"paper_figures/lp_scaling.py, {results}"


def test_labels_are_kept_apart():
    from figure_labels import spread

    places = spread([0.0, 1.0, 50.0, 99.0, 100.0], 10.0, 100.0)
    assert places == sorted(places)
    assert min(np.diff(places)) >= 10.0
    assert places[-1] <= 100.0
