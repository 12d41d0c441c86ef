"""Experiment and figure scripts, run as a user runs them."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(script: Path, *arguments: object) -> str:
    """What the script prints; it must end well."""
    command = [sys.executable, str(script), *map(str, arguments)]
    # Long enough for a busy machine without a single compiled kernel.
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout
