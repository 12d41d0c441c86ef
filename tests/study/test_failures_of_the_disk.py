"""Commands that keep results, as a user meets a full disk, a read-only one, a second process, kill -9.

In each case: one line that says what to do, an exit code that is not 0, nothing that was finished is lost or
made again, and the same command continues. A finished folder is only read, and takes no other settings.
"""

import errno
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from models.conftest import WORDS, save_tiny
from toy_dump import write_dump

from otmd.cli import FAILED, OK, main
from otmd.models import open_dataset
from otmd.storage.files import PART
from otmd.study import load_results


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, prompts for it, and a dump."""
    folder = tmp_path_factory.mktemp("made")
    save_tiny(folder / "model")
    texts = [" ".join(WORDS[i : i + 5]) for i in range(10)]
    (folder / "prompts.jsonl").write_text("\n".join(f'{{"text": "{text}"}}' for text in texts))
    write_dump(folder / "short", prompts=20)
    write_dump(folder / "long", prompts=80)
    return folder


def command(name: str, made: Path, folder: Path, length: str = "short") -> list[str]:
    if name == "measure":
        laws = "greedy,stratified,with-replacement"
        options = ["--output", folder, "--law", laws, "--num-drafts", "2", "--workers", "1"]
        return [name, *map(str, [made / length, *options, "--quiet"])]
    models = ["--target", made / "model", "--draft", "skip:1,3", "--device", "cpu"]
    tokens = {"short": 4, "long": 30}[length]
    sizes = ["--prompts", made / "prompts.jsonl", "--positions", "2", "--max-new-tokens", tokens]
    return [name, *map(str, [folder, *models, *sizes, "--batch-size", "1", "--quiet"])]


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    code = main(arguments)
    return code, capsys.readouterr().err


def finished(folder: Path) -> dict[str, bytes]:
    """The files that a run keeps: shards, or parts and the table."""
    kept = [*folder.rglob("*.safetensors"), *folder.rglob("*.parquet")]
    return {path.name: path.read_bytes() for path in kept}


def one_line(said: str, *words: str) -> None:
    assert said.startswith("otmd: ")
    assert said.count("\n") == 1
    for word in words:
        assert word in said


@pytest.mark.parametrize(
    ("name", "number", "advice"),
    [("collect", errno.ENOSPC, "Make room"), ("measure", errno.EROFS, "Choose")],
)
def test_a_disk_that_refuses_halfway(made, tmp_path, monkeypatch, capsys, name, number, advice):
    whole, folder = tmp_path / "whole", tmp_path / "halfway"
    assert run(command(name, made, whole), capsys) == (OK, "")
    written, fsync = [], os.fsync

    def fill(descriptor: int) -> None:
        written.append(1)
        if len(written) > 4:
            raise OSError(number, "refused")
        fsync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fill)
        code, said = run(command(name, made, folder), capsys)
    assert code == FAILED
    one_line(said, advice, str(folder))
    kept = finished(folder)
    # The first file written describes the run.
    assert len(kept) == 3
    assert not list(folder.rglob(f"*{PART}"))
    with pytest.raises(ValueError, match="unfinished"):
        {"collect": open_dataset, "measure": load_results}[name](folder)
    for part, another in pairwise(sorted(folder.rglob("part-*.parquet"))[:2]):
        # Under the name of another, it is made again.
        another.write_bytes(part.read_bytes())
    at = {path: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")}
    assert run(command(name, made, folder), capsys) == (OK, "")
    assert finished(folder) == finished(whole)
    assert at == {path: path.stat().st_mtime_ns for path in at}
    monkeypatch.setattr("otmd.study.runner.compute_parts", None)
    monkeypatch.setattr("otmd.models.LanguageModel.generate", None)
    assert run(command(name, made, folder), capsys) == (OK, "")
    code, said = run([*command(name, made, folder), "--temperature", "0.5"], capsys)
    assert code == FAILED
    one_line(said, "with other settings", "0.5", "--overwrite")


@pytest.mark.parametrize("name", ["collect", "measure"])
@pytest.mark.slow
def test_killed_while_a_second_one_asks(made, tmp_path, capsys, name):
    """The first run is stopped at its first file while the second one starts; then it is killed."""
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    run(command(name, made, whole, "long"), capsys)
    again = command(name, made, folder, "long")
    code = "import sys; from otmd.cli import main; sys.exit(main(sys.argv[1:]))"
    with subprocess.Popen([sys.executable, "-c", code, *again]) as first:
        deadline = time.monotonic() + 120
        while not finished(folder) and first.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        first.send_signal(signal.SIGSTOP)
        kept = finished(folder)
        try:
            failed, said = run(again, capsys)
        finally:
            first.kill()
    assert kept, "it ended before its first file"
    assert kept.keys() != finished(whole).keys(), "it was finished"
    assert failed == FAILED
    one_line(said, f"process {first.pid} on", "Wait for it, or stop it")
    assert finished(folder).items() >= kept.items()
    assert run(again, capsys) == (OK, "")
    assert finished(folder) == finished(whole)
