"""The command line: what it prints, its exit codes, and its errors."""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import otmd
import otmd.models
from otmd.cli import main
from otmd.models import DatasetError, collect, load_prompts, open_dataset
from otmd.study.rows import SCHEMA

REAL = {"collect": collect, "load_prompts": load_prompts}
COMMANDS = ("collect", "measure", "solve", "report", "plan", "decode", "audit", "demo", "warmup")
THIRDS = ["1/3,0,2/3", "1/3,1/3,1/3"]
GROUPS = ("Input", "Drafts and verifiers", "Sampling", "Times", "Accuracy", "Output and run")


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
    arguments = ["measure", str(dump), "--output", str(folder), "--quiet", "--workers", "1"]
    assert main([*arguments, "--temperature", "0.6,1", "--num-drafts", "1-2"]) == 0
    return folder


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "import sys; from otmd.cli import main; sys.exit(main())"]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=120, **options
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_has_examples(command, capsys):
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Examples:" in text
    assert text.count(f"  otmd {command} ") + text.count(f"  otmd {command}\n") >= 3
    codes = "3 for FAULTY and 4 for INCONCLUSIVE" in " ".join(text.split())
    assert codes == (command == "audit")
    assert "Parameters" not in text
    groups = re.findall(r"^╭─ (.+?) ─+╮$", text, re.M)
    assert groups == [group for group in GROUPS if group in groups]
    assert len(groups) >= (0 if command == "warmup" else 3)


def test_the_shell_completes_options(tmp_path, capsys):
    script = tmp_path / "completion"
    command = ["completion", "--shell", "bash", "--output", str(script)]
    assert run(*command, env=os.environ | {"HOME": str(tmp_path)}).returncode == 0
    typed = (
        "source $0; COMP_WORDS=(otmd audit run.jsonl --target-temp); COMP_CWORD=3; "
        "_otmd; echo ${COMPREPLY[@]}"
    )
    completed = subprocess.run(["bash", "-c", typed, script], capture_output=True, text=True)
    assert completed.stdout == "--target-temperature\n"


def test_the_help_names_every_command_and_the_exit_codes(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)
    assert "130 interrupted" in " ".join(text.split())
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == otmd.__version__


def test_solve_prints_the_ground_truth(capsys):
    assert main(["solve", *THIRDS, "--num-drafts", "2"]) == 0
    text = capsys.readouterr().out
    assert re.match(r"optimal α\* +0\.8888888889, attained by preference\n", text)
    assert "0.7777777778" in text
    assert "0.81141951" in text
    assert "{1}" in text


@pytest.mark.parametrize(
    ("law", "order"),
    [
        ("with-replacement", "preference optimal k-sequential recursive-rejection target-only"),
        ("hub", "spec-hub preference optimal target-only"),
    ],
)
def test_solve_lists_the_best_first_and_ties_in_the_order_of_the_catalogue(law, order, capsys):
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


def test_solve_reads_files(tmp_path, capsys):
    p, q = np.array([1 / 3, 0, 2 / 3]), np.full(3, 1 / 3)
    np.save(tmp_path / "p.npy", p)
    np.save(tmp_path / "q.npy", q)
    np.save(tmp_path / "qs.npy", np.array([q, q]))
    np.savez(tmp_path / "both.npz", target_probs=p, draft_probs=q)
    (tmp_path / "both.json").write_text(
        json.dumps({"target_probs": ["1/3", 0, "2/3"], "draft_probs": ["1/3", "1/3", "1/3"]})
    )
    for arguments in (
        ["p.npy", "q.npy"],
        ["1/3,0,2/3", "q.npy"],
        ["both.npz"],
        ["both.json"],
        ["p.npy", "qs.npy", "--law", "independent"],
        ["p.npy", "q.npy", "--law", "top-then", "--top", "0"],
    ):
        places = [str(tmp_path / a) if "." in a and "/" not in a else a for a in arguments]
        assert main(["solve", *places, "--json"]) == 0, arguments
        answer = json.loads(capsys.readouterr().out)
        if answer["law"] != "top-then":
            assert answer["optimal"] == pytest.approx(8 / 9), arguments


