"""The report of a measurement: means over positions, a recommendation, and tables."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from itertools import chain, product
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs

from otmd.probabilities import wrong
from otmd.registry import LAWS, VERIFIERS
from otmd.storage.files import one_line
from otmd.study.estimate import (
    CONFIDENCE,
    FEW_PROMPTS,
    PROMPT,
    Estimate,
    estimate,
    few_prompts,
)
from otmd.study.rows import DEFAULT_LAWS, ROUNDING, uniform_law
from otmd.study.table import Cell, Table, wrapped
from otmd.verifiers import Optimal

Row = dict[str, Any]

PROCESSING = ("temperature", "top_k", "top_p", "min_p", "order")
DEFAULT_BY = ("law", *PROCESSING, "num_drafts", "verifier")
ENDS = ("", "_low", "_high")
# The columns of a measure, and of its guaranteed bounds if it has them.
MEASURES = {
    "optimal": ("optimal",),
    "rate": ("rate", "rate_low", "rate_high"),
    "gap": ("gap", "gap_low", "gap_high"),
}
LAW_ORDER = [law.__name__ for law in DEFAULT_LAWS]
VERIFIER_ORDER = [name for entry in VERIFIERS.values() for name in (entry.class_name, *entry.reported_names)]
LITERATURE = {"KSequential": "K-SEQ", "SpecHub": "SpecHub"}
# Characters of the columns of n and α*, and of a verifier.
FIRST_COLUMNS, VERIFIER_COLUMN = 18, 21


def summarise(
    table: pl.DataFrame,
    by: Sequence[str] = DEFAULT_BY,
) -> pl.DataFrame:
    """Average a table of :func:`otmd.measure` over positions, in groups.

    Parameters
    ----------
    table : polars.DataFrame
        The result of :func:`otmd.measure`.
    by : sequence of str
        The columns that define a group. Add ``domain`` for a group for each domain.

    Returns
    -------
    polars.DataFrame
        One row for each group, in the table's order: the columns of ``by``; the means ``optimal``, ``rate``
        and ``gap`` as fractions, each with ``_low`` and ``_high``; the numbers of ``positions`` and
        ``prompts`` in the means; ``undefined``, how many positions have no rate, because they do not admit
        the law or the verifier could not be rated; ``bound_width``, the mean width of the rates' guaranteed
        bounds. A 95% interval, by the jackknife over prompts with Student's t, runs from the lower end for
        the lower bounds to the upper end for the upper bounds. So it covers the variation between prompts
        and the width of the bounds. It is symmetric, so over few prompts it may end beyond 0 or 1. It is
        null with fewer than two prompts; a mean is null where no position has a rate.

    Raises
    ------
    ValueError
        For a table without rows, or an unknown column.

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np, otmd
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "dump.npz"
    ...     np.savez(path, target_probs=[[0.5, 0.3, 0.2], [0.8, 0.1, 0.1]], draft_probs=[[0.2, 0.3, 0.5]] * 2)
    ...     table = otmd.measure(path, "with-replacement", "k-sequential", num_drafts=2, workers=1)
    >>> otmd.study.summarise(table).select("rate", "gap", "prompts").to_numpy().round(4)
    array([[0.6638, 0.0462, 2.    ]])
    """
    if table.is_empty():
        raise wrong("table", "no rows", "at least one")
    if not by:
        raise wrong("by", "nothing", "at least one column")
    if unknown := [name for name in by if name not in table.columns]:
        raise wrong("by", unknown, f"columns of the table: {table.columns}")
    rated = table.filter(pl.col("rate").is_not_null())
    rows = []
    for row, means in estimate(rated, by, [*{*chain(*MEASURES.values())}]):
        for name, bounds in MEASURES.items():
            ends = Estimate.of(*(means[column] for column in bounds))
            row |= dict(zip((f"{name}{end}" for end in ENDS), ends, strict=True))
        rows.append(row | {"prompts": means["rate"].size - 1})
    counts = table.group_by(by, maintain_order=True).agg(
        pl.col("rate").count().cast(int).alias("positions"),
        pl.col("rate").null_count().cast(int).alias("undefined"),
        (pl.col("rate_high") - pl.col("rate_low")).mean().alias("bound_width"),
    )
    columns = [f"{name}{end}" for name in MEASURES for end in ENDS]
    schema = {name: table.schema[name] for name in by} | dict.fromkeys(columns, float)
    means = pl.DataFrame(rows, schema=schema | {"prompts": int})
    return counts.join(means, on=by, how="left", nulls_equal=True, maintain_order="left").select(
        *by, *columns, "positions", pl.col("prompts").fill_null(0), "undefined", "bound_width"
    )


def with_optimal(table: pl.DataFrame) -> pl.DataFrame:
    """Add rows for ``Optimal``, with gap 0, to a table or a summary where it serves and was not measured."""
    served = [
        entry.class_name
        for entry in LAWS.values()
        if entry.measured and Optimal().supports(uniform_law(entry.load(), 2))
    ]
    columns = ("domain", "prompt_id", "index", "law", *PROCESSING, "num_drafts")
    group = [name for name in columns if name in table.columns]
    measured = table.filter(pl.col("verifier") == "Optimal").select(group)
    # A measurement has no ends of α*.
    ends = {end: f"optimal{end}" if f"optimal{end}" in table.columns else "optimal" for end in ENDS}
    zero = {"gap", "gap_low", "gap_high", "bound_width"} & {*table.columns}
    added = (
        table.filter(pl.col("law").is_in(served), pl.col("rate").is_not_null())
        .join(measured, on=group, how="anti", nulls_equal=True)
        .unique(group, keep="first", maintain_order=True)
        .with_columns(
            pl.lit("Optimal").alias("verifier"),
            *(pl.col(name).alias(f"rate{end}") for end, name in ends.items()),
            *(pl.lit(0.0).alias(name) for name in zero),
        )
    )
    return pl.concat([table, added])


def worth_showing(table: pl.DataFrame) -> pl.DataFrame:
    """Leave out maximal coupling, which serves n = 1 only and is optimal there, unless it is alone."""
    trivial = (pl.col("verifier") == "MaximalCoupling") & (pl.col("gap").abs() < 1e-9)
    others = table.filter(~trivial.fill_null(False))
    return table if others.is_empty() else others


def comparable(table: pl.DataFrame) -> pl.DataFrame:
    """The rows with a rate, at each law's largest number of drafts, with those of ``Optimal``."""
    rated = worth_showing(table.filter(pl.col("rate").is_not_null()))
    return with_optimal(rated.filter(pl.col("num_drafts") == pl.col("num_drafts").max().over("law")))


