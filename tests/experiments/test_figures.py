"""Figures of the claims: drawn by their scripts, and of the numbers that lie in the repository."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import polars as pl
import pytest
from scripts import ROOT, run

FOLDER = ROOT / "paper_figures"
RESULTS = FOLDER / "results"
DRAWN = {
    "spectr_acceptance": "spectr_acceptance",
    "draft_quality": "draft_quality",
    "spechub": "spechub_toy",
    "domain_rates": "real_positions",
    "resolution_grid": "resolution_grid",
    "laws": "real_positions",
    "choice": "real_positions",
    "draft_laws": "draft_laws",
}
"""Figure and the table it is drawn from."""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.chdir(ROOT)


def figure_script(name: str) -> ModuleType:
    """A figure's module by its file: scripts of experiments share some of the names."""
    spec = importlib.util.spec_from_file_location(f"figure_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_says_what_it_was_drawn_from(name: str, tmp_path: Path) -> None:
    from PIL import Image

    for table in ("spectr_floor", "real_positions", DRAWN[name]):
        shutil.copy(RESULTS / f"{table}.parquet", tmp_path)
    results, figure = tmp_path / f"{DRAWN[name]}.parquet", tmp_path / "figure.png"
    run(FOLDER / f"{name}.py", results, figure)
    with Image.open(figure) as image:
        assert image.info["Source"] == f"paper_figures/{name}.py, {results}"
        assert image.size[0] >= 1000


def drawn_lines(name: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Coordinates of all lines of a figure of the stored results."""
    figure = figure_script(name).draw(RESULTS / f"{DRAWN[name]}.parquet")
    lines = [line for axes in figure.axes for line in axes.get_lines()]
    data = [line.get_data() for line in lines]
    return [(np.asarray(x, dtype=float), np.asarray(y, dtype=float)) for x, y in data]


def holds_line(lines: list[tuple[np.ndarray, np.ndarray]], ys: np.ndarray) -> bool:
    """Whether one of the lines has these heights."""
    return any(y.shape == ys.shape and np.allclose(y, ys, atol=1e-9) for _, y in lines)


def test_a_wrong_line_would_be_found() -> None:
    line = (np.arange(3.0), np.array([0.1, 0.2, 0.3]))
    assert holds_line([line], line[1])
    assert not holds_line([line], line[1] + 1e-3)
    assert not holds_line([line], line[1][:2])


def test_curves_of_spectr_are_the_stored_rates() -> None:
    lines = drawn_lines("spectr_acceptance")
    table = pl.read_parquet(RESULTS / "spectr_acceptance.parquet")
    for family, target, draft in (("Bernoulli", 0.25, 0.05), ("Zipf", 1.2, 0.8)):
        rows = table.filter(family=family, target=target, draft=draft).sort("num_drafts")
        for column in ("optimal", "k_sequential", "floor_n", "floor", "bound"):
            assert holds_line(lines, rows[column].to_numpy())
    searches = pl.read_parquet(RESULTS / "spectr_floor.parquet")
    least = [searches.filter(num_drafts=n)["ratio"].to_numpy().min() for n in (2, 3, 4, 8, 16)]
    assert holds_line(lines, np.array(least))
    assert least[0] == pytest.approx(8 / 9, abs=1e-6)


def plain_means(name: str, law: str, verifier: str | None, n: int, by: str) -> np.ndarray:
    """Means of stored rates over the positions of the pair, by value of a column in growing order."""
    table = pl.read_parquet(RESULTS / "real_positions.parquet")
    rows = table.filter(
        pl.col("draft") == "skip:13,15,17", pl.col("law") == law, pl.col("num_drafts") == n
    )
    rows = rows.filter(pl.col("verifier") == (verifier or "TargetOnly"))
    value = (pl.col("rate_low") + pl.col("rate_high")) / 2 if verifier else pl.col("optimal")
    means = rows.group_by(by).agg(value.mean().alias(name)).sort(by)
    return means[name].to_numpy()


@pytest.mark.parametrize(
    ("figure", "law", "verifier", "n"),
    [
        ("domain_rates", "WithReplacement", None, 3),
        ("domain_rates", "WithReplacement", "KSequential", 3),
        ("domain_rates", "WithoutReplacement", "RecursiveRejection", 3),
        ("domain_rates", "Greedy", "GreedyCoupling", 3),
        ("spechub", "Hub", "SpecHub", 2),
        ("spechub", "WithoutReplacement", None, 2),
    ],
)
def test_rates_by_temperature_are_means_of_the_stored_ones(figure, law, verifier, n) -> None:
    assert holds_line(drawn_lines(figure), plain_means("rate", law, verifier, n, "temperature"))


def test_laws_are_drawn_as_differences_in_points() -> None:
    lines = drawn_lines("laws")
    base = plain_means("rate", "WithoutReplacement", None, 4, "temperature")
    for law in ("WithReplacement", "2 likeliest, then WithoutReplacement"):
        difference = plain_means("rate", law, None, 4, "temperature") - base
        assert holds_line(lines, 100 * difference)
    poisson = plain_means("rate", "ConditionalPoisson", None, 4, "temperature")
    assert holds_line(lines, 100 * (poisson - base))


def test_the_chart_names_the_best_of_each_cell() -> None:
    choice = figure_script("choice")
    names = ["RRS", "K-SEQ", "RRSw", "greedy"]
    cells = choice.winners(RESULTS / "real_positions.parquet", names)
    table = pl.read_parquet(RESULTS / "real_positions.parquet")
    rows = table.filter(draft="skip:13,15,17", num_drafts=4, temperature=1.0)
    rows = rows.filter(pl.col("top_draft") <= 0.2).with_columns(
        rate=(pl.col("rate_low") + pl.col("rate_high")) / 2
    )
    rates = rows.group_by("law", "verifier").agg(pl.col("rate").mean())
    rates = rates.filter(pl.col("verifier") != "TargetOnly").sort("rate")
    [cell] = cells.filter(temperature=1.0, band="0–0.2").iter_rows(named=True)
    rules = {"K-SEQ": "KSequential", "greedy": "GreedyCoupling"}
    assert rules.get(cell["best"], "RecursiveRejection") == rates["verifier"][-1]
    assert cell["lead"] == pytest.approx(rates["rate"][-1] - rates["rate"][-2])
    assert choice.bands() == ["0–0.2", "0.2–0.4", "0.4–0.6", "0.6–0.8", "0.8–0.95", "0.95–1"]


def test_the_page_of_claims_agrees_with_the_results() -> None:
    from claims_table import PAGE, filled

    page = PAGE.read_text("utf-8")
    assert filled(page) == page
    altered = page.replace("| chat |", "| chat, altered |")
    assert altered != page
    assert filled(altered) == page


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    from claims_table import filled

    with pytest.raises(ValueError, match="no single place for the table 'claims'"):
        filled("nothing\n")


def test_results_of_another_script_are_refused() -> None:
    from position_rates import read_positions

    with pytest.raises(ValueError, match=r"real_positions\.py's"):
        read_positions(RESULTS / "spechub_toy.parquet")
