"""Rankings of trees and of positions: values, the decision in words, and the table."""

import numpy as np
import polars as pl
import pytest

from otmd.study import rank, recommend
from otmd.study.estimate import Estimate, ratios
from otmd.study.latency import Latency
from otmd.study.plan import MEANS, SCHEMA, candidates
from otmd.study.ranking import decision, held_out, ranking_table
from otmd.study.rows import SCHEMA as POSITIONS_SCHEMA

WAYS = candidates([4], 2, 1.0)
FAST = Latency([(1, 1.0), (99, 1.1)], [(1, 0.01), (99, 0.01)], 0.0)
SLOW = Latency([(1, 1.0), (99, 1.1)], [(1, 3.0), (99, 3.0)], 0.0)


def by_hand(first=(12.0, 13.0, 14.0), second=(10.0, 10.5, 12.0)):
    """A table of two rules; all steps are five."""
    rows = [
        ("code", f"p{i}", "one draft", "chain of 2", rule, tokens, 1.1 * tokens, 5)
        for rule, of_prompts in (("block", first), ("position by position", second))
        for i, tokens in enumerate(of_prompts)
    ]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def test_means_are_those_of_the_steps_and_times_divide_them():
    first, second = rank(by_hand()).to_dicts()
    assert (first["rule"], second["rule"]) == ("block", "position by position")
    assert first["bound"] == pytest.approx(1.1 * 39 / 15)
    block, token = (ratios(np.array(sums), np.full(3, 5.0)) for sums in ((12, 13, 14), (10, 10.5, 12)))
    assert (first["tokens"], first["low"], first["high"]) == Estimate.of(block)
    assert first["tokens"] == pytest.approx(39 / 15)
    lead = Estimate.of(block / token - 1)
    assert (second["lead"], second["lead_low"], second["lead_high"]) == pytest.approx(lead)
    assert second["lead_low"] < second["lead"] < second["lead_high"]
    timed = rank(by_hand(), FAST, WAYS)
    speeds = timed["tokens_per_second"]
    assert speeds[0] == pytest.approx(39 / 15 / FAST.step((1, 1)))
    assert timed["law"][-1] == "no drafts"
    assert timed["lead"][-1] == pytest.approx(speeds[0] / speeds[-1] - 1)


def test_the_decision_comes_first_and_may_be_not_to_draft():
    advice, few = decision(rank(by_hand()))
    assert advice.startswith("Take one draft, chain of 2, block: 2.60 tokens per step [")
    assert "Estimated bound of any lossless rule with these drafts: 2.86." in advice
    assert few.startswith("Only 3 prompts")
    assert "tokens per second" in decision(rank(by_hand(), FAST, WAYS))[0]
    slow = decision(rank(by_hand(), SLOW, WAYS))[0]
    assert slow.startswith("Do not draft: the target alone writes 1.0 tokens per second; one draft")
    alike = rank(by_hand(second=(12.5, 12.5, 13.9)))
    assert decision(alike)[1] == "Perhaps as good: one draft, chain of 2, position by position."
    shown = str(ranking_table(rank(by_hand()), "plan", MEANS))
    assert "20.0%" in shown
    assert "left out; 95% intervals over 3 prompts." in " ".join(shown.split())


def of_trees(lines):
    """A row for each of sixteen prompts; values and shifts by prompt are given."""
    shifts = np.linspace(-1.0, 1.0, 16)
    rows = [
        {"domain": "d", "prompt_id": f"p{i:02}", "law": law, "tree": TREE, "rule": rule, "steps": 1}
        | {"tokens": tokens + 0.2 * shifts[i] + noise * (-1) ** i, "bound": bound}
        for law, rule, tokens, noise, bound in lines
        for i in range(16)
    ]
    return pl.DataFrame(rows, schema=SCHEMA)


STRATA, TREE = "strata", "2 paths of 8"


def test_the_decision_names_what_leads_by_how_much_and_what_may_be_as_good(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    lines = [
        (STRATA, "preference", 2.9, 0.0, 3.6),
        (STRATA, "node by node", 3.41, 0.1, 3.6),
        (STRATA, "layer by layer", 3.42, 0.0, 3.6),
        ("most likely paths", "target only", 2.3, 0.0, None),
    ]
    ranked = rank(of_trees(lines))
    assert ranked["rule"].to_list() == [line[1] for line in (lines[2], lines[1], lines[0], lines[3])]
    assert decision(ranked) == [
        "Take strata, 2 paths of 8, layer by layer: 3.42 tokens per step [3.35, 3.49]. "
        "+17.9% [+17.5, +18.3] over preference. "
        "Estimated bound of any lossless rule with these drafts: 3.60.",
        "Perhaps as good: strata, 2 paths of 8, node by node.",
    ]
    title, _, _, *rows = str(ranking_table(ranked, "best first", "")).splitlines()
    assert title == "best first"
    assert " ".join(rows[0].split()) == "strata, 2 paths of 8, layer by layer 3.42 3.35 3.49 3.60 0.0%"
    assert rows[1].split()[-1] == "0.3%"
    assert rows[3].split()[-3:] == ["–", "48.7%", "*"]


def test_the_best_is_measured_on_prompts_that_did_not_choose_it():
    # Of two equal ways, each is lucky on one half of the prompts.
    lucky = [(STRATA, "preference", 3.0, 0.5, 3.6), (STRATA, "node by node", 3.0, -0.5, 3.6)]
    table = of_trees(lucky)
    assert held_out(table) == pytest.approx(2.5, abs=0.02)
    assert held_out(of_trees([(STRATA, "preference", 3.0, 0.5, None)])) == pytest.approx(3.0)
    assert np.isnan(held_out(table.filter(pl.col("prompt_id") < "p03")))
    said = decision(rank(table), held_out(table))[1]
    assert said.endswith("the best yields 2.50 tokens per step on the rest.")


def test_the_table_of_trees_of_one_size_fits_a_terminal():
    ways = candidates([16], 8, 1.0, [2])
    lines = [(way.law, rule, 9.99, 0.0, 9.99) for way in ways for rule in way.rules]
    ranked = rank(of_trees(lines).with_columns(tree=pl.lit("")))
    assert max(map(len, str(ranking_table(ranked, "", "")).splitlines())) <= 80


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
    return pl.DataFrame(rows, schema=POSITIONS_SCHEMA)


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
    assert recommend(warm.filter(law="Stratified"))[0].endswith(" The optimal verifier accepts no more.")


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
