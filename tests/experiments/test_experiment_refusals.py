import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from experiments.claims import draft_quality, tree_leads
from experiments.estimates import summarise
from experiments.runner import read_tasks, task_rows
from experiments.trees import eagle4_trees, sequence_optimum, spechub_depths, spectr_paths
from paper_figures import __main__ as figures
from paper_figures import claims, common


def prompt_rows(prompts, *, lacks=0):
    rows = [
        {
            "domain": f"d{i % 2}",
            "prompt": str(i),
            "depth": 1,
            "steps": 1.0,
            "tokens": 2.0,
            "rule": rule,
        }
        for i in range(prompts)
        for rule in ("RRS", "K-SEQ")
    ]
    return pl.DataFrame(rows[lacks:])


def tasks_of(content):
    def call():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "spec.toml")
            path.write_text(content)
            read_tasks(path)

    return call


def given(rng, rows):
    return rows


UNEVEN = pl.DataFrame({"draft": ["a", "a", "b"], "prompt": [0, 1, 0]})
REFUSED = [
    (
        lambda: draft_quality.pair_of(np.random.default_rng(0), "none", 0.0, 10),
        "family: got 'none'",
    ),
    (lambda: claims.filled("nothing\n"), "no single place for the table 'claims'"),
    (lambda: common.read_positions(common.RESULTS / "spechub_toy.parquet"), "lacks"),
    (lambda: tree_leads.leads(UNEVEN.with_columns(temperature=1.0, positions=3)), "1 prompts of b"),
    (
        lambda: summarise(prompt_rows(6, lacks=1), ["depth"], "rule", "RRS"),
        "2 settings for each of 6",
    ),
    (lambda: summarise(prompt_rows(3), ["depth"], "rule", "RRS"), "one prompt of"),
    (lambda: task_rows(given, ("name", {"rows": []})), "gave no rows"),
    (lambda: task_rows(given, ("name", {"rows": [{"task": 1}]})), r"\['task'\], which tasks have"),
    (tasks_of("a = "), "TOML"),
    (tasks_of("a = 1\n"), r"\[\[tasks\]\]"),
    (tasks_of("tasks = []\n"), "tasks"),
]
BAD_ARGUMENTS = [
    (spectr_paths, "--paths 0", "expected numbers of at least 1"),
    (spectr_paths, "--depths 99", "expected at least the depth 99"),
    (spectr_paths, "--temperature 0", "expected a number above 0"),
    (eagle4_trees, "--temperatures 1 0", "--temperatures: got [1.0, 0.0], expected numbers above 0"),
    (spectr_paths, "--prompts 1", "--prompts: got 1, expected at least 2"),
    (spechub_depths, "--depth 0", "expected 1 to --length"),
    (spechub_depths, "--temperatures 0", "expected numbers above 0"),
    (sequence_optimum, "--positions 0", "expected at least 1"),
    (sequence_optimum, "--temperature 0", "expected a number above 0"),
    (figures, "--stale laws", "--stale: got ['laws'] too"),
    (figures, "none", "NAME: got ['none']"),
    (figures, "laws choice --output x.svg", "got 2 names"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_refused(call, message, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(("module", "arguments", "message"), BAD_ARGUMENTS)
def test_bad_arguments_are_named(module, arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        module.main(arguments.split())
    assert message in f"{ended.value}{capsys.readouterr().err}"
