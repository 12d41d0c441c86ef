"""Settings shared by every test: tests/ is importable, and Hypothesis is the same on every run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

# For torch, which reads it when it is imported: on small matrices its threads wait for each other far longer
# than they compute.
os.environ.setdefault("OMP_NUM_THREADS", "1")

sys.path.insert(0, str(Path(__file__).parent))

# Derandomised: a failure on one machine is a failure on all. No deadline: first calls compile.
settings.register_profile(
    "otmd", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("otmd")
