"""The rates of a second drafter, and what its slot adds."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import otmd
from experiments.claims.second_drafter import gains, position_rates


def test_rates_of_one_position() -> None:
    rng = np.random.default_rng(0)
    target, model, ngram = rng.dirichlet(np.full(30, 0.3), size=3)
    rates = position_rates(target, model, ngram, 3)
    for law in ("strata", "sampled", "most_likely"):
        assert 0.0 <= rates[law] <= rates[f"{law}_optimum"] + 1e-12
    # A drafter that is the target is always accepted, whatever else is drafted.
    assert position_rates(target, model, target, 3)["sampled"] == pytest.approx(1.0)
    certain = np.eye(30)[int(np.argmax(ngram))]
    strata = otmd.Stratified(model, 2).position_structure().slots.dense
    law = otmd.Independent([*strata, certain])
    assert rates["most_likely_optimum"] == otmd.optimal_acceptance(target, law).rate


def test_gains_are_differences_on_the_same_positions() -> None:
    columns = ["strata", "sampled", "most_likely"]
    rates = {"strata": [0.5, 0.7], "sampled": [0.6, 0.8], "most_likely": [0.4, 0.8]}
    rates |= {f"{name}_optimum": rates[name] for name in columns}
    table = pl.DataFrame({"draft": "a", "temperature": 1.0, "num_drafts": 2, **rates})
    (row,) = gains(table).rows(named=True)
    assert row["strata"] == pytest.approx(60.0)
    assert row["sampled"] == row["sampled_optimum"] == "+10.0 ± 0.0"
    assert row["most_likely"].startswith("+0.0 ±")
