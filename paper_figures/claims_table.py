"""The tables of ``docs/claims.md``, written into the page from the stored results.

    python paper_figures/claims_table.py
    python paper_figures/claims_table.py --check

A table stands between ``<!-- NAME -->`` and ``<!-- end -->``. With ``--check`` the page is not changed,
and the exit status says whether its tables agree with the results.
"""

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import claims_couplings
import claims_draft_laws
import claims_laws
import claims_made_up
import claims_sequences
import claims_verifiers
import polars as pl
from position_rates import PAIR, means, read_positions, side_by_side

PAGE = Path("docs/claims.md")
HEAD = ("claim", "verdict", "measured here", "source", "script")
DOMAIN_RULES = ("α*, with", "K-SEQ", "RRS", "α*, without", "RRSw", "greedy")
DRAFTS = 3


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def claims() -> str:
    """Every claim that was measured again."""
    table = read_positions()
    real = [*claims_verifiers.rows(table.filter(draft=PAIR)), *claims_laws.rows(table)]
    rows = [
        *claims_made_up.rows(),
        *real,
        *claims_draft_laws.rows(),
        *claims_couplings.rows(),
        *claims_sequences.rows(),
    ]
    # The answer comes beside the question: on a narrow screen the last columns are out of sight.
    return markdown(
        HEAD,
        (
            (claim, verdict, measured, source, script.replace("experiments/", ""))
            for claim, source, measured, script, verdict in rows
        ),
    )


def draft_laws() -> str:
    """Rates of the study of laws."""
    return markdown(claims_draft_laws.HEAD, claims_draft_laws.lines())


def by(column: str, part: pl.DataFrame) -> str:
    """Mean rates in per cent with 95% intervals, a line for each domain or temperature."""
    wide = side_by_side(part, DOMAIN_RULES, DRAFTS)
    found = means(wide, [column], {name: pl.col(name) for name in DOMAIN_RULES})
    lines = []
    for value in sorted(found[column].unique()):
        cells = [
            found.filter(pl.col(column) == value, name=name).row(0, named=True)
            for name in DOMAIN_RULES
        ]
        numbers = [
            f"{100 * c['value']:.1f} ({100 * c['low']:.1f}–{100 * c['high']:.1f})" for c in cells
        ]
        lines.append([str(value), str(cells[0]["positions"]), *numbers])
    return markdown([column, "positions", *DOMAIN_RULES], lines)


def domains() -> str:
    """At the temperature of Hu et al.'s Table 1."""
    return by("domain", read_positions().filter(draft=PAIR, temperature=0.7))


def temperatures() -> str:
    """The same pair at every temperature."""
    return by("temperature", read_positions().filter(draft=PAIR))


TABLES: dict[str, Callable[[], str]] = {
    "claims": claims,
    "domains": domains,
    "temperatures": temperatures,
    "draft laws": draft_laws,
}


def filled(page: str) -> str:
    """The page with every table made anew."""
    for name, make in TABLES.items():
        pattern = re.compile(rf"(<!-- {name} -->\n\n).*?(<!-- end -->)", re.DOTALL)
        if len(pattern.findall(page)) != 1:
            raise ValueError(f"page: got no single place for the table {name!r}, expected one")
        table = make()
        page = pattern.sub(lambda found, table=table: f"{found[1]}{table}\n\n{found[2]}", page)
    return page


def main(arguments: list[str]) -> int:
    """Write the page, or with ``--check`` compare it."""
    before = PAGE.read_text("utf-8")
    after = filled(before)
    if arguments == ["--check"]:
        return int(before != after)
    PAGE.write_text(after, "utf-8")
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
