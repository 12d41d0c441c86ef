"""Settings shared by every test: tests/ is importable, and Hypothesis is the same on every run."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

# Derandomised: a failure on one machine is a failure on all. No deadline: first calls compile.
settings.register_profile(
    "otmd", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("otmd")
