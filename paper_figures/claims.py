"""The tables of ``docs/claims.md``, made anew from ``claims.toml`` and stored results.

A table of the page stands between ``<!-- NAME -->`` and ``<!-- end -->``.
"""

import re
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from experiments.runner import markdown
from paper_figures import queries
from paper_figures.common import PAIRS, means
from paper_figures.queries import choices, wide

PAGE = Path("docs/claims.md")
LIST = Path(__file__).with_suffix(".toml")


LONG = 160
"""Letters of a cell beyond which its numbers go below the table."""


def verdict(so: float | None) -> str:
    """The word for the share of the cases in which a claim holds."""
    if so is None:
        return "open"
    if so == 1:
        return "holds"
    return "fails" if so == 0 else "in part"


def row(claim: dict[str, Any]) -> tuple[list[str], str]:
    """The row of a claim, and what goes below its table."""
    query = getattr(queries, claim["query"])
    values = query(**claim.get("arguments", {}))
    values["holds"] = verdict(values["so"])
    values["theorem"] = f"{values['holds']} (a theorem, checked by the code)"
    name = claim["claim"] + (f" ({claim['where']})" if "where" in claim else "")
    says, measured, numbers = (
        claim.get(part, "").format(**values) for part in ("verdict", "measured", "numbers")
    )
    script = claim["experiment"].rpartition("/")[2]
    cell = f"{measured}: {numbers}" if numbers else measured
    below = ""
    if numbers and len(cell) > LONG:
        cell = f"{measured}: below"
        items = "\n".join(f"- {item}" for item in numbers.split("; "))
        below = f"<details><summary>{name}</summary>\n\n{measured}:\n\n{items}\n\n</details>"
    return [name, says, f"{cell} (`{script}`)"], below


def claims() -> str:
    """Every claim that was measured again, a table for each paper."""
    listed = tomllib.loads(LIST.read_text("utf-8"))["claims"]
    parts = []
    for paper in dict.fromkeys(claim["paper"] for claim in listed):
        rows, details = zip(*(row(c) for c in listed if c["paper"] == paper), strict=True)
        # The answer comes next to the question.
        table = markdown(("claim", "verdict", "measured here"), rows)
        parts += [f"### {paper}", table, *filter(None, details)]
    return "\n\n".join(parts)


DOMAIN_RULES = ("α*, with", "K-SEQ", "RRS", "α*, without", "RRSw", "greedy")


def by(column: str, **at: float) -> str:
    """Mean rates of three drafts in per cent with 95% intervals, a line for each value of a column."""
    rates = means(wide(DOMAIN_RULES, 3, **at), [column], DOMAIN_RULES)
    lines = []
    for value in sorted(rates[column].unique()):
        rows = rates.filter(pl.col(column) == value)
        by_rule = {row["name"]: row for row in rows.iter_rows(named=True)}
        ends = [[100 * by_rule[name][end] for end in ("value", "low", "high")] for name in DOMAIN_RULES]
        texts = ("{:.1f} ({:.1f}–{:.1f})".format(*of) for of in ends)
        lines.append([value, rows["positions"][0], *texts])
    return markdown([column, "positions", *DOMAIN_RULES], lines)


SHOWN = {
    "top n": "certain",
    "with, K-SEQ": "with, K-SEQ",
    "without, recursive": "without, recursive",
    "greedy": "greedy",
    "stratified": "stratified",
}
"""Choices in the results by their column in the table of laws."""


def draft_laws() -> str:
    """Rates of laws in per cent at two temperatures, a line for each pair and number of drafts."""
    lines = []
    for draft, (label, _) in PAIRS.items():
        for temperature in (0.6, 1.0):
            for n in (2, 4, 8):
                cell = choices().filter(draft=draft, temperature=temperature, num_drafts=n)
                by_choice = {row["choice"]: row for row in cell.iter_rows(named=True)}
                lines.append([label, f"{temperature:g}", n, *_cells(by_choice)])
    heads = ("pair", "T", "n", *SHOWN, "stratified − greedy", "without, optimum", "ceiling")
    return markdown(heads, lines)


def _cells(by_choice: dict[str, dict[str, Any]]) -> list[str]:
    """The cells of a line, with a dash for a choice that was not measured at all positions."""

    def rate(name: str) -> str:
        return f"{100 * by_choice[name]['value']:.1f}" if name in by_choice else "–"

    stratified = by_choice["stratified"]
    ends = (100 * stratified[f"{end}_over_greedy"] for end in ("value", "low", "high"))
    lead = "{:+.1f} ({:+.1f} to {:+.1f})".format(*ends)
    return [*map(rate, SHOWN.values()), lead, *map(rate, ("without, optimum", "ceiling, π ∝ q"))]


RULES = {
    "token level, without": "without replacement, token level",
    "token level, strata": "strata, token level",
    "Traversal": "without replacement, Traversal",
    "GBV": "paths, GBV",
    "UniVer": "greedy, node by node",
    "node by node": "strata, node by node",
    "layer": "strata, layer",
    "most likely tree": "most likely, target only",
    "bound": "strata, inclusion bound",
}
"""Laws and rules by their column in the table of whole trees."""


def whole_trees() -> str:
    """Tokens a step of rules for whole trees, a line for each pair and temperature."""
    table = queries.whole_trees().filter(pl.col("over").is_null()).sort("temperature")
    lines = []
    for draft, (label, _) in PAIRS.items():
        for (t,), cell in table.filter(draft=draft).group_by("temperature", maintain_order=True):
            by_name = {row["name"]: row for row in cell.iter_rows(named=True)}
            values = [f"{by_name[name]['value']:.2f}" for name in RULES.values()]
            layer = by_name[RULES["layer"]]
            lines.append([label, f"{t:g}", *values, layer["shapes"]])
    return markdown(("pair", "T", *RULES, "shapes of layer"), lines)


TABLES: dict[str, Callable[[], str]] = {
    "claims": claims,
    # At the temperature of Hu et al.'s Table 1.
    "domains": partial(by, "domain", temperature=0.7),
    "temperatures": partial(by, "temperature"),
    "draft laws": draft_laws,
    "whole trees": whole_trees,
}


def filled(page: str) -> str:
    """The page with every table made anew."""
    for name, make in TABLES.items():
        parts = re.split(rf"(?<=<!-- {name} -->\n\n)(.*?)(?=\n\n<!-- end -->)", page, flags=re.DOTALL)
        if len(parts) != 3:
            raise ValueError(f"page: got no single place for the table {name!r}, expected one")
        page = parts[0] + make() + parts[2]
    return page


def fill() -> Path:
    """Make the tables of the page anew."""
    PAGE.write_text(filled(PAGE.read_text("utf-8")), "utf-8")
    return PAGE
