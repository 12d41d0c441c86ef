import contextlib
import io
import math
import re
import shutil
import subprocess

import numpy as np
import polars as pl
import pytest

from otmd.study import draw_gaps, print_report, report_json, summarise
from otmd.study.gap_figure import make_figure
from otmd.study.report import DEFAULT_BY, report_tables
from otmd.study.style import MARKS
from otmd.study.table import Table, html_page, markdown_page

K_SEQ = {"law": "WithReplacement", "num_drafts": 3, "temperature": 0.6, "verifier": "KSequential"}


@pytest.fixture(scope="module")
def summary(table) -> pl.DataFrame:
    return summarise(table)


@pytest.fixture(scope="module")
def few(summary) -> pl.DataFrame:
    """The groups of one panel of the figure."""
    return summary.filter(law="Greedy", temperature=0.6)


def printed(summary: pl.DataFrame) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        print_report(summary)
    return out.getvalue()


def shown_texts(figure) -> list:
    """Every text that can be seen, so without the labels of ticks beyond the axis."""
    from matplotlib.axis import Tick
    from matplotlib.text import Text

    hidden = set()
    for panel in figure.axes:
        for axis in (panel.xaxis, panel.yaxis):
            low, high = axis.get_view_interval()
            for tick in axis.findobj(Tick):
                if not low <= tick.get_loc() <= high:
                    hidden |= {tick.label1, tick.label2}
    texts = figure.findobj(Text)
    return [t for t in texts if t.get_text() and t.get_visible() and t not in hidden]


def test_the_table_has_a_section_a_law_and_the_numbers_of_the_summary(summary):
    text = printed(summary)
    lines = [line.strip() for line in text.splitlines()]
    laws = "with replacement,without replacement,stratified,greedy,hub,top k"
    heads = [lines.index(name) for name in laws.split(",")]
    assert heads == sorted(heads)
    assert "T = 0.6" in text
    assert "top-k 3" in text
    row = summary.filter(**K_SEQ).row(0, named=True)
    margin = 100 * max(row["gap"] - row["gap_low"], row["gap_high"] - row["gap"])
    assert f"{100 * row['rate']:.1f}  {100 * row['gap']:5.2f} ±{margin:.2f}" in text
    assert f"{100 * row['optimal']:.1f} ±" in text

    assert "18 positions of 6 prompts" in text
    assert "undefined" in text
    # It serves one draft alone, where it is optimal.
    assert "maximal coupling" not in text.partition("\n·: ")[0]
    for law, lacks in (("Stratified", True), ("TopK", False)):
        assert ("\n·: the verifier does not serve" in printed(summary.filter(law=law))) == lacks
    # Nothing is cut off in eighty columns.
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_partly_undefined_groups_are_starred(table):
    whole = table.filter(pl.col("top_k").is_null())
    names = ("optimal", "rate", "gap")
    some = whole.with_columns(pl.when(pl.col("index") != 0).then(pl.col(name)) for name in names)
    assert "2*" in printed(summarise(some))
    assert "2*" not in printed(summarise(whole))
    # One prompt has no margin.
    assert "±?" in printed(summarise(whole.filter(prompt_id="p0")))


def test_names_that_a_file_gives_are_no_markup_and_hold_no_control_characters(table):
    odd = table.with_columns(pl.lit("[/red]x\x1b[2J").alias("domain"), pl.lit("[bold]law\x1b").alias("law"))
    text = printed(summarise(odd, by=("domain", *DEFAULT_BY))) + printed(summarise(odd))
    assert "[bold]law\\x1b · [/red]x\\x1b[2j" in text.lower()
    assert "\x1b" not in text


def test_json_holds_every_group_and_no_nan(summary):
    whole = report_json(summary, "somewhere.parquet")
    assert whole["results"] == "somewhere.parquet"
    assert whole["confidence"] == 0.95
    assert len(whole["groups"]) == len(summary)
    first = summary.row(0, named=True)
    assert whole["groups"][0] == first
    broken = summary.with_columns(pl.lit(math.nan).alias("gap"))
    assert report_json(broken)["groups"][0]["gap"] is None


def test_the_figure_is_written_with_its_source(few, tmp_path):
    from PIL import Image

    paths = [tmp_path / "new" / name for name in ("gaps.png", "gaps.pdf", "gaps.svg")]
    assert draw_gaps(few, paths, source="made by a test") == paths
    assert all(path.stat().st_size > 5000 for path in paths)
    with Image.open(paths[0]) as image:
        assert image.info["Source"] == "made by a test"
        assert image.width >= 2000
    assert b"made by a test" in paths[2].read_bytes()


def test_the_figure_draws_the_gaps_in_percentage_points(summary):
    drawn = summary.filter(pl.col("gap").is_not_null(), pl.col("temperature") == 0.6)
    figure = make_figure(drawn)
    panels = {panel.get_title(): panel for panel in figure.axes if panel.get_title()}
    laws = ["with\nreplacement", "without\nreplacement", "stratified", "greedy", "hub"]
    assert list(panels) == [*laws, "top\nk"]
    expected = drawn.filter(law="WithReplacement", verifier="KSequential").sort("num_drafts")
    colour = MARKS["KSequential"].colour
    (line,) = [c[0] for c in panels["with\nreplacement"].containers if c[0].get_color() == colour]
    assert np.allclose(line.get_ydata(), 100 * expected["gap"].to_numpy())
    optimal = MARKS["Optimal"].colour
    (zero,) = [c[0] for c in panels["greedy"].containers if c[0].get_color() == optimal]
    assert (zero.get_ydata() == 0).all()
    assert np.allclose(np.round(line.get_xdata()), expected["num_drafts"].to_numpy())


