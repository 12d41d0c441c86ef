import inspect
from fractions import Fraction
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from collected import write_folder
from polars.testing import assert_frame_equal

import otmd
from experiments.claims import (
    draft_quality,
    real_positions,
    resolution_grid,
    spechub_toy,
    spectr_acceptance,
    spectr_floor,
)
from experiments.runner import RESULTS, read_tasks, task_rows
from otmd import exact
from otmd.models import Dataset, open_dataset
from otmd.optimum.bounds import k_sequential_floor
from paper_figures.acceptance import largest_optimum

ROOT = Path(__file__).parents[2]


# Tasks of the sweeps whose rows are stored.
TASKS = [
    (spectr_acceptance.acceptance, {"family": "Bernoulli", "target": 0.5, "draft": 0.25}),
    (spectr_acceptance.acceptance, {"family": "Zipf", "target": 0.8, "draft": 0.5}),
    (spectr_floor.worst, {"num_drafts": 2, "tokens": 2, "start": 0}),
    (spechub_toy.pairs, {"vocab_size": 5, "temperature": 1.0, "likeness": 0.7}),
    (draft_quality.rates, {"family": "missing", "quality": 0.7}),
]


@pytest.mark.parametrize(("function", "chosen"), TASKS)
def test_stored_rows_are_those_of_the_code(function, chosen) -> None:
    """The page of claims, which is filled in from them, says what they show."""
    module = Path(inspect.getfile(function))
    task = next(task for task in read_tasks(module.with_suffix(".toml")) if task.items() >= chosen.items())
    rows = task_rows(function, ("", task)).drop("task", "evaluations", strict=False)
    stored = pl.read_parquet(ROOT / RESULTS / f"{module.stem}.parquet").filter(**task).select(rows.columns)
    assert_frame_equal(rows, stored, abs_tol=1e-6, rel_tol=0)


def test_the_inequalities_of_the_claims_hold_on_another_sweep() -> None:
    rng = np.random.default_rng(1)
    for family in ("Bernoulli", "Zipf"):
        rates = pl.DataFrame([*spectr_acceptance.acceptance(rng, family, 0.6, 0.2, 20, 3)])
        order = ["floor", "floor_n", "k_sequential", "optimal", "bound"]
        assert (np.diff(rates.select(order).to_numpy()) >= -1e-12).all()
        assert (rates["recursive_rejection"] <= rates["k_sequential"] + 1e-12).all()
    (searched,) = spectr_floor.worst(rng, 2, 2, 0)
    assert searched["ratio"] == pytest.approx(8 / 9, abs=1e-6)
    assert searched["ratio"] > searched["floor"]
    hubs = pl.DataFrame([*spechub_toy.pairs(rng, 5, 0.5, 0.7, 60)])
    certain = hubs.filter(pl.col("top_draft") >= 0.5)
    assert 0 < certain.height < hubs.height
    assert (certain["hub"] >= certain["optimal_with"] - 1e-12).all()
    assert (hubs["optimal_without"] >= hubs["optimal_with"] - 1e-12).all()
    assert (hubs["recursive_with"] <= hubs["recursive_without"] + 1e-9).all()


def test_drafts_of_known_rates_have_them() -> None:
    rng = np.random.default_rng(0)
    families = ("noise", "surplus", "missing", "equal", "disjoint", "most likely token")
    tables = {family: pl.DataFrame([*draft_quality.rates(rng, family, 0.5, 60, 0)]) for family in families}
    rows = {name: of.filter(num_drafts=2, law="WithReplacement") for name, of in tables.items()}
    noise, *rates = (rows[family]["optimal"][0] for family in families[:5])
    assert rates == pytest.approx([0.75, 0.5, 1.0, 0.0])
    assert 0.5 < noise < 1.0
    assert set(tables["most likely token"].filter(law="WithoutReplacement")["num_drafts"]) == {1}


def test_eight_ninths_is_exact_and_the_worst_of_its_family() -> None:
    family_ratio, worst_of_family = spectr_floor.family_ratio, spectr_floor.worst_of_family
    target, draft = (Fraction(4, 9), Fraction(5, 9)), (Fraction(2, 3), Fraction(1, 3))
    assert exact.optimal_acceptance(target, exact.with_replacement(draft, 2)).rate == 1
    assert exact.k_sequential(target, draft, 2)[1] == Fraction(8, 9)
    mass, least = worst_of_family(2)
    assert (mass, least) == pytest.approx((2 / 3, 8 / 9), abs=1e-6)
    assert family_ratio(0.6, 2) > least < family_ratio(0.73, 2)
    for n in (3, 8):
        _, least = worst_of_family(n)
        assert k_sequential_floor(n) < least < worst_of_family(n - 1)[1]


def test_total_variation_leaves_the_range_that_the_figure_draws() -> None:
    rng = np.random.default_rng(0)
    ends = [largest_optimum(np.array([d]), n).item() for d, n in ((0.3, 2), (0.8, 4))]
    assert ends == pytest.approx([0.95, 1 - 0.8**4])
    law = otmd.WithReplacement([0.5, 0.5], 2)
    assert otmd.optimal_acceptance([0.2, 0.8], law).rate == pytest.approx(0.95)
    for _ in range(200):
        p, q = rng.dirichlet(np.full(4, 0.5), size=2)
        distance = 0.5 * np.abs(p - q).sum(keepdims=True)
        best = otmd.optimal_acceptance(p, otmd.WithReplacement(q, 3)).rate
        assert 1 - distance - 1e-12 <= best <= largest_optimum(distance, 3) + 1e-12


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """A made-up data set in the place of a collected one."""
    rng = np.random.default_rng(0)
    target, draft = 2 * rng.normal(size=(2, 3, 40))
    domain = np.array(["code", "code", "prose"])
    columns = {"target_logits": target, "draft_logits": draft, "domain": domain}
    return open_dataset(write_folder(tmp_path / "toy", **columns))


def test_positions_are_measured_under_every_law(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(real_positions, "TEMPERATURES", {"any": (0.7, 1.0)})
    table = real_positions.measured(dataset, "any", tmp_path / "rates", 1)
    assert table.select("index", "temperature").n_unique() == 6
    assert table["law"].n_unique() == len(real_positions.LAWS)
    assert (table["rate_high"] <= table["optimal"] + 1e-9).all()
    assert table["total_variation"].is_between(0, 1).all()
    step = otmd.Processing(0.7)
    p, q = (step(logits[0]) for logits in dataset.arrays([2]))
    rows = table.filter(index=2, temperature=0.7, num_drafts=2, law="WithReplacement")
    row = rows.row(0, named=True)
    best = otmd.optimal_acceptance(p, otmd.WithReplacement(q, 2)).rate
    assert row["optimal"] == pytest.approx(float(best))
    assert row["top_draft"] == pytest.approx(q.max())


def test_both_optimal_verifiers_answer_at_the_same_positions(dataset, monkeypatch):
    monkeypatch.setattr(resolution_grid, "collected", lambda _: dataset)
    for row in resolution_grid.positions(np.random.default_rng(0), 40, 2, 1.0, 2):
        assert row["optimal"] - 1e-8 < row["attained"] <= row["optimal"] + 1e-12
        assert row["rate"] == pytest.approx(row["optimal"], abs=1e-3)
        assert row["seconds"] > 0 < row["optimal_seconds"]
