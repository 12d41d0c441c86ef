import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import polars as pl
import pytest
from models.conftest import make_prompts, save_tiny
from rich.console import Console

import otmd
from otmd.cli import main
from otmd.cli.app import app
from otmd.study.rows import SCHEMA

COMMANDS = ("collect", "measure", "solve", "plan", "decode", "audit", "demo")
THIRDS = ["1/3,0,2/3", "1/3,1/3,1/3"]
GROUPS = ("Input and sampling", "Drafts and verifiers", "Output", "Rarely used")
# Of a run, each worker finishes its first part, and falls asleep in the second.
SLOW = """
import sys, time
from otmd.cli import main
from otmd.study.run import CHUNK_SIZE
from otmd.verifiers import TargetOnly
original, rated = TargetOnly.acceptance_bounds, []
def slow(self, *arguments, **options):
    rated.append(1)
    time.sleep(600 if len(rated) > CHUNK_SIZE else 0)
    return original(self, *arguments, **options)
TargetOnly.acceptance_bounds = slow
if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("dump") / "toy.npz"
    target = rng.normal(0, 2, (12, 5))
    draft = target + rng.normal(0, 1, (12, 5))
    prompts = np.array([f"p{row // 3}" for row in range(12)])
    np.savez(path, target_logits=target, draft_logits=draft, prompt_id=prompts)
    return path


@pytest.fixture(scope="module")
def results(dump: Path) -> Path:
    folder = dump.parent / "results"
    laws = "with-replacement,without-replacement,greedy,hub,top-then,independent"
    arguments = ["measure", str(dump), "--output", str(folder), "--quiet", "--workers", "1"]
    assert main([*arguments, "--law", laws, "--temperature", "0.6,1", "--num-drafts", "1-2"]) == 0
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_fits_a_screen_and_has_examples(command, monkeypatch, capsys):
    # The application keeps its console, with the width of the first help that this process has shown.
    monkeypatch.setattr(app, "console", Console(width=100))
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Examples:" in text
    assert text.count(f"\notmd {command} ") >= 3
    assert text.count("\n") <= 50
    codes = "3 for FAULTY and 4 for INCONCLUSIVE" in " ".join(text.split())
    assert codes == (command == "audit")
    assert "Parameters" not in text
    groups = re.findall(r"^╭─ (.+?) ─+╮$", text, re.M)
    assert groups == [group for group in GROUPS if group in groups]
    assert len(groups) >= 3
    assert "[default: None]" not in text


def test_the_help_names_every_command_and_the_exit_codes(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)
    assert "130 interrupted, 143 terminated" in " ".join(text.split())


def test_solve_prints_the_ground_truth(capsys):
    assert main(["solve", *THIRDS, "--num-drafts", "2"]) == 0
    text = capsys.readouterr().out
    assert re.match(r"optimal α\* +0\.8888888889, attained by preference\n", text)
    assert all(number in text for number in ("0.7777777778", "0.81141951", "{1}"))


def test_solve_lists_the_best_first_and_ties_in_the_order_of_the_catalogue(capsys):
    for law, order in (
        ("with-replacement", "preference optimal k-sequential recursive-rejection target-only"),
        ("hub", "spec-hub preference optimal target-only"),
    ):
        assert main(["solve", "1/2,1/4,1/4", "1/4,1/4,1/2", "--law", law, "--json"]) == 0
        assert list(json.loads(capsys.readouterr().out)["verifiers"]) == order.split()


def test_solve_in_json(capsys):
    assert main(["solve", *THIRDS, "--law", "without-replacement", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["optimal"] == pytest.approx(1)
    assert answer["subset"] == []
    assert answer["upper_bound"] >= answer["optimal"] - 1e-12
    assert answer["k_sequential_floor"] is None
    assert answer["verifiers"]["recursive-rejection"]["rate"] == pytest.approx(5 / 6)
    assert answer["verifiers"]["recursive-rejection"]["gap"] == pytest.approx(1 / 6)
    assert "k-sequential" not in answer["verifiers"]


def test_solve_reads_files(tmp_path, monkeypatch, capsys):
    p, q = np.array([1 / 3, 0, 2 / 3]), np.full(3, 1 / 3)
    monkeypatch.chdir(tmp_path)
    for name, array in {"p": p, "q": q, "qs": np.array([q, q])}.items():
        np.save(f"{name}.npy", array)
    np.savez("both.npz", target_probs=p, draft_probs=q)
    both = {"target_probs": ["1/3", 0, "2/3"], "draft_probs": ["1/3"] * 3}
    Path("both.json").write_text(json.dumps(both))
    for arguments in (
        *("p.npy q.npy", "1/3,0,2/3 q.npy", "both.npz", "both.json"),
        *("p.npy qs.npy --law independent", "p.npy q.npy --law top-then --top 0"),
    ):
        assert main(["solve", *arguments.split(), "--json"]) == 0, arguments
        answer = json.loads(capsys.readouterr().out)
        if answer["law"] != "top-then":
            assert answer["optimal"] == pytest.approx(8 / 9), arguments


NOT_SERVED = "does not serve this tree"
REFUSALS = [
    # One argument of two, files that are not there, values that are no numbers.
    ("solve 1/3,2/3", 2, "DRAFT: got nothing"),
    ("solve 1/3,x 1,0", 2, "TARGET: got 'x', expected numbers"),
    ("solve 1/2,,1/2 1,0,0", 2, "TARGET: got '1/2,,1/2', expected a value before and after every comma"),
    ("solve 1/0,1 1,0", 2, "TARGET: got '1/0'"),
    ("solve 1e999999999,0 1,0", 2, "TARGET: got '1e999999999'"),
    ("solve nix.npy 1,0", 2, "there is no file nix.npy"),
    ("solve square.npy 0.5,0.5", 2, "TARGET: got shape (2, 2), expected one distribution"),
    ("solve torn.npz", 2, "torn.npz: cannot be read"),
    ("solve empty.npy empty.npy", 2, "empty.npy: cannot be read"),
    ("solve huge.json huge.json", 2, "huge.json: got an array that is not of numbers"),
    ("solve twice.json", 2, "twice.json: cannot be read (it names 'target_probs' twice"),
    ("solve 0.5,0.5 0.5,0.6", 1, "draft_probs"),
    ("solve 1,0 1,0,0", 1, "target_probs"),
    ("solve 1,0 1,0 --law greedy", 1, "num_drafts"),
    ("measure nix.npz", 1, "nix.npz"),
    ("measure run.jsonl", 1, "dumps are read from .npz or .safetensors files"),
    ("measure pipe", 1, "pipe"),
    ("measure empty.parquet", 1, "table: got no rows"),
    ("measure .", 1, "is no folder made by collect; "),
    ("audit nix", 1, "there is no file nix"),
    ("audit texts.jsonl", 2, "--oracle: got none, but texts.jsonl is a file of texts"),
    # Options that are not there, and arguments that are missing.
    ("frobnicate", 2, "frobnicate"),
    ("report x", 2, "report"),
    ("solve", 2, "For example: otmd solve 1/3,0,2/3 1/3,1/3,1/3"),
    ("audit x --target-temp 1", 2, "Did you mean --target-temperature?"),
    ("collect x --target-temp=1", 2, "Did you mean --target or --temperature?"),
    ("measure x.npz --confidence 95", 2, "Unknown option: --confidence"),
    # Values that the option does not take.
    ("solve 1,0 1,0 --law fair", 2, "--law: got 'fair', expected one of"),
    ("solve 1,0 1,0 --law greedy,hub", 2, "--law: got 'greedy,hub'"),
    ("solve 1,0 1,0 --law greedy --num-drafts 5", 2, "--num-drafts: got 5"),
    ("solve 1,0 1,0 --num-drafts two", 2, "--num-drafts: got 'two', expected a whole number"),
    ("solve 1,0 1,0 --num-drafts 1.5", 2, "--num-drafts: got '1.5', expected a whole number"),
    ("solve 1,0 1,0 --num-drafts 0", 2, "--num-drafts"),
    ("decode --seed 1.7", 2, "--seed: got '1.7', expected a whole number"),
    ("plan --depth 2.5", 2, "--depth: got '2.5', expected a whole number"),
    ("measure x.npz --num-drafts 4-1", 2, "--num-drafts: got '4-1'"),
    ("measure x.npz --num-drafts 1-1000000000", 2, "from 1 to 10000"),
    ("measure x.npz --verifier ,", 2, "--verifier: got ','"),
    ("measure x.npz --temperature warm", 2, "--temperature: got 'warm'"),
    ("measure x.npz --temperature -1", 2, "--temperature: got -1"),
    ("measure x.npz --top-p 2", 2, "--top-p: got 2"),
    ("measure x.npz --figure gaps.bmp", 2, "--figure: got gaps.bmp"),
    ("measure toy.npz --device tpu", 2, "--device: got 'tpu'"),
    ("collect x --mode fair", 2, "--mode"),
    ("collect x --prompts cod", 2, "--prompts: got 'cod'"),
    ("audit x --law joint", 2, "--law: got 'joint'"),
    ("audit x --false-alarm 0", 2, "--false-alarm: got 0.0"),
    ("audit x --bias 1", 2, "--bias: got 1.0"),
    ("audit x --target-top-p 7", 2, "--target-top-p: got 7.0"),
    ("decode --branching 2,x", 2, "--branching: got 'x'"),
    ("decode --branching 3-5,2", 2, "--branching: got '3-5', expected numbers such as 3,2,1"),
    ("decode --rule odd", 2, "--rule: got 'odd'"),
    ("decode --branching 2 --law top-then --top 9", 2, "--law: top-then has no such drafts: top: got 9"),
    ("decode --branching 2,3 --law hub", 2, "--law: hub has no such drafts: num_drafts: got 3"),
    ("decode --prompt=", 2, "--prompt: got an empty text"),
    # Options that contradict each other.
    ("decode --paths 2 --most-likely 4", 2, "--paths and --most-likely: got both"),
    ("decode --law hub", 2, "--law: got 'hub' without --branching"),
    ("decode --branching 2 --depth 3", 2, "--depth: got it with --branching"),
    ("decode --paths 2 --rule block-verification", 2, NOT_SERVED),
    ("decode --most-likely 4 --rule k-sequential", 2, NOT_SERVED),
    ("measure empty.parquet --law hub", 2, "--law: got it with empty.parquet, which has been"),
    ("plan --requests 8", 2, "--requests: got 8, but no times for so many; give them with --latency"),
    ("plan --requests 8 --measure-latency t.json", 2, "--measure-latency times one request"),
    # Files that are looked for, and tables of times that are read, before a model is loaded.
    ("audit nix.jsonl --oracle default", 1, "nix.jsonl"),
    ("decode --prompt w1 --draft ngram:2:nix.txt", 2, "nix.txt"),
    ("plan --latency times.json --requests 64", 1, "target has times for 1 to 1 concurrent requests, got 64"),
    ("plan --latency times.json --tree-budget 99", 1, "target reaches 17 tokens, the budget needs 100"),
    ("plan --draft ngram:2:nix.txt", 2, "--draft: there is no file 'nix.txt'"),
    ("plan --latency nix.json", 1, "otmd: nix.json: No such file"),
    ("plan --latency twice.json", 1, "no latency table"),
    ("plan --latency nan.json", 1, "verification is nan"),
    ("plan --latency rows.json", 1, "a row of 1 token"),
    # Files that would be written over.
    ("audit run.jsonl --csv run.jsonl", 2, "--csv: got run.jsonl, expected"),
    ("audit run.jsonl --csv link.csv", 2, "--csv: got link.csv, which FILE names"),
    ("audit run.jsonl --csv twin.csv", 2, "--csv: got twin.csv, which FILE names"),
    ("audit x --html a.txt --markdown ./a.txt", 2, "--html: got a.txt, which --markdown names"),
    ("measure toy.npz --figure a.svg --figure a.svg", 2, "which --figure names"),
    ("plan --latency a.json --csv a.json", 2, "--csv: got a.json, which --latency names"),
    ("decode --prompts code,texts.txt --figure texts.svg", 2, "which --prompts names"),
]


@pytest.fixture(scope="module")
def files(dump: Path) -> Path:
    """A folder of the files that REFUSALS name."""
    folder = dump.parent
    np.save(folder / "square.npy", np.full((2, 2), 0.5))
    contents = {"torn.npz": "PK\x03\x04", "empty.npy": "", "run.jsonl": "{}", "texts.txt": "w1 w2"}
    contents["texts.jsonl"] = '{"prompt_tokens": [0], "output_tokens": [1]}'
    contents["huge.json"] = '[1e999, 0, "1e999999999"]'
    row = {"tokens": 1, "context": 64, "seconds": 1}
    times = {name: [row, row | {"tokens": 17}] for name in ("target", "draft")} | {"verification": 0}
    contents["times.json"] = json.dumps(times)
    contents["nan.json"] = json.dumps(times | {"verification": float("nan")})
    contents["rows.json"] = json.dumps(times | {"draft": [row | {"tokens": 2}]})
    contents["twice.json"] = '{"target_probs": [1], "target_probs": [1], "draft_probs": [1]}'
    for name, content in contents.items():
        (folder / name).write_text(content)
    (folder / "link.csv").symlink_to("run.jsonl")
    (folder / "texts.svg").symlink_to("texts.txt")
    (folder / "twin.csv").hardlink_to(folder / "run.jsonl")
    (folder / "folder").mkdir()
    (folder / "folder" / "collect.json").write_text("{}")
    os.mkfifo(folder / "pipe")
    pl.DataFrame(schema=dict.fromkeys(SCHEMA, pl.String)).write_parquet(folder / "empty.parquet")
    return folder


@pytest.mark.parametrize(("arguments", "code", "message"), REFUSALS)
def test_errors_are_one_line_and_the_code_says_whose(arguments, code, message, files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    monkeypatch.setattr("otmd.models.load_target", None)
    assert main(arguments.split()) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("otmd: ")
    assert err.count("\n") == 1
    assert message in err
    assert ("--help" in err) == (code == 2)
    assert "delete" not in err
    assert "--debug" not in err
    assert (files / "run.jsonl").read_text() == "{}"


def test_an_error_that_names_an_argument_is_one_of_its_option(monkeypatch, capsys):
    refuse = MagicMock(side_effect=ValueError("layers: got [99]"))
    monkeypatch.setattr("otmd.models.load_prompts", refuse)
    assert main(["collect", "x", "--draft", "skip:99"]) == 2
    assert capsys.readouterr().err.startswith("otmd: --draft: got [99] (see")
    assert main(["collect", "x"]) == 1
    assert capsys.readouterr().err == "otmd: layers: got [99]\n"


def test_debug_shows_where_an_error_came_from(capsys):
    assert main(["solve", "0.5,0.5", "0.5,0.6", "--debug"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("otmd: draft_probs")


def test_an_error_of_our_own_says_its_kind_without_control_characters(monkeypatch, capsys):
    errors = [KeyError("oh"), ValueError("a field named \x1b[2Jgone")]
    monkeypatch.setattr("otmd.cli.solve.read_problem", MagicMock(side_effect=errors))
    assert main(["solve", "1,0", "1,0"]) == 1
    assert capsys.readouterr().err == "otmd: KeyError: 'oh' (--debug shows where)\n"
    assert main(["solve", "1,0", "1,0"]) == 1
    assert "\x1b" not in capsys.readouterr().err


def test_a_warning_is_one_line_and_no_failure(monkeypatch, capsys):
    def warned(*_):
        warnings.simplefilter("always")
        warnings.warn("mind the gap", stacklevel=1)
        return np.array([1.0, 0.0]), np.array([0.5, 0.5])

    monkeypatch.setattr("otmd.cli.solve.read_problem", warned)
    assert main(["solve", "1,0", "1,0", "--json"]) == 0
    assert capsys.readouterr().err == "otmd: warning: mind the gap\n"


def test_measure_prints_tables_json_and_figures_of_what_is_measured(results, dump, capsys):
    """The same options again read the results; so does the folder of results."""
    arguments = ["measure", str(dump), "--output", str(results), "--temperature", "0.6,1"]
    laws = "with-replacement,without-replacement,greedy,hub,top-then,independent"
    assert main([*arguments, "--law", laws, "--num-drafts", "1,2", "--quiet"]) == 0
    out = capsys.readouterr().out
    for words in ("without replacement", "4 prompts", str(results / "results.parquet")):
        assert words in out
    ranking = out[out.index("all laws, best rate first") :].split("\n\n")[0].splitlines()
    rates = [float(line.split()[-1]) for line in ranking if "  2  " in line]
    assert len(rates) >= 8
    assert any(line.split()[:3] == ["with", "replacement", "optimal"] for line in ranking)
    assert out.startswith("T = 0.6: take 2 ")
    assert main(["measure", str(results)]) == 0
    assert capsys.readouterr().out == out
    table = pl.read_parquet(results / "results.parquet")
    assert set(table["num_drafts"]) == {1, 2}
    assert set(table["temperature"]) == {0.6, 1.0}
    names = {"Greedy", "Hub", "Independent", "TopThen", "WithReplacement", "WithoutReplacement"}
    assert set(table["law"]) == names


def test_a_finished_run_has_pages_figures_and_json(results, tmp_path, capsys):
    assert main(["measure", str(results), "--by-domain"]) == 0
    assert "hub · dump" in capsys.readouterr().out
    files = {name: tmp_path / f"report.{name}" for name in ("html", "markdown", "csv")}
    options = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    svg = ["--figure", str(tmp_path / "gaps.svg")]
    assert main(["measure", str(results / "results.parquet"), *options, *svg, "--json"]) == 0
    assert "groups" in json.loads(capsys.readouterr().out)
    assert (tmp_path / "gaps.svg").exists()
    assert "T = 0.6: take 2 " in files["html"].read_text()
    assert "| verifier |" in files["markdown"].read_text()
    assert "WithReplacement,0.6," in files["csv"].read_text()
    assert not re.search(r"(src|href)\s*=|url\(|@import|https?://", files["html"].read_text())


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    """A recorded run of one row, which no sound engine writes."""
    row = {"target_probs": [1, 0], "draft_probs": [1, 0], "draft_tokens": [0], "output_token": 1}
    (tmp_path / "run.jsonl").write_text(json.dumps(row))
    return tmp_path / "run.jsonl"


@pytest.mark.parametrize(
    ("command", "answer"), [("measure", "all laws, best rate first"), ("audit", "FAULTY: in 1 row")]
)
def test_a_page_that_cannot_be_written_loses_no_answer(command, answer, results, faulty, capsys):
    source = {"measure": results, "audit": faulty}[command]
    assert main([command, str(source), "--html", str(faulty / "a.html")]) == 1
    out, err = capsys.readouterr()
    assert answer in out
    assert "Choose another place" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("columns", [40, 80])
def test_tables_fit_the_terminal(results, columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["measure", str(results)]) == 0
    assert main(["solve", *THIRDS]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines if str(results) not in line) <= columns
    assert ("acceptance rate: 0.8888888889" in lines) == (columns == 40)


def test_the_command_measures_what_the_function_does_by_default():
    from otmd.cli.measure import DEFAULT_LAWS, DEFAULT_VERIFIERS
    from otmd.registry import LAWS, VERIFIERS

    names = [VERIFIERS[name].class_name for name in DEFAULT_VERIFIERS.split(",")]
    assert names == [rule.__name__ for rule in otmd.study.DEFAULT_VERIFIERS]
    names = [LAWS[name].class_name for name in DEFAULT_LAWS.split(",")]
    assert names == [law.__name__ for law in otmd.study.DEFAULT_LAWS]


def test_measure_in_json_and_its_default_folder(dump, capsys):
    arguments = ["measure", str(dump), "--law", "greedy", "--verifier", "preference"]
    assert main([*arguments, "--num-drafts", "2", "--workers", "1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    (group,) = answer["groups"]
    assert (group["verifier"], group["gap"]) == ("GreedyCoupling", pytest.approx(0, abs=1e-12))
    assert answer["results"] == str(dump.with_name("toy-results") / "results.parquet")
    assert Path(answer["results"]).exists()


# A Python that has the dependencies of pyproject.toml, and of the extras nothing.
BASE = """
import sys
class Absent:
    def find_spec(self, name, *_):
        if name in {"torch", "transformers", "tokenizers", "gguf", "accelerate", "safetensors", "polars",
                    "pyarrow", "joblib", "matplotlib", "sympy", "cvxpy", "networkx", "distributed"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from otmd.cli import main
codes = [main(arguments.split()) for arguments in sys.argv[1:]]
import otmd
otmd.compare([1, 0], [1, 0], [1], verifiers=otmd.TargetOnly)
print(codes)
"""


def test_the_base_installation_solves_and_says_what_other_commands_need(dump, faulty, tmp_path):
    (tmp_path / "texts.jsonl").write_text('{"prompt_tokens": [0], "output_tokens": [1]}')
    needs = {
        f"measure {dump} --output {tmp_path}/results": "experiments",
        f"collect {tmp_path}/a": "llm,experiments",
        "plan": "llm,experiments",
        "decode": "llm,experiments",
        f"demo --output {tmp_path}/demo": "llm,experiments",
        f"audit {tmp_path}/texts.jsonl --oracle x": "llm,experiments",
    }
    work = ["--help", "--version", f"solve {' '.join(THIRDS)}", f"audit {faulty}"]
    command = [sys.executable, "-c", BASE, *work, *needs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == str([0, 0, 0, 3, *[1] * len(needs)]), done.stderr
    assert f"\n{otmd.__version__}\n" in done.stdout
    assert "optimal α*            0.88888888" in done.stdout
    for line, (arguments, extras) in zip(done.stderr.splitlines(), needs.items(), strict=True):
        pattern = rf'otmd: otmd {arguments.split()[0]} needs \w+: pip install "otmd\[{extras}\]"'
        assert re.fullmatch(pattern, line), line


@pytest.mark.parametrize("code", [0, 3])
def test_a_reader_that_has_enough_changes_no_exit_code(code, faulty, monkeypatch, capsys):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        found = main(["audit", str(faulty)] if code else ["solve", *THIRDS])
    assert found == code
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device is full")
def test_a_full_disk_behind_standard_output_is_an_error(monkeypatch, capsys):
    with open("/dev/full", "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(["solve", *THIRDS]) == 1
    assert "No space left" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_says_what_was_kept(number, code, tmp_path):
    """After the first part, to the whole group, as from a terminal; the run does not wait for the second."""
    target, draft = np.random.default_rng(0).normal(size=(2, 64, 4))
    np.savez(tmp_path / "dump.npz", target_logits=target, draft_logits=draft)
    (tmp_path / "slow.py").write_text(SLOW)
    folder = tmp_path / "results"
    options = ["--output", folder, "--workers", "2", "--law", "greedy", "--num-drafts", "2"]
    # Where the shell ignores SIGINT, as of `make test &`, a command that a user runs does so too.
    process = subprocess.Popen(
        [sys.executable, tmp_path / "slow.py", "measure", tmp_path / "dump.npz", *options],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 120
    while not list(folder.glob("parts/part-*.parquet")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in err
    assert err.count("Stopping …\n") == 1
    word = {130: "interrupted", 143: "terminated"}[code]
    assert f"otmd: {word}. What was finished is kept in {folder}; the same command resumes it." in err
    assert list(folder.glob("parts/part-*.parquet"))
    group = ["pgrep", "-g", str(process.pid)]
    ends = (time.sleep(0.1) or subprocess.run(group).returncode == 1 for _ in range(100))
    assert any(ends), "worker processes outlived the run"


def test_sigterm_is_an_interrupt(dump, tmp_path, monkeypatch, capsys):
    bounds, rated = otmd.TargetOnly.position_bounds, []

    def terminated(*arguments, **options):
        rated.append(1)
        if len(rated) == 10:
            signal.raise_signal(signal.SIGTERM)
        return bounds(*arguments, **options)

    monkeypatch.setattr(otmd.TargetOnly, "position_bounds", terminated)
    options = ["--output", str(tmp_path), "--law", "greedy", "--num-drafts", "2", "--workers", "1"]
    arguments = ["measure", str(dump), *options, "--verifier", "target-only", "--quiet"]
    assert main(arguments) == 143
    assert f"otmd: terminated. What was finished is kept in {tmp_path};" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, signal.default_int_handler)
    assert main(arguments) == 0
    assert len(rated) == 14


@pytest.mark.slow
def test_workers_of_a_run_that_was_killed_as_they_started_end(tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(
        "import os, signal, threading, time\n"
        "from otmd.study.runner import run_jobs\n"
        "def kill():\n"
        "    while not os.popen(f'pgrep -P {os.getpid()} -f popen_loky').read().strip():\n"
        "        time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "if __name__ == '__main__':\n"
        "    threading.Thread(target=kill).start()\n"
        "    list(run_jobs(time.sleep, [600] * 4, 2))\n"
    )
    # Whoever waits for the pipe waits for the workers.
    done = subprocess.run([sys.executable, script], capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL


def test_the_demo_goes_on_and_replaces_or_refuses_other_settings(tmp_path, monkeypatch, capsys):
    """With a tiny model in the place of the default one."""
    monkeypatch.setattr("otmd.models.load_prompts", lambda **_: make_prompts(2))
    monkeypatch.setattr("otmd.cli.demo._compiling", nullcontext)
    # Figures, which take longest, are drawn in tests/study/test_report.py.
    monkeypatch.setattr("otmd.study.draw_gaps", lambda _, paths, **__: [path.touch() for path in paths])
    folder = tmp_path / "demo"
    models = ["--target", str(save_tiny(tmp_path / "model", layers=2)), "--draft", "skip:1"]
    sizes = ["--positions", "2", "--num-drafts", "2", "--workers", "1"]
    arguments = ["demo", "--output", str(folder), *models, *sizes]
    assert main([*arguments, "--quiet"]) == 0
    out = capsys.readouterr().out
    for path in ("results/results.parquet", "gaps.png", "gaps.pdf"):
        assert str(folder / path) in out
        assert (folder / path).exists()
    assert "T = 1: take 2 " in out[out.index("gap = α* − rate") :]
    warm = [*arguments, "--json", "--temperature", "1"]
    with monkeypatch.context() as patched:
        # What is there is read, and not measured again, without a model.
        patched.setattr("otmd.models.load_target", None)
        with monkeypatch.context() as unmeasured:
            unmeasured.setattr("otmd.study.runner.compute_parts", None)
            assert main([*arguments, "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["trees"]
        assert answer["figures"] == [str(folder / "gaps.png"), str(folder / "gaps.pdf")]
        assert main(warm) == 1
        assert "give --overwrite to replace it" in capsys.readouterr().err
        assert main([*warm, "--overwrite"]) == 0
        groups = json.loads(capsys.readouterr().out)["groups"]
        assert {group["temperature"] for group in groups} == {1.0}

    next((folder / "dataset").glob("*.safetensors")).unlink()
    assert main(warm) == 0
    assert "collecting again: " in capsys.readouterr().err
    assert main([*arguments, "--per-domain", "3"]) == 1
    assert "give --overwrite to replace it, or another output" in capsys.readouterr().err
    (folder / "demo.json").write_text("{")
    assert main(arguments) == 1
    assert "demo.json: cannot be read" in capsys.readouterr().err
