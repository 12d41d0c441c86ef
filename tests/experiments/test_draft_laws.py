"""The study of draft laws: its rates are those of ``otmd``, its choices are made on the held-out half."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import otmd
from experiments.claims import draft_laws, law_ceiling, law_choice, law_orders
from experiments.estimates import resampled
from otmd.study.planning import ceiling


def pairs(count: int, size: int = 40) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    drafts = rng.dirichlet(np.full(size, 0.3), size=count) + 1e-9
    drafts /= drafts.sum(axis=-1, keepdims=True)
    targets = [rng.dirichlet(50 * draft + 0.01) for draft in drafts]
    return list(zip(targets, drafts, strict=True))


def test_rates_are_those_of_the_laws_and_rules() -> None:
    for target, draft in pairs(3):
        table = {
            (law, rule, n, tuple(sorted(given.items()))): rate
            for law, rule, n, given, rate in draft_laws.rates(target, draft, True, 1.0)
        }
        for n in draft_laws.COUNTS:
            greedy = otmd.optimal_acceptance(target, otmd.Greedy(draft, n)).rate
            assert table["greedy", "greedy coupling", n, ()] == pytest.approx(float(greedy))
            for falling in draft_laws.FALLING:
                shares = falling ** np.arange(n)
                law = otmd.Stratified(draft, n, 1.4, shares)
                given = (("falling", falling), ("sharpness", 1.4), ("top", 0))
                rate = otmd.acceptance_rate(otmd.Preference(draft_laws.own_order), target, law)
                assert table["stratified", "preference", n, given] == pytest.approx(float(rate))
            given = (("falling", 1.0), ("sharpness", 1.0), ("top", n - 1))
            assert table["stratified", "preference", n, given] == pytest.approx(float(greedy))
        for (law, rule, n, given), rate in table.items():
            if law == "stratified" and rule.startswith("preference,"):
                assert rate <= table["stratified", "optimum", n, given] + 1e-9


def test_orders_are_permutations_and_peeling_starts_with_the_liked() -> None:
    for target, draft in pairs(3):
        law = otmd.Stratified(draft, 4)
        for order in (
            draft_laws.ratio_order(target, law.slots),
            draft_laws.peeled_order(target, law.slots),
        ):
            assert np.array_equal(np.sort(order), np.arange(target.size))
        preferred = target >= law.inclusion_probs()
        assert preferred[draft_laws.peeled_order(target, law.slots)[: preferred.sum()]].all()


def toy_rows() -> pl.DataFrame:
    """Two choices of which the first is better on one half of the prompts, the second on the other."""
    rows = []
    for prompt in range(4):
        for sharpness, rate in ((1.0, 0.5 + 0.1 * (prompt % 2)), (2.0, 0.6 - 0.1 * (prompt % 2))):
            about = {"domain": "code", "prompt_id": str(prompt), "draft": "skip:15"}
            rows.append(
                about
                | {"temperature": 1.0, "position": 0, "entropy": 1.0, "top_draft": 0.5}
                | {"law": "stratified", "rule": "preference", "num_drafts": 2, "rate": rate}
                | {"sharpness": sharpness, "falling": 1.0, "top": 0.0}
            )
    return pl.DataFrame(rows)


def test_parameters_are_fitted_on_the_held_out_half() -> None:
    of = law_choice.measured(toy_rows(), 2)
    variants = law_choice.family(of, "stratified", "preference", "sharpness")
    assert len(variants) == 2
    chosen = law_choice.fitted(of, variants, law_choice.same)
    # What is best on one half is the worse of the two on the other.
    assert chosen.rates == pytest.approx(np.full(4, 0.5))
    assert "β 1," in chosen.parameters["skip:15", 1.0]


def test_intervals_hold_the_mean_and_vanish_for_a_constant() -> None:
    drawn = resampled(["a"] * 3 + ["b"] * 3, law_choice.RESAMPLES)
    assert drawn.sum(axis=1) == pytest.approx(np.full(len(drawn), 6))
    number = np.repeat(np.arange(6), 2)
    mean, low, high, error = law_choice.interval(np.full(12, 0.25), number, drawn)
    assert (mean, low, high) == pytest.approx((0.25, 0.25, 0.25))
    assert error == pytest.approx(0.0)
    mean, low, high, error = law_choice.interval(np.arange(12.0), number, drawn)
    assert low < mean < high
    assert error > 0


def test_a_dynamic_budget_keeps_the_mean_and_raises_the_bound():
    pairs_of = pairs(40, 30)
    plain = np.array([ceiling.proportional(p, q, range(1, 17)) for p, q in pairs_of])
    entropy = np.array([-(q * np.log(q)).sum() for _, q in pairs_of])
    budget = law_ceiling.budgets(entropy, plain, 3)[law_ceiling.levels(entropy)]
    assert budget.mean() == pytest.approx(3, abs=0.3)
    assert plain[np.arange(40), budget - 1].mean() > plain[:, 2].mean()


def test_the_better_order_is_the_better_at_each_position():
    for target, draft in pairs(4):
        row = law_orders.position_rates(target, draft, 3)
        rule, law = otmd.Preference(draft_laws.own_order), otmd.Stratified(draft, 3)
        assert row["own_order"] == pytest.approx(float(otmd.acceptance_rate(rule, target, law)))
        assert row["own_order"] <= row["default"] <= row["optimum"] + 1e-9
        assert row["better_order"] == max(row["own_order"], row["ratio_order"])
        assert row["better_order"] <= row["optimum"] + 1e-9


def test_shares_are_chosen_on_other_prompts() -> None:
    """The share that is best on one half is not the best on the other, which shows in the gain."""
    names = [f"shares_{falling:g}" for falling in law_orders.FALLING]
    rates = {"a": dict.fromkeys(names, 0.5) | {"shares_0.4": 0.9}}
    rates["b"] = dict.fromkeys(names, 0.5) | {"shares_1.6": 0.7}
    table = pl.DataFrame(
        [{"prompt_id": id, "num_drafts": 2, "top_draft": 0.5, **rates[id]} for id in ("a", "b")]
    )
    ((_, single, binned, best),) = law_orders.shares_by_position(table).rows()
    assert (single, binned) == (0.0, 0.0)
    assert best == pytest.approx((0.4 + 0.2) / 2)
    both = table.with_columns(pl.lit(0.9).alias("shares_0.4"))
    ((_, single, _, best),) = law_orders.shares_by_position(both).rows()
    assert single == best == pytest.approx(0.4)
