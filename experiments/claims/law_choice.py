"""A summary of what ``draft_laws.py`` measured: fitted parameters, differences, and what is left to gain.

    python -m experiments law_choice
    python -m experiments law_choice --rows runs/two_sizes_positions.parquet

Prompts are cut in two halves. A parameter is fitted on one half and its rate is reported on the held-out one,
both ways, so that every prompt is reported on. Intervals are 95%, by a bootstrap over prompts within domains;
differences are of the same positions. Stores a row for each draft, temperature, number of drafts and choice;
what is stored of other drafts stays.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from experiments.claims.draft_laws import COUNTS, DEFAULTS, ROWS
from experiments.claims.law_ceiling import ceilings
from experiments.claims.positions import TEMPERATURES
from experiments.estimates import resampled
from experiments.runner import RESULTS, options, save, show
from otmd.probabilities import BoolArray, FloatArray

KEYS = ("domain", "prompt_id", "draft", "temperature", "position")
NAME = ("law", "rule", "sharpness", "falling", "top")
RESAMPLES = 2000
BINS = 4

PLAIN = {
    "certain": ("certain", "target only"),
    "greedy": ("greedy", "greedy coupling"),
    "with, recursive": ("with replacement", "recursive rejection"),
    "with, K-SEQ": ("with replacement", "K-SEQ"),
    "with, preference": ("with replacement", "preference"),
    "with, optimum": ("with replacement", "optimum"),
    "without, recursive": ("without replacement", "recursive rejection"),
    "without, optimum": ("without replacement", "optimum"),
    "stratified": ("stratified", "preference"),
    "stratified, ratio order": ("stratified", "preference, ratio order"),
    "stratified, peeled": ("stratified", "preference, peeled"),
    "stratified, optimum": ("stratified", "optimum"),
    "Poisson, optimum": ("conditional Poisson", "optimum"),
}
"""Law and rule, all parameters at their defaults."""

FITTED = {
    "without, sharpened, recursive": ("without replacement", "recursive rejection", "sharpness"),
    "without, sharpened, optimum": ("without replacement", "optimum", "sharpness"),
    "Poisson, sharpened, optimum": ("conditional Poisson", "optimum", "sharpness"),
    "top, then with, preference": ("top, then with", "preference", "top"),
    "top, then with, optimum": ("top, then with", "optimum", "top"),
    "top, then without, optimum": ("top, then without", "optimum", "top"),
    "stratified, sharpened, optimum": ("stratified", "optimum", "sharpness"),
    "stratified, β": ("stratified", "preference", "sharpness"),
    "stratified, shares": ("stratified", "preference", "falling"),
    "stratified, m": ("stratified", "preference", "top"),
    "stratified, fitted": ("stratified", "preference", "sharpness falling top"),
}
"""Law and rule, and the parameters that are fitted; the others stay at their defaults."""

BASES = {"greedy": "greedy", "stratified": "stratified", "k_sequential": "with, K-SEQ"}
"""Choices that the rest is compared with, by the name of the columns."""


class Measured(NamedTuple):
    """All rates with one number of drafts.

    ``about`` has a row a position and draft, ``variants`` a row for each law, rule and parameters, and
    ``rates`` (positions, variants) is NaN where nothing was measured.
    """

    about: pl.DataFrame
    variants: pl.DataFrame
    rates: FloatArray


class Chosen(NamedTuple):
    """A choice's rates, (positions,), and its parameters in words for each draft and temperature."""

    rates: FloatArray
    parameters: dict[tuple[str, float], str]


