import re
import shutil
import tomllib
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from matplotlib.figure import Figure
from PIL import Image

import paper_figures.__main__
from paper_figures import acceptance, claims, common, queries
from paper_figures.__main__ import DRAWN, FIGURES, THEORY, digest, main, stale

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "paper_figures" / "results"
PAGES = "\n".join(path.read_text("utf-8") for path in (ROOT / "docs").rglob("*.md"))


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


QUICK = ("choice", "theory_cut")
SLOW = [name for name in [*FIGURES, "gaps", *THEORY] if name not in QUICK]


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_figure_says_how_it_was_drawn_and_clips_nothing(name: str, tmp_path: Path, monkeypatch) -> None:
    margins, save = [], Figure.savefig

    def savefig(figure: Figure, *args: object, **options: object) -> None:
        save(figure, *args, **options)
        drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
        margins.extend([drawn.x0, drawn.y0, width - drawn.x1, height - drawn.y1])

    monkeypatch.setattr(Figure, "savefig", savefig)
    figure, options = tmp_path / "figure.png", []
    command = f"python -m paper_figures {name}"
    if name not in THEORY:
        stored = FIGURES[name][1] if name in FIGURES else name
        for table in ("spectr_floor", "real_positions", stored):
            shutil.copy(RESULTS / f"{table}.parquet", tmp_path)
        results = tmp_path / f"{stored}.parquet"
        options = ["--results", str(results)]
        command += f" --results {results}"
    command += f" ({digest(name, None if name in THEORY else results)})"
    main([name, *options, "--output", str(figure)])
    with Image.open(figure) as image:
        assert image.info["Source"] == command
        assert image.size[0] >= 1000
    # In inches, of all that is drawn, text included.
    assert min(margins) >= 0.0


def test_pages_show_every_figure_as_its_code_and_results_draw_it(tmp_path, monkeypatch) -> None:
    assert {name for name in DRAWN if f"images/{name}.svg" not in PAGES} == set()
    # Another file of code or of results, or none, and the figure is to be drawn again.
    assert stale() == []
    images = shutil.copytree(ROOT / "docs" / "images", tmp_path / "images")
    monkeypatch.setattr(paper_figures.__main__, "IMAGES", images)
    (images / "laws.svg").unlink()
    drawn = (images / "theory_cut.svg").read_text("utf-8")
    (images / "theory_cut.svg").write_text(drawn.replace(digest("theory_cut"), 12 * "0"))
    assert stale() == ["laws", "theory_cut"]


def drawn_lines(name: str) -> list[np.ndarray]:
    """Heights of all lines of a figure of the stored results."""
    draw, stored = FIGURES[name]
    figure = draw(RESULTS / f"{stored}.parquet")
    lines = [line for axes in figure.axes for line in axes.get_lines()]
    return [np.asarray(line.get_ydata(), dtype=float) for line in lines]


def holds_line(lines: list[np.ndarray], heights: np.ndarray) -> bool:
    """Whether a line has these heights."""
    return any(y.shape == heights.shape and np.allclose(y, heights, atol=1e-9) for y in lines)


def test_a_wrong_line_would_be_found() -> None:
    line = np.array([0.1, 0.2, 0.3])
    assert holds_line([line], line)
    assert not holds_line([line], line + 1e-3)
    assert not holds_line([line], line[:2])


def test_curves_of_spectr_are_the_stored_rates() -> None:
    lines = drawn_lines("spectr_acceptance")
    table = common.read("spectr_acceptance")
    for family, target, draft in acceptance.SPECTR_PAIRS:
        rows = table.filter(family=family, target=target, draft=draft).sort("num_drafts")
        for column in ("optimal", "k_sequential", "floor_n", "floor", "bound"):
            assert holds_line(lines, rows[column].to_numpy())
    searches = common.read("spectr_floor")
    least = [searches.filter(num_drafts=n)["ratio"].min() for n in (2, 3, 4, 8, 16)]
    assert holds_line(lines, np.array(least))
    assert least[0] == pytest.approx(8 / 9, abs=1e-6)


def plain_means(law: str, verifier: str | None, n: int) -> np.ndarray:
    """Means of stored rates over the positions of the pair, by temperature."""
    table = common.read_positions().filter(draft=common.PAIR, law=law, num_drafts=n)
    rows = table.filter(verifier=verifier or "TargetOnly")
    value = (pl.col("rate_low") + pl.col("rate_high")) / 2 if verifier else pl.col("optimal")
    means = rows.group_by("temperature").agg(value.mean().alias("value")).sort("temperature")
    return means["value"].to_numpy()


@pytest.mark.parametrize(
    ("figure", "law", "verifier", "n"),
    [
        ("domain_rates", "WithReplacement", None, 3),
        ("domain_rates", "WithReplacement", "KSequential", 3),
        ("domain_rates", "Greedy", "GreedyCoupling", 3),
        ("spechub", "Hub", "SpecHub", 2),
    ],
)
def test_rates_by_temperature_are_means_of_the_stored_ones(figure, law, verifier, n) -> None:
    assert holds_line(drawn_lines(figure), plain_means(law, verifier, n))


def test_laws_are_drawn_as_differences_in_points() -> None:
    lines = drawn_lines("laws")
    base = plain_means("WithoutReplacement", None, 4)
    for law in ("WithReplacement", "top 2, then WithoutReplacement", "ConditionalPoisson"):
        assert holds_line(lines, 100 * (plain_means(law, None, 4) - base))


def test_the_chart_shows_differences_from_strata_in_points() -> None:
    lines = drawn_lines("choice")
    table = common.read("draft_laws").filter(draft=common.PAIR, num_drafts=4)
    rates = {
        name: table.filter(choice=name).sort("temperature")["value"].to_numpy()
        for name in ("stratified", *acceptance.RIVALS)
    }
    for name in acceptance.RIVALS:
        assert holds_line(lines, 100 * (rates[name] - rates["stratified"]))


def test_the_page_of_claims_agrees_with_the_results() -> None:
    page = claims.PAGE.read_text("utf-8")
    assert claims.filled(page) == page
    altered = page.replace("| chat |", "| chat, altered |")
    assert altered != page
    assert claims.filled(altered) == page


def test_verdicts_are_shares_of_the_cases_and_begin_their_cells() -> None:
    words = [claims.verdict(so) for so in (True, 1.0, 0.5, 0.0, False, None)]
    assert words == ["holds", "holds", "in part", "fails", "fails", "open"]
    rows = re.findall(r"^\| .+? \| (.+?) \| .+? \|$", claims.claims(), re.MULTILINE)
    verdicts = [row for row in rows if row not in {"verdict", "---"}]
    assert len(verdicts) == len(tomllib.loads(claims.LIST.read_text("utf-8"))["claims"])
    assert [v for v in verdicts if not re.match("(holds|in part|fails|open)\\b", v)] == []


def test_leads_are_judged_by_their_intervals() -> None:
    cells = pl.DataFrame({"low": [1.0, -1.0, -3.0], "high": [2.0, 1.0, -2.0]})
    assert queries.share_above(cells) == 1 / 3
    assert queries.share_above(cells, threshold=-5.0) == 1.0
    assert queries.share_above(cells[1:2]) is None


def test_labels_are_kept_apart() -> None:
    heights = common.spread([0.0, 1.0, 50.0, 99.0, 100.0], 10.0, 100.0)
    assert min(np.diff(heights)) >= 10.0
    assert heights[-1] <= 100.0
