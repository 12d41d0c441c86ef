import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

from experiments import __main__ as command_line
from experiments.claims import spechub_toy
from experiments.runner import part_name, read_tasks, task_rows

ROOT = Path(__file__).parents[2]
SPEC = "[[tasks]]\nvocab_size = 5\ntemperature = [0.2, 1.0]\nlikeness = 0.7\ncount = 3\n"


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """The options of a small sweep of ``spechub_toy``."""
    (tmp_path / "spec.toml").write_text(SPEC)
    names = {"spec": "spec.toml", "parts": "parts", "output": "table.parquet"}
    return ["--workers", "1", *(x for k, v in names.items() for x in (f"--{k}", str(tmp_path / v)))]


def test_nothing_is_computed_again(arguments, tmp_path, capsys):
    table = spechub_toy.main(arguments)
    assert "2 of 2 tasks are left" in capsys.readouterr().err
    parts = sorted((tmp_path / "parts").glob("*.parquet"))
    before = [part.stat().st_mtime_ns for part in parts]
    (tmp_path / "spec.toml").write_text(SPEC.replace("1.0]", "1.0, 2.0]"))
    grown = spechub_toy.main(arguments)
    assert "1 of 3 tasks are left" in capsys.readouterr().err
    assert grown[: table.height].equals(table)
    assert len(before) == 2
    assert [part.stat().st_mtime_ns for part in parts] == before


def test_a_task_draws_the_same_wherever_it_stands_and_other_code_is_another_part(tmp_path, monkeypatch):
    def draws(rng, shift, count):
        return [{"value": shift + value} for value in rng.random(count)]

    task = {"shift": 1.0, "count": 2}
    alone, elsewhere = (task_rows(draws, (name, task)) for name in ("a", "b"))
    assert alone.columns == ["task", "shift", "count", "value"]
    assert alone["value"].equals(elsewhere["value"])
    shifted = task_rows(draws, ("a", {"shift": 2.0, "count": 2}))
    assert abs(shifted["value"] - 1.0 - alone["value"]).min() > 1e-6
    names = [part_name(draws, task), part_name(draws, task, "data")]
    code = tmp_path / "test_runner.py"
    code.write_text(Path(__file__).read_text("utf-8") + "# changed")
    monkeypatch.setattr("inspect.getfile", lambda _: str(code))
    names.append(part_name(draws, task))
    assert len({*names}) == 3


def test_tasks_are_the_combinations_of_a_table_each_once(tmp_path):
    (tmp_path / "a.toml").write_text(
        '[[tasks]]\na = [1, 2]\nb = "x"\n[[tasks]]\na = [2, 3]\nb = ["x", "y"]\n'
    )
    pairs = [(1, "x"), (2, "x"), (2, "y"), (3, "x"), (3, "y")]
    assert read_tasks(tmp_path / "a.toml") == [{"a": a, "b": b} for a, b in pairs]


def test_a_table_says_how_it_was_made(arguments, tmp_path):
    table = spechub_toy.main(arguments)
    path = tmp_path / "table.parquet"
    assert pl.read_parquet(path).equals(table)
    metadata = pq.read_schema(path).metadata
    assert metadata[b"command"].decode().startswith('"python -m experiments spechub_toy --workers 1')
    assert json.loads(metadata[b"versions"])["numpy"]
    assert json.loads(metadata[b"settings"])["parts"] == str(tmp_path / "parts")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["parts", "spec.toml", "table.parquet"]


@pytest.mark.slow
def test_the_command_line_lists_and_runs(arguments, tmp_path):
    command = [sys.executable, "-m", "experiments"]
    options = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 600}
    done = subprocess.run([*command, "spechub_toy", *arguments], **options)
    assert "hub − α* with:" in done.stdout, done.stderr
    wrong = subprocess.run([*command, "nothing"], **options)
    assert wrong.returncode == 1
    assert "NAME: got 'nothing'" in wrong.stderr
    assert f"\nclaims       {'spectr_floor':22} SpecTr, Theorem 1" in wrong.stdout


def test_every_experiment_is_in_the_makefile():
    makefile = (ROOT / "Makefile").read_text()
    assert len(command_line.scripts()) >= 15
    assert [name for name in command_line.scripts() if name not in makefile.split()] == []


@pytest.mark.slow
def test_every_experiment_explains_its_options(capsys, monkeypatch):
    monkeypatch.setattr(command_line, "use_one_thread", lambda: None)
    for name in command_line.scripts():
        with pytest.raises(SystemExit) as ended:
            command_line.main([name, "--help"])
        assert ended.value.code == 0
        assert f"python -m experiments {name}" in capsys.readouterr().out