def recommend(table: pl.DataFrame) -> list[str]:
    """Recommend a law and a verifier for each processing of logits, and say what the optimal one would add.

    First comes the best verifier that needs no solver. ``Optimal`` is compared with it at the same positions,
    for the law on which it accepts most; the interval is that of the paired difference.

    Parameters
    ----------
    table : polars.DataFrame
        The result of :func:`otmd.measure`.

    Returns
    -------
    list of str
        A sentence or two for each processing of which two pairs of law and verifier were measured, and a
        warning if the prompts are few.
    """
    said = []
    prompts = []
    for key, rows in table.group_by(PROCESSING, maintain_order=True):
        rated = comparable(rows)
        if rated.select("law", "verifier").n_unique() > 1:
            steps: Any = key
            sentence, count = _sentence(rated)
            said.append(f"{processing_label(*steps)}: {sentence}")
            prompts.append(count)
    return said + few_prompts(min(prompts, default=FEW_PROMPTS))


def _sentence(rated: pl.DataFrame) -> tuple[str, int]:
    """The sentence for one processing, and the number of prompts of the best pair."""
    pairs = estimate(rated, ["law", "num_drafts", "verifier"], MEASURES["rate"])
    # Of equal rates the first is taken, up to rounding.
    best_first = sorted(pairs, key=lambda pair: -round(pair[1]["rate"][0], 9))
    solved = [pair for pair in best_first if pair[0]["verifier"] == "Optimal"]
    simple = [pair for pair in best_first if pair[0]["verifier"] != "Optimal"]
    best, means = (simple or solved)[0]
    rate, low, high = Estimate.of(*(means[name] for name in MEASURES["rate"]))
    # Over few prompts a symmetric interval may leave [0, 1].
    interval = ""
    if low is not None and high is not None:
        interval = f" [{100 * max(low, 0.0):.1f}, {100 * min(high, 1.0):.1f}]"
    law, n = law_label(best["law"]), best["num_drafts"]
    drafts = "draft" + "s" * (n > 1)
    drafts = f"{n} {drafts} {law}" if law.startswith("with") else f"{n} {law} {drafts}"
    said = f"take {drafts}, {verifier_label(best['verifier'])}: {100 * rate:.1f}%{interval}."
    if not simple:
        said += " It needs a solver."
    elif solved:
        said += f" {_gain_of_optimal(rated, solved[0][0]['law'], best)}"
    return said, means["rate"].size - 1


