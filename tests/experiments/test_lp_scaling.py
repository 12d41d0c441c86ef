"""The linear programs' experiment on a small grid: it runs and is drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import otmd
from experiments.performance import lp_scaling
from experiments.performance.lp_solve import Case, solve_apart, solve_with_linprog, synthetic_pair
from otmd.models import open_dataset
from otmd.transport import FORMS, TransportProblem, build_program
from otmd.transport.solve import conclude
from paper_figures import cost


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lp")
    rng = np.random.default_rng(0)
    dump, path = folder / "toy.npz", folder / "lp.parquet"
    np.savez(dump, target_logits=rng.normal(size=(2, 6)), draft_logits=rng.normal(size=(2, 6)))
    options = ["--quick", "--output", path, "--parts", folder / "parts", "--dataset", dump]
    lp_scaling.main([*map(str, options), "--quiet"])
    return path


@pytest.mark.slow
def test_the_tables_have_every_program(results):
    table = pl.read_parquet(results)
    assert "| compact | merged | 16 |" in lp_scaling.comparison_of_forms(table)
    assert "| 10, 2 | compact | 100 |" in lp_scaling.comparison_of_backends(table)
    assert "Thomas & Pal, other hardware" in lp_scaling.real_distributions(table)


@pytest.mark.slow
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


def test_giving_up_is_said_in_words():
    pair = synthetic_pair(30, 0)
    slow = Case(30, 2, True, "full", "HiGHS ipm")
    row = solve_apart(slow, pair, limit=1e-6)
    assert (row["status"], row["variables"]) == ("time limit", 13_950)
    large = Case(1000, 4, True, "compact", "Dinic")
    row = solve_apart(large, synthetic_pair(1000, 0), limit=60.0)
    assert row["status"] == "refused"
    assert "no form fits" in row["detail"]


def test_linprog_is_given_the_same_program():
    target, draft = synthetic_pair(6, 1)
    problem = TransportProblem.of(target, otmd.WithReplacement(draft, 2))
    best = otmd.optimal_acceptance(target, problem.law).rate
    for name in FORMS:
        program = build_program(problem, name)
        solution = conclude(problem, program, solve_with_linprog(program)())
        assert abs(solution.rate - best) < 1e-9


def test_the_most_likely_tokens_are_kept_and_renormalised(tmp_path):
    target, draft = np.array([[0.1, 0.4, 0.2, 0.3]]), np.array([[0.4, 0.1, 0.2, 0.3]])
    np.savez(tmp_path / "toy.npz", target_probs=target, draft_probs=draft)
    [(kept, drafted)] = lp_scaling.most_likely_pairs(open_dataset(tmp_path / "toy.npz"), 2, 5)
    assert np.abs(kept - [4 / 7, 3 / 7]).max() < 1e-12
    assert np.abs(drafted - [1 / 4, 3 / 4]).max() < 1e-12


@pytest.mark.slow
def test_the_figure_has_a_line_for_each_solver(results):
    figure = cost.lp_scaling(results)
    lines = [line.get_xdata() for line in figure.axes[0].get_lines()]
    assert [list(sizes) for sizes in lines] == [[3, 5]]
    assert len(figure.axes) == 2 * 3
