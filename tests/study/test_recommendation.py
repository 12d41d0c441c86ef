import numpy as np
import polars as pl
import pytest

from otmd.study import recommend
from otmd.study.rows import SCHEMA

PROMPTS, POSITIONS = 16, 3
Rates = dict[tuple[str, str], tuple[float, float]]
GREEDY, STRATIFIED = ("Greedy", "GreedyCoupling"), ("Stratified", "Preference")
SEQUOIA = ("WithoutReplacement", "RecursiveRejection")


def make_table(rates: Rates, prompts: int = PROMPTS, temperature: float = 1.0) -> pl.DataFrame:
    """Rows of pairs of law and verifier, with a rate and an optimum, and the same shifts by prompt."""
    shifts = np.linspace(-0.05, 0.05, prompts)
    rows = []
    for (law, verifier), (rate, optimal) in rates.items():
        for i in range(prompts * POSITIONS):
            shift = float(shifts[i // POSITIONS])
            row = {"index": i, "prompt_id": f"p{i // POSITIONS}", "domain": "d", "position": i}
            row |= {"temperature": temperature, "law": law, "num_drafts": 4, "verifier": verifier}
            row |= {"optimal": optimal + shift, "rate": rate + shift, "gap": optimal - rate}
            row |= {"rate_low": rate + shift - 0.001, "rate_high": rate + shift + 0.001}
            rows.append(row | {"status": "ok"})
    return pl.DataFrame(rows, schema=SCHEMA)


@pytest.mark.parametrize(
    ("rates", "prompts", "begin", "end"),
    [
        # The optimum differs by as much at all positions, so the paired interval is as wide as the bounds.
        (
            {GREEDY: (0.85, 0.85), STRATIFIED: (0.911, 0.912), SEQUOIA: (0.86, 0.916)},
            PROMPTS,
            "take 4 stratified drafts, preference: 91.1% [",
            "Optimal without replacement: +0.5 points [+0.4, +0.6], needs a solver.",
        ),
        # Rates stay below one.
        ({GREEDY: (0.94, 0.94), STRATIFIED: (0.95, 0.95)}, 3, "take 4 stratified", ", 100.0]."),
        # One prompt gives no interval.
        (
            {GREEDY: (0.9, 0.9), SEQUOIA: (0.85, 0.95)},
            1,
            "take 4 greedy drafts, greedy coupling: 85.0%. Optimal without replacement: +5.0 points, needs",
            "",
        ),
    ],
)
def test_a_closed_form_comes_first_with_what_a_solver_adds(rates, prompts, begin, end):
    said, *warning = recommend(make_table(rates, prompts))
    assert said.startswith(f"T = 1: {begin}")
    assert end in said
    few = "Only 3 prompts: intervals over so few are wide, and may miss the truth."
    assert warning == {PROMPTS: [], 3: [few]}.get(prompts, warning)


def test_each_temperature_has_its_own():
    cold = make_table({GREEDY: (0.93, 0.93), STRATIFIED: (0.92, 0.92)}, temperature=0.6)
    warm = make_table({GREEDY: (0.85, 0.85), STRATIFIED: (0.92, 0.92)})
    first, second = recommend(pl.concat([cold, warm]))
    assert first.startswith("T = 0.6: take 4 greedy drafts, greedy coupling: 93.0%")
    assert second.startswith("T = 1: take 4 stratified drafts, preference: 92.0%")
    assert "The optimal verifier accepts no more, with any law that was measured." in second


OTHER, EVEN = pl.col("law") == "WithoutReplacement", pl.col("prompt_id").str.tail(1).cast(int) % 2 == 0
FIRST = pl.col("index") % POSITIONS == 0


@pytest.mark.parametrize(
    ("optimal", "changed", "end"),
    [
        # Some prompts lack the gain.
        (0.916, {"optimal": pl.col("optimal") + pl.when(OTHER & EVEN).then(0.05).when(OTHER).then(-0.05)
                 .otherwise(0.0)}, "(not significant), needs a solver."),
        # Pairs are compared at the positions of both.
        (0.922, {"rate": pl.when(~(OTHER & FIRST)).then(pl.col("rate"))},
         "Optimal without replacement: +1.1 points [+1.0, +1.2], needs a solver."),
        # None is shared.
        (0.922, {"rate": pl.when(OTHER == FIRST).then(pl.col("rate"))},
         "The optimal verifier has no rate at the same positions."),
    ],
)  # fmt: skip
def test_what_a_solver_adds_is_over_the_same_positions(optimal, changed, end):
    table = make_table({STRATIFIED: (0.911, 0.912), SEQUOIA: (0.86, optimal)}).with_columns(**changed)
    (said,) = recommend(table)
    assert said.endswith(end)


def test_optimal_alone_needs_a_solver():
    table = make_table({("Greedy", "Optimal"): (0.9, 0.9), ("Stratified", "Optimal"): (0.91, 0.91)})
    (said,) = recommend(table)
    assert said.startswith("T = 1: take 4 stratified drafts, optimal: 91.0%")
    assert said.endswith("It needs a solver.")
    assert recommend(table.filter(law="Greedy")) == []