def _gain_of_optimal(rated: pl.DataFrame, law: str, best: dict[str, Any]) -> str:
    """The gain of the optimal verifier with a law over the best pair, at the positions of both."""
    optimal = rated.filter(law=law, verifier="Optimal")
    simple = rated.filter(**best).select("index", *PROMPT, "rate", "rate_low", "rate_high")
    gains = optimal.join(simple, on=["index", *PROMPT], suffix="_best").with_columns(
        gain=pl.col("optimal") - pl.col("rate_best"),
        low=pl.col("optimal") - pl.col("rate_high_best"),
        high=pl.col("optimal") - pl.col("rate_low_best"),
    )
    if gains.is_empty():
        return "The optimal verifier has no rate at the same positions."
    ((_, means),) = estimate(gains, ["law"], ["gain", "low", "high"])
    gain, low, high = Estimate.of(*means.values())
    if gain < 0.0005:
        several = rated["law"].n_unique() > 1
        return f"The optimal verifier accepts no more{', with any law that was measured' * several}."
    interval = significance = ""
    if low is not None and high is not None:
        interval = f" [{100 * low:+.1f}, {100 * high:+.1f}]"
        significance = "" if low > 0 else " (not significant)"
    return f"Optimal {law_label(law)}: {100 * gain:+.1f} points{interval}{significance}, needs a solver."


def law_label(name: str) -> str:
    """The words of a class name: ``without replacement`` for ``WithoutReplacement``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", one_line(name)).lower()


def verifier_label(name: str) -> str:
    """A verifier's name in the literature, ``K-SEQ`` for ``KSequential``, or its class name as words."""
    return LITERATURE.get(name) or law_label(name)


def processing_label(*values: Any) -> str:
    """The values of the columns PROCESSING in words, such as ``T = 0.6, top-p 0.9``, without unused steps."""
    named = dict(zip(PROCESSING, values, strict=False))
    order = named.pop("order", None) or "transformers"
    words = {"temperature": "T =", "top_k": "top-k", "top_p": "top-p", "min_p": "min-p"}
    steps = [f"{words[name]} {value:.9g}" for name, value in named.items() if value is not None]
    return ", ".join(steps + [f"order {order}"] * (order != "transformers"))


def in_order(names: set[str], order: list[str]) -> list[str]:
    """Sort names by a given order; names that are not in it come last, in alphabetical order."""
    return sorted(names, key=lambda n: (order.index(n) if n in order else len(order), n))


