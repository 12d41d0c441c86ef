"""The experiment behind the table of faults, on few samples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_is_made_and_kept(tmp_path):
    output, parts = tmp_path / "faults.parquet", tmp_path / "parts"
    command = [sys.executable, "-m", "experiments", "audit_faults", "--num-samples", "2000"]
    command += ["--seeds", "2", "--output", str(output), "--parts", str(parts)]
    runs = [
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
        for _ in range(2)
    ]
    for done in runs:
        assert done.returncode == 0, done.stderr
    assert runs[0].stdout == runs[1].stdout
    lines = runs[0].stdout.splitlines()
    assert len(lines) == 2 + 8
    assert "| residual not renormalised | 0.17 | 0.832 / 0.921 | 2 of 2 |" in runs[0].stdout
    assert output.exists()
