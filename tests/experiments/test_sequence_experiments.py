"""The experiments on draft sequences, small: they run, go on where they stopped, and are drawn."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import polars as pl
import pytest
from models.conftest import WORDS, make_llama, make_tokenizer
from PIL import Image
from scripts import ROOT

from otmd.trees import TableModel


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("paper_figures", "experiments", "experiments/sequences"):
        monkeypatch.syspath_prepend(str(ROOT / folder))


def load(folder: str, name: str) -> ModuleType:
    """A script, under a name that tells the two folders' scripts apart."""
    path = ROOT / folder / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{folder.replace('/', '_')}_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def run_main(name: str, arguments: list) -> pl.DataFrame:
    script = load("experiments/sequences", name)
    if name == "sequence_optimum":
        script.SIZES = {(3, 2): ("one path", "two paths", "binary hub tree")}
    return script.main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options that make a run small, on a tiny model made here."""
    folder = tmp_path_factory.mktemp("model")
    make_llama().save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    source = folder / "prompts.jsonl"
    texts = [" ".join(WORDS[i : i + 5]) for i in range(3)]
    source.write_text("\n".join(f'{{"text": "{text}"}}' for text in texts))
    chosen = ["--target", folder, "--draft", "skip:1,3", "--sources", source, "--prompts", 3]
    return [str(option) for option in [*chosen, "--length", 9, "--seed", 1]]


RUNS = {
    "spectr_paths": ["--paths", "1", "2", "--depths", "2"],
    "spechub_depths": ["--depth", "2", "--temperatures", "1.0"],
    "sequence_optimum": ["--positions", "1"],
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.mark.parametrize("name", RUNS)
def test_each_experiment_runs_goes_on_and_is_drawn(name, common, results, capsys):
    output = results / f"{name}.parquet"
    arguments = [*common, *RUNS[name], "--output", output]
    summary = run_main(name, arguments)
    assert pl.read_parquet(output).equals(summary)
    assert (summary["value"] >= 1.0).all()
    assert set(summary["prompts"]) == {3}
    printed = capsys.readouterr().out
    assert "3 of 3 prompts are to be measured" in printed
    assert f"{summary['value'][0]:.3f} ± {summary['error'][0]:.3f}" in printed
    again = run_main(name, arguments)
    assert "0 of 3 prompts" in capsys.readouterr().out
    assert again.equals(summary)
    figure_is_the_table(name, output, summary, results)


def figure_is_the_table(name: str, output: Path, summary: pl.DataFrame, folder: Path) -> None:
    """Every point drawn is a value of the summary, and the file names its source."""
    script = load("paper_figures", name)
    figure = script.draw(output)
    drawn = [
        float(value)
        for axes in figure.axes
        for container in axes.containers
        for value in (
            container.lines[0].get_xdata()
            if name == "sequence_optimum"
            else container.lines[0].get_ydata()
        )
    ]
    known = {0.0, *summary["value"].to_list()}
    known |= {sign * d for d in summary["difference"].drop_nulls().to_list() for sign in (1, -1)}
    assert len(drawn) >= 4
    assert min(min(abs(value - other) for other in known) for value in drawn) == 0.0
    assert all(min(abs(value - other) for other in known) < 1e-12 for value in drawn)
    path = folder / f"{name}.png"
    script.write(f"paper_figures/{name}.py", script.draw, (output, ()), [str(output), str(path)])
    with Image.open(path) as image:
        assert image.info["Source"] == f"paper_figures/{name}.py, {output}"


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("spectr_paths", ["--paths", "0"], "expected numbers of at least 1"),
        ("spectr_paths", ["--depths", "99"], "expected at least the depth 99"),
        ("spectr_paths", ["--temperature", "0"], "expected a number above 0"),
        ("spectr_paths", ["--prompts", "1"], "--prompts: got 1, expected at least 2"),
        ("spechub_depths", ["--depth", "0"], "expected 1 to --length"),
        ("spechub_depths", ["--temperatures", "0"], "expected numbers above 0"),
        ("sequence_optimum", ["--positions", "0"], "expected at least 1"),
        ("sequence_optimum", ["--temperature", "0"], "expected a number above 0"),
    ],
)
def test_bad_arguments_are_named(name, arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        run_main(name, arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_another_table_is_refused(tmp_path):
    from figure_files import read

    path = tmp_path / "other.parquet"
    pl.DataFrame({"a": [1]}).write_parquet(path)
    with pytest.raises(ValueError, match="lacks the columns"):
        read(path, "experiments/sequences/spectr_paths.py", ["value"])


def test_no_rule_may_exceed_the_optimum(monkeypatch):
    script = load("experiments/sequences", "sequence_optimum")
    rng = np.random.default_rng(3)
    target, draft = TableModel.random(3, 2, rng=rng), TableModel.random(3, 2, rng=rng)
    found = script.measure_models(target, draft, 2, "two paths")
    assert found["RRS"] < found["K-SEQ"] < found[script.OPTIMUM]
    monkeypatch.setattr(
        script, "optimal_block_efficiency", lambda *_: SimpleNamespace(value=found["RRS"])
    )
    with pytest.raises(RuntimeError, match="expected at most the optimum"):
        script.measure_models(target, draft, 2, "two paths")


def test_a_text_is_the_targets_with_what_both_models_say(common, capsys):
    """Branches of one tree against one plain call a text; low temperatures and high ones."""
    from target_texts import Pair, laws_along, sample_texts

    import otmd
    from otmd.models import Prompt, load_draft, load_target

    target = load_target(common[1], progress=False)
    pair = Pair(target, load_draft("skip:1,3", target))
    prompt = Prompt("p", "d", " ".join(WORDS[:6]))
    texts = sample_texts(pair, prompt, 8, [0.01, 1.0, 1.0], 3)
    assert texts[1].tokens == texts[2].tokens != texts[0].tokens
    assert texts[1].tokens == sample_texts(pair, prompt, 8, [1.0], 3)[0].tokens
    for text in texts:
        whole = [*text.before, *text.tokens]
        rows = range(len(text.before) - 1, len(whole) - 1)
        laws = laws_along(text)
        for model, found in ((pair.target, laws.target), (pair.draft, laws.draft)):
            wanted = otmd.Processing(text.temperature)(model.logits(whole, rows))
            assert np.abs(found - wanted[:, : found.shape[1]]).max() < 1e-4
    assert [int(law.argmax()) for law in laws_along(texts[0]).target] == texts[0].tokens


def test_a_program_that_is_not_solved_counts_for_no_rule(monkeypatch):
    from otmd.transport import SolverError

    script = load("experiments/sequences", "sequence_optimum")
    rng = np.random.default_rng(3)

    def refuse(*_):
        raise SolverError("given up")

    rows = []
    for place in range(8):
        models = [TableModel.random(3, 2, rng=rng) for _ in range(2)]
        if place == 7:
            monkeypatch.setattr(script, "optimal_block_efficiency", refuse)
        about = {"domain": "d", "prompt": str(place // 2), "position": place % 2}
        about |= {"vocab_size": 3, "depth": 2, "law": "two paths"}
        found = script.measure_models(*models, 2, "two paths")
        rows += [{**about, "rule": rule, "tokens": tokens} for rule, tokens in found.items()]
    summary = script.summarise_gaps(pl.DataFrame(rows))
    assert summary["steps"].to_list() == [7.0] * 4
    assert summary["unsolved"].to_list() == [1] * 4
    assert summary.filter(rule=script.OPTIMUM)["largest_gap"].item() == 0.0
    assert "7, 1 unsolved" in script.as_table(summary)
