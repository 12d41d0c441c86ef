from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from models.conftest import WORDS, make_prompts, save_tiny

import otmd
from experiments.texts import Pair, sample_texts
from experiments.trees import layerwise_optimum, sequence_optimum, spechub_depths, spectr_paths
from experiments.trees.layerwise_optimum import LayerwiseProgram
from otmd.models import Prompt, load_draft, load_target
from otmd.transport import SolverError
from otmd.trees import BlockVerification, IIDPaths, TableModel, TokenTree, tokens_per_step
from paper_figures import trees


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options that make a run small, on a tiny model made here."""
    folder = tmp_path_factory.mktemp("model")
    save_tiny(folder)
    source = folder / "prompts.jsonl"
    source.write_text("\n".join(f'{{"text": "{prompt.text}"}}' for prompt in make_prompts(3)))
    chosen = ["--target", folder, "--draft", "skip:1,3", "--sources", source, "--prompts", 3]
    return [str(option) for option in [*chosen, "--length", 9, "--seed", 1]]


RUNS = {
    spectr_paths: ["--paths", "1", "2", "--depths", "2"],
    spechub_depths: ["--depth", "2", "--temperatures", "1.0"],
    sequence_optimum: ["--positions", "1"],
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(sequence_optimum, "SIZES", {(3, 2): ("one path", "two paths", "binary hub tree")})


@pytest.mark.parametrize(
    "module",
    [spectr_paths, *(pytest.param(m, marks=pytest.mark.slow) for m in RUNS if m != spectr_paths)],
    ids=lambda module: module.__name__.rpartition(".")[2],
)
def test_each_experiment_runs_and_is_drawn(module, common, tmp_path, capsys):
    name = module.__name__.rpartition(".")[2]
    output = tmp_path / f"{name}.parquet"
    written = ["--parts", str(tmp_path / "parts"), "--output", str(output)]
    summary = module.main([*common, *RUNS[module], *written])
    assert pl.read_parquet(output).equals(summary)
    assert pl.read_parquet(tmp_path / f"{name}_prompts.parquet")["prompt"].n_unique() == 3
    assert (summary["value"] >= 1.0).all()
    assert set(summary["prompts"]) == {3}
    assert f"{summary['value'][0]:.3f} ± {summary['error'][0]:.3f}" in capsys.readouterr().out
    # Every point drawn is a value of the summary.
    figure = getattr(trees, name)(output)
    points = [container.lines[0] for axes in figure.axes for container in axes.containers]
    across = name == "sequence_optimum"
    drawn = [float(x) for p in points for x in (p.get_xdata() if across else p.get_ydata())]
    values = {0.0, *summary["value"].to_list()}
    values |= {s * d for d in summary["difference"].drop_nulls().to_list() for s in (1, -1)}
    assert len(drawn) >= 4
    assert all(min(abs(value - stored) for stored in values) < 1e-12 for value in drawn)


def test_no_rule_may_exceed_the_optimum(monkeypatch):
    rng = np.random.default_rng(3)
    target, draft = TableModel.random(3, 2, rng=rng), TableModel.random(3, 2, rng=rng)
    values = sequence_optimum.measure_models(target, draft, 2, "two paths")
    assert values["RRS"] < values["K-SEQ"] < values[sequence_optimum.OPTIMUM]
    lower = SimpleNamespace(value=values["RRS"])
    monkeypatch.setattr(sequence_optimum, "optimal_block_efficiency", lambda *_: lower)
    with pytest.raises(RuntimeError, match="expected at most the optimum"):
        sequence_optimum.measure_models(target, draft, 2, "two paths")


def test_a_text_is_the_targets_with_the_logits_of_both_models(common):
    """Branches of one tree against one plain call a text; low temperatures and high ones."""
    target = load_target(common[1], progress=False)
    pair = Pair(target, load_draft("skip:1,3", target))
    prompt = Prompt("p", "d", " ".join(WORDS[:6]))
    texts = sample_texts(pair, prompt, 8, [0.01, 1.0, 1.0], 3)
    assert texts[1].tokens == texts[2].tokens != texts[0].tokens
    assert texts[1].tokens == sample_texts(pair, prompt, 8, [1.0], 3)[0].tokens
    for text in texts:
        tokens = [*text.before, *text.tokens]
        rows = range(len(text.before) - 1, len(tokens) - 1)
        for model, probs in zip((pair.target, pair.draft), text.probs(), strict=True):
            expected = otmd.Processing(text.temperature)(model.logits(tokens, rows))
            assert np.abs(probs - expected[:, : probs.shape[1]]).max() < 1e-4
    assert [int(probs.argmax()) for probs in texts[0].probs()[0]] == texts[0].tokens


@pytest.mark.slow
def test_a_program_that_is_not_solved_counts_for_no_rule(monkeypatch):
    rng = np.random.default_rng(3)

    def refuse(*_):
        raise SolverError("given up")

    rows = []
    for number in range(8):
        models = [TableModel.random(3, 2, rng=rng) for _ in range(2)]
        if number == 7:
            monkeypatch.setattr(sequence_optimum, "optimal_block_efficiency", refuse)
        about = {"domain": "d", "prompt": str(number // 2), "position": number % 2}
        about |= {"vocab_size": 3, "depth": 2, "law": "two paths"}
        values = sequence_optimum.measure_models(*models, 2, "two paths")
        rows += [{**about, "rule": rule, "tokens": tokens} for rule, tokens in values.items()]
    summary = sequence_optimum.summarise_gaps(pl.DataFrame(rows))
    assert summary["steps"].to_list() == [7.0] * 4
    assert summary["unsolved"].to_list() == [1] * 4
    assert summary.filter(rule=sequence_optimum.OPTIMUM)["largest_gap"].item() == 0.0
    assert "7, 1 unsolved" in sequence_optimum.as_table(summary)


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
