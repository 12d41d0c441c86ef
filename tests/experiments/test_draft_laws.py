import numpy as np
import polars as pl
import pytest
from sweep_twin import swept_masses

import otmd
from experiments.claims import draft_laws, law_choice
from experiments.claims.ceiling import newsvendor, proportional, quantiles


def pairs(count, rng=0, sharpness=1.0, cut=0.0):
    """Targets that scatter about the draft, which is then sharpened, and cut to its most likely tokens."""
    drawn, rng = [], np.random.default_rng(rng)
    for _ in range(count):
        plain = rng.dirichlet(np.full(60, 0.3)) + 1e-9
        draft = np.where(plain >= cut * plain.max(), plain, 0.0) ** sharpness
        drawn.append((rng.dirichlet(50 * plain + 0.01), draft / draft.sum()))
    return drawn


def two_classes(target: np.ndarray, slots) -> np.ndarray:
    """First the tokens with p ≥ q_j, then the others, both from the tail."""
    return np.lexsort((-slots.number, target < slots.token_probs))


def test_rates_are_those_of_the_laws_and_rules() -> None:
    for target, draft in pairs(3):
        table = {(choice, n): rate for choice, n, rate in draft_laws.rates(target, draft)}
        for n in draft_laws.COUNTS:
            greedy = otmd.optimal_acceptance(target, otmd.Greedy(draft, n)).rate
            assert table["greedy", n] == pytest.approx(float(greedy))
            strata = otmd.Stratified(draft, n)
            order = two_classes(target, strata.position_structure.random)
            in_order = [(int(strata.strata[y]), int(y)) for y in order]
            rate = sum(swept_masses(target, strata, in_order).values())
            assert table["stratified", n] == pytest.approx(rate)
            best = otmd.optimal_acceptance(target, otmd.WithoutReplacement(draft, n)).rate
            assert table["without, optimum", n] == pytest.approx(float(best))


def test_a_fitted_bound_is_of_prompts_that_it_was_not_fitted_on() -> None:
    """With halves that are alike both are the same; fitted on another half, it changes."""
    drawn = pairs(8)
    ours, theirs = drawn[:4], [(q, p) for p, q in drawn[4:]]
    half = np.array([0, 0, 1, 1])
    alike = law_choice._bounds([ours[0], ours[1], ours[0], ours[1]], half)
    assert alike["ceiling, fitted"] == pytest.approx(alike["ceiling, fitted on itself"])
    mixed = law_choice._bounds([*ours[:2], *theirs[:2]], half)
    again = law_choice._bounds([*ours[:2], *theirs[2:]], half)
    of = np.s_[:, :2]
    fitted, itself = "ceiling, fitted", "ceiling, fitted on itself"
    assert np.array_equal(mixed[itself][of], again[itself][of])
    assert not np.array_equal(mixed[fitted][of], again[fitted][of])


def test_differences_are_of_the_same_positions() -> None:
    rows = []
    for prompt in range(4):
        about = {"domain": "code", "prompt_id": str(prompt), "draft": "a", "temperature": 1.0}
        about |= {"position": 0, "num_drafts": 2}
        for at, choice in enumerate(law_choice.BASES.values()):
            rows.append(about | {"choice": choice, "rate": 0.1 * prompt + 0.01 * at})
    summary = {row["choice"]: row for row in law_choice.summary(pl.DataFrame(rows))}
    assert summary["stratified"]["value"] == pytest.approx(0.16)
    assert summary["stratified"]["value_over_greedy"] == pytest.approx(0.01)
    assert summary["stratified"]["error_over_greedy"] == pytest.approx(0.0)
    assert summary["stratified"]["error"] > 0.01
    assert summary["stratified"]["low"] < 0.16 < summary["stratified"]["high"]
    assert summary["stratified"]["positions"] == 4


def test_the_summary_of_stored_rates_keeps_what_it_has_of_other_drafts(tmp_path, monkeypatch):
    """With logits made here; a ceiling is above each rate of a law that is a function of q."""
    logits = {str(i): [np.log(probs)[None] for probs in pair] for i, pair in enumerate(pairs(4))}
    monkeypatch.setattr(law_choice, "_logits", lambda _: logits)
    rows = [
        {"domain": "code", "prompt_id": prompt, "draft": "a", "temperature": 1.0, "position": 0}
        | {"choice": choice, "num_drafts": n, "rate": rate}
        for prompt, (target, draft) in logits.items()
        for choice, n, rate in draft_laws.rates(np.exp(target[0]), np.exp(draft[0]))
    ]
    stored, output = tmp_path / "rows.parquet", tmp_path / "laws.parquet"
    pl.DataFrame(rows).write_parquet(stored)
    arguments = ["--rows", str(stored), "--output", str(output)]
    table = law_choice.main(arguments)
    pl.DataFrame(rows).with_columns(draft=pl.lit("b")).write_parquet(stored)
    law_choice.main(arguments)
    both = pl.read_parquet(output)
    assert both.filter(draft="a").equals(table)
    assert both.height == 2 * table.height
    four = table.filter(num_drafts=4)
    by_choice = dict(four.select("choice", "value").iter_rows())
    assert len(by_choice) == four.height == 11
    assert by_choice["stratified"] <= by_choice["ceiling, π ∝ q"] + 1e-9


COUNTS = (1, 2, 4)


def bounds(others, held_out):
    ratios = quantiles(others)
    both = [(proportional(*pair, COUNTS), newsvendor(*pair, ratios, COUNTS)) for pair in held_out]
    return np.mean(both, axis=0)


@pytest.mark.parametrize("cut", [0.0, 0.1])
def test_both_bounds_hold_for_laws(cut):
    rng = np.random.default_rng(0)
    held_out = pairs(60, rng, cut=cut)
    plain, fitted = bounds(pairs(60, rng, cut=cut), held_out)
    rates = [
        [float(otmd.optimal_acceptance(p, otmd.Stratified(q, n)).rate) for n in COUNTS] for p, q in held_out
    ]
    # If q > 1/n for a token, its inclusion in strata is not quite the capped proportional one.
    assert (np.mean(rates, axis=0) <= plain + 0.005).all()
    assert rates[0][0] == pytest.approx(proportional(*held_out[0], [1])[0])
    assert fitted == pytest.approx(plain, abs=0.03)


@pytest.mark.parametrize("sharpness", [3.0, 80.0])
def test_what_is_fitted_mends_an_overconfident_draft(sharpness):
    first, second = (pairs(60, seed, sharpness) for seed in (1, 2))
    plain, fitted = bounds(first, second)
    assert (fitted > plain + 0.02).all()
    assert (np.diff(fitted) > 0.05).all()
    # The fitted law knows no more than the draft before it was sharpened.
    equal = (pairs(60, seed) for seed in (1, 2))
    assert (fitted <= bounds(*equal)[1] + 0.02).all()
