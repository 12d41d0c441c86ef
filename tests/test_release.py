"""The release, built and installed: the sdist, the wheel made from it, and a first answer from that."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from test_project import code_blocks

import otmd

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow
COMPILED = {".pyc", ".nbi", ".nbc"}
FIRST_ANSWER = """
import otmd, otmd.verifiers
print(otmd.__file__, otmd.__version__)
law = otmd.WithReplacement([0.5, 0.25, 0.25], num_drafts=2)
print(float(otmd.optimal_acceptance([0.25, 0.25, 0.5], law).rate))
"""


def build(kind: str, project: Path, output: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(output)]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    return next(output.glob("*.tar.gz" if kind == "sdist" else "*.whl"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the sdist."""
    folder = tmp_path_factory.mktemp("release")
    with tarfile.open(build("sdist", ROOT, folder)) as sdist:
        sdist.extractall(folder / "source", filter="data")
    return build("wheel", next((folder / "source").iterdir()), folder)


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    own = {name for name in names if name.startswith("otmd/")}
    described = {name for name in names if ".dist-info/" in name}
    assert own | described == set(names)
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "otmd").rglob("*")
        if path.is_file() and path.suffix not in COMPILED
    }
    assert own == sources
    assert {"otmd/py.typed", "otmd/__init__.pyi"} <= own


def test_the_installed_wheel_answers(wheel, tmp_path):
    place = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, "--target", str(place), str(wheel)], check=True)
    where = os.environ | {"PYTHONPATH": str(place)}
    run = [sys.executable, "-c", FIRST_ANSWER]
    told = subprocess.run(run, cwd=tmp_path, env=where, check=True, capture_output=True, text=True)
    home, version, rate = told.stdout.split()
    assert Path(home).parent == place / "otmd"
    assert version == otmd.__version__
    assert float(rate) == pytest.approx(0.9375)
    command = [str(place / "bin" / "otmd"), "--version"]
    told = subprocess.run(command, cwd=tmp_path, env=where, check=True, capture_output=True, text=True)
    assert told.stdout.strip().endswith(version)


def test_the_example_of_the_readme_needs_the_wheel_alone(wheel, tmp_path):
    """In a fresh environment: the wheel, and what it requires from the package index."""
    venv.create(tmp_path / "fresh", with_pip=True)
    python = tmp_path / "fresh" / "bin" / "python"
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], env=alone, check=True)
    _, _, example = code_blocks((ROOT / "README.md").read_text())[0]
    assert "otmd.compare" in example
    subprocess.run([python, "-c", example], cwd=tmp_path, env=alone, check=True)
