"""The tables of ``lp_scaling.py``, as the documentation shows them."""

import polars as pl

PUBLISHED = {
    "linear program": ("4", "4000+", "400000+", "4000+", "out of memory"),
    "max-flow": ("2.5", "74", "10000+", "63–72", "400000+"),
}
"""Milliseconds a token in Thomas & Pal (2025, arXiv:2511.15898), on their own hardware."""

PUBLISHED_SIZES = ((10, 2), (10, 4), (10, 5), (100, 2), (1000, 2))


def print_tables(table: pl.DataFrame) -> None:
    """Print both comparisons, and the real distributions if there were any."""
    print(comparison_of_forms(table))
    print(comparison_of_backends(table))
    if "real" in table["source"]:
        print(real_distributions(table))


def comparison_of_forms(table: pl.DataFrame) -> str:
    """HiGHS on four programs of one problem, and how many times faster each is than the largest."""
    rows = table.filter(pl.col("claim") == "forms").sort("variables", descending=True)
    methods = ("HiGHS simplex", "HiGHS ipm")
    lines = ["", f"| form | tuples | variables | {', ms | '.join(methods)}, ms |", "|---" * 5 + "|"]
    largest: dict[str, float] = {}
    for (form, merge, variables), part in rows.group_by(
        "form", "merge", "variables", maintain_order=True
    ):
        taken = dict(part.select("backend", "best_seconds").rows())
        largest = largest or taken
        cells = [
            f"{1e3 * taken[name]:.1f} ({largest[name] / taken[name]:.1f}×)" for name in methods
        ]
        tuples = "merged" if merge else "apart"
        lines.append(f"| {form} | {tuples} | {variables:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def comparison_of_backends(table: pl.DataFrame) -> str:
    """The same program by HiGHS directly, by scipy and by cvxpy."""
    lines = [
        "",
        "| V, n | form | variables | highspy, ms | linprog | cvxpy |",
        "|---|---|---|---|---|---|",
    ]
    rows = table.filter(pl.col("claim") == "backends")
    for _, part in sorted(rows.group_by("part"), key=lambda group: group[1]["variables"][0]):
        taken = {row["backend"]: 1e3 * row["best_seconds"] for row in part.to_dicts()}
        first = part.row(0, named=True)
        apart = "" if first["merge"] else ", apart"
        numbers = " | ".join(
            f"{taken[name]:.1f}" for name in ("HiGHS simplex", "scipy linprog", "cvxpy HiGHS")
        )
        lines.append(
            f"| {first['vocab_size']}, {first['num_drafts']} | {first['form']}{apart} | "
            f"{first['variables']:,} | {numbers} |"
        )
    return "\n".join(lines)


def real_distributions(table: pl.DataFrame) -> str:
    """Median milliseconds and quartiles over positions, beside what was published elsewhere."""
    rows = table.filter(pl.col("source") == "real")
    sizes = rows.select("vocab_size", "num_drafts").unique().sort("vocab_size", "num_drafts").rows()
    lines = ["", "| | " + " | ".join(f"({k}, {n})" for k, n in sizes) + " |"]
    lines.append("|---" * (len(sizes) + 1) + "|")
    names = rows.select("form", "backend").unique(maintain_order=True).sort("form", "backend")
    for form, backend in names.rows():
        cells = [
            _cell(rows.filter(form=form, backend=backend, vocab_size=k, num_drafts=n))
            for k, n in sizes
        ]
        lines.append(f"| {form}, {backend} | " + " | ".join(cells) + " |")
    for name, published in PUBLISHED.items():
        known = dict(zip(PUBLISHED_SIZES, published, strict=True))
        cells = [known.get(size, "") for size in sizes]
        lines.append(f"| *{name}, Thomas & Pal, other hardware* | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(rows: pl.DataFrame) -> str:
    failed = rows.filter(pl.col("status") != "optimal")
    if rows.is_empty() or not failed.is_empty():
        return "" if rows.is_empty() else failed["status"][0]
    # From the marginals to the answer: listing and merging the tuples, building, solving.
    whole = 1e3 * (rows["list_seconds"] + rows["build_seconds"] + rows["solve_seconds"])
    low, middle, high = (whole.quantile(q, "linear") for q in (0.25, 0.5, 0.75))
    return f"{middle:.3g} ({low:.3g}–{high:.3g})"
