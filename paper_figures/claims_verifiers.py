"""Rows of the table of claims on verifiers, tested at positions of real models."""

import polars as pl
from claims_words import ROUNDING, by_name, command, holds, interval, listed, theorem
from position_rates import means, side_by_side

OF_HU = 0.7
FROM = command("real_positions")


def rows(pair: pl.DataFrame) -> list[list[str]]:
    """Claim, source, what was measured, script and verdict."""
    of = (hub_theorem, hub_below, hub_rules, with_replacement, without, greedy, greedy_loses)
    return [make(pair) for make in of]


def hub_theorem(pair: pl.DataFrame) -> list[str]:
    """SpecHub's theorem at real positions."""
    wide = side_by_side(pair, ["SpecHub", "α*, with"], 2).filter(pl.col("top_draft") >= 0.5)
    lead = (wide["SpecHub"] - wide["α*, with"]).to_numpy()
    least, most = lead.min(), lead.max()
    return [
        "The same at positions of real models",
        "SpecHub",
        f"{wide.height} positions with q(a) ≥ 1/2: hub − α* from {100 * least:.1e} to {100 * most:.1f} pp",
        FROM,
        theorem(least >= -ROUNDING),
    ]


def hub_below(pair: pl.DataFrame) -> list[str]:
    """How often the hub wins where the theorem is silent."""
    wide = side_by_side(pair, ["SpecHub", "α*, with"], 2).filter(pl.col("top_draft") < 0.5)
    ahead = (pl.col("SpecHub") > pl.col("α*, with")).cast(pl.Float64)
    share = by_name(wide, {"share": ahead})["share"]
    how_many = (
        "a majority" if share["low"] > 0.5 else "a minority" if share["high"] < 0.5 else "half"
    )
    return [
        "Where q(a) < 1/2 the hub may beat that optimum",
        "SpecHub",
        f"{wide.height} positions: in {interval(share)}% of them",
        FROM,
        holds(share["value"] > 0, f", at {how_many} of them"),
    ]


def hub_rules(pair: pl.DataFrame) -> list[str]:
    """The hub against recursive rejection by temperature."""
    wide = side_by_side(pair, ["SpecHub", "RRS", "RRSw"], 2)
    of = {name: pl.col("SpecHub") - pl.col(name) for name in ("RRS", "RRSw")}
    lead = means(wide, ["temperature"], of).filter(name="RRSw").sort("temperature")
    words = ", ".join(
        f"T = {row['temperature']:g}: {interval(row)}" for row in lead.iter_rows(named=True)
    )
    sure = lead.filter(pl.col("low") > 0)["temperature"].to_list()
    lost = lead.filter(pl.col("high") < 0)["temperature"].to_list()
    return [
        "The hub accepts more than RRS and RRSw",
        "SpecHub: 0.02 to 0.16 more tokens a step than RRSw, T up to 1",
        f"hub − RRSw, n = 2, pp: {words}",
        FROM,
        f"holds at T = {listed(sure)}; the other way round at T = {listed(lost)}",
    ]


def of_hu(pair: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """Positions at the temperature and number of drafts of Hu et al.'s Table 1."""
    return side_by_side(pair.filter(temperature=OF_HU), names, 3)


def with_replacement(pair: pl.DataFrame) -> list[str]:
    """How far verifiers stay below α*, with replacement."""
    names = ["α*, with", "K-SEQ", "RRS"]
    wide = of_hu(pair, names)
    rate = by_name(wide, {name: pl.col(name) for name in names})
    gap = by_name(wide, {name: pl.col(names[0]) - pl.col(name) for name in names[1:]})
    return [
        "With replacement, verifiers stay below α*",
        "Hu et al., Table 1: OPT-6.7B/125M, α* 86.9%, RRS 85.4%",
        f"n = 3, T = 0.7: α* {interval(rate['α*, with'])}%; "
        f"gap of RRS {interval(gap['RRS'])} pp, of K-SEQ {interval(gap['K-SEQ'])} pp",
        FROM,
        holds(gap["RRS"]["low"] > 0 and gap["K-SEQ"]["low"] > 0, "; the gap depends on the pair"),
    ]


def without(pair: pl.DataFrame) -> list[str]:
    """How far recursive rejection stays below α*, without replacement."""
    names = ["α*, without", "RRSw"]
    wide = of_hu(pair, names)
    rate = by_name(wide, {"α*": pl.col(names[0]), "gap": pl.col(names[0]) - pl.col("RRSw")})
    return [
        "Without replacement, RRSw stays below α*",
        "Hu et al., Table 1: LLaMA-7B/68M, α* 76.5%, RRSw 75.7%",
        f"n = 3, T = 0.7: α* {interval(rate['α*'])}%; gap of RRSw {interval(rate['gap'])} pp",
        FROM,
        holds(rate["gap"]["low"] > 0, "; the gap depends on the pair"),
    ]


def greedy(pair: pl.DataFrame) -> list[str]:
    """Greedy drafts against recursive rejection, as Hu et al. compare them."""
    wide = of_hu(pair, ["greedy", "RRS", "RRSw", "α*, with"])
    of = {name: pl.col("greedy") - pl.col(name) for name in ("RRS", "RRSw", "α*, with")}
    lead = by_name(wide, of)
    words = ", ".join(f"{name} {interval(row)} pp" for name, row in lead.items())
    return [
        "Greedy drafts accept more than RRS",
        "Hu et al., Table 1: Vicuna-7B/EAGLE, greedy 72.6%, RRS 70.9%",
        f"n = 3, T = 0.7, greedy less {words}",
        FROM,
        holds(lead["RRS"]["low"] > 0, ", at this temperature"),
    ]


def greedy_loses(pair: pl.DataFrame) -> list[str]:
    """Where greedy drafts are worse than drafts without replacement."""
    wide = side_by_side(pair, ["greedy", "α*, without", "RRSw"], 3)
    lead = {}
    for name in ("α*, without", "RRSw"):
        part = means(wide, ["temperature"], {"lead": pl.col("greedy") - pl.col(name)})
        lead[name] = part.filter(pl.col("high") < 0)["temperature"].sort().to_list()
    return [
        "Greedy loses to drafts without replacement at high temperature",
        "asked here, after Hu et al.",
        f"n = 3: greedy below α* without at T = {listed(lead['α*, without'])}; "
        f"below RRSw at T = {listed(lead['RRSw'])} (intervals exclude 0)",
        FROM,
        holds(bool(lead["RRSw"])),
    ]
