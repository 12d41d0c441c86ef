"""Target: the command line with any arguments and small files: an exit code, and one line where it fails."""

from __future__ import annotations

import contextlib
import io
import shutil
from pathlib import Path

from fuzz import files
from fuzz.choices import Choices
from fuzz.datasets import _names as dump_names
from fuzz.records import _lines as record_lines
from otmd.cli import main

# Those that run language models are parsed and then end: their arguments are never right.
COMMANDS = ("solve", "solve", "measure", "plan", "audit", "collect", "decode", "demo", "")
OPTIONS = (
    "--law", "--num-drafts", "--top", "--tol", "--json", "--temperature", "--top-k", "--top-p",
    "--min-p", "--verifier", "--false-alarm", "--target-temperature", "--target-top-k", "--draft-top-p",
    "--seed", "--by-domain", "--confidence", "--figure", "--help", "--version", "--debug", "--", "-",
)  # fmt: skip
VALUES = (
    "1/2,1/4,1/4", "1/3,0,2/3", "0.5,0.5", "1/0,1", "nan,1", "1e999", "-1", "0", "2", "1-3", "1e400",
    "1e-400", "inf", "greedy", "hub", "independent", "with-replacement", "without-replacement",
    "top-then", "optimal,target-only", "a.json", "a.npy", "a.npz", "a.jsonl", "a.parquet",
    "a.safetensors", "a.csv", "out", ".", "[", ",", "", "\n", "9" * 30,
)  # fmt: skip
CODES = (0, 1, 2, 3, 4)


def one_input(choices: Choices) -> None:
    arguments = _arguments(choices)
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(_folder(choices)),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main(arguments)
    lines = [line for line in err.getvalue().splitlines() if "otmd: warning:" not in line]
    assert code in CODES, (arguments, code)
    assert len(lines) == (code in (1, 2)), (arguments, code, lines)
    # What the command line says of an error that nobody foresaw.
    assert "--debug shows where" not in "".join(lines), (arguments, lines)


def _arguments(choices: Choices) -> list[str]:
    command = choices.pick(COMMANDS)
    found = [command] if command else []
    for _ in range(choices.below(7)):
        kind = choices.below(4)
        if kind == 0:
            found.append(choices.pick(OPTIONS))
        found.append(choices.text(12) if kind == 3 else choices.pick(VALUES))
    found = [word for word in found if word != "--debug"]
    if command in ("collect", "plan", "decode", "demo"):
        found.append("--no-such-option")
    if command == "measure":
        found += ["--output", "out", "--quiet", "--workers", "1"]
    return found


def _folder(choices: Choices) -> Path:
    folder = files.folder() / "here"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    numbers = files.json_value(choices)
    pair = f'{{"target_probs": [0.5, 0.5], "draft_probs": {numbers}}}'
    (folder / "a.json").write_text(choices.pick((pair, numbers, "[0.5, 0.5]")))
    (folder / "a.npy").write_bytes(files.damaged(files.npy(choices, files.honest("probs", 2)), choices))
    (folder / "a.npz").write_bytes(files.damaged(files.npz(choices, dump_names(choices), 2), choices))
    (folder / "a.jsonl").write_bytes(files.damaged(record_lines(choices), choices))
    (folder / "a.parquet").write_bytes(files.damaged(files.parquet(), choices))
    stored = files.safetensors(choices, dump_names(choices), 2)
    (folder / "a.safetensors").write_bytes(files.damaged(stored, choices))
    return folder