def test_no_text_of_the_figure_is_clipped_or_overlaps(summary):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = make_figure(summary.filter(pl.col("gap").is_not_null()))
    FigureCanvasAgg(figure).draw()
    frame = figure.bbox
    boxes = [(text.get_text(), text.get_window_extent()) for text in shown_texts(figure)]
    assert len(boxes) > 40
    for i, (name, box) in enumerate(boxes):
        assert frame.x0 - 1 <= box.x0 <= box.x1 <= frame.x1 + 1, name
        assert frame.y0 - 1 <= box.y0 <= box.y1 <= frame.y1 + 1, name
        for other, another in boxes[i + 1 :]:
            assert not box.padded(-1).overlaps(another.padded(-1)), (name, other)


def test_an_interval_that_is_rounding_alone_has_no_width(summary):
    noise = {"gap": 3e-16, "gap_low": -2e-16, "gap_high": 1e-15}
    shown = summary.with_columns(pl.lit(value).alias(name) for name, value in noise.items())
    page = html_page("report", *report_tables(shown), {})
    assert set(re.findall(r'<i style="(.*?)"', page)) == {"left:0.0%;width:0.0%"}


def test_tables_of_a_page_hold_the_numbers_of_the_summary(summary, table):
    caption, tables = report_tables(summary)
    assert "low and high are the ends of its 95%" in caption
    assert [one.title for one in tables][:2] == ["all laws, best rate first", "with replacement"]
    row = summary.filter(**K_SEQ)
    (found,) = [own for own in tables[1].rows if own[:3] == ["T = 0.6", 3, "K-SEQ"]]
    wanted = row.select("rate", "gap", "gap_low", "gap_high", "optimal").row(0)
    assert found[3:8] == [100 * value for value in wanted]
    assert f"| {100 * wanted[0]:.2f} |" in markdown_page("Report", [caption], tables)
    assert repr(found[3]) in tables[1].to_csv()
    _, tables = report_tables(summarise(table, by=("domain", *DEFAULT_BY)))
    assert {"greedy · code", "greedy · chat"} <= {one.title for one in tables}


def test_unknown_cells_and_ends_are_empty():
    one = Table("T", ["a", "v", "l", "h"], [["x", None, None, None], ["y", -1e-9, None, None]])
    assert "| y | 0.00 | – | – |" in markdown_page("A", [], [one])
    assert one.to_csv().splitlines()[1] == "x,,,"
    page = html_page("A", [], [one._replace(interval=("v", "l", "h"))], {})
    # The axis alone in the head, and no mark in the row without a value.
    assert page.count("class=bar") == 3
    assert page.count("<b style") == 1


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ((2.1, 3.9), [2, 2.5, 3, 3.5, 4]),
        ((0.0, 0.0), [0, 0.5]),
        ((-0.3, 0.1), [-0.3, -0.2, -0.1, 0, 0.1]),
        ((47.3, 103.0), [40, 60, 80, 100, 120]),
        ((3.0, 3.0), [3, 3.5]),
    ],
)
def test_an_axis_spans_the_values_with_round_numbers(ends, expected):
    table = Table("", ["a", "v", "l", "h"], [["x", ends[0], *ends]], interval=("v", "l", "h"))
    (axis,) = re.findall(r"<th class=axis>v<div class=bar>(.*?)</div>", table.to_html())
    labels = re.findall(r"left:([\d.]+)%\">(.*?)</s>", axis)
    assert [float(label) for _, label in labels] == pytest.approx(expected)
    assert labels[0][0] == "0.0"
    assert labels[-1][0] == "100.0"


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser is installed")
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_opens_a_page_and_sorts_it(summary, tmp_path, width):
    """The page after two clicks on a head, in a browser; nothing is wider than the window."""
    rows = [["b", 10.0, 9.0, 11.0], ["c", 9.0, 8.0, 9.5], ["a", 11.0, 9.0, 12.0]]
    heads = ["rule", "value", "low", "high"]
    table = Table("Ranking", heads, rows, interval=("value", "low", "high"))
    caption, tables = report_tables(summary)
    page = html_page("A & B", ["Take <a>.", caption], [table, *tables], {"made by": "a test"})
    clicks = """<script>
    const table = n => document.querySelectorAll("table")[n];
    const order = n => [...table(n).tBodies[0].rows].map(r => r.cells[0].textContent).join("");
    const click = (n, column) => table(n).querySelectorAll("th button")[column].click();
    click(0, 1); const down = order(0); click(0, 1);
    const gaps = () => [...table(2).tBodies[0].rows].map(r => Number(r.cells[4].dataset.value));
    click(2, 4); const sorted = gaps().every((gap, i, all) => i === 0 || all[i - 1] >= gap);
    document.title = `${down} ${order(0)} ${sorted} ${document.documentElement.scrollWidth <= innerWidth}`;
    </script>"""
    (tmp_path / "page.html").write_text(page.replace("</body>", clicks + "</body>"))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--window-size={width},900", f"--user-data-dir={tmp_path / 'profile'}"]
    command += [f"file://{tmp_path}/page.html"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    assert "<title>abc cba true true</title>" in found
    assert "A &amp; B" in found
