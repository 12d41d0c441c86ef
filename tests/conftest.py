"""Settings shared by every test: tests/ is importable, and Hypothesis is the same on every run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numba
import pytest
from hypothesis import HealthCheck, settings

from otmd.kernel import every_kernel_compiled

# For torch, which reads it when it is imported: on small matrices its threads wait for each other far longer
# than they compute.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What is printed is wrapped at the width of the terminal.
os.environ["COLUMNS"] = "80"

sys.path.insert(0, str(Path(__file__).parent))

# Derandomised: a failure on one machine is a failure on all. No deadline: first calls compile.
settings.register_profile(
    "otmd", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("otmd")


@pytest.fixture
def compiled() -> Iterator[None]:
    """Kernels are compiled: as plain Python some take long even for a few tokens."""
    with every_kernel_compiled():
        yield


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the kernels once, on two processors, before the workers of pytest-xdist start."""
    if not getattr(session.config.option, "numprocesses", None) or numba.config.DISABLE_JIT:
        return
    script = Path(__file__).parent / "compile_kernels.py"
    runs = [subprocess.Popen([sys.executable, script, step]) for step in ("1", "-1")]
    failed = [run.wait() for run in runs]
    if any(failed):
        pytest.exit(f"{script.name} failed", returncode=1)
