"""The optimum and every closed-form rate at a vocabulary of 151,936 tokens, in less than 1 GiB."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, pathlib
import numpy as np, otmd
from otmd.verifiers import verifiers_serving

V, n = 151_936, 4
rng = np.random.default_rng(0)
logits = 2.5 * rng.standard_normal(V)
q = otmd.probs_from_logits(logits)
p = otmd.probs_from_logits(logits + 0.7 * rng.standard_normal(V))
rates = {}
for law in (
    otmd.WithReplacement(q, n), otmd.WithoutReplacement(q, n), otmd.ConditionalPoisson(q, n),
    otmd.Greedy(q, n), otmd.TopThen(q, n, top=2), otmd.Hub(q), otmd.WithReplacement(q, 1),
):
    best = otmd.optimal_acceptance(p, law)
    name = f"{type(law).__name__} {law.num_drafts}"
    cut = 1 + p[best.subset].sum() - law.containment(best.subset)
    rates[name] = {"optimal": best.rate, "cut": cut}
    for rule in verifiers_serving(law):
        low, high = rule.acceptance_bounds(p, law, tol=1e-3)
        rates[name][type(rule).__name__] = 0.5 * (low + high)
# Of this process alone: what getrusage says includes the parent it was forked from.
status = pathlib.Path("/proc/self/status").read_text()
peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
print(json.dumps({"peak_kib": int(peak), "rates": rates}))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_rates_and_memory() -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=600
    )
    answer = json.loads(run.stdout)
    assert answer["peak_kib"] < 1024**2
    assert len(answer["rates"]) == 7
    for law, rates in answer["rates"].items():
        best, cut = rates["optimal"], rates["cut"]
        assert abs(cut - best) < 1e-10, law
        assert 0.5 < best < 1, law
        assert len(rates) >= 3, law
        for rule, rate in rates.items():
            assert 0 < rate <= best + 1e-3, (law, rule)
    for law, rule in (("Hub 2", "SpecHub"), ("Greedy 4", "Preference")):
        assert abs(answer["rates"][law][rule] - answer["rates"][law]["optimal"]) < 1e-12
    drawn_again = answer["rates"]["WithReplacement 4"]
    assert drawn_again["KSequential"] > drawn_again["RecursiveRejection"]