def measured(table: pl.DataFrame, num_drafts: int) -> Measured:
    """Put the rates of each position side by side, and give each prompt its half."""
    rows = table.filter(num_drafts=num_drafts)
    about = rows.select(*KEYS, "entropy", "top_draft").unique(KEYS).sort(KEYS)
    ids = about.select("domain", "prompt_id").unique().sort("domain", "prompt_id")
    half = ids.with_columns(half=pl.int_range(pl.len()).over("domain") % 2)
    about = about.join(half, on=["domain", "prompt_id"], maintain_order="left").with_row_index(
        "row"
    )
    variants = rows.select(NAME).unique().sort(NAME).with_row_index("variant")
    numbers = rows.join(about.select(*KEYS, "row"), on=KEYS).join(variants, on=NAME)
    rates = np.full((about.height, variants.height), np.nan)
    rates[numbers["row"].to_numpy(), numbers["variant"].to_numpy()] = numbers["rate"].to_numpy()
    return Measured(about, variants, rates)


def drafts_of(of: Measured) -> list[str]:
    """The drafts that were measured."""
    return of.about["draft"].unique().sort().to_list()


def family(of: Measured, law: str, rule: str, free: str = "") -> list[int]:
    """The variants of a law and rule that differ in the free parameters alone."""
    rows = of.variants.filter(law=law, rule=rule)
    for name, default in DEFAULTS.items():
        if name not in free.split():
            rows = rows.filter(pl.col(name) == default)
    return rows["variant"].to_list()


def fitted(
    of: Measured, variants: list[int], like: Callable[[str, float], pl.Expr], bins: bool = False
) -> Chosen:
    """Take for each half of the positions the variant that is best on the held-out half.

    ``like(draft, temperature)`` selects the positions to fit on. With ``bins`` a variant is chosen for each
    range of the draft's entropy.
    """
    rates = np.full(of.about.height, np.nan)
    half = of.about["half"].to_numpy()
    entropy = of.about["entropy"].to_numpy()
    parameters = {}
    for draft in drafts_of(of):
        for temperature in TEMPERATURES:
            reported = _where(of, same(draft, temperature))
            fit = _where(of, like(draft, temperature))
            words = []
            for side in (0, 1):
                fit_rows = fit & (half != side)
                shares = np.linspace(0, 1, BINS + 1)[1:-1]
                edges = np.quantile(entropy[fit_rows], shares) if bins else []
                level = np.digitize(entropy, edges)
                for at in range(len(edges) + 1):
                    best = _best(of.rates[fit_rows & (level == at)], variants)
                    rows = reported & (half == side) & (level == at)
                    rates[rows] = of.rates[rows, best]
                    words.append(_words(of, best))
            parameters[draft, temperature] = "; ".join(words)
    return Chosen(rates, parameters)


def _where(of: Measured, which: pl.Expr) -> BoolArray:
    return of.about.select(which.alias("which"))["which"].to_numpy()


def _best(rates: FloatArray, variants: list[int]) -> int:
    complete = rates[:, variants]
    complete = complete[~np.isnan(complete).any(axis=1)]
    if complete.size == 0:
        return variants[0]
    # Rounding must not decide between variants of equal rates.
    return variants[int(np.argmax(complete.mean(axis=0).round(9)))]


def _words(of: Measured, variant: int) -> str:
    row = of.variants.row(variant, named=True)
    return f"β {row['sharpness']:g}, shares {row['falling']:g}, m {row['top']:g}"


def same(draft: str, temperature: float) -> pl.Expr:
    """The pair and temperature themselves."""
    return (pl.col("draft") == draft) & (pl.col("temperature") == temperature)


OTHER_PAIRS = "stratified, of other pairs"
TRANSFER: dict[str, tuple[Callable[[str, float], pl.Expr], bool]] = {
    OTHER_PAIRS: (
        lambda draft, t: (pl.col("draft") != draft) & (pl.col("temperature") == t),
        False,
    ),
    "stratified, of other temperatures": (
        lambda draft, t: (pl.col("draft") == draft) & (pl.col("temperature") != t),
        False,
    ),
    "stratified, of all": (lambda draft, t: pl.col("draft").is_not_null(), False),
    "stratified, by entropy": (lambda draft, t: pl.col("draft").is_not_null(), True),
}
"""Where the parameters of strata are fitted instead, and whether by the draft's entropy."""