@pytest.mark.parametrize(("argument", "shape"), [("TARGET", (2, 2)), ("DRAFT", (3, 2))])
def test_solve_takes_one_distribution_of_each(tmp_path, capsys, argument, shape):
    np.save(tmp_path / "many.npy", np.full(shape, 0.5))
    many, one = str(tmp_path / "many.npy"), "0.5,0.5"
    assert main(["solve", *([many, one] if argument == "TARGET" else [one, many])]) == 2
    assert f"{argument}: got shape {shape}, expected one distribution" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["solve", "1/3,2/3"], 2, "DRAFT: got nothing"),
        (["solve", "1/3,x", "1,0"], 2, "TARGET: got 'x', expected numbers"),
        (["solve", "1/0,1", "1,0"], 2, "TARGET: got '1/0'"),
        (["solve", "nix.npy", "1,0"], 2, "there is no file nix.npy"),
        (["solve", "1,0", "1,0", "--law", "fair"], 2, "--law: got 'fair', expected one of"),
        (["solve", "1,0", "1,0", "--frob"], 2, "--frob"),
        (["solve", "1,0", "1,0", "--num-drafts", "two"], 2, "--num-drafts"),
        (["solve", "0.5,0.5", "0.5,0.6"], 1, "draft_probs"),
        (["solve", "1,0", "1,0", "--law", "greedy"], 1, "num_drafts"),
        (["solve", "1,0", "1,0,0"], 1, "target_probs"),
        (["measure", "nix.npz"], 1, "nix.npz"),
        (["measure", "x.npz", "--num-drafts", "4-1"], 2, "--num-drafts: got '4-1'"),
        (["measure", "x.npz", "--num-drafts", "a"], 2, "--num-drafts: got 'a'"),
        (["measure", "x.npz", "--law", "fair"], 2, "--law: got 'fair'"),
        (["measure", "x.npz", "--verifier", ","], 2, "--verifier: got ','"),
        (["measure", "x.npz", "--temperature", "warm"], 2, "--temperature: got 'warm'"),
        (["measure", "x.npz", "--temperature", "-1"], 2, "temperature"),
        (["measure", "x.npz", "--num-drafts", "1-1000000000"], 2, "from 1 to 10000"),
        (["measure", "x.npz", "--num-drafts", "-1"], 2, "--num-drafts: got '-1'"),
        (["measure", "x.npz", "--tol", "0"], 2, "--tol"),
        (["measure", "x.npz", "--workers", "0"], 2, "--workers"),
        (["solve", "1,0", "1,0", "--num-drafts", "0"], 2, "--num-drafts"),
        (["solve", "1e400,1", "1,0"], 2, "TARGET: got '1e400'"),
        (["solve", "1e999999999,0", "1,0"], 2, "TARGET: got '1e999999999'"),
        (["solve", "1e-999999999,1", "1,0"], 2, "TARGET: got '1e-999999999'"),
        (["solve", "1,0", "1,0", "--law", "greedy,hub"], 2, "--law: got 'greedy,hub'"),
        (["collect", "x", "--positions", "0"], 2, "--positions"),
        (["collect", "x", "--mode", "fair"], 2, "--mode"),
        (["report", "x", "--seed", "-1"], 2, "--seed"),
        (["report", "nix"], 1, "nix: no such file"),
        (["frobnicate"], 2, "frobnicate"),
        (["solve"], 2, "For example: otmd solve 1/3,0,2/3 1/3,1/3,1/3"),
        (["plan"], 2, "For example: otmd plan runs/texts"),
        (["audit", "x", "--target-temp", "1"], 2, "Did you mean --target-temperature?"),
        (["collect", "x", "--target-temp=1"], 2, "Did you mean --target or --temperature?"),
        (["plan", "x", "--tempreature", "1"], 2, "Did you mean --temperature?"),
        (["warmup", "--fast"], 2, "Unknown option: --fast. (see: otmd warmup --help)"),
    ],
)
def test_errors_are_one_line_and_the_code_says_whose(arguments, code, message, capsys):
    assert main(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("otmd: ")
    assert err.count("\n") == 1
    assert message in err
    assert ("--help" in err) == (code == 2)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("torn.npz", b"PK\x03\x04"),
        ("empty.npy", b""),
        ("huge.json", b"[1e999, 0]"),
        ("huge_text.json", b'["1e999999999", 0]'),
        ("twice.json", b'{"target_probs": [1], "target_probs": [1], "draft_probs": [1]}'),
    ],
)
def test_solve_says_which_file_cannot_be_read(tmp_path, capsys, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    alone = name in ("torn.npz", "twice.json")
    assert main(["solve", str(path), *([] if alone else [str(path)])]) == 2
    err = capsys.readouterr().err
    assert name in err
    assert "--debug" not in err


def test_debug_shows_where_an_error_came_from(capsys):
    assert main(["solve", "0.5,0.5", "0.5,0.6", "--debug"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("otmd: draft_probs")


def test_an_error_of_our_own_says_its_kind_without_control_characters(monkeypatch, capsys):
    errors = [KeyError("oh"), ValueError("a field named \x1b[2Jgone")]

    def broken(*_):
        raise errors.pop(0)

    monkeypatch.setattr("otmd.cli.solve.read_problem", broken)
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


def test_collect_and_demo_call_the_harness_as_it_is(fake_models, tmp_path, monkeypatch):
    """The fakes take any arguments; the calls must also fit the real functions."""
    for name, real in ((n, getattr(otmd.models, n)) for n in ("collect", "load_prompts")):
        signature = inspect.signature(REAL[name])

        def checked(*args, signature=signature, real=real, **kwargs):
            signature.bind(*args, **kwargs)
            return real(**signature.bind(*args, **kwargs).arguments)

        monkeypatch.setattr(f"otmd.models.{name}", checked)
    small = ["--quiet", "--positions", "2", "--per-domain", "1"]
    assert main(["collect", str(tmp_path / "data"), *small]) == 0
    demo = ["demo", "--output", str(tmp_path), "--workers", "1", "--num-drafts", "2"]
    assert main([*demo, *small]) == 0
    assert fake_models.collected == 2


def test_measure_prints_the_table_and_where_it_is(results, dump, capsys):
    arguments = ["measure", str(dump), "--output", str(results), "--temperature", "0.6,1"]
    assert main([*arguments, "--num-drafts", "1,2", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "without replacement" in out
    assert "4 prompts" in out
    assert str(results / "results.parquet") in out
    table = pl.read_parquet(results / "results.parquet")
    assert set(table["num_drafts"]) == {1, 2}
    assert set(table["temperature"]) == {0.6, 1.0}


def test_the_command_measures_what_the_function_does_by_default():
    from otmd.cli.measure import DEFAULT_LAWS, DEFAULT_VERIFIERS
    from otmd.cli.options import LAWS, VERIFIERS, read_verifiers

    names = [VERIFIERS[name].class_name for name in DEFAULT_VERIFIERS.split(",")]
    assert names == [rule.__name__ for rule in otmd.study.DEFAULT_VERIFIERS]
    rules = read_verifiers("poisson-coupling,optimal")
    assert rules == [otmd.PoissonCoupling, otmd.Optimal]
    names = [LAWS[name].class_name for name in DEFAULT_LAWS.split(",")]
    assert names == [law.__name__ for law in otmd.study.DEFAULT_LAWS]


def test_measure_in_json_and_its_default_folder(dump, capsys):
    arguments = ["measure", str(dump), "--law", "greedy", "--verifier", "preference"]
    assert main([*arguments, "--num-drafts", "2", "--workers", "1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["groups"]) == 1
    assert answer["groups"][0]["verifier"] == "GreedyCoupling"
    assert answer["groups"][0]["gap"] == pytest.approx(0, abs=1e-12)
    assert answer["results"] == str(dump.with_name("toy-results") / "results.parquet")
    assert Path(answer["results"]).exists()


def test_every_law_is_measured_and_the_first_lines_rank_them(dump, tmp_path, capsys):
    laws = "with-replacement,greedy,top-then,independent"
    arguments = ["measure", str(dump), "--output", str(tmp_path), "--workers", "1", "--quiet"]
    assert main([*arguments, "--law", laws, "--top", "1", "--num-drafts", "2"]) == 0
    table = pl.read_parquet(tmp_path / "results.parquet")
    assert set(table["law"]) == {"WithReplacement", "Greedy", "TopThen", "Independent"}
    out = capsys.readouterr().out
    ranking = out[out.index("all laws, best rate first") :].split("\n\n")[0].splitlines()
    rates = [float(line.split()[-1]) for line in ranking if "  2  " in line]
    assert len(rates) >= 8
    assert rates == sorted(rates, reverse=True)
    assert any(line.split()[:3] == ["with", "replacement", "optimal"] for line in ranking)
    assert out.startswith("T = 1: take 2 ")


def test_report_on_something_else_says_what_it_is_and_never_to_delete_it(dump, tmp_path, capsys):
    (tmp_path / "run.jsonl").write_text("{}")
    os.mkfifo(tmp_path / "pipe")
    empty = tmp_path / "empty.parquet"
    pl.DataFrame(schema=dict.fromkeys(SCHEMA, pl.String)).write_parquet(empty)
    for path, said in (
        (dump, f"is a dump, not results; `otmd measure {dump}`"),
        (tmp_path / "run.jsonl", "`otmd audit"),
        (tmp_path / "pipe", "is no regular file"),
        (empty, "a table of no rows"),
    ):
        assert main(["report", str(path)]) == 1
        err = capsys.readouterr().err
        assert said in err
        assert "delete" not in err
        assert err.count("\n") == 1


def test_report_prints_tables_json_and_figures(results, tmp_path, capsys):
    assert main(["report", str(results)]) == 0
    assert "K-SEQ" in capsys.readouterr().out
    assert main(["report", str(results), "--by-domain"]) == 0
    assert "hub · dump" in capsys.readouterr().out
    png, pdf = tmp_path / "gaps.png", tmp_path / "gaps.pdf"
    figures = ["--figure", str(png), "--figure", str(pdf)]
    assert main(["report", str(results / "results.parquet"), *figures, "--json"]) == 0
    assert "groups" in json.loads(capsys.readouterr().out)
    assert png.exists()
    assert pdf.exists()
    assert main(["report", str(results), "--figure", "gaps.bmp"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "--figure: got gaps.bmp" in err
    files = {name: tmp_path / f"report.{name}" for name in ("html", "markdown", "csv")}
    options = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    assert main(["report", str(results), *options]) == 0
    assert "T = 0.6: take 2 " in files["html"].read_text()
    assert "| verifier |" in files["markdown"].read_text()
    assert "WithReplacement,0.6," in files["csv"].read_text()
    assert not re.search(r"(src|href)\s*=|url\(|@import|https?://", files["html"].read_text())


def test_the_entry_point_in_a_process_of_its_own(results, dump, tmp_path):
    found = run("solve", *THIRDS, "--json")
    assert (found.returncode, found.stderr) == (0, "")
    assert json.loads(found.stdout)["optimal"] == pytest.approx(8 / 9)
    failed = run("measure", str(tmp_path / "nix.npz"))
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert failed.stderr.startswith("otmd: ")
    folder = str(tmp_path / "pool")
    pooled = run("measure", str(dump), "--output", folder, "--workers", "2", "--num-drafts", "2")
    assert pooled.returncode == 0, pooled.stderr
    assert "measuring" in pooled.stderr
    assert Path(folder, "results.parquet").exists()


def test_solve_and_help_load_neither_torch_nor_polars():
    code = (
        "import sys; from otmd.cli import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'polars', 'matplotlib', 'transformers', 'pyarrow'} & set(sys.modules); "
        "sys.exit(code or (f'loaded {heavy}' if heavy else 0))"
    )
    for arguments in (["solve", *THIRDS], ["--help"], ["measure", "--help"]):
        found = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120
        )
        assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_says_what_was_kept(tmp_path, workers):
    """Interrupt a slow run after its first part, the way a terminal does: the whole group."""
    rng = np.random.default_rng(0)
    dump = tmp_path / "dump.npz"
    np.savez(dump, target_logits=rng.normal(size=(64, 4)), draft_logits=rng.normal(size=(64, 4)))
    script = tmp_path / "slow.py"
    script.write_text(
        "import sys, time\n"
        "from otmd.cli import main\n"
        "from otmd.verifiers import TargetOnly\n"
        "original = TargetOnly.acceptance_bounds\n"
        "def slow(self, *a, **k):\n"
        "    time.sleep(0.1)\n"
        "    return original(self, *a, **k)\n"
        "TargetOnly.acceptance_bounds = slow\n"
        "if __name__ == '__main__':\n"
        "    sys.exit(main())\n"
    )
    folder = tmp_path / "results"
    arguments = ["measure", str(dump), "--output", str(folder), "--workers", workers]
    process = subprocess.Popen(
        [sys.executable, str(script), *arguments, "--law", "greedy", "--num-drafts", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not list(folder.glob("parts/part-*.parquet")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    said = re.search(r"otmd: interrupted. (\d+) positions are measured and kept in (\S+);", err)
    assert said, err
    assert said[2] == str(folder)
    assert 8 <= int(said[1]) < 64
    assert int(said[1]) == 8 * len(list(folder.glob("parts/part-*.parquet")))
    assert not alive(process.pid), "worker processes outlived the run"


def alive(group: int) -> bool:
    """Whether a process of this group still runs, once it has had a moment to end."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.05)
    return True


def test_a_reader_that_has_enough_is_no_error(results):
    code = "import sys; from otmd.cli import main; sys.exit(main())"
    reader, writer = os.pipe()
    os.close(reader)
    found = subprocess.run(
        [sys.executable, "-c", code, "report", str(results)],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    os.close(writer)
    assert found.stderr == ""


class FakeModels:
    """Stands in for the models and the prompts, and counts what demo asks of the harness."""

    def __init__(self, dump: Path):
        self.dump = dump
        self.collected = 0
        self.torn = False

    def collect(self, target, draft, prompts, folder, **settings):
        self.collected += 1
        self.torn = False
        Path(folder).mkdir(parents=True, exist_ok=True)
        return open_dataset(self.dump)

    def compare_trees(self, target, draft, prompts, output, **settings):
        rows = [
            {"domain": "code", "prompt_id": prompt, "start": 8, "law": "independent paths"}
            | {"rule": rule, "tokens": tokens + 0.5 * (prompt == "b"), "bound": 4.0}
            for prompt in "ab"
            for rule, tokens in (("K-SEQ, token by token", 2.0), ("layer by layer", 3.0))
        ]
        return pl.DataFrame(rows)

    def open_dataset(self, folder):
        if self.torn:
            raise DatasetError(f"{folder} is torn")
        return open_dataset(self.dump)


@pytest.fixture
def fake_models(dump, monkeypatch) -> FakeModels:
    fake = FakeModels(dump)
    monkeypatch.setattr("otmd.models.collect", fake.collect)
    monkeypatch.setattr("otmd.models.open_dataset", fake.open_dataset)
    monkeypatch.setattr("otmd.models.load_prompts", lambda **_: ["prompt"])
    monkeypatch.setattr("otmd.study.compare_trees", fake.compare_trees)
    return fake


def test_demo_ends_with_a_table_a_parquet_file_and_figures(fake_models, tmp_path, capsys):
    arguments = ["demo", "--output", str(tmp_path), "--workers", "1", "--num-drafts", "1-2"]
    assert main([*arguments, "--quiet"]) == 0
    out = capsys.readouterr().out
    for law in ("with replacement", "without replacement", "greedy", "hub"):
        assert law in out
    for path in ("results/results.parquet", "gaps.png", "gaps.pdf"):
        assert str(tmp_path / path) in out
        assert (tmp_path / path).stat().st_size > 0
    assert "Measured, in" in out
    assert "T = 1: take 2 " in out[out.index("gap = α* − rate") :]
    assert main([*arguments, "--quiet"]) == 0
    assert "Taken from an earlier run (--fresh measures again)" in capsys.readouterr().out
    assert fake_models.collected == 1


def test_demo_in_json_fresh_and_torn(fake_models, tmp_path, capsys):
    arguments = ["demo", "--output", str(tmp_path), "--workers", "1", "--num-drafts", "2", "--json"]
    assert main(arguments) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [row["rule"] for row in answer["trees"]] == ["K-SEQ, token by token", "layer by layer"]
    assert answer["figures"] == [str(tmp_path / "gaps.png"), str(tmp_path / "gaps.pdf")]
    stamp = Path(answer["results"]).stat().st_mtime_ns
    assert main([*arguments, "--fresh"]) == 0
    capsys.readouterr()
    assert Path(answer["results"]).stat().st_mtime_ns > stamp
    assert fake_models.collected == 1
    fake_models.torn = True
    assert main(arguments) == 0
    assert "is torn" in capsys.readouterr().err
    assert fake_models.collected == 2


def test_demo_of_other_sizes_wants_another_folder(fake_models, tmp_path, capsys):
    arguments = ["demo", "--output", str(tmp_path), "--workers", "1", "--num-drafts", "2", "--json"]
    assert main(arguments) == 0
    assert main([*arguments, "--per-domain", "3"]) == 1
    assert "name another" in capsys.readouterr().err
    (tmp_path / "demo.json").write_text("{")
    assert main(arguments) == 1
    assert "demo.json: cannot be read" in capsys.readouterr().err
