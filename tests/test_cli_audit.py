"""``otmd audit``: reports, JSON and exit codes."""

from __future__ import annotations

import csv
import html
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from recorded_engine import FAULTS, Engine

from otmd.cli import main
from otmd.laws import Greedy, Stratified, TopThen


def write(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row, default=np.ndarray.tolist) + "\n" for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("runs") / "sound.jsonl", Engine(depth=2).run(1300, 0))


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> str:
    rows = replace(FAULTS["top-p not applied"], logits=False).run(200, 0)[:200]
    return write(tmp_path_factory.mktemp("runs") / "faulty.jsonl", rows)


def test_a_sound_run_is_reported_with_exit_code_0(sound, capsys):
    assert main(["audit", sound]) == 0
    text = capsys.readouterr().out
    assert text.startswith("PASS: no fault found in 1,30")
    assert "conditional acceptance at depth 1" in text
    assert "1 + accepted tokens / steps" in text


def test_a_faulty_run_is_reported_with_exit_code_3(faulty, capsys):
    assert main(["audit", faulty, "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["faulty"]
    assert found["num_rows"] == 200
    impossible = {own["kind"]: own for own in found["events"]}["output_impossible"]
    assert impossible["num_rows"] > 0
    assert impossible["what"].startswith("an output token of target probability zero")
    assert found["metrics"].keys() >= {"acceptance rate", "tokens per step"}


def test_a_page_begins_with_the_verdict(faulty, tmp_path, capsys):
    files = {name: tmp_path / f"audit.{name}" for name in ("html", "markdown", "csv")}
    options = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    assert main(["audit", faulty, *options]) == 3
    verdict, *said = capsys.readouterr().out.split("\n\n")[0].splitlines()
    page = html.unescape(files["html"].read_text())
    assert f"<p class=lead>{verdict}</p>" in page
    lines = html.unescape(files["markdown"].read_text()).split("\n\n")
    assert lines[1 : 2 + len(said)] == [verdict, *said]
    for heading in ("Tests", "Rows that no sound engine records", "Metrics"):
        assert f"<h2>{heading}</h2>" in page
        assert f"## {heading}" in lines
    with files["csv"].open() as stream:
        tests = {row["claim"]: row for row in csv.DictReader(stream)}
    assert float(tests["drafts follow their distribution"]["p-value"]) > 0
    assert "no more is accepted than a lossless verifier can" in tests


@pytest.mark.parametrize(
    ("law", "make"),
    [("stratified", Stratified), ("top-then", partial(TopThen, top=1)), ("greedy", Greedy)],
)
def test_every_law_is_audited(law, make, tmp_path, capsys):
    path = write(tmp_path / "a.jsonl", Engine(num_drafts=3, law=make).run(150, 0))
    assert main(["audit", path, "--law", law]) == 4
    named = "top-then (top=1)" if law == "top-then" else law
    assert f"Drafts by law {named}, decided by token;" in capsys.readouterr().out
    assert main(["audit", path, "--law", "top-k"]) == 3
    assert "drafts that the declared law never draws" in capsys.readouterr().out


def test_names_that_cannot_be_encoded_are_written_with_backslashes(faulty, tmp_path, capsys):
    path = tmp_path / os.fsdecode(b"\xff<b>\n.jsonl")
    path.write_bytes(Path(faulty).read_bytes())
    pages = [tmp_path / "page.html", tmp_path / "page.md"]
    options = ["--html", str(pages[0]), "--markdown", str(pages[1])]
    assert main(["audit", str(path), *options]) == 3
    assert "<h1>Audit of \\udcff&lt;b&gt; .jsonl</h1>" in pages[0].read_text()
    assert pages[1].read_text().startswith("# Audit of \\udcff&lt;b&gt; .jsonl\n\nFAULTY")
    assert main(["audit", str(path.with_suffix(".none"))]) == 1
    assert "\\udcff<b> .none" in capsys.readouterr().err


@pytest.mark.slow
def test_a_terminal_that_lacks_a_character_shows_the_verdict(faulty):
    otmd = [sys.executable, "-c", "import sys; from otmd.cli import main; sys.exit(main())"]
    plain = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*otmd, "audit", faulty], env=plain, capture_output=True, check=False)
    assert done.returncode == 3
    assert b"bias \\u2265" in done.stdout


def test_processing_is_given_by_options(tmp_path, capsys):
    logits = {"target_logits": [2.0, 1.0, 0.0], "draft_logits": [0.0, 1.0, 2.0]}
    path = write(tmp_path / "a.jsonl", [logits | {"draft_tokens": [0], "output_token": 0}] * 3)
    assert main(["audit", path]) == 4
    assert "INCONCLUSIVE: no fault found, but 3 rows are too few" in capsys.readouterr().out
    assert main(["audit", path, "--target-temperature", "0", "--draft-temperature", "2"]) == 4
    assert main(["audit", path, "--bias", "0.5", "--false-alarm", "0.25"]) == 4
    capsys.readouterr()
    assert main(["audit", path, "--draft-top-k", "2"]) == 3
    assert "3 rows have a draft of draft probability zero" in capsys.readouterr().out
