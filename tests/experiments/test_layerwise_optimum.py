import polars as pl
import pytest

import otmd
from experiments.trees import layerwise_optimum
from experiments.trees.layerwise_optimum import LayerwiseProgram
from otmd.trees import BlockVerification, IIDPaths, TableModel, TokenTree, tokens_per_step


def test_the_best_layerwise_rule_of_a_path_and_of_a_layer() -> None:
    """Block verification is optimal for a path, the optimal verifier for a layer."""
    target, draft = (TableModel.random(3, 2, rng=[7, i]) for i in range(2))
    path = IIDPaths(draft, 1, 3)
    block = tokens_per_step(BlockVerification(), target, path).value
    assert LayerwiseProgram(target, path).value() == pytest.approx(block, abs=1e-9)
    for law in (otmd.Stratified, otmd.WithReplacement, otmd.WithoutReplacement):
        rate = otmd.optimal_acceptance(target(()), law(draft(()), 2)).rate
        value = LayerwiseProgram(target, TokenTree(draft, (2,), law)).value()
        assert value == pytest.approx(1.0 + float(rate), abs=1e-9)


@pytest.mark.slow
def test_the_table(tmp_path, capsys, monkeypatch) -> None:
    trees = {"strata 2×1": layerwise_optimum.TREES["strata 2×1"]}
    monkeypatch.setattr(layerwise_optimum, "TREES", trees)
    output = tmp_path / "table.parquet"
    arguments = ["--models", "2", "--workers", "1", "--parts", str(tmp_path / "parts")]
    table = layerwise_optimum.main([*arguments, "--output", str(output)])
    assert pl.read_parquet(output).equals(table)
    assert sorted(table["vocab_size"]) == [3, 4]
    assert (table["token level"] <= table["best layerwise rule"]).all()
    assert (table["best layerwise rule"] <= table["optimum"] + 1e-7).all()
    lacks = 1000 * (table["optimum"] - table["token level"]).mean()
    assert f"| strata 2×1 | {table['optimum'].mean():.3f} | {lacks:.2f} |" in capsys.readouterr().out