def print_report(summary: pl.DataFrame, recommendation: Sequence[str] = ()) -> None:
    """Print a recommendation, a table of all laws, then one for each law (and domain).

    Parameters
    ----------
    summary : polars.DataFrame
        From :func:`otmd.study.summarise`, grouped by its default columns, and also by ``domain`` if
        there is to be a table for each domain.
    recommendation : sequence of str
        Sentences of :func:`otmd.study.recommend`, printed first.

    Raises
    ------
    ValueError
        For a summary of other groups.
    """
    if missing := [name for name in DEFAULT_BY if name not in summary.columns]:
        raise wrong("summary", f"no {missing}", f"it grouped by {DEFAULT_BY}")
    for part in filter(None, [*map(wrapped, recommendation), _ranking(summary)]):
        print(part, end="\n\n")
    width = shutil.get_terminal_size().columns
    has_dots = False
    for title, rows in _sections(summary).items():
        label = max(len(row["processing"]) for row in rows)
        fitting = max(1, (width - label - FIRST_COLUMNS) // VERIFIER_COLUMN)
        verifiers = in_order({row["verifier"] for row in rows}, VERIFIER_ORDER)
        # As many tables as the terminal's width needs, of about equally many verifiers.
        for part in np.array_split(verifiers, -(-len(verifiers) // fitting)):
            table = _matrix(title, rows, part.tolist())
            has_dots |= any("·" in row for row in table.rows)
            print(table, end="\n\n")
    arm = "± is the longer arm of its"
    caption = _caption(summary, arm, "undefined, or * where at some positions only")
    if has_dots:
        caption += (
            "\n·: the verifier does not serve the law with so many drafts, or is maximal coupling there (one "
            "draft), which is optimal and not shown."
        )
    if 1 in summary["prompts"]:
        caption += "\n±?: one prompt gives no interval."
    print(wrapped(caption))


def report_json(summary: pl.DataFrame, results: str = "") -> dict[str, Any]:
    """The summary in JSON's types.

    Parameters
    ----------
    summary : polars.DataFrame
        From :func:`otmd.study.summarise`.
    results : str
        The path of the results file.

    Returns
    -------
    dict
        ``results``, ``confidence`` and ``groups``, one for each row. Rates and gaps are fractions; undefined
        ones are None.
    """
    groups = summary.with_columns(cs.float().fill_nan(None)).to_dicts()
    return {"results": results or None, "confidence": CONFIDENCE, "groups": groups}


def report_tables(summary: pl.DataFrame) -> tuple[str, list[Table]]:
    """A caption, and the tables of a page: one for each law, after one of all laws unless by domain."""
    tables = [*filter(None, [_ranking(summary)])]
    interval = ("gap, pp", "low", "high")
    heads = ["processing", "n", "verifier", "rate %", *interval, "α* %", "positions", "undefined"]
    rates = ("rate", "gap", "gap_low", "gap_high", "optimal")
    for title, rows in _sections(summary).items():
        cells: list[list[Cell]] = [
            [row["processing"], row["num_drafts"], verifier_label(row["verifier"])]
            + [_percent(row[name]) for name in rates]
            + [row["positions"], row["undefined"]]
            for row in rows
        ]
        tables.append(Table(title, heads, cells, interval=interval))
    ends = "low and high are the ends of its"
    return _caption(summary, ends, "undefined, at how many positions"), tables


def _rows(summary: pl.DataFrame) -> list[Row]:
    """The rows worth showing, each with a label of its processing."""
    return [
        row | {"processing": processing_label(*(row[name] for name in PROCESSING))}
        for row in worth_showing(summary).to_dicts()
    ]


def _sections(summary: pl.DataFrame) -> dict[str, list[Row]]:
    """The rows worth showing, by the title of their table: a law, and a domain if there is one."""
    rows = _rows(summary)
    laws = in_order({row["law"] for row in rows}, LAW_ORDER)
    domains = [*dict.fromkeys(row.get("domain") for row in rows)]
    sections: dict[str, list[Row]] = {}
    for domain, law in product(domains, laws):
        title = law_label(law) + (f" · {one_line(domain)}" if domain else "")
        chosen = [row for row in rows if (row.get("domain"), row["law"]) == (domain, law)]
        sections |= {title: chosen} if chosen else {}
    return sections


def _matrix(title: str, rows: list[Row], verifiers: list[str]) -> Table:
    """Rates and gaps with a row for each processing and number of drafts, a column for each verifier."""
    heads = ["", "n", "α* %", *(f"{verifier_label(v)}\nrate %  gap, pp" for v in verifiers)]
    lines: dict[str, dict[int, dict[str, Row]]] = {}
    for row in rows:
        line = lines.setdefault(row["processing"], {}).setdefault(row["num_drafts"], {})
        line[row["verifier"]] = row
    table: list[list[Cell]] = []
    for label, counts in lines.items():
        if table and max(map(len, lines.values())) > 1:
            table.append([""] * len(heads))
        for n, cells in sorted(counts.items()):
            rated = [row for row in cells.values() if row["optimal"] is not None]
            optimal = _with_margin(rated[0], "optimal", 1) if rated else "undefined"
            partly = "*" * any(row["undefined"] and row["positions"] for row in cells.values())
            shown = (_matrix_cell(cells.get(name)) for name in verifiers)
            table.append([label * (n == min(counts)), f"{n}{partly}", optimal, *shown])
    return Table(title, heads, table)


def _matrix_cell(row: Row | None) -> str:
    if row is None:
        return "·"
    if row["rate"] is None:
        return "undefined"
    return f"{100 * row['rate']:.1f}  {_with_margin(row, 'gap', 2)}"


def _with_margin(row: Row, measure: str, digits: int) -> str:
    """Write ``12.3 ±0.4``: percent, and the longer arm of the interval."""
    value, low, high = (row[f"{measure}{end}"] for end in ENDS)
    margin = "?" if low is None else f"{100 * max(value - low, high - value):.{digits}f}"
    # Adding zero turns −0.0 into 0.0.
    return f"{round(100 * value, digits) + 0.0:{digits + 3}.{digits}f} ±{margin}"


def _caption(summary: pl.DataFrame, of_interval: str, undefined: str) -> str:
    """A line on the size of the measurement, and the meaning of the signs in the tables."""
    shown = worth_showing(summary)
    positions, prompts = (shown[name].max() or 0 for name in ("positions", "prompts"))
    caption = (
        f"{positions} positions of {prompts} prompts. gap = α* − rate in percentage points; {of_interval} "
        "95% interval (jackknife over prompts)."
    )
    if shown["undefined"].sum():
        caption += (
            f"\n{undefined}: the draft distribution has fewer tokens with mass than n, or the verifier could "
            "not be rated; such positions are left out, and their rows' status says why."
        )
    return caption


def _ranking(summary: pl.DataFrame) -> Table | None:
    """A table of all pairs of law and verifier at the law's largest n, best rate first; not by domain."""
    rows = _rows(comparable(summary))
    steps = dict.fromkeys(row["processing"] for row in rows)
    pairs: dict[tuple[str, str, int], dict[str, float]] = {}
    for row in rows:
        pair = row["law"], row["verifier"], row["num_drafts"]
        pairs.setdefault(pair, {})[row["processing"]] = row["rate"]
    if len(pairs) < 2 or "domain" in summary.columns:
        return None
    means = {pair: sum(rates.values()) / len(rates) for pair, rates in pairs.items()}
    # Of equal rates, a closed form comes before Optimal, which needs a solver.
    ranked = sorted(pairs, key=lambda pair: (-round(means[pair], 9), pair[1] == "Optimal"))
    heads = ["drafts", "verifier", "n", *(f"{step}\nrate %" for step in steps)]
    cells: list[list[Cell]] = [
        [law_label(law), verifier_label(verifier), n]
        + [_percent(pairs[law, verifier, n].get(step)) for step in steps]
        for law, verifier, n in ranked
    ]
    return Table("all laws, best rate first", heads, cells, decimals=1)


def _percent(fraction: float | None) -> float | None:
    # An interval that is rounding alone would be drawn over the full width.
    return None if fraction is None else 100 * fraction * (abs(fraction) > ROUNDING) + 0.0