def choices(of: Measured) -> dict[str, Chosen]:
    """All choices that were measured with one number of drafts."""
    by_name = {}
    for name, (law, rule) in PLAIN.items():
        if variants := family(of, law, rule):
            by_name[name] = Chosen(of.rates[:, variants[0]], {})
    for name, free in FITTED.items():
        if variants := family(of, *free):
            by_name[name] = fitted(of, variants, same)
    strata = family(of, *FITTED["stratified, fitted"])
    for name, (like, bins) in TRANSFER.items():
        if name != OTHER_PAIRS or len(drafts_of(of)) > 1:
            by_name[name] = fitted(of, strata, like, bins)
    if "stratified, ratio order" in by_name:
        two = [by_name[name].rates for name in ("stratified", "stratified, ratio order")]
        by_name["stratified, better order"] = Chosen(np.maximum(*two), {})
    return by_name


def summary(of: Measured, by_name: dict[str, Chosen], num_drafts: int) -> Iterator[dict[str, Any]]:
    """Mean rates, and their differences to other choices at the same positions, with intervals."""
    prompts = of.about.select("domain", "prompt_id").unique().sort("domain", "prompt_id")
    weights = resampled(prompts["domain"].to_list(), RESAMPLES)
    numbered = of.about.join(
        prompts.with_row_index("prompt"), on=["domain", "prompt_id"], maintain_order="left"
    )
    number = numbered["prompt"].to_numpy()
    for draft in drafts_of(of):
        for temperature in TEMPERATURES:
            cell = _where(of, same(draft, temperature))
            for name, chosen in by_name.items():
                rows = cell & ~np.isnan(chosen.rates)
                if not rows.any():
                    continue
                row = {
                    "draft": draft,
                    "temperature": temperature,
                    "num_drafts": num_drafts,
                    "choice": name,
                    "positions": int(rows.sum()),
                    "parameters": chosen.parameters.get((draft, temperature)),
                }
                values = {"": chosen.rates}
                for base, compared in BASES.items():
                    values[f"_over_{base}"] = chosen.rates - by_name[compared].rates
                for suffix, value in values.items():
                    ends = interval(value[rows], number[rows], weights)
                    names = ("value", "low", "high", "error")
                    row |= {f"{n}{suffix}": end for n, end in zip(names, ends, strict=True)}
                yield row


def interval(
    values: FloatArray, prompt: FloatArray, weights: FloatArray
) -> tuple[float, float, float, float]:
    """The mean of the values, its interval and its standard error, by resampled prompts."""
    sums = np.bincount(prompt, values, weights.shape[1])
    counts = np.bincount(prompt, minlength=weights.shape[1])
    means = (weights @ sums) / (weights @ counts)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(values.mean()), float(low), float(high), float(means.std(ddof=1))


def main(arguments: list[str]) -> pl.DataFrame:
    """Read the rows, choose, store the summary, and print it at temperature 1."""
    output = RESULTS / "draft_laws.parquet"
    chosen = options(__name__, arguments, rows=ROWS, output=output)
    table = pl.read_parquet(chosen.rows)
    rows: list[dict[str, Any]] = []
    # The positions are the same for every number of drafts.
    bounds = ceilings(measured(table, COUNTS[0]).about)
    for n in COUNTS:
        of = measured(table, n)
        above = {name: Chosen(rates, {}) for name, rates in bounds[n].items()}
        rows += summary(of, choices(of) | above, n)
    result = pl.DataFrame(rows, infer_schema_length=None)
    kept = [result]
    if chosen.output.exists():
        before = pl.read_parquet(chosen.output)
        kept.insert(0, before.filter(~pl.col("draft").is_in(result["draft"].unique().to_list())))
    save(chosen.output, pl.concat(kept), chosen)
    keys = ("draft", "num_drafts", "choice")
    shown = result.filter(temperature=1.0).sort(keys)
    show(shown.select(*keys, "value", "value_over_stratified", "positions"))
    return result
